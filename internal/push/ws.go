package push

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/websocket"
)

// wsSession is a subscriber over WebSocket: one text frame per message.
type wsSession struct {
	session
	parser websocket.Parser
}

var (
	_ hub.Sink          = (*wsSession)(nil)
	_ eventloop.Handler = (*wsSession)(nil)
)

// ServeWebSocket turns c into a subscriber. The handshake is answered when the
// subscription stands. An error means that nothing was begun and c is as before.
func (p *Push) ServeWebSocket(c *eventloop.Conn, r *Subscription) error {
	if p.draining.Load() {
		p.counters.sentAway.Add(1)
		refuse(c, http.StatusServiceUnavailable, "draining")
		return nil
	}
	s := &wsSession{}
	s.format = formatWS
	s.parser.Init(websocket.ParserOptions{Limits: &p.limits})
	old := c.Handler()
	c.SetHandler(s)
	if err := s.begin(p.Lane(c), c, r, s); err != nil {
		c.SetHandler(old)
		return err
	}
	p.counters.ws.Add(1)
	return nil
}

// refuse answers a handshake that cannot be completed.
func refuse(c *eventloop.Conn, status int, reason string) {
	body := []byte(`{"error":{"code":` + strconv.Itoa(status) + `,"message":"` + reason + `"}}` + "\n")
	b := http1.AppendStatusLine(nil, status)
	b = http1.AppendField(b, "Content-Type", "application/json")
	b = http1.AppendIntField(b, "Content-Length", int64(len(body)))
	b = http1.AppendField(b, "Retry-After", "2")
	b = http1.AppendField(b, "Connection", "close")
	c.Write(append(http1.AppendEnd(b), body...))
	c.CloseAfterFlush()
}

// Start implements hub.Sink.
func (s *wsSession) Start(at hub.Positions) {
	b := websocket.AppendHandshakeResponse(s.lane.head[:0], s.opening.key, "", "")
	if len(s.opening.fields) > 0 {
		b = append(b[:len(b)-2], s.opening.fields...)
		b = append(b, "\r\n"...)
	}
	if s.opening.hello {
		hello := append([]byte(`{"type":"subscribed","id":"`), at.AppendTo(nil)...)
		b = websocket.AppendFrame(b, websocket.OpText, append(hello, `"}`...))
	}
	s.lane.head = b
	s.opening = nil
	s.conn.Write(b)
	s.armTimer()
	s.conn.Again() // frames may have come in early
}

// Deliver implements hub.Sink.
func (s *wsSession) Deliver(b *hub.Batch) {
	if !s.send(b) {
		s.lane.push.counters.tooSlow.Add(1)
		s.end(codeTooSlow, "too slow")
	}
}

// Gap implements hub.Sink.
func (s *wsSession) Gap(g hub.Gap) {
	s.conn.Write(websocket.AppendFrame(nil, websocket.OpText, appendGap(nil, "gap", g, g.To.String())))
}

// Failed implements hub.Sink.
func (s *wsSession) Failed(err error) {
	s.logFailure(err)
	code, reason := failure(err)
	if s.opening != nil {
		s.flags |= ending
		refuse(s.conn, http.StatusServiceUnavailable, reason)
		return
	}
	s.end(code, reason)
}

// end sends a close frame and closes.
func (s *wsSession) end(code int, reason string) {
	if s.flags&ending != 0 {
		return
	}
	s.flags |= ending
	s.leave()
	s.conn.Write(websocket.AppendClose(nil, uint16(code), reason))
	s.conn.CloseAfterFlush()
}

func (s *wsSession) drain(*eventloop.Conn) {
	s.lane.push.counters.sentAway.Add(1)
	s.end(codeRestart, "draining")
}

func (s *wsSession) describe() Lag { return s.lag("websocket") }

// Data implements eventloop.Handler.
func (s *wsSession) Data(c *eventloop.Conn, b []byte) int {
	if s.opening != nil {
		return 0 // the answer is not out yet
	}
	s.lastRecv = s.lane.loop.Now()
	used := 0
	for s.flags&ending == 0 {
		ev, n, ok, err := s.parser.Next(b[used:])
		used += n
		if err != nil {
			s.lane.push.counters.clientErrors.Add(1)
			s.debug("websocket protocol error", err)
			s.end(protocolCode(err))
			break
		}
		if !ok {
			return used
		}
		s.event(c, ev)
	}
	return len(b)
}

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
		s.flags |= ending
		s.leave()
		c.Write(websocket.AppendClose(nil, ev.Code, ""))
		c.CloseAfterFlush()
	case websocket.OpText:
		if isPing(ev.Payload) {
			c.Write(pong)
		}
	default:
		s.lane.push.counters.clientErrors.Add(1)
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
func (s *wsSession) Drained(*eventloop.Conn) { s.drained() }

var ping = websocket.AppendFrame(nil, websocket.OpPing, nil)

// Timer implements eventloop.Handler. A ping goes out every heartbeat, messages
// or not: only its answer shows that somebody is there.
func (s *wsSession) Timer(c *eventloop.Conn, now int64) {
	cfg := &s.lane.push.cfg
	switch {
	case s.opening != nil:
	case s.lane.push.draining.Load():
		s.drain(c)
		return
	case s.expired():
		s.lane.push.counters.expired.Add(1)
		s.end(codeTokenExpired, "token expired")
		return
	case now-s.lastRecv >= int64(cfg.IdleTimeout):
		s.end(codeGoingAway, "no sign of life")
		return
	case !c.Stalled():
		s.lastSend = now
		c.Send(ping)
	}
	s.lastSend = now // the next timer is a heartbeat away
	s.armTimer()
}

// Closed implements eventloop.Handler.
func (s *wsSession) Closed(_ *eventloop.Conn, err error) {
	s.debug("websocket closed", err)
	s.leave()
	s.parser.Reset()
	s.lane.push.counters.ws.Add(-1)
}
