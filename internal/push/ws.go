package push

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// wsSession is a subscriber over WebSocket: one text frame per message.
type wsSession struct {
	session
	// lastRecv is when the client last sent something, on the loop's clock.
	lastRecv int64
	// parser is the session's own while a message is incomplete; nil otherwise.
	parser *websocket.Parser
}

var (
	_ hub.Sink          = (*wsSession)(nil)
	_ eventloop.Handler = (*wsSession)(nil)
)

// ServeWebSocket turns c into a subscriber. The handshake is answered when the
// subscription is open. An error means that nothing was started and c is as before.
func (p *Push) ServeWebSocket(c *eventloop.Conn, r *Subscription) error {
	if p.Draining() {
		p.refuseSocket(c, appendHandshake(nil, r.Key, "", "", r.Fields), codeRestart, "draining")
		return nil
	}
	s := &wsSession{lastRecv: c.Loop().Now()}
	s.format = wire.WebSocket
	extensions := ""
	if p.compresses(r.Channels) {
		// A window smaller than what messages were compressed with cannot be kept.
		if d, ok := websocket.NegotiateSharedDeflate(r.Accept, maxWindow); ok {
			s.format, extensions = wire.WebSocketDeflate, d.String()
		}
	}
	s.openTo(p.access, r)
	old := c.Handler()
	c.SetHandler(s)
	p.tally(c, true, 1)
	r.extensions = extensions
	err := s.begin(p.LoopState(c), c, r, s)
	if err == nil {
		return nil
	}
	c.SetHandler(old)
	p.tally(c, true, -1)
	if code, reason := failure(err); code == codeTryLater {
		p.refuseSocket(c, appendHandshake(nil, r.Key, "", "", r.Fields), code, reason)
		return nil
	}
	return err
}

// maxWindow is the window of deflate.
const maxWindow = 1 << 15

// RetryAfter is how many seconds a client that was refused is asked to wait:
// not the same for all of them.
func RetryAfter() int64 { return 1 + rand.Int64N(4) }

// Start implements hub.Sink.
func (s *wsSession) Start(at hub.Positions) {
	defer s.recovered()
	if s.resumesAt(at) {
		s.arm(s.loopState.loop.Now())
		s.conn.Redeliver()
		return
	}
	o := s.opening()
	b := appendHandshake(s.loopState.head[:0], o.key, o.extensions, "", o.fields)
	if o.hello {
		first, _ := o.resumes(at)
		hello := append([]byte(`{"type":"subscribed","id":"`), first.AppendTo(nil)...)
		b = websocket.AppendFrame(b, websocket.OpText, append(hello, `"}`...))
	}
	s.loopState.head = b
	s.opened()
	s.conn.Write(b)
	now := s.loopState.loop.Now()
	s.lastSend, s.lastRecv = now, now
	s.arm(now)
	s.conn.Redeliver() // frames may have come in early
}

// Deliver implements hub.Sink.
func (s *wsSession) Deliver(b *hub.Batch) {
	defer s.recovered()
	if !s.send(b) {
		s.loopState.push.counters.tooSlow.Add(1)
		s.end(codeTooSlow, "too slow")
	}
}

// Gap implements hub.Sink.
func (s *wsSession) Gap(g hub.Gap) {
	defer s.recovered()
	if !s.gap(g) {
		s.loopState.push.counters.tooSlow.Add(1)
		s.end(codeTooSlow, "too slow")
	}
}

// Failed implements hub.Sink.
func (s *wsSession) Failed(err error) {
	defer s.recovered()
	s.logFailure(err)
	s.end(failure(err))
}

// end sends a close frame, after what the socket has taken a part of, and closes.
func (s *wsSession) end(code int, reason string) {
	if s.flags&ending != 0 {
		return
	}
	s.leave()
	var b []byte
	if o := s.opening(); o != nil && !o.moved {
		if code == codeInternal {
			s.loopState.push.refuse(s.conn, o.fields, code, reason)
			return
		}
		s.loopState.push.countRejected(code)
		b = appendHandshake(nil, o.key, "", "", o.fields)
	}
	s.conn.Write(websocket.AppendClose(b, uint16(code), reason))
	s.part()
}

func (s *wsSession) drain(*eventloop.Conn) {
	if s.opening() == nil {
		s.loopState.push.counters.drained.Add(1)
	}
	s.end(codeRestart, "draining")
}

