package pushhttp

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/websocket"
)

// link carries a protocol's session over net/http. Its owner is a lane's goroutine: that
// one calls the session. The request's goroutine writes what the session sends, and for
// a WebSocket another one reads.
type link struct {
	// Fixed at the start.
	srv      *Server
	lane     *lane
	peer     netip.AddrPort
	isSocket bool
	listing

	// Owned by the lane's goroutine. No lock.
	session socket.Session // nil until it was opened
	subs    *subscription
	calls   int // calls of the session that have not returned
	goodbye bool
	isGone  bool
	isOver  bool // and the session knows
	leaving bool // Session.Drain was called
	timer   *time.Timer
	timers  int // how many there were

	// Any goroutine.
	lastRead atomic.Int64
	ready    chan struct{} // holds one: there is something to write, or an end
	room     chan struct{} // holds one: all was written

	mu     sync.Mutex
	queue  [][]byte
	bytes  int
	hungry bool // the session was told that something waits
	ended  bool // nothing follows the queue
	cut    bool // the queue does not count either
}

var _ socket.Transport = (*link)(nil)

const (
	// maxQueue bounds what waits for a client, maxReplies what does while it asks for more.
	maxQueue   = 4 << 20
	maxReplies = 64 << 10
	// stalledFrom is how much waits for a client that is slow.
	stalledFrom = 64 << 10
	// maxWork bounds the work of sessions that is under way on goroutines.
	maxWork = 1024
)

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// enter comes before every call of the session, exit is deferred. A panic ends this
// client. An end during a call is told of after it.
func (l *link) enter() { l.calls++ }

func (l *link) exit() {
	if r := recover(); r != nil {
		l.srv.counters.panics.Add(1)
		l.srv.log.Error("panic in a session", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		l.Close(codeInternal, "internal error")
	}
	if l.calls--; l.calls == 0 && l.isGone && !l.isOver {
		l.over()
	}
}

// deaf reports whether the session is told nothing any more but its end.
func (l *link) deaf() bool { return l.goodbye || l.isGone || l.session == nil }

// call has the owner call f unless the session has ended, and waits for it.
func (l *link) call(f func()) {
	done := make(chan struct{})
	l.lane.post(func() {
		defer close(done)
		if !l.deaf() {
			l.enter()
			defer l.exit()
			f()
		}
	})
	<-done
}

// open makes the session, close ends it. Both wait for the owner.
func (l *link) open(open func(socket.Transport) socket.Session) {
	done := make(chan struct{})
	l.lane.post(func() {
		defer close(done)
		l.enter()
		defer l.exit()
		l.lane.streams[l.id] = l
		l.session = open(l)
	})
	<-done
}

func (l *link) close() {
	done := make(chan struct{})
	l.lane.post(func() {
		defer close(done)
		delete(l.lane.streams, l.id)
		l.isGone = true
		if l.calls == 0 {
			l.over()
		}
	})
	<-done
}

// over is the last call of the session.
func (l *link) over() {
	l.isOver = true
	l.stopTimer()
	for g := l.subs; g != nil; g = g.next {
		g.sink = nil
		l.lane.shard.Unsubscribe(g.sub)
	}
	l.subs = nil
	if l.session != nil {
		l.enter()
		defer l.exit()
		l.session.Closed()
	}
}

// put queues b for the writer. Any goroutine.
func (l *link) put(b []byte) {
	l.mu.Lock()
	tooMuch := false
	if !l.ended && len(b) > 0 {
		l.queue = append(l.queue, b)
		l.bytes += len(b)
		l.hungry = l.hungry || l.bytes > stalledFrom
		tooMuch = l.bytes > maxQueue
	}
	if tooMuch {
		l.ended, l.cut = true, true
	}
	l.mu.Unlock()
	if tooMuch {
		l.srv.counters.tooSlow.Add(1)
	}
	poke(l.ready)
}

// take takes what is queued. ended says that nothing follows.
func (l *link) take() (queue [][]byte, ended, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	queue, l.queue = l.queue, nil
	return queue, l.ended, l.cut
}

// written says that n bytes were. It tells the session and the reader when no more wait.
func (l *link) written(n int) {
	l.mu.Lock()
	l.bytes -= n
	empty := l.bytes == 0
	hungry := l.hungry && empty
	if hungry {
		l.hungry = false
	}
	l.mu.Unlock()
	if empty {
		poke(l.room)
	}
	if hungry {
		l.lane.post(func() {
			if !l.deaf() {
				l.enter()
				defer l.exit()
				l.session.Drained()
			}
		})
	}
}

// finish lets nothing follow what is queued; a cut drops that too. Any goroutine.
func (l *link) finish(cut bool) {
	l.mu.Lock()
	l.ended, l.cut = true, l.cut || cut
	l.mu.Unlock()
	poke(l.ready)
}

// Send implements socket.Transport.
func (l *link) Send(b []byte) {
	if !l.goodbye && !l.isGone {
		l.put(b)
	}
}

// Write implements socket.Transport.
func (l *link) Write(b []byte) { l.Send(bytes.Clone(b)) }

var ping = websocket.AppendFrame(nil, websocket.OpPing, nil)

// Ping implements socket.Transport.
func (l *link) Ping() {
	if l.isSocket {
		l.Send(ping)
	}
}

// LastRead implements socket.Transport.
func (l *link) LastRead() int64 { return l.lastRead.Load() }

// Stalled implements socket.Transport.
func (l *link) Stalled() bool { return l.waiting() > stalledFrom }

// Unsent implements socket.Transport.
func (l *link) Unsent() int { return l.waiting() }

func (l *link) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hungry = l.hungry || l.bytes > 0
	return l.bytes
}

