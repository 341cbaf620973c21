package push

import (
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// sseSession is a subscriber over server-sent events. To clients of HTTP/1.1 the body is
// chunked (RFC 9112 §7.1): many of their libraries hand out a chunk as it comes, but a body
// of no known length only when a buffer is full. A chunk's head is a part of the message's
// frame, which all subscribers share. To others the body ends with the connection (§6.3
// rule 8), or its stream of HTTP/2. The last chunk is sent at an orderly end only.
type sseSession struct{ session }

var (
	_ hub.Sink          = (*sseSession)(nil)
	_ eventloop.Handler = (*sseSession)(nil)
)

const sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache, no-transform\r\n" +
	"X-Accel-Buffering: no\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"

const chunkedField = "Transfer-Encoding: chunked\r\n"

// appendSSEHead appends the head of a stream in format f.
func appendSSEHead(b, fields []byte, f hub.Format) []byte {
	b = append(b, sseHead...)
	if wire.IsChunked(f) {
		b = append(b, chunkedField...)
	}
	c := wire.CodingOf(f)
	if c != wire.Plain {
		b = http1.AppendField(b, "Content-Encoding", c.String())
		b = http1.AppendField(b, "Vary", "Accept-Encoding")
	}
	b = http1.AppendDate(b, time.Now())
	b = append(b, fields...)
	return append(b, "\r\n"...)
}

// appendSSEAnswer appends a whole answer of events, whose end is known.
func appendSSEAnswer(b, fields, body []byte) []byte {
	b = append(b, sseHead...)
	b = http1.AppendIntField(b, "Content-Length", int64(len(body)))
	b = http1.AppendDate(b, time.Now())
	b = append(b, fields...)
	return append(append(b, "\r\n"...), body...)
}

// ServeSSE turns c into a subscriber. The answer goes out when the subscription
// is open. An error means that nothing was started and c is as before.
func (p *Push) ServeSSE(c *eventloop.Conn, r *Subscription) error {
	if p.Draining() {
		p.reject(c, r.Fields, codeRestart, "draining")
		return nil
	}
	s := &sseSession{}
	s.format = wire.SSE
	if r.Envelope || len(r.Channels) > 1 {
		s.format = wire.SSEEnvelope
	}
	if p.compresses(r.Channels) {
		s.format = wire.ChooseCoding(r.Accept).In(s.format)
	}
	if r.Chunked {
		s.format = wire.InChunks(s.format)
	}
	s.openTo(p.access, r)
	old := c.Handler()
	c.SetHandler(s)
	p.tally(c, false, 1)
	err := s.begin(p.LoopState(c), c, r, s)
	if err == nil {
		return nil
	}
	c.SetHandler(old)
	p.tally(c, false, -1)
	if code, reason := failure(err); code == codeTryLater {
		p.reject(c, r.Fields, code, reason)
		return nil
	}
	return err
}

// RejectSSE answers a client that would be served if there were less to do.
func (r *refusals) RejectSSE(c *eventloop.Conn, fields []byte) {
	r.reject(c, fields, codeTryLater, "overloaded, try again later")
}

// SendExpiredSSE answers a client whose token has expired. Its EventSource would give up
// for good after a 401, and its page would not learn why.
func (r *refusals) SendExpiredSSE(c *eventloop.Conn, fields []byte) {
	c.Write(appendSSEAnswer(nil, fields, wire.AppendEnd(nil, wire.ExpiredRetryMillis(), codeTokenExpired, "token expired")))
	c.CloseAfterFlush()
}

// reject answers a client that cannot be served now in a way that keeps a
// browser's EventSource trying: it gives up for good on any status but 200.
func (r *refusals) reject(c *eventloop.Conn, fields []byte, code int, reason string) {
	r.countRejected(code)
	c.Write(appendSSEAnswer(nil, fields, r.appendEnd(nil, code, reason, true)))
	c.CloseAfterFlush()
}

// appendEnd writes the last words of a stream.
func (r *refusals) appendEnd(b []byte, code int, reason string, refused bool) []byte {
	return wire.AppendEnd(b, int(r.reconnect(code, refused).Milliseconds()), code, reason)
}

// Start implements hub.Sink: it writes the head and the stream's position, so
// that a client that is cut before the first message resumes exactly.
func (s *sseSession) Start(at hub.Positions) {
	defer s.recovered()
	if s.resumesAt(at) {
		s.armTimer(s.lastSend + heartbeatInterval(&s.session) - s.loopState.loop.Now())
		return
	}
	o := s.opening()
	first, lossy := o.resumes(at)
	if len(at) > 1 && s.custom() == nil {
		s.keepsPosition(at, lossy)
	}
	b := appendSSEHead(s.loopState.head[:0], o.fields, s.format)
	if wire.CodingOf(s.format) == wire.Gzip {
		b = append(b, s.framed(wire.GzipHeader)...)
	}
	if block := s.appendFirst(nil, o, first); len(block) > 0 {
		b = append(b, s.coded(block)...)
	}
	s.loopState.head = b
	s.opened()
	s.conn.Write(b)
	s.lastSend = s.loopState.loop.Now()
	s.armTimer(heartbeatInterval(&s.session))
	if c := s.custom(); c != nil {
		c.ended = o.ended
		s.report(o.began)
	}
}

// Deliver implements hub.Sink.
func (s *sseSession) Deliver(b *hub.Batch) {
	defer s.recovered()
	s.lastSend = s.loopState.loop.Now()
	if !s.send(b) {
		s.loopState.push.counters.tooSlow.Add(1)
		s.end(codeTooSlow, "too slow")
	}
}

// Gap implements hub.Sink.
func (s *sseSession) Gap(g hub.Gap) {
	defer s.recovered()
	if !s.gap(g) {
		s.loopState.push.counters.tooSlow.Add(1)
		s.end(codeTooSlow, "too slow")
	}
}

// Failed implements hub.Sink.
func (s *sseSession) Failed(err error) {
	defer s.recovered()
	s.logFailure(err)
	s.end(failure(err))
}

// end reports why and closes. What the socket has taken a part of goes out whole
// before it, what is held does not.
func (s *sseSession) end(code int, reason string) {
	if s.flags&ending != 0 {
		return
	}
	s.leave()
	if o := s.opening(); o != nil && !o.moved {
		s.loopState.push.countRejected(code)
		s.conn.Write(appendSSEAnswer(nil, o.fields, s.appendLast(nil, code, reason)))
		s.conn.CloseAfterFlush()
		return
	}
	if last := s.appendLast(nil, code, reason); len(last) > 0 {
		s.conn.Write(s.coded(last))
	}
	s.part()
}

func (s *sseSession) drain(*eventloop.Conn) {
	if s.opening() == nil {
		s.loopState.push.counters.drained.Add(1)
	}
	s.end(codeRestart, "draining")
}

// Data implements eventloop.Handler: a client has nothing more to say.
func (s *sseSession) Data(_ *eventloop.Conn, b []byte) int { return len(b) }

// EndOfStream implements eventloop.Handler. A client that closes looks the same
// as one that only ends its sending side, and nothing else shows it: both go.
func (s *sseSession) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (s *sseSession) Drained(*eventloop.Conn) { s.drained() }

var (
	heartbeat      = []byte(":\n\n")
	heartbeatChunk = http1.AppendChunk(nil, heartbeat)
	plainChunks    = [...]hub.Format{wire.InChunks(wire.SSE), wire.InChunks(wire.SSEEnvelope)}
)

// heartbeat is what fills a silence.
func (s *sseSession) heartbeat() []byte {
	if s.format == plainChunks[0] || s.format == plainChunks[1] {
		return heartbeatChunk // of all that are usual
	}
	return s.coded(heartbeat)
}

// Timer implements eventloop.Handler.
func (s *sseSession) Timer(c *eventloop.Conn, now int64) {
	interval := heartbeatInterval(&s.session)
	switch {
	case s.flags&ending != 0:
		c.Close(eventloop.ErrStalled) // the last words had their time
		return
	case s.loopState.push.Draining():
		s.drain(c)
		return
	case s.opening() != nil:
		s.end(codeTryLater, "not available now, try again later")
		return
	case s.expired():
		s.loopState.push.counters.expired.Add(1)
		s.end(codeTokenExpired, "token expired")
		return
	case s.lived(now):
		s.end(codeNormal, "")
		return
	case c.Stalled():
		s.lastSend = now // it has enough to take
	case s.flags&paced != 0 && s.backlog != nil:
		s.drained()
	case now-s.lastSend >= interval:
		s.lastSend = now
		c.Send(s.heartbeat())
	}
	s.armTimer(s.lastSend + interval - now)
}

// Closed implements eventloop.Handler.
func (s *sseSession) Closed(_ *eventloop.Conn, err error) {
	s.debug("sse closed", err)
	s.closed()
	x := s.custom()
	if x == nil {
		s.tally(s.conn, s.loopState.push, 0, -1)
		s.loopState.push.disconnected(s.conn, 0, s.user())
		return
	}
	s.tally(s.conn, s.loopState.push, x.protocol, -1)
	s.loopState.push.disconnected(s.conn, x.protocol, s.user())
	s.report(x.ended)
}
