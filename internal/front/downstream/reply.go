package downstream

import (
	"bytes"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/push"
)

// A bufferedReply is a reply that is collected to be validated before the client gets
// any of it.
type bufferedReply struct {
	*reply
	res  http1.Response // its slices are copies
	body []byte
}

// validates reports whether a reply is to be validated. Events are not: they would not
// come before the last one.
func (r *forwarding) validates(res *http1.Response) bool {
	return r.checked != nil && r.checked.by.Responses() && !bytes.HasPrefix(bytes.ToLower(res.Get("Content-Type")), []byte("text/event-stream"))
}

func newHeldReply(r *reply, res *http1.Response) *bufferedReply {
	held := *res
	held.Reason = nil
	held.Fields = make([]http1.Field, len(res.Fields))
	for i, f := range res.Fields {
		held.Fields[i] = http1.Field{Name: bytes.Clone(f.Name), Value: bytes.Clone(f.Value)}
	}
	return &bufferedReply{reply: r, res: held}
}

// keep keeps a piece of the body. A reply that is longer than what is validated
// goes out as it is: then it returns false, and what was kept is written.
func (p *bufferedReply) keep(b []byte) bool {
	r := p.reply
	if int64(len(p.body)+len(b)) <= r.checked.by.MaxBody() {
		p.body = append(p.body, b...)
		return true
	}
	r.collected, r.checked = nil, nil
	x := r.h.x
	sendHead(r, &p.res)
	if len(p.body) > 0 && !r.c.Closing() {
		r.sent -= int64(len(p.body)) // counted when it came
		r.Body(x, p.body)
	}
	return false
}

// validate validates the whole reply off the loop, and answers.
func (p *bufferedReply) validate() {
	r := p.reply
	srv, v := r.h.loopState.srv, r.checked
	r.h.state = answering
	srv.working.Go(func() {
		err := v.by.Response(srv.ctx, v.method, v.path, v.query, v.header, p.res.Status, headerOf(p.res.Fields), p.body)
		r.c.Loop().Post(func() {
			if !r.c.Closing() {
				p.validated(err)
			}
		})
	})
}

func (p *bufferedReply) validated(err error) {
	r := p.reply
	h, c, loopState := r.h, r.c, r.h.loopState
	h.unwait()
	r.collected, r.sent = nil, int64(len(p.body))
	if err != nil {
		loopState.srv.log.Warn("a backend's reply does not hold to the route's document", "route", r.policy.Route.Name(), "upstream", r.upstream, "err", err)
		r.fail(&push.APIError{Status: http.StatusBadGateway, Message: "the backend's answer is not what it should be"})
		return
	}
	if loopState.srv.push.Draining() {
		r.keepAlive = false
	}
	f := policy.Framing{Length: int64(len(p.body)), Close: !r.keepAlive, KeepAlive: r.keepAlive && r.minor == 0, Date: loopState.dateLine(c.Loop())}
	if p.res.Body == http1.BodyNone {
		f.Length = -1
		if p.res.Status != http.StatusNoContent {
			f.Length = p.res.ContentLength
		}
	}
	r.status = p.res.Status
	r.writeHead(&p.res, f)
	c.Write(p.body)
	keepAlive := r.keepAlive
	r.release()
	h.next(c, keepAlive)
}