// Close implements socket.Transport.
func (l *link) Close(code int, reason string) {
	if l.goodbye || l.isGone {
		return
	}
	if l.isSocket {
		l.put(websocket.AppendClose(nil, uint16(code), reason))
	}
	l.goodbye = true
	l.finish(false)
}

// Cut implements socket.Transport.
func (l *link) Cut() {
	l.goodbye = true
	l.finish(true)
}

// SetTimer implements socket.Transport.
func (l *link) SetTimer(d time.Duration) {
	l.stopTimer()
	if d <= 0 || l.goodbye || l.isGone {
		return
	}
	l.timers++
	n := l.timers
	l.timer = time.AfterFunc(d, func() {
		l.lane.post(func() {
			if n == l.timers && l.timer != nil && !l.deaf() {
				l.timer = nil
				l.enter()
				defer l.exit()
				l.session.Timer()
			}
		})
	})
}

func (l *link) stopTimer() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// goAway has the session send its client away, once.
func (l *link) goAway() {
	if l.leaving || l.deaf() {
		return
	}
	l.leaving = true
	l.srv.counters.sentAway.Add(1)
	l.enter()
	defer l.exit()
	l.session.Drain()
}

// Now implements socket.Transport.
func (l *link) Now() int64 { return l.srv.now() }

// Peer implements socket.Transport.
func (l *link) Peer() netip.AddrPort { return l.peer }

// ID implements socket.Transport.
func (l *link) ID() uint64 { return l.id }

// Post implements socket.Transport.
func (l *link) Post(f func()) {
	l.lane.post(func() {
		l.enter()
		defer l.exit()
		f()
	})
}

// Do implements socket.Transport.
func (l *link) Do(work func(ctx context.Context), then func()) bool {
	if l.goodbye || l.isGone {
		return true // nobody waits for it
	}
	return l.srv.Work(work, func() {
		l.lane.post(func() {
			if !l.deaf() {
				l.enter()
				defer l.exit()
				then()
			}
		})
	})
}

// Publish implements socket.Transport.
func (l *link) Publish(p hub.Publication, done func(hub.Position, error)) {
	tell := func(at hub.Position, err error) {
		l.lane.post(func() {
			if !l.deaf() {
				l.enter()
				defer l.exit()
				done(at, err)
			}
		})
	}
	if l.carrier != nil && l.carrier.Publish(nil, p, tell) {
		return
	}
	l.srv.hub.Publish(p, func(at hub.Position, err error) {
		l.srv.CountPublished(err)
		tell(at, err)
	})
}

// Subscribe implements socket.Transport.
func (l *link) Subscribe(s *hub.Subscriber, sink hub.Sink, opt hub.SubscribeOptions) error {
	if l.goodbye || l.isGone {
		return hub.ErrClosed
	}
	if l.srv.turnsAway(l.carrier, &opt) {
		return hub.ErrOverloaded
	}
	g := &subscription{l: l, sub: s, sink: sink, next: l.subs}
	l.subs = g
	err := l.lane.shard.Subscribe(s, g, opt)
	if err != nil {
		l.unlink(s)
	}
	return err
}

// Unsubscribe implements socket.Transport.
func (l *link) Unsubscribe(s *hub.Subscriber) {
	if l.unlink(s) {
		l.lane.shard.Unsubscribe(s)
	}
}

// unlink takes s off the list and mutes its sink. It reports whether it was there.
func (l *link) unlink(s *hub.Subscriber) bool {
	for at := &l.subs; *at != nil; at = &(*at).next {
		if g := *at; g.sub == s {
			*at, g.sink = g.next, nil
			return true
		}
	}
	return false
}

// subscription is a sink of the session's. It keeps a panic from the hub.
type subscription struct {
	l    *link
	sub  *hub.Subscriber
	sink hub.Sink // nil: it has ended
	next *subscription
}

var _ hub.Sink = (*subscription)(nil)

// live reports whether the sink is called. Who was told goodbye gets no more.
func (g *subscription) live() bool { return g.sink != nil && !g.l.goodbye && !g.l.isGone }

// Start implements hub.Sink.
func (g *subscription) Start(at hub.Positions) {
	if g.live() {
		g.l.enter()
		defer g.l.exit()
		g.sink.Start(at)
	}
}

// Deliver implements hub.Sink.
func (g *subscription) Deliver(b *hub.Batch) {
	if g.live() {
		g.l.enter()
		defer g.l.exit()
		g.sink.Deliver(b)
	}
}

// Gap implements hub.Sink.
func (g *subscription) Gap(gap hub.Gap) {
	if g.live() {
		g.l.enter()
		defer g.l.exit()
		g.sink.Gap(gap)
	}
}

// Failed implements hub.Sink.
func (g *subscription) Failed(err error) {
	if g.live() {
		g.l.enter()
		defer g.l.exit()
		g.sink.Failed(err)
	}
}

// Event implements hub.EventSink.
func (g *subscription) Event(e *hub.Event) {
	if sink, ok := g.sink.(hub.EventSink); ok && g.live() {
		g.l.enter()
		defer g.l.exit()
		sink.Event(e)
	}
}

// Room implements hub.Sink.
func (g *subscription) Room() (ok bool) {
	if g.live() {
		g.l.enter()
		defer g.l.exit()
		ok = !g.l.srv.resting.Load() && g.sink.Room()
	}
	return ok
}
