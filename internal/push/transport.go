package push

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// transport carries a protocol's session on a loop's connection: a WebSocket, or the
// body of an answer. There is one per client: 64 bytes, which is a size class.
type transport struct {
	conn    *eventloop.Conn
	session socket.Session // nil until it was opened
	// sub and sink are its first subscription, unless sub is nil; see first.
	sub  *hub.Subscriber
	sink hub.Sink
	// more is what few have; nil then.
	more *transportMore
	// lastRead is when the client last sent something, in units that wrap around: see hear.
	lastRead uint32
	flags    transportFlags
	// calls counts the calls of the session that have not returned.
	calls    uint8
	protocol uint8 // of Push.protocols
	limits   uint8 // of the loop's parsers
}

// transportMore is the part of a transport that few have.
type transportMore struct {
	// parser is the transport's own while a message is incomplete; nil otherwise.
	parser *websocket.Parser
	// subs are the subscriptions after the first, linked to each other.
	subs *subscription
	// deciding are the calls of extensions under way; nil: none.
	deciding *deciding
}

// loopState returns the state of its loop.
func (t *transport) loopState() *LoopState { return t.conn.Loop().Local.(*LoopState) }

// readUnit is the unit of the field: 17 ms, which wrap around after two years.
const readUnit = 24

// markRead notes that the client has sent something.
func (t *transport) markRead() { t.lastRead = readStamp(t.Now()) }

// LastRead implements socket.Transport.
func (t *transport) LastRead() int64 { return readAt(t.lastRead, t.Now()) }

// readStamp rounds now up: what a client says after a question is never treated as older
// than that. readAt is the way back, for what was received in the year before now.
func readStamp(now int64) uint32 { return uint32(now>>readUnit) + 1 }

func readAt(received uint32, now int64) int64 {
	ago := int64(int32(uint32(now>>readUnit) - received))
	return min((now>>readUnit-ago)<<readUnit, now)
}

// subs returns the first of the subscriptions after the first.
func (t *transport) subs() *subscription {
	if t.more == nil {
		return nil
	}
	return t.more.subs
}

// ensureMore returns t.more, made if it is not there.
func (t *transport) ensureMore() *transportMore {
	if t.more == nil {
		t.more = &transportMore{}
	}
	return t.more
}

// tidy lets more go when there is nothing in it.
func (t *transport) tidy() {
	if t.more != nil && *t.more == (transportMore{}) {
		t.more = nil
	}
}

type transportFlags uint8

const (
	isSocket   transportFlags = 1 << iota // a WebSocket
	closeSent                             // Close or Cut was called: nothing is sent or reported any more
	isGone                                // the connection is closed
	isOver                                // and the session knows
	drainSent                             // Session.Drain was called
	drainsNext                            // the timer is that of the drain
	inChunks                              // a body of HTTP/1.1
	arriving                              // the session is being opened with its state of another process
)

var (
	_ socket.Transport  = (*transport)(nil)
	_ eventloop.Handler = (*transport)(nil)
	_ drainer           = (*transport)(nil)
	_ lagging           = (*transport)(nil)
)

// enter comes before every call of the session, exit is deferred. A panic ends this
// client. A connection that is closed during a call is reported after it.
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
	p := t.loopState().push
	p.counters.panics.Add(1)
	p.log.Error("panic in a session", "protocol", p.protocols[t.protocol].name, "conn", t.conn.ID(), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	t.Close(codeInternal, "internal error")
}

// over is the last call of the session.
func (t *transport) over() {
	t.flags |= isOver
	stopDeciding(t)
	t.endSubscriptions()
	if t.session == nil {
		return
	}
	t.enter()
	defer t.exit()
	t.session.Closed()
}

// closed reports whether the session is notified of nothing any more but its end.
func (t *transport) closed() bool { return t.flags&(closeSent|isGone) != 0 || t.session == nil }

// start makes the session, after the answer's head was written.
func (t *transport) start(open func(socket.Transport) socket.Session) {
	t.conn.SetHandler(t)
	t.tally(1)
	t.conn.SetTimer(0)
	if t.loopState().drainEnd != 0 {
		t.SetTimer(0)
	}
	if t.flags&arriving == 0 {
		t.markRead()
	}
	t.enter()
	defer t.exit()
	t.session = open(t)
}

// tally counts the client in, or out.
func (t *transport) tally(n int64) {
	p := t.loopState().push
	p.protocols[t.protocol].gauge(t.flags&isSocket != 0).Add(n)
	p.tally(t.conn, t.flags&isSocket != 0, n)
}

// Send implements socket.Transport. What a client of several subscriptions gets in one
// tick leaves together. As a chunk b is copied: what many get is for Deliver.
func (t *transport) Send(b []byte) {
	switch {
	case t.flags&inChunks == 0:
		t.send(b)
	case t.subs() != nil:
		t.Write(b)
	default:
		t.conn.SendCopy(t.loopState().chunk(b))
	}
}

// send sends b, a part of the body as it is framed.
func (t *transport) send(b []byte) {
	if t.subs() != nil {
		t.conn.Queue(b)
		return
	}
	t.conn.Send(b)
}

// Write implements socket.Transport.
func (t *transport) Write(b []byte) {
	if t.flags&inChunks != 0 {
		b = t.loopState().chunk(b)
	}
	t.conn.Write(b)
}

