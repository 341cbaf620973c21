package push

import (
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// drain is one that has started.
type drain struct {
	plan wire.DrainPlan
	at   time.Time
}

// Draining reports whether Drain was called. Any goroutine.
func (r *refusals) Draining() bool { return r.draining.Load() != nil }

// Drain refuses new subscriptions and closes those there are, as plan says. Any
// goroutine; it returns at once, and only the first call counts.
func (p *Push) Drain(plan wire.DrainPlan) {
	if !p.draining.CompareAndSwap(nil, &drain{plan, time.Now()}) {
		return
	}
	for _, loopState := range p.loopStates {
		loopState.loop.Post(func() { loopState.drain(plan.Over) })
	}
}

// Leave makes Ready report the drain that follows. Clients are served as before.
func (r *refusals) Leave() { r.leaving.Store(true) }

// EndRefused closes the WebSockets that were refused and are still open: the process
// ends. Any goroutine.
func (all loopStates) EndRefused() {
	for _, loopState := range all {
		loopState.loop.Post(func() {
			loopState.loop.Conns(func(c *eventloop.Conn) bool {
				if r, ok := c.Handler().(*refusedSocket); ok {
					r.end(c)
				}
				return true
			})
		})
	}
}

// drainer is a handler that can send its client away.
type drainer interface{ drain(c *eventloop.Conn) }

// drain gives every subscriber its own time within over.
func (l *LoopState) drain(over time.Duration) {
	l.drainEnd = l.loop.Now() + max(int64(over), 1)
	l.loop.Conns(func(c *eventloop.Conn) bool {
		switch d, ok := c.Handler().(drainer); {
		case !ok || c.Closing():
		case over <= 0:
			d.drain(c)
		default:
			if t, ok := d.(*transport); ok {
				t.drainWithin()
			} else {
				c.SetTimer(rand.Int64N(int64(over)) + 1)
			}
		}
		return true
	})
}

// reconnect is how long a client should wait that is closed or refused with code.
func (r *refusals) reconnect(code int, refused bool) time.Duration {
	if d := r.draining.Load(); d != nil && code == codeRestart {
		return d.plan.Reconnect(time.Since(d.at), refused)
	}
	// There is too little of something here: spread wider than retryMillis, for many
	// are closed together.
	base := r.retry
	return base/2 + rand.N(4*base+1)
}

func (r *refusals) countRejected(code int) {
	if code == codeRestart {
		r.count.refusedDrain.Add(1)
	} else {
		r.count.overloaded.Add(1)
	}
}

// A refusedSocket is a WebSocket whose client is to come back later. Its handshake is
// completed, and it is closed after the time that the client should wait: most clients
// retry at once, or ever more slowly, after a handshake that fails, and some give up.
type refusedSocket struct {
	loopState *LoopState
	code      int
	reason    string
	ended     bool
}

const (
	// leastHeld and mostHeld bound how long a refused WebSocket is open.
	leastHeld = 200 * time.Millisecond
	mostHeld  = 2 * time.Second
	// maxHeldDrain and maxHeldBusy bound the refused WebSockets that are open, by loop;
	// those past it are closed at once. While there is too little of something, a
	// connection that waits is a part of that.
	maxHeldDrain = 2048
	maxHeldBusy  = 64
)

// refuseSocketAs completes a handshake, whose answer is head, and closes the WebSocket
// at once with the code of a protocol that has a wait in it.
func (r *refusals) refuseSocketAs(c *eventloop.Conn, head []byte, why, code int, reason string) {
	r.countRejected(why)
	c.Write(websocket.AppendClose(head, uint16(code), reason))
	c.SetTimer(sessionPartingTime)
	c.CloseAfterFlush()
}

// refuseSocket completes a handshake, whose answer is head, for a client that is to
// come back later.
func (r *refusals) refuseSocket(c *eventloop.Conn, head []byte, code int, reason string) {
	l := c.Loop().Local.(*LoopState)
	bound := maxHeldBusy
	switch {
	case r.Draining():
		bound = maxHeldDrain
	case r.full(0):
		bound = 0 // it would take the place of a client that is served
	}
	if l.refused >= bound {
		r.refuseSocketAs(c, head, code, code, reason)
		return
	}
	r.countRejected(code)
	l.refused++
	c.Write(head)
	c.SetHandler(&refusedSocket{loopState: l, code: code, reason: reason})
	c.SetTimer(int64(min(max(r.reconnect(code, true), leastHeld), mostHeld)))
}

// Data implements eventloop.Handler.
func (r *refusedSocket) Data(_ *eventloop.Conn, b []byte) int { return len(b) }

// EndOfStream implements eventloop.Handler.
func (r *refusedSocket) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (r *refusedSocket) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler.
func (r *refusedSocket) Timer(c *eventloop.Conn, _ int64) {
	if r.ended {
		c.Close(eventloop.ErrStalled)
		return
	}
	r.end(c)
}

// Closed implements eventloop.Handler.
func (r *refusedSocket) Closed(*eventloop.Conn, error) { r.loopState.refused-- }

func (r *refusedSocket) end(c *eventloop.Conn) {
	if r.ended || c.Closing() {
		return
	}
	r.ended = true
	c.Write(websocket.AppendClose(nil, uint16(r.code), r.reason))
	c.SetTimer(sessionPartingTime)
	c.CloseAfterFlush()
}

// appendHandshake is the answer to a handshake with further header lines.
func appendHandshake(b, key []byte, extensions, subprotocol string, fields []byte) []byte {
	b = websocket.AppendHandshakeResponse(b, key, extensions, subprotocol)
	if len(fields) > 0 {
		b = append(b[:len(b)-2], fields...)
		b = append(b, "\r\n"...)
	}
	return b
}

// refuse answers a request that cannot be served now.
func (r *refusals) refuse(c *eventloop.Conn, fields []byte, code int, reason string) {
	r.countRejected(code)
	e := &APIError{Status: http.StatusServiceUnavailable, Message: reason, Hint: "connect again after Retry-After seconds"}
	if code == codeInternal {
		e = &APIError{Status: http.StatusInternalServerError, Message: reason}
	}
	body := AppendError(nil, e)
	b := http1.AppendStatusLine(nil, e.Status)
	b = http1.AppendDate(b, time.Now())
	b = http1.AppendField(b, "Content-Type", "application/json")
	b = http1.AppendIntField(b, "Content-Length", int64(len(body)))
	b = http1.AppendIntField(b, "Retry-After", r.retryAfter(code))
	b = append(b, "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"...)
	b = append(b, fields...)
	c.Write(append(http1.AppendEnd(b), body...))
	c.CloseAfterFlush()
}

// retryAfter is what the field of that name says, in seconds.
func (r *refusals) retryAfter(code int) int64 {
	if code == codeRestart {
		return int64(max(r.reconnect(code, true).Round(time.Second)/time.Second, 1))
	}
	return RetryAfter()
}
