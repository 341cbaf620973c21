package push

import (
	"time"

	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/websocket"
)

// Data implements eventloop.Handler.
func (t *transport) Data(c *eventloop.Conn, b []byte) int {
	if t.flags&isSocket == 0 || t.closed() {
		return len(b) // a stream's client has nothing more to say
	}
	t.markRead()
	p := t.detachParser()
	defer t.putParser(p)
	used := 0
	for !t.closed() {
		ev, n, ok, err := p.Next(b[used:])
		used += n
		if err != nil {
			t.loopState().push.counters.clientErrors.Add(1)
			t.loopState().push.log.Debug("websocket protocol error", "conn", c.ID(), "peer", c.Peer(), "err", err)
			t.Close(protocolCode(err))
			break
		}
		if !ok {
			return used
		}
		t.event(ev)
		if c.Unsent() > maxReplies {
			c.PauseReading() // it sends requests faster than it reads answers
			return used
		}
	}
	return len(b)
}

// event is one thing the client said.
func (t *transport) event(ev websocket.Event) {
	t.enter()
	defer t.exit()
	switch ev.Op {
	case websocket.OpPing:
		t.conn.Write(websocket.AppendFrame(nil, websocket.OpPong, ev.Payload))
	case websocket.OpPong:
		t.session.Pong()
	case websocket.OpClose:
		t.Close(int(ev.Code), "")
	default:
		t.session.Message(ev.Payload, ev.Op == websocket.OpBinary)
	}
}

// A lentParser serves every client with its limits that is between two messages.
type lentParser struct {
	limits websocket.Limits
	parser websocket.Parser
}

// lentFor returns the place in parsers of the one for messages of up to max bytes; 0
// means the configured bound. Protocols use a few bounds: the last place is for all
// that come when there are too many.
func (l *LoopState) lentFor(maxMessage int) uint8 {
	if maxMessage <= 0 {
		maxMessage = l.push.cfg.MaxClientMessage
	}
	for i, x := range l.parsers {
		if x.limits.MaxMessage == maxMessage || i == 255 {
			return uint8(i)
		}
	}
	x := &lentParser{limits: websocket.Limits{MaxMessage: maxMessage}}
	x.parser.Init(websocket.ParserOptions{Limits: &x.limits})
	l.parsers = append(l.parsers, x)
	return uint8(len(l.parsers) - 1)
}

func (t *transport) detachParser() *websocket.Parser {
	if t.more != nil && t.more.parser != nil {
		return t.more.parser
	}
	return &t.loopState().parsers[t.limits].parser
}

// putParser keeps p for the transport if it is in the middle of something.
func (t *transport) putParser(p *websocket.Parser) {
	own := t.more != nil && t.more.parser == p
	switch {
	case t.closed(), p.Idle():
		if t.closed() {
			p.Reset()
		}
		if t.more != nil {
			t.more.parser = nil
			t.tidy()
		}
	case !own:
		kept := *p
		*p = websocket.Parser{}
		p.Init(websocket.ParserOptions{Limits: &t.loopState().parsers[t.limits].limits})
		t.ensureMore().parser = &kept
	}
}

// EndOfStream implements eventloop.Handler.
func (t *transport) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (t *transport) Drained(c *eventloop.Conn) {
	if !t.closed() {
		t.enter()
		defer t.exit()
		t.session.Drained()
	}
	if c.Unsent() <= maxReplies {
		c.ResumeReading()
	}
}

// Timer implements eventloop.Handler.
func (t *transport) Timer(c *eventloop.Conn, _ int64) {
	switch {
	case t.flags&closeSent != 0:
		c.Close(eventloop.ErrStalled) // the last words had their time
	case t.closed():
	case t.flags&drainsNext != 0:
		t.drain(c)
	default:
		t.enter()
		defer t.exit()
		t.session.Timer()
	}
}

// drain implements drainer: it has the session send its client away, once.
func (t *transport) drain(*eventloop.Conn) {
	t.flags &^= drainsNext
	if t.closed() || t.flags&drainSent != 0 {
		return
	}
	t.flags |= drainSent
	t.loopState().push.counters.drained.Add(1)
	t.enter()
	defer t.exit()
	t.session.Drain()
}

// drainWithin implements drainer: what the protocol set comes first, if that is sooner.
func (t *transport) drainWithin() {
	if !t.closed() {
		t.SetTimer(time.Duration(t.conn.TimerRemaining()))
	}
}

// Closed implements eventloop.Handler.
func (t *transport) Closed(c *eventloop.Conn, err error) {
	t.loopState().push.log.Debug("session closed", "conn", c.ID(), "peer", c.Peer(), "err", err)
	if p := t.loopState().push; p.extensions.Handles(extension.Disconnect) { // the session does not know of the end yet
		p.disconnected(c, t.protocol, subjectOf(t))
	}
	t.flags |= isGone
	t.tally(-1)
	if t.more != nil && t.more.parser != nil {
		t.more.parser.Reset()
	}
	t.endSubscriptions()
	if t.calls == 0 {
		t.over()
	}
}

// numbers implements lagging.
func (t *transport) numbers() Lag {
	g := Lag{Transport: "stream", HTTP2: HTTPVersion(t.conn) == 2, HTTP3: HTTPVersion(t.conn) == 3, Protocol: t.loopState().push.protocols[t.protocol].name, Bytes: t.conn.Unsent(), Kernel: t.conn.UnsentKernel()}
	if t.flags&isSocket != 0 {
		g.Transport = "websocket"
	}
	return g
}

// describe implements lagging.
func (t *transport) describe(g Lag) Lag {
	g = describe(g, t.conn)
	if t.sub != nil {
		g.Channels = append(g.Channels, t.sub.Channels()...)
	}
	for s := t.subs(); s != nil; s = s.next {
		g.Channels = append(g.Channels, s.sub.Channels()...)
	}
	g.Subject = subjectOf(t)
	return g
}

// subjectOf is who the session's client is; empty: not known.
func subjectOf(t *transport) string {
	id, ok := t.session.(socket.Identified)
	if !ok {
		return ""
	}
	t.enter()
	defer t.exit()
	return id.Subject()
}

// count implements lagging.
func (t *transport) count(h *LagHistograms, _ time.Time) {
	h.Messages.add(LagMessageBounds, 0)
	h.Bytes.add(LagByteBounds, float64(t.conn.Unsent()))
	h.Seconds.add(LagSecondBounds, 0)
}