// Data implements eventloop.Handler.
func (s *wsSession) Data(c *eventloop.Conn, b []byte) int {
	if s.opening() != nil {
		return 0 // the answer is not out yet
	}
	s.lastRecv = s.loopState.loop.Now()
	p := s.detachParser()
	defer s.putParser(p)
	used := 0
	for s.flags&ending == 0 {
		ev, n, ok, err := p.Next(b[used:])
		used += n
		if err != nil {
			s.loopState.push.counters.clientErrors.Add(1)
			s.debug("websocket protocol error", err)
			s.end(protocolCode(err))
			break
		}
		if !ok {
			return used
		}
		s.event(c, ev)
		if c.Unsent() > maxReplies {
			c.PauseReading() // it sends requests faster than it reads answers
			return used
		}
	}
	return len(b)
}

// lent is the loop's parser for clients that are between two messages.
func (s *wsSession) lent() *websocket.Parser {
	if s.format == wire.WebSocketDeflate {
		return &s.loopState.deflateParser
	}
	return &s.loopState.parser
}

// detachParser returns the parser to continue with.
func (s *wsSession) detachParser() *websocket.Parser {
	if s.parser != nil {
		return s.parser
	}
	return s.lent()
}

// putParser keeps p for the session if it is in the middle of something.
func (s *wsSession) putParser(p *websocket.Parser) {
	switch {
	case s.flags&ending != 0:
		p.Reset()
		s.parser = nil
	case p.Idle():
		s.parser = nil
	case p != s.parser:
		own := *p
		*p = websocket.Parser{}
		p.Init(websocket.ParserOptions{Limits: &s.loopState.push.limits, Deflate: s.format == wire.WebSocketDeflate})
		s.parser = &own
	}
}

// maxReplies is how many bytes may wait for a client that continues sending requests, besides what
// one batch of messages may have left: a client that is only slow to read is still read from.
const maxReplies = 144 << 10

func protocolCode(err error) (int, string) {
	if p, ok := errors.AsType[*websocket.ProtocolError](err); ok {
		return int(p.Code), p.Reason
	}
	return codeInternal, "internal error"
}

var pong = websocket.AppendFrame(nil, websocket.OpText, []byte(`{"type":"pong"}`))

func (s *wsSession) event(c *eventloop.Conn, ev websocket.Event) {
	switch ev.Op {
	case websocket.OpPing:
		c.Write(websocket.AppendFrame(nil, websocket.OpPong, ev.Payload))
	case websocket.OpPong:
	case websocket.OpClose:
		s.end(int(ev.Code), "")
	case websocket.OpText:
		if isPing(ev.Payload) {
			c.Write(pong)
		}
	default:
		s.loopState.push.counters.clientErrors.Add(1)
		s.end(1003, "binary messages are not understood here")
	}
}

func isPing(b []byte) bool {
	if len(b) > 64 || !bytes.Contains(b, []byte(`ping`)) {
		return false
	}
	var m struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(b, &m) == nil && m.Type == "ping"
}

// EndOfStream implements eventloop.Handler.
func (s *wsSession) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (s *wsSession) Drained(c *eventloop.Conn) {
	s.drained()
	if s.opening() == nil && c.Unsent() == 0 {
		c.ResumeReading()
	}
}

var ping = websocket.AppendFrame(nil, websocket.OpPing, nil)

// Timer implements eventloop.Handler. A ping goes out every heartbeat, messages
// or not: only its answer shows that the client is there.
func (s *wsSession) Timer(c *eventloop.Conn, now int64) {
	cfg := &s.loopState.push.cfg
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
	case c.Stalled():
		// It cannot be asked, so its silence means nothing: the loop watches
		// whether it takes what waits.
		s.lastSend, s.lastRecv = now, now
	case now-s.lastRecv >= int64(cfg.IdleTimeout):
		s.end(codeGoingAway, "no sign of life")
		return
	case s.flags&paced != 0 && s.backlog != nil && now-s.lastSend < heartbeatInterval(&s.session):
		s.drained()
	case now-s.lastSend >= heartbeatInterval(&s.session):
		s.lastSend = now
		c.Send(ping)
	}
	s.arm(now)
}

// arm sets the timer to the next ping or to the end of patience.
func (s *wsSession) arm(now int64) {
	cfg := &s.loopState.push.cfg
	s.armTimer(min(s.lastSend+heartbeatInterval(&s.session), s.lastRecv+int64(cfg.IdleTimeout)) - now)
}

// Closed implements eventloop.Handler.
func (s *wsSession) Closed(_ *eventloop.Conn, err error) {
	s.debug("websocket closed", err)
	s.closed()
	if s.parser != nil {
		s.parser.Reset()
	}
	s.loopState.push.tally(s.conn, true, -1)
	s.loopState.push.disconnected(s.conn, 0, s.user())
}
