package push

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// Extensions decide on clients and messages; nil: there are none.
func (p *Push) Extensions() *extension.Extensions { return p.extensions }

// deciding are the calls of extensions for the subscriptions of a transport.
type deciding struct {
	ctx    context.Context // ends with the client
	cancel context.CancelFunc
	subs   []*undecided
}

// undecided is a subscription that extensions decide on.
type undecided struct{ sub *hub.Subscriber }

// decideSubscription has extensions decide on a subscription that was linked, and starts it if
// they allow it. sink gets a refusal by Failed.
func decideSubscription(t *transport, s *hub.Subscriber, sink, linked hub.Sink, opt hub.SubscribeOptions) error {
	all := t.loopState().push.extensions
	e := clientEvent(t, extension.Subscribe, opt.Channels)
	if d := all.Cached(e); d != nil {
		if !d.Admit {
			t.unlink(s)
			return refusalOf(d)
		}
		return subscribe(t, s, linked, opt)
	}
	x := t.ensureMore()
	if x.deciding == nil {
		x.deciding = &deciding{}
		x.deciding.ctx, x.deciding.cancel = context.WithCancel(context.Background())
	}
	u, ctx := &undecided{s}, x.deciding.ctx
	x.deciding.subs = append(x.deciding.subs, u)
	var d *authz.Decision
	if t.Do(func(context.Context) { d = all.Decide(ctx, e) }, func() { decided(t, u, d, sink, linked, opt) }) {
		return nil
	}
	forget(t, s)
	t.unlink(s)
	return hub.ErrOverloaded
}

// decided continues with a subscription, unless it has ended meanwhile.
func decided(t *transport, u *undecided, d *authz.Decision, sink, linked hub.Sink, opt hub.SubscribeOptions) {
	x := t.more
	if x == nil || x.deciding == nil || !slices.Contains(x.deciding.subs, u) {
		return
	}
	forget(t, u.sub)
	var err error
	if d.Admit {
		err = subscribe(t, u.sub, linked, opt)
	} else {
		t.unlink(u.sub)
		err = refusalOf(d)
	}
	if err != nil {
		sink.Failed(err)
	}
}

// forget notes that no decision on s is waited for any more, and reports whether one was.
func forget(t *transport, s *hub.Subscriber) bool {
	if t.more == nil || t.more.deciding == nil {
		return false
	}
	x := t.more.deciding
	n := len(x.subs)
	x.subs = slices.DeleteFunc(x.subs, func(u *undecided) bool { return u.sub == s })
	was := len(x.subs) < n
	if len(x.subs) == 0 {
		stopDeciding(t)
		t.tidy()
	}
	return was
}

// stopDeciding ends the calls under way.
func stopDeciding(t *transport) {
	if t.more != nil && t.more.deciding != nil {
		t.more.deciding.cancel()
		t.more.deciding = nil
	}
}

// clientEvent describes the client of t to extensions.
func clientEvent(t *transport, k extension.Kind, channels []string) *extension.Event {
	return t.loopState().push.event(k, t.conn, t.protocol, subjectOf(t), slices.Clone(channels))
}

// event describes a client on c.
func (p *Push) event(k extension.Kind, c *eventloop.Conn, protocol uint8, user string, channels []string) *extension.Event {
	return &extension.Event{Kind: k, Protocol: p.ProtocolName(protocol), Connection: c.ID(), Client: c.Peer().Addr(), User: user, Channels: channels}
}

// disconnected notifies extensions of a client that has left. Streams that a backend holds or
// has recorded never connected as clients.
func (p *Push) disconnected(c *eventloop.Conn, protocol uint8, user string) {
	switch c.Handler().(type) {
	case *heldSession, *recordedSession:
		return
	}
	if p.extensions.Handles(extension.Disconnect) {
		p.extensions.Notify(p.event(extension.Disconnect, c, protocol, user, nil))
	}
}

