package downstream

import (
	"bytes"
	"context"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/push"
)

// decideAside obtains a decision on a goroutine of the server's and continues on the loop,
// unless the client has gone. own has the client's end cancel it.
func (r *request) decideAside(q authz.Query, own bool, then func(*authz.Decision)) {
	srv, c, ctx, cancel := r.h.loopState.srv, r.c, r.h.loopState.srv.ctx, context.CancelFunc(nil)
	if own {
		ctx, cancel = context.WithCancel(srv.ctx)
		r.h.cancel = cancel
	}
	h := r.h
	srv.working.Go(func() {
		d := q.Do(ctx)
		if cancel != nil {
			cancel()
		}
		c.Loop().Post(func() {
			h.cancel = nil
			if !c.Closing() {
				then(d)
			}
		})
	})
}

// An eventQuery has extensions decide on events, one after the other. The decision is the first
// that refuses; of several it has the identity.
type eventQuery struct {
	all  *extension.Extensions
	list []*extension.Event
}

// Do implements authz.Query.
func (q *eventQuery) Do(ctx context.Context) *authz.Decision {
	if len(q.list) == 1 {
		return q.all.Decide(ctx, q.list[0])
	}
	d := &authz.Decision{Admit: true, Extension: true}
	for _, e := range q.list {
		if d.Identity != nil {
			e.User = d.Identity.Subject
		}
		next := q.all.Decide(ctx, e)
		if !next.Admit {
			return next
		}
		if next.Identity != nil {
			d.Identity = next.Identity
		}
	}
	return d
}

// clientEvent describes r, which opens a stream, to extensions. Its head must be there.
func (r *request) clientEvent(k extension.Kind, protocol uint8, id *auth.Identity, channels []string) *extension.Event {
	e := &extension.Event{
		Kind: k, Protocol: r.h.loopState.srv.push.ProtocolName(protocol), Connection: r.c.ID(), Client: r.c.Peer().Addr(), Method: r.method, Scheme: "http",
		Host: string(r.head.Host), Path: string(r.head.Path), Headers: policy.EventHeaders(r.head.Fields), Channels: channels,
	}
	if client := r.client(); client.IsValid() {
		e.Client = client
	}
	if r.c.Filtered() {
		e.Scheme = "https"
	}
	if r.head.Query != nil {
		e.Path += "?" + string(r.head.Query)
	}
	if id != nil {
		e.User = id.Subject
	}
	return e
}

// clientEvents are the events of a client that opens a stream; channels are those that it
// subscribes to with it, if any. nil: no extension is called.
func (r *request) clientEvents(protocol uint8, id *auth.Identity, channels []string) *eventQuery {
	q := &eventQuery{all: r.h.loopState.srv.push.Extensions()}
	if q.all.Handles(extension.Connect) {
		q.list = append(q.list, r.clientEvent(extension.Connect, protocol, id, nil))
	}
	if len(channels) > 0 && q.all.Handles(extension.Subscribe, channels...) {
		q.list = append(q.list, r.clientEvent(extension.Subscribe, protocol, id, channels))
	}
	if len(q.list) == 0 {
		return nil
	}
	return q
}

// answerRefusal answers with d, which refuses.
func (r *request) answerRefusal(d *authz.Decision) {
	r.h.loopState.counters.refused.Add(1)
	r.reason = d.Message
	contentType, body := d.ContentType, d.Body
	if body == nil {
		contentType, body = "application/json", push.AppendError(nil, &push.APIError{Status: d.Status, Message: d.Message})
	}
	r.answerWith(d.Status, contentType, body, answerFields, append(r.fields(), d.Fields...))
}

// decideClient has extensions decide on a client of Weir's own endpoints. q is of clientEvents, made
// while the head was there; nil continues at once.
func decideClient(r *builtin, q *eventQuery, id *auth.Identity, then func(*auth.Identity)) {
	if q == nil {
		then(id)
		return
	}
	for _, e := range q.list {
		e.User = id.Subject
	}
	r.h.pending = r.request
	r.h.wait(r.c)
	r.decideAside(q, true, func(d *authz.Decision) {
		r.h.unwait()
		r.h.pending = nil
		switch {
		case !d.Admit:
			r.answerRefusal(d)
		case d.Identity != nil:
			if err := r.h.loopState.srv.auth.Revoked().Refuse(d.Identity); err != nil {
				r.fail(tokenError(err))
				return
			}
			then(d.Identity)
		default:
			then(id)
		}
	})
}

// An extendedReply is a reply whose head extensions decide on. What comes of its body meanwhile
// is kept: the backend is throttled after the first piece.
type extendedReply struct {
	*reply
	res     http1.Response // its slices are copies
	body    []byte
	ended   bool
	trailer []byte
}

// extends has extensions decide on res, and reports whether some do.
func extends(r *reply, res *http1.Response) bool {
	e := r.policy.Route.ResponseEvent(&r.policy, res.Status, res.Fields)
	if e == nil {
		return false
	}
	p := &extendedReply{reply: r, res: newHeldReply(r, res).res}
	r.extended = p
	seq := r.seq
	q := &eventQuery{all: r.policy.Route.Extensions(), list: []*extension.Event{e}}
	r.decideAside(q, true, func(d *authz.Decision) {
		if r.seq == seq && r.extended == p {
			r.extended = nil
			p.decided(d)
		}
	})
	return true
}

// end keeps the end of the body.
func (p *extendedReply) end(trailer []byte) { p.ended, p.trailer = true, bytes.Clone(trailer) }

// decided continues with the reply, or answers in its place.
func (p *extendedReply) decided(d *authz.Decision) {
	r, h := p.reply, p.h
	if !d.Admit {
		if h.x != nil {
			h.abandon()
		}
		r.answerRefusal(d)
		return
	}
	r.policy.Responded(d)
	seq, c := r.seq, r.c
	sendHead(r, &p.res)
	full := false
	if r.seq == seq && !c.Closing() && len(p.body) > 0 {
		full = r.Body(nil, p.body)
	}
	switch {
	case r.seq != seq || c.Closing():
	case p.ended:
		r.End(nil, p.trailer)
	case h.x != nil && !full:
		h.x.Resume()
	}
}
