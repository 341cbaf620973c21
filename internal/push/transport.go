package push

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/websocket"
)

// transport carries a protocol's session on a loop's connection: a WebSocket, or the
// body of an answer. There is one per client: 96 bytes, which is a size class.
type transport struct {
	lane    *Lane
	conn    *eventloop.Conn
	session socket.Session // nil until it was opened
	// parser is the transport's own while a message is incomplete; nil otherwise.
	parser *websocket.Parser
	// first is its first subscription, unless sub is nil, and the others are linked to it.
	first subscription
	// lastRead is when the client was last heard of, on the loop's clock.
	lastRead int64
	flags    transportFlags
	// calls counts the calls of the session that have not returned.
	calls    uint8
	protocol uint8 // of Push.protocols
	limits   uint8 // of Lane.parsers
}

type transportFlags uint8

const (
	isSocket    transportFlags = 1 << iota // a WebSocket
	saidGoodbye                            // Close or Cut was called: nothing is sent or told any more
	isGone                                 // the connection is closed
	isOver                                 // and the session knows
	askedToGo                              // Session.Drain was called
	drainsNext                             // the timer is that of the drain
)

var (
	_ socket.Transport  = (*transport)(nil)
	_ eventloop.Handler = (*transport)(nil)
	_ drainer           = (*transport)(nil)
	_ lagging           = (*transport)(nil)
)

// subscription is a sink of the session's. It keeps a panic from the hub.
type subscription struct {
	t    *transport
	sub  *hub.Subscriber
	sink hub.Sink // nil: it has ended
	next *subscription
}

// enter comes before every call of the session, exit is deferred. A panic ends this
// client. A connection that is closed during a call is told of after it.
func (t *transport) enter() { t.calls++ }

func (t *transport) exit() {
	if r := recover(); r != nil {
		t.panicked(r)
	}
	if t.calls--; t.calls == 0 && t.flags&(isGone|isOver) == isGone {
		t.over()
	}
}