// user is the subject of a session of Weir's own.
func (s *session) user() string {
	if id := s.identity(); id != nil {
		return id.Subject
	}
	return ""
}

// refusalOf is d, which refuses, as an error.
func refusalOf(d *authz.Decision) error { return &wire.Error{Status: d.Status, Message: d.Message} }

// errNotDecided answers a publication for which there is too much at work.
var errNotDecided = &APIError{Status: http.StatusServiceUnavailable, Message: "overloaded, try again later", Hint: "nothing was stored"}

// decidePublication has extensions decide on a message and continues on c's loop, at once if no
// call is needed. A publication is not cancelled when its client leaves.
func (p *Push) decidePublication(c *eventloop.Conn, e *extension.Event, pub *hub.Publication, then func(error)) {
	settle := func(d *authz.Decision) error {
		if !d.Admit {
			return refusalOf(d)
		}
		return ReplaceData(pub, d.Data)
	}
	e.Data = pub.Data
	if d := p.extensions.Cached(e); d != nil {
		then(settle(d))
		return
	}
	var d *authz.Decision
	if !p.workers.Do(func(ctx context.Context) { d = p.extensions.Decide(ctx, e) }, func() { c.Loop().Post(func() { then(settle(d)) }) }) {
		then(errNotDecided)
	}
}

// ReplaceData makes data, an extension's, the message of pub, if there is some; it must be of the
// same kind.
func ReplaceData(pub *hub.Publication, data []byte) error {
	if data == nil {
		return nil
	}
	payload := hub.JSON
	if pub.Attributes != nil {
		payload = pub.Attributes.Payload
	}
	if payload == hub.JSON && !json.Valid(data) || payload == hub.Text && !utf8.Valid(data) {
		return &wire.Error{Status: http.StatusBadGateway, Message: "an extension replaced the message with data that is not valid for it"}
	}
	pub.Data = data
	return nil
}

// publishFor is PublishFor or, with topics, PublishTopicsFor.
func (p *Push) publishFor(c *eventloop.Conn, topics []string, pub hub.Publication, done func(hub.Position, error)) {
	channels := topics
	if topics == nil {
		channels = []string{pub.Channel}
	}
	if !p.extensions.Handles(extension.Publish, channels...) {
		p.publishDecided(c, topics, pub, done)
		return
	}
	e := p.event(extension.Publish, c, 0, "", slices.Clone(channels))
	if t, ok := c.Handler().(*transport); ok {
		e = clientEvent(t, extension.Publish, channels)
	}
	p.decidePublication(c, e, &pub, func(err error) {
		if err != nil {
			p.counters.publishErrors.Add(1)
			done(hub.Position{}, err)
			return
		}
		p.publishDecided(c, topics, pub, done)
	})
}

// Publish runs call for who and answers once, on c's loop: before it returns
// when the broker answers at once, else later. c may be closed by then. The
// answer's bytes are valid until answer returns.
func (p *Push) Publish(c *eventloop.Conn, call *Call, who *auth.Identity, answer func(status int, body []byte)) {
	if !call.Broadcast {
		if bad := p.access.MayPublish(who, call.Channels[0]); bad != nil {
			p.refusePublish(bad, answer)
			return
		}
	}
	if !p.extensions.Handles(extension.Publish, call.Channels...) {
		p.publishCall(c, call, who, answer)
		return
	}
	e := p.event(extension.Publish, c, 0, who.Subject, slices.Clone(call.Channels))
	p.decidePublication(c, e, &call.Publication, func(err error) {
		if err != nil {
			p.refusePublish(wire.ErrorOf(err), answer)
			return
		}
		p.publishCall(c, call, who, answer)
	})
}

func (p *Push) refusePublish(bad *APIError, answer func(int, []byte)) {
	p.counters.publishErrors.Add(1)
	answer(bad.Status, wire.AppendError(nil, bad))
}
