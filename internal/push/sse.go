package push

import (
	"strconv"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/sse"
)

// sseSession is a subscriber over server-sent events. The body is delimited by
// the end of the connection (RFC 9112 §6.3 rule 8): frames need no chunk of
// their own, so all subscribers share the same bytes, and an orderly end is a
// clean one.
type sseSession struct{ session }

var (
	_ hub.Sink          = (*sseSession)(nil)
	_ eventloop.Handler = (*sseSession)(nil)
)

const sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache, no-transform\r\n" +
	"X-Accel-Buffering: no\r\nConnection: close\r\n"

// ServeSSE turns c into a subscriber. The answer goes out when the subscription
// stands. An error means that nothing was begun and c is as before.
func (p *Push) ServeSSE(c *eventloop.Conn, r *Subscription) error {
	if p.draining.Load() {
		p.sendAway(c, r.Fields, codeRestart, "draining")
		return nil
	}
	s := &sseSession{}
	s.format = formatSSE
	if r.Envelope || len(r.Channels) > 1 {
		s.format = formatSSEEnvelope
	}
	old := c.Handler()
	c.SetHandler(s)
	if err := s.begin(p.Lane(c), c, r, s); err != nil {
		c.SetHandler(old)
		return err
	}
	p.counters.sse.Add(1)
	return nil
}

// sendAway answers a client that cannot be served now in a way that keeps a
// browser's EventSource trying: it gives up for good on any status but 200.
func (p *Push) sendAway(c *eventloop.Conn, fields []byte, code int, reason string) {
	p.counters.sentAway.Add(1)
	b := append([]byte(sseHead), fields...)
	b = append(b, "\r\n"...)
	c.Write(p.appendEnd(b, code, reason))
	c.CloseAfterFlush()
}

// appendEnd writes the last words of a stream.
func (p *Push) appendEnd(b []byte, code int, reason string) []byte {
	b = sse.AppendRetry(b, p.awayMillis())
	b = sse.AppendType(b, "end")
	b = append(b, `data: {"code":`...)
	b = strconv.AppendInt(b, int64(code), 10)
	b = append(b, `,"reason":`...)
	b = appendJSONString(b, reason)
	return append(b, "}\n\n"...)
}

// Start implements hub.Sink: it writes the head and where the stream stands, so
// that a client that is cut before the first message resumes exactly.
func (s *sseSession) Start(at hub.Positions) {
	if len(at) > 1 {
		s.stands = append(hub.Positions(nil), at...)
		s.format = formatSSEData
	}
	b := append(s.lane.head[:0], sseHead...)
	b = append(b, s.opening.fields...)
	b = append(b, "\r\n"...)
	b = sse.AppendRetry(b, s.lane.push.retryMillis())
	if len(at) > 0 {
		b = append(b, "id: "...)
		b = at.AppendTo(b)
		b = append(b, '\n')
	}
	b = append(b, '\n')
	s.lane.head = b
	s.opening = nil
	s.conn.Write(b)
	s.armTimer()
}

// Deliver implements hub.Sink.
func (s *sseSession) Deliver(b *hub.Batch) {
	if !s.send(b) {
		s.lane.push.counters.tooSlow.Add(1)
		s.end(codeTooSlow, "too slow")
	}
}

// Gap implements hub.Sink.
func (s *sseSession) Gap(g hub.Gap) {
	id := s.moveStands(g)
	b := sse.AppendType(nil, "gap")
	b = append(b, "id: "...)
	b = append(b, id...)
	b = append(b, "\ndata: "...)
	b = appendGap(b, "", g, "")
	s.conn.Write(append(b, "\n\n"...))
}

// Failed implements hub.Sink.
func (s *sseSession) Failed(err error) {
	s.logFailure(err)
	code, reason := failure(err)
	if s.opening != nil {
		s.lane.push.sendAway(s.conn, s.opening.fields, code, reason)
		return
	}
	s.end(code, reason)
}

// end says why and closes.
func (s *sseSession) end(code int, reason string) {
	if s.flags&ending != 0 {
		return
	}
	s.flags |= ending
	s.leave()
	s.conn.Write(s.lane.push.appendEnd(nil, code, reason))
	s.conn.CloseAfterFlush()
}

func (s *sseSession) drain(*eventloop.Conn) {
	s.lane.push.counters.sentAway.Add(1)
	s.end(codeRestart, "draining")
}

func (s *sseSession) describe() Lag { return s.lag("sse") }

// Data implements eventloop.Handler: a client has nothing more to say.
func (s *sseSession) Data(_ *eventloop.Conn, b []byte) int { return len(b) }

// EndOfStream implements eventloop.Handler.
func (s *sseSession) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (s *sseSession) Drained(*eventloop.Conn) { s.drained() }

var heartbeat = []byte(":\n\n")

// Timer implements eventloop.Handler.
func (s *sseSession) Timer(c *eventloop.Conn, now int64) {
	switch {
	case s.opening != nil:
	case s.lane.push.draining.Load():
		s.drain(c)
		return
	case s.expired():
		s.lane.push.counters.expired.Add(1)
		s.end(codeTokenExpired, "token expired")
		return
	case now-s.lastSend >= int64(s.lane.push.cfg.Heartbeat) && !c.Stalled():
		s.lastSend = now
		c.Send(heartbeat)
	}
	s.armTimer()
}

// Closed implements eventloop.Handler.
func (s *sseSession) Closed(_ *eventloop.Conn, err error) {
	s.debug("sse closed", err)
	s.leave()
	s.lane.push.counters.sse.Add(-1)
}
