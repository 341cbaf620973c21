package push

import (
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/websocket"
)

// echo is a WebSocket that sends back what it gets. Replies to what one read
// brought leave in one write.
type echo struct {
	push     *Push
	parser   websocket.Parser
	deflate  *websocket.Deflate // nil: not negotiated
	ending   bool
	lastRecv int64
	buf      []byte
}

// ServeEcho completes a handshake and echoes messages up to MaxClientMessage.
// extensions is the value of Sec-WebSocket-Extensions.
func (p *Push) ServeEcho(c *eventloop.Conn, key, extensions []byte) {
	e := &echo{push: p, lastRecv: c.Loop().Now()}
	answer := ""
	if d, ok := websocket.NegotiateDeflate(extensions); ok {
		e.deflate, answer = &d, d.String()
	}
	e.parser.Init(websocket.ParserOptions{Deflate: e.deflate != nil, Limits: &p.limits})
	c.SetHandler(e)
	c.SetTimer(int64(p.cfg.IdleTimeout))
	c.Write(websocket.AppendHandshakeResponse(nil, key, answer, ""))
}

// Data implements eventloop.Handler.
func (e *echo) Data(c *eventloop.Conn, b []byte) int {
	e.lastRecv = c.Loop().Now()
	used := 0
	for !e.ending {
		ev, n, ok, err := e.parser.Next(b[used:])
		used += n
		if err != nil {
			code, reason := protocolCode(err)
			e.end(c, uint16(code), reason)
			break
		}
		if !ok {
			return used
		}
		switch ev.Op {
		case websocket.OpPing:
			c.Write(websocket.AppendFrame(e.buf[:0], websocket.OpPong, ev.Payload))
		case websocket.OpPong:
		case websocket.OpClose:
			e.end(c, ev.Code, "")
		default:
			e.reply(c, ev)
		}
		if c.Unsent() > maxReplies {
			c.PauseReading()
			return used
		}
	}
	return len(b)
}

func (e *echo) reply(c *eventloop.Conn, ev websocket.Event) {
	payload := ev.Payload
	if e.deflate != nil && len(payload) > 0 && e.deflate.Fits(len(payload)) {
		payload = websocket.Compress(nil, payload, 1)
		e.buf = append(websocket.AppendHeader(e.buf[:0], true, true, ev.Op, len(payload)), payload...)
	} else {
		e.buf = websocket.AppendFrame(e.buf[:0], ev.Op, payload)
	}
	c.Write(e.buf)
	if cap(e.buf) > 64<<10 {
		e.buf = nil
	}
}

func (e *echo) end(c *eventloop.Conn, code uint16, reason string) {
	e.ending = true
	c.Write(websocket.AppendClose(nil, code, reason))
	c.SetTimer(partingTime)
	c.CloseAfterFlush()
}

// EndOfStream implements eventloop.Handler.
func (e *echo) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (e *echo) Drained(c *eventloop.Conn) { c.ResumeReading() }

// Timer implements eventloop.Handler.
func (e *echo) Timer(c *eventloop.Conn, now int64) {
	switch {
	case e.ending:
		c.Close(eventloop.ErrStalled)
		return
	case e.push.Draining():
		e.drain(c)
		return
	}
	if now-e.lastRecv >= int64(e.push.cfg.IdleTimeout) {
		e.end(c, codeGoingAway, "no sign of life")
		return
	}
	c.SetTimer(int64(e.push.cfg.IdleTimeout) - (now - e.lastRecv))
}

func (e *echo) drain(c *eventloop.Conn) { e.end(c, codeRestart, "draining") }

// Closed implements eventloop.Handler.
func (e *echo) Closed(*eventloop.Conn, error) { e.parser.Reset() }