func (t *transport) panicked(r any) {
	p := t.lane.push
	p.counters.panics.Add(1)
	p.log.Error("panic in a session", "protocol", p.protocols[t.protocol].name, "conn", t.conn.ID(), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	t.Close(codeInternal, "internal error")
}

// over is the last call of the session.
func (t *transport) over() {
	t.flags |= isOver
	t.endSubscriptions()
	if t.session == nil {
		return
	}
	t.enter()
	defer t.exit()
	t.session.Closed()
}

// deaf reports whether the session is told nothing any more but its end.
func (t *transport) deaf() bool { return t.flags&(saidGoodbye|isGone) != 0 || t.session == nil }

// start makes the session, after the answer's head was written.
func (t *transport) start(open func(socket.Transport) socket.Session) {
	t.conn.SetHandler(t)
	t.tally(1)
	t.conn.SetTimer(0)
	if t.lane.drainEnd != 0 {
		t.SetTimer(0)
	}
	t.enter()
	defer t.exit()
	t.session = open(t)
}

// tally counts the client in, or out.
func (t *transport) tally(n int64) {
	p := t.lane.push
	p.protocols[t.protocol].gauge(t.flags&isSocket != 0).Add(n)
	if t.flags&isSocket != 0 {
		p.counters.ws.Add(n)
	} else {
		p.counters.sse.Add(n)
	}
}

// Send implements socket.Transport. What a client of several subscriptions gets in one
// tick leaves together.
func (t *transport) Send(b []byte) {
	if t.first.next != nil {
		t.conn.Queue(b)
		return
	}
	t.conn.Send(b)
}

// Write implements socket.Transport.
func (t *transport) Write(b []byte) { t.conn.Write(b) }

// Ping implements socket.Transport.
func (t *transport) Ping() {
	if t.flags&isSocket != 0 {
		t.Send(ping)
	}
}

// LastRead implements socket.Transport.
func (t *transport) LastRead() int64 { return t.lastRead }

// Stalled implements socket.Transport.
func (t *transport) Stalled() bool { return t.conn.Stalled() }

// Unsent implements socket.Transport.
func (t *transport) Unsent() int { return t.conn.Unsent() }

// Close implements socket.Transport.
func (t *transport) Close(code int, reason string) {
	if t.flags&(saidGoodbye|isGone) != 0 {
		return
	}
	t.flags |= saidGoodbye
	if t.flags&isSocket != 0 {
		t.conn.Write(websocket.AppendClose(nil, uint16(code), reason))
	}
	t.conn.SetTimer(sessionPartingTime)
	t.conn.CloseAfterFlush()
}

// Cut implements socket.Transport.
func (t *transport) Cut() {
	t.flags |= saidGoodbye
	t.conn.Close(nil)
}

// SetTimer implements socket.Transport. During a drain the client's own moment may be
// sooner; it is drawn anew each time, evenly over what is left.
func (t *transport) SetTimer(d time.Duration) {
	if t.flags&(saidGoodbye|isGone) != 0 {
		return
	}
	t.flags &^= drainsNext
	next := int64(d)
	if end := t.lane.drainEnd; end != 0 && t.flags&askedToGo == 0 {
		moment := rand.Int64N(max(end-t.lane.loop.Now(), 1)) + 1
		if next <= 0 || moment < next {
			t.flags |= drainsNext
			next = moment
		}
	}
	t.conn.SetTimer(next)
}

// Now implements socket.Transport.
func (t *transport) Now() int64 { return t.lane.loop.Now() }

// Peer implements socket.Transport.
func (t *transport) Peer() netip.AddrPort { return t.conn.Peer() }

// ID implements socket.Transport.
func (t *transport) ID() uint64 { return t.conn.ID() }

// Post implements socket.Transport.
func (t *transport) Post(f func()) {
	t.lane.loop.Post(func() {
		t.enter()
		defer t.exit()
		f()
	})
}

// Do implements socket.Transport.
func (t *transport) Do(work func(ctx context.Context), then func()) bool {
	if t.flags&(saidGoodbye|isGone) != 0 {
		return true // nobody waits for it
	}
	return t.lane.push.do(work, func() {
		t.lane.loop.Post(func() {
			if t.flags&(saidGoodbye|isGone) != 0 {
				return
			}
			t.enter()
			defer t.exit()
			then()
		})
	})
}

// Publish implements socket.Transport.
func (t *transport) Publish(p hub.Publication, done func(hub.Position, error)) {
	t.lane.push.PublishFor(t.conn, p, func(at hub.Position, err error) {
		if t.flags&(saidGoodbye|isGone) != 0 {
			return
		}
		t.enter()
		defer t.exit()
		done(at, err)
	})
}

// Subscribe implements socket.Transport.
func (t *transport) Subscribe(s *hub.Subscriber, sink hub.Sink, opt hub.SubscribeOptions) error {
	if t.flags&(saidGoodbye|isGone) != 0 {
		return hub.ErrClosed
	}
	if t.lane.push.turnsAway(t.lane, &opt) {
		return hub.ErrOverloaded
	}
	g := t.link(s, sink)
	t.lane.enter()
	defer t.lane.exit()
	err := t.lane.shard.Subscribe(s, g, opt)
	if err != nil {
		t.unlink(s)
	}
	return err
}

// Unsubscribe implements socket.Transport.
func (t *transport) Unsubscribe(s *hub.Subscriber) {
	if t.unlink(s) {
		t.lane.shard.Unsubscribe(s)
	}
}

// link makes the subscription of s.
func (t *transport) link(s *hub.Subscriber, sink hub.Sink) *subscription {
	g := &t.first
	if g.sub != nil {
		g = &subscription{next: t.first.next}
		t.first.next = g
	}
	g.t, g.sub, g.sink = t, s, sink
	return g
}

// unlink takes s off the list and mutes its sink. It reports whether it was there.
func (t *transport) unlink(s *hub.Subscriber) bool {
	if t.first.sub == s {
		t.first.sub, t.first.sink = nil, nil
		return true
	}
	for at := &t.first.next; *at != nil; at = &(*at).next {
		if g := *at; g.sub == s {
			*at, g.sink = g.next, nil
			return true
		}
	}
	return false
}

func (t *transport) endSubscriptions() {
	for g := &t.first; g != nil; g = g.next {
		if g.sink = nil; g.sub != nil {
			t.lane.shard.Unsubscribe(g.sub)
			g.sub = nil
		}
	}
	t.first.next = nil
}

// live reports whether the sink is called. Who was told goodbye gets no more.
func (g *subscription) live() bool { return g.sink != nil && g.t.flags&(saidGoodbye|isGone) == 0 }

// Start implements hub.Sink.
func (g *subscription) Start(at hub.Positions) {
	if g.live() {
		g.t.enter()
		defer g.t.exit()
		g.sink.Start(at)
	}
}

// Deliver implements hub.Sink.
func (g *subscription) Deliver(b *hub.Batch) {
	if g.live() {
		g.t.enter()
		defer g.t.exit()
		g.sink.Deliver(b)
	}
}

// Gap implements hub.Sink.
func (g *subscription) Gap(gap hub.Gap) {
	if g.live() {
		g.t.enter()
		defer g.t.exit()
		g.sink.Gap(gap)
	}
}

// Failed implements hub.Sink.
func (g *subscription) Failed(err error) {
	if g.live() {
		g.t.enter()
		defer g.t.exit()
		g.sink.Failed(err)
	}
}

// Event implements hub.EventSink.
func (g *subscription) Event(e *hub.Event) {
	if sink, ok := g.sink.(hub.EventSink); ok && g.live() {
		g.t.enter()
		defer g.t.exit()
		sink.Event(e)
	}
}

// Room implements hub.Sink.
func (g *subscription) Room() (ok bool) {
	if g.live() {
		g.t.enter()
		defer g.t.exit()
		ok = !g.t.lane.rests() && g.sink.Room()
	}
	return ok
}
