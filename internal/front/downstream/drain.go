package downstream

import (
	"bytes"
	"math/rand/v2"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/sse"
)

// Drain ends the event streams of backends that clients follow through routes, as plan
// says: behind an event, as if the backend had ended them, with the time after which
// the client is to reconnect. Other replies come to their own end. Any goroutine; it
// returns at once.
func (s *Server) Drain(loops []*eventloop.Loop, plan wire.DrainPlan) {
	at := time.Now()
	for _, l := range loops {
		loopState := s.loopStates[l.ID()]
		l.Post(func() {
			if loopState.drainEnd != 0 {
				return
			}
			loopState.drainEnd = l.Now() + max(int64(plan.Over), 1)
			loopState.drainPlan, loopState.drainAt = plan, at
			l.Conns(func(c *eventloop.Conn) bool {
				if h, ok := c.Handler().(*conn); ok && h.pending != nil && h.pending.forwarding.reply.events != nil && !c.Closing() {
					h.pending.forwarding.reply.events.leaveWithin()
				}
				return true
			})
		})
	}
}

// events is what is known of an event stream that is forwarded.
type events struct {
	*reply
	last    [3]byte // the last bytes of the body, the newest last
	leaveAt int64   // when it ends by itself; 0: not
	leaving bool    // it is time, behind the event on its way
	coded   bool    // the body has a content coding: nothing can be added
}

// followEvents starts to follow a reply if it is an event stream of no known end.
func followEvents(r *reply, res *http1.Response) {
	kind, _, _ := bytes.Cut(res.Get("Content-Type"), semicolon)
	if r.collected != nil || r.stream != nil || !http1.EqualFold(bytes.TrimSpace(kind), "text/event-stream") {
		return
	}
	r.h.loopState.streams.Add(1)
	r.events = &events{reply: r, coded: len(res.Get("Content-Encoding")) > 0, last: [3]byte{'\n', '\n', '\n'}}
	if h := r.h; h.waiting && !h.late { // it has no end to wait for
		h.late = true
		h.loopState.late.Add(1)
	}
	if r.h.loopState.drainEnd > 0 {
		r.events.leaveWithin()
	}
}

// leaveWithin gives the stream a random deadline in what is left of the drain.
func (e *events) leaveWithin() {
	h, now := e.h, e.c.Loop().Now()
	e.leaveAt = now + 1 + rand.Int64N(max(h.loopState.drainEnd-now, 1))
	if h.state == answering {
		e.c.SetTimer(max(e.leaveAt-now, 1))
	}
}

// leaves ends the stream, which may be nil, if it is time. It reports whether the timer was the stream's.
func (e *events) leaves(now int64) bool {
	if e == nil || e.leaveAt == 0 || e.h.state != answering || e.h.x == nil && e.batching == nil {
		return false
	}
	switch {
	case now < e.leaveAt:
		e.c.SetTimer(e.leaveAt - now)
	case e.between() || now >= e.h.loopState.drainEnd:
		e.end()
	default:
		e.leaving = true
		e.c.SetTimer(e.h.loopState.drainEnd - now)
	}
	return true
}

// between reports whether no event is on its way: the last line was empty.
func (e *events) between() bool {
	a, b, c := e.last[0], e.last[1], e.last[2]
	return c == '\n' && (b == '\n' || b == '\r' && a == '\n') || c == '\r' && b == '\r'
}

// advance notes what goes out. Once it is time it returns how much of b still goes, up to
// the last end of an event, and that the stream ends there.
func (e *events) advance(b []byte) (n int, ends bool) {
	if e.leaving {
		for _, blank := range [...]string{"\n\n", "\n\r\n", "\r\r"} {
			if i := bytes.LastIndex(b, []byte(blank)); i >= 0 {
				n = max(n, i+len(blank))
			}
		}
		if n > 0 {
			e.last = [3]byte{'\n', '\n', '\n'}
			return n, true
		}
	}
	for _, c := range b[max(len(b)-len(e.last), 0):] {
		e.last = [3]byte{e.last[1], e.last[2], c}
	}
	return len(b), e.leaving && e.between()
}

// end ends the stream as if the backend had: EventSource comes back by itself,
// after the time that it is given here.
func (e *events) end() {
	r, h, c := e.reply, e.h, e.c
	h.abandon()
	if !e.coded && e.between() {
		last := sse.AppendEnd(sse.AppendRetry(nil, h.loopState.drainPlan.RetryMillis(time.Since(h.loopState.drainAt), false)))
		r.sent += int64(len(last))
		r.writeBody(last)
	}
	if r.chunkedOut {
		c.Write(lastChunk)
	}
	r.release()
	h.next(c, false)
}

var lastChunk = http1.AppendLastChunk(nil, nil)
