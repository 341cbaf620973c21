package push

import (
	"bytes"
	"net/http"
	"sync/atomic"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/wire"
)

// An APIError is an answer to an API call that is not a success.
type APIError = wire.Error

// A Call is one parsed API call.
type Call = wire.Call

// MaxBody bounds the body of an API call.
const MaxBody = wire.MaxBody

// ParsePublish reads the body of /api/publish. The result shares nothing with body.
func (p *Push) ParsePublish(body []byte) (*Call, *APIError) { return wire.ParsePublish(p.hub, body) }

// ParseBroadcast reads the body of /api/broadcast.
func (p *Push) ParseBroadcast(body []byte) (*Call, *APIError) { return wire.ParseBroadcast(body) }

// ErrorOf says in HTTP what the hub or the broker refused.
func ErrorOf(err error) *APIError { return wire.ErrorOf(err) }

// AppendError appends the JSON of an error answer.
func AppendError(b []byte, e *APIError) []byte { return wire.AppendError(b, e) }

// Publish runs call for who and answers once, on c's loop: before it returns
// when the broker answers at once, else later. c may be closed by then. The
// answer's bytes are valid until answer returns.
func (p *Push) Publish(c *eventloop.Conn, call *Call, who *auth.Identity, answer func(status int, body []byte)) {
	if call.Broadcast {
		p.broadcast(c, call, who, answer)
		return
	}
	if bad := wire.MayPublish(who, call.Channels[0]); bad != nil {
		p.counters.publishErrors.Add(1)
		answer(bad.Status, wire.AppendError(nil, bad))
		return
	}
	x := &publication{push: p, conn: c, channel: call.Channels[0], answered: func(x *publication) {
		lane := p.Lane(c)
		lane.answer = x.append(lane.answer[:0])
		if x.bad != nil {
			answer(x.bad.Status, lane.answer)
			return
		}
		answer(http.StatusOK, lane.answer)
	}}
	x.publish(call.For(0))
}

// publication is one call of the hub under way.
type publication struct {
	push     *Push
	conn     *eventloop.Conn
	channel  string
	answered func(*publication) // called once, on the connection's loop

	state  atomic.Uint32 // who is first: the broker's answer, or Publish's return
	pos    hub.Position
	failed error
	bad    *APIError // what failed means for the client
}

// States of a publication.
const (
	publishing uint32 = iota
	answered
	returned
)

// publish hands pub to the hub.
func (x *publication) publish(pub hub.Publication) {
	x.push.hub.Publish(pub, x.done)
	if !x.state.CompareAndSwap(publishing, returned) {
		x.tell()
	}
}

// done is what the broker calls, from any goroutine.
func (x *publication) done(at hub.Position, err error) {
	x.pos, x.failed = at, err
	if !x.state.CompareAndSwap(publishing, answered) {
		x.conn.Loop().Post(x.tell)
	}
}

// tell counts the outcome and passes it on.
func (x *publication) tell() {
	p := x.push
	if x.failed == nil {
		p.counters.published.Add(1)
		x.answered(x)
		return
	}
	if x.bad = wire.ErrorOf(x.failed); x.bad.Status == http.StatusInternalServerError {
		p.log.Warn("publish", "channel", x.channel, "err", x.failed)
	}
	x.refused(x.bad)
}

// refused is tell for a publication that was not let through.
func (x *publication) refused(bad *APIError) {
	x.bad = bad
	x.push.counters.publishErrors.Add(1)
	x.answered(x)
}

// append appends the JSON of the outcome.
func (x *publication) append(b []byte) []byte {
	if x.bad != nil {
		return wire.AppendError(b, x.bad)
	}
	return wire.AppendResult(b, x.pos)
}

// broadcast publishes to the channels in order and answers when all have answered.
func (p *Push) broadcast(c *eventloop.Conn, call *Call, who *auth.Identity, answer func(int, []byte)) {
	all := make([]publication, len(call.Channels))
	left := len(all)
	one := func(*publication) {
		if left--; left > 0 {
			return
		}
		lane := p.Lane(c)
		b := append(lane.answer[:0], `{"result":{"responses":[`...)
		for i := range all {
			if i > 0 {
				b = append(b, ',')
			}
			b = bytes.TrimSuffix(all[i].append(b), []byte("\n"))
		}
		b = append(b, "]}}\n"...)
		if lane.answer = b; cap(b) > 64<<10 {
			lane.answer = nil
		}
		answer(http.StatusOK, b)
	}
	for i, ch := range call.Channels {
		x := &all[i]
		x.push, x.conn, x.channel, x.answered = p, c, ch, one
		if bad := wire.MayPublish(who, ch); bad != nil {
			x.refused(bad)
			continue
		}
		x.publish(call.For(i))
	}
}