// Deliver implements socket.Transport.
func (t *transport) Deliver(b *hub.Batch, f hub.Format) {
	if t.flags&inChunks != 0 {
		f = wire.InChunks(f)
	}
	if w, ok := b.Once(f); ok {
		t.conn.Write(w)
	} else {
		t.send(b.Bytes(f))
	}
}

// chunk returns b as a chunk, in memory that is used again.
func (l *LoopState) chunk(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	w := http1.AppendChunk(l.head[:0], b)
	if cap(w) <= maxScratch {
		l.head = w
	}
	return w
}

// maxScratch bounds what a loop keeps for the next use.
const maxScratch = 64 << 10

// Ping implements socket.Transport.
func (t *transport) Ping() {
	if t.flags&isSocket != 0 {
		t.Send(ping)
	}
}

// Stalled implements socket.Transport.
func (t *transport) Stalled() bool { return t.conn.Stalled() }

// Unsent implements socket.Transport.
func (t *transport) Unsent() int { return t.conn.Unsent() }

// Close implements socket.Transport.
func (t *transport) Close(code int, reason string) {
	if t.flags&(closeSent|isGone) != 0 {
		return
	}
	t.flags |= closeSent
	switch {
	case t.flags&isSocket != 0:
		t.conn.Write(websocket.AppendClose(nil, uint16(code), reason))
	case t.flags&inChunks != 0:
		t.conn.Write(lastChunk)
	}
	t.conn.SetTimer(sessionPartingTime)
	t.conn.CloseAfterFlush()
}

// Cut implements socket.Transport.
func (t *transport) Cut() {
	t.flags |= closeSent
	t.conn.Close(nil)
}

// SetTimer implements socket.Transport. During a drain the client's own time may be
// sooner; it is drawn anew each time, evenly over what is left.
func (t *transport) SetTimer(d time.Duration) {
	if t.flags&(closeSent|isGone) != 0 {
		return
	}
	t.flags &^= drainsNext
	next := int64(d)
	if end := t.loopState().drainEnd; end != 0 && t.flags&drainSent == 0 {
		at := rand.Int64N(max(end-t.loopState().loop.Now(), 1)) + 1
		if next <= 0 || at < next {
			t.flags |= drainsNext
			next = at
		}
	}
	t.conn.SetTimer(next)
}

// Now implements socket.Transport.
func (t *transport) Now() int64 { return t.conn.Loop().Now() }

// Peer implements socket.Transport.
func (t *transport) Peer() netip.AddrPort { return t.conn.Peer() }

// ID implements socket.Transport.
func (t *transport) ID() uint64 { return t.conn.ID() }

// Post implements socket.Transport.
func (t *transport) Post(f func()) {
	t.loopState().loop.Post(func() {
		t.enter()
		defer t.exit()
		f()
	})
}

// Do implements socket.Transport.
func (t *transport) Do(work func(ctx context.Context), then func()) bool {
	if t.flags&(closeSent|isGone) != 0 {
		return true // it is not awaited
	}
	return t.loopState().push.workers.Do(work, func() {
		t.loopState().loop.Post(func() {
			if t.flags&(closeSent|isGone) != 0 {
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
	t.loopState().push.PublishFor(t.conn, p, func(at hub.Position, err error) {
		if t.flags&(closeSent|isGone) != 0 {
			return
		}
		t.enter()
		defer t.exit()
		done(at, err)
	})
}

// Subscribe implements socket.Transport.
func (t *transport) Subscribe(s *hub.Subscriber, sink hub.Sink, opt hub.SubscribeOptions) error {
	if t.flags&(closeSent|isGone) != 0 {
		return hub.ErrClosed
	}
	if t.flags&arriving == 0 && t.loopState().push.rejects(t.loopState(), &opt) {
		return hub.ErrOverloaded
	}
	g := t.link(s, sink)
	if t.flags&arriving == 0 && t.loopState().push.extensions.Handles(extension.Subscribe, opt.Channels...) {
		return decideSubscription(t, s, sink, g, opt)
	}
	return subscribe(t, s, g, opt)
}

// subscribe starts a subscription that was linked.
func subscribe(t *transport, s *hub.Subscriber, g hub.Sink, opt hub.SubscribeOptions) error {
	t.loopState().enter()
	defer t.loopState().exit()
	t.loopState().markMore(t.conn, opt.Channels)
	err := t.loopState().shard.Subscribe(s, g, opt)
	if err != nil {
		t.unlink(s)
		remark(t)
	}
	return err
}

// Unsubscribe implements socket.Transport.
func (t *transport) Unsubscribe(s *hub.Subscriber) {
	if t.unlink(s) && !forget(t, s) {
		t.loopState().shard.Unsubscribe(s)
		remark(t)
	}
}

// remark marks the client for the subscriptions that are left.
func remark(t *transport) {
	l := t.loopState()
	if l.marker == nil {
		return
	}
	var channels []string
	if t.sub != nil {
		channels = t.sub.Channels()
	}
	for s := t.subs(); s != nil; s = s.next {
		channels = append(channels, s.sub.Channels()...)
	}
	if len(channels) > 0 {
		l.marker.set(t.conn, l.push.markOf(channels))
	}
}
