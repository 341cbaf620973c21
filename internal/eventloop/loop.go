// Package eventloop runs connections on a few sharded loops. From accept to
// close a connection belongs to one loop, and only that loop's goroutine
// touches it; everyone else posts functions to the loop.
//
// An idle connection costs a descriptor and one struct: no goroutine, no
// buffer, no timer of its own in the runtime. Bytes are read into one buffer
// per loop and shown to the connection's Handler; what it does not consume is
// kept only while it is there. Shared frames go out at once while the socket
// takes them; what handlers write themselves during a tick leaves at its end, in
// one write for each connection.
package eventloop

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/poller"
	"github.com/weir-gateway/weir/internal/sys"
	"github.com/weir-gateway/weir/internal/timerwheel"
)

// A Loop owns connections. Methods are for its goroutine only unless they say
// otherwise.
type Loop struct {
	// Local is for whoever gives the loop its work, who sets it before the loop runs: what
	// is found by it need not be kept for every connection. The loop does not look at it.
	Local any

	// Fixed at New.
	id     int
	poller poller.Poller
	accept func(*Conn) Handler
	onTick func()
	onEnd  func(now int64) // nil: none
	onFree func(*Conn)     // nil: none
	limits limits
	// dialSettings are for every socket that Dial opens.
	dialSettings []sys.Setting
	// maxSleep bounds a sleep for no reason but to be found out if one is missed.
	maxSleep   time.Duration
	sweepEvery int64
	log        *slog.Logger
	base       time.Time // where the loop's clock counts from
	shared     *groupCounters

	// Any goroutine: what waits for the loop.
	mu       sync.Mutex
	inbox    []func()
	closed   bool
	woken    atomic.Bool // something was posted since the last tick
	sleeping atomic.Bool // the poller may be waiting
	counters published
	ticking  tickTimes

	// Owned by the loop's goroutine. No lock.
	now     int64 // nanoseconds since base, read once per tick
	conns   []*Conn
	gens    []uint32
	free    []uint32
	open    int
	timers  *timerwheel.Wheel[*Conn]
	running []func()
	dirty   []*Conn     // have queued bytes to be written at the end of the tick
	stalled []*Conn     // wait for their socket to take more, in no order
	spare   []*outQueue // empty ones for the next use
	swept   int64
	scratch []byte // for merge
	sealed  []byte // for seal
	gather  []byte // what Write took in this tick and is not sent yet
	gathers []gathered
	flushed int // of gathers
	// flushers wait for the end of the tick.
	flushers []Flusher
	// dispatching are the connections whose Data call is running: one, mostly.
	dispatching []*Conn
	addresses   []uint8 // by index of the poller's listener: of its address. Fixed before Run
	paused      []pausedListener
	deaf        bool // StopAccepting was called
	pace        acceptPace
	// fullSince is since when there has been no room for more connections; 0 means there is.
	fullSince int64
	// refusedLogged is when a refused connection was last logged.
	refusedLogged int64
	failures      []failure
	n             counts
	stopping      bool
	ended         bool
}

type pausedListener struct {
	index int
	until int64
	room  bool // waits for room
}

const (
	timerTick   = 100 * time.Millisecond
	acceptPause = int64(200 * time.Millisecond)
	// roomPause is how often a listener that waits for room looks for it, roomPatience
	// how long it waits.
	roomPause    = int64(5 * time.Millisecond)
	roomPatience = int64(time.Second)
	gatherLimit  = 64 << 10
	burstLimit   = 16 << 10
	keepInbox    = 1 << 12
	// refusedLogEvery bounds how often refused connections are logged.
	refusedLogEvery = int64(10 * time.Second)
)

func newLoop(id int, p poller.Poller, g *Group) *Loop {
	return &Loop{
		id: id, poller: p, accept: g.accept, limits: g.limits, dialSettings: g.socks.dialSettings(), log: g.log, base: g.base, shared: &g.counters,
		timers: timerwheel.New[*Conn](timerTick, 0), gather: make([]byte, 0, 4<<10), onTick: func() {},
		maxSleep: time.Second, sweepEvery: min(int64(time.Second), g.limits.writeStall/4+1),
	}
}

// ID is the loop's number in its group, from 0. Any goroutine.
func (l *Loop) ID() int { return l.id }

// Engine names what moves its bytes. Any goroutine.
func (l *Loop) Engine() string { return l.poller.Name() }

// OnTick sets f to run in every tick, after what was posted. Before Run only.
func (l *Loop) OnTick(f func()) { l.onTick = f }

// OnRelease sets f to be told of every accepted connection that leaves the loop: closed,
// or handed on. Before Run only. It must be quick.
func (l *Loop) OnRelease(f func(*Conn)) { l.onFree = f }

// Now returns the loop's clock in nanoseconds. It is read once per tick.
func (l *Loop) Now() int64 { return l.now }

// Time returns the wall time of a value of Now.
func (l *Loop) Time(now int64) time.Time { return l.base.Add(time.Duration(now)) }

// Post makes the loop run f in its next tick. Any goroutine may call it. It
// returns false when the loop has ended and f will never run.
//
// The inbox has no bound of its own: what posts is bounded (one outstanding
// request per connection, a fixed number of workers, the sweepers).
func (l *Loop) Post(f func()) bool {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return false
	}
	l.inbox = append(l.inbox, f)
	l.mu.Unlock()
	l.Wake()
	return true
}

// Wake makes the loop tick soon. Any goroutine may call it; it costs a system
// call at most once per sleep of the loop.
func (l *Loop) Wake() {
	if l.woken.Load() {
		return // whoever set it sees to the rest, and the tick is still to come
	}
	l.woken.Store(true)
	if !l.sleeping.CompareAndSwap(true, false) {
		return
	}
	l.mu.Lock() // a poller that is released must not be woken
	if !l.closed {
		l.poller.Wake()
	}
	l.mu.Unlock()
}

// run is the loop's goroutine. It returns when stop was posted.
func (l *Loop) run() error {
	defer l.shutDown()
	for !l.stopping {
		l.sleeping.Store(true)
		timeout := l.timeout()
		if l.woken.Load() {
			timeout = 0
		}
		if timeout == 0 {
			l.sleeping.Store(false)
		}
		if err := l.poller.Wait(timeout, l); err != nil {
			return fmt.Errorf("loop %d: %w", l.id, err)
		}
		if err := l.tick(); err != nil {
			return err
		}
	}
	return nil
}

// tick is what follows the poller's events.
func (l *Loop) tick() error {
	l.runInbox()
	if err := l.runOnTick(); err != nil {
		return err
	}
	l.timers.Advance(l.now, fireTimer)
	l.endTick()
	return nil
}

// timeout is how long the loop may sleep.
func (l *Loop) timeout() time.Duration {
	if len(l.dirty) > 0 || len(l.failures) > 0 || len(l.gathers) > 0 || len(l.flushers) > 0 {
		return 0
	}
	wait := l.maxSleep
	if d, ok := l.timers.Next(l.now); ok {
		wait = min(wait, d)
	}
	if len(l.stalled) > 0 {
		wait = min(wait, time.Duration(l.swept+l.sweepEvery-l.now))
	}
	for _, p := range l.paused {
		wait = min(wait, time.Duration(p.until-l.now))
	}
	return max(wait, 0)
}

func (l *Loop) runInbox() {
	l.mu.Lock()
	l.inbox, l.running = l.running[:0], l.inbox
	l.mu.Unlock()
	for i, f := range l.running {
		l.guard(nil, f)
		l.running[i] = nil
	}
	if cap(l.running) > keepInbox { // after a burst, do not hold its memory
		l.running = nil
	}
}

// runOnTick ends the loop if the function given to OnTick panics: it serves all
// connections, and what they would miss cannot be known.
func (l *Loop) runOnTick() (err error) {
	defer func() {
		if r := recover(); r != nil {
			l.panicked(nil, r)
			err = fmt.Errorf("loop %d: panic: %v", l.id, r)
		}
	}()
	l.onTick()
	return nil
}

// endTick looks after what stalls and then writes what was queued during the
// tick; what is queued meanwhile is for the next one, which follows at once.
func (l *Loop) endTick() {
	switch {
	case len(l.stalled) == 0:
		l.n.queued = 0
	case l.now-l.swept >= l.sweepEvery:
		l.sweepStalled()
	}
	l.resumeListeners()
	l.tellFailures()
	l.flushDirty()
	l.flushGather()
	l.runFlushers()
	l.poller.Flush()
	l.n.ticks++
	l.n.open, l.n.waiting = uint64(l.open), uint64(len(l.stalled))
	l.counters.publish(&l.n)
	l.tickEnds()
}

func (l *Loop) flushDirty() {
	n := len(l.dirty)
	for i := range n {
		c := l.dirty[i]
		if q := c.out; q != nil {
			if q.dirty = false; q.stalled >= 0 {
				continue // Queue has found out
			}
		}
		c.flush()
	}
	k := copy(l.dirty, l.dirty[n:])
	clear(l.dirty[k:])
	l.dirty = l.dirty[:k]
}

func (l *Loop) resumeListeners() {
	for i := len(l.paused) - 1; i >= 0; i-- {
		switch p := &l.paused[i]; {
		case l.now < p.until:
		case p.room && l.shared.open.Load() >= l.limits.pauseAt && !l.waitedForRoom():
			p.until = l.now + roomPause
		default:
			l.poller.SetAccepting(p.index, true)
			l.paused = slices.Delete(l.paused, i, i+1)
		}
	}
}

func fireTimer(c *Conn) {
	l := c.loop
	switch d := c.dialing(); {
	case c.isClosed():
	case d != nil:
		c.dialTimer(d)
	default:
		l.guard(c, func() { c.handler.Timer(c, l.now) })
	}
}

// guard runs f. A panic ends c, not the process; without a connection it is
// logged and goes no further.
func (l *Loop) guard(c *Conn, f func()) {
	defer func() {
		if r := recover(); r != nil {
			l.panicked(c, r)
		}
	}()
	f()
}

func (l *Loop) panicked(c *Conn, r any) {
	l.n.panics++
	l.log.Error("panic in a handler", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	if c != nil && !c.isClosed() {
		c.Close(fmt.Errorf("panic: %v", r))
	}
}

// Woke implements poller.Handler: it is the start of a tick.
func (l *Loop) Woke() {
	l.sleeping.Store(false)
	if l.woken.Load() {
		l.woken.Store(false) // before the inbox is read: what comes later wakes anew
	}
	l.now = int64(time.Since(l.base))
	l.tickBegins()
}

// FD implements poller.Handler.
func (l *Loop) FD(k poller.Key) (int, bool) {
	if c := l.conn(k); c != nil {
		return int(c.fd), true
	}
	return -1, false
}

func (l *Loop) conn(k poller.Key) *Conn {
	slot := k.Slot()
	if int(slot) >= len(l.conns) {
		return nil
	}
	if c := l.conns[slot]; c != nil && c.key == k {
		return c
	}
	return nil
}

// Accepted implements poller.Handler.
func (l *Loop) Accepted(listener, fd int, peer netip.AddrPort) {
	if open := l.shared.open.Add(1); open > l.limits.maxConns && (open > l.limits.maxConns+l.limits.burst || l.waitedForRoom()) {
		l.shared.open.Add(-1)
		if l.n.refused++; l.refusedLogged == 0 || l.now-l.refusedLogged >= refusedLogEvery {
			l.refusedLogged = l.now
			l.log.Warn("connections are refused: as many are open as may be", "max_conns", l.limits.maxConns, "refused", l.n.refused, "descriptors", sys.MaxFiles())
		}
		l.poller.Close(0, fd)
		return
	}
	c := &Conn{loop: l, fd: int32(fd), listener: l.addresses[listener], peerIP: peer.Addr().As16(), peerPort: peer.Port(), accepted: l.now}
	c.timer.Owner = c
	c.key = l.take(c)
	if err := l.poller.Add(c.key, fd); err != nil {
		l.n.acceptErrors++
		l.log.Warn("accept", "err", err)
		c.flags |= flagClosed
		l.release(c)
		l.poller.Close(c.key, fd)
		return
	}
	l.n.accepted++
	if l.pace.each > 0 && l.pace.spent(l.now) {
		l.pauseListener(listener, l.pace.at+paceWindow, false)
	}
	l.waitForRoom(listener)
	var h Handler
	l.guard(c, func() { h = l.accept(c) })
	if h != nil {
		c.SetHandler(h)
	} else if c.handler == nil {
		c.Close(nil)
	}
}

func (l *Loop) take(c *Conn) poller.Key {
	var slot uint32
	if n := len(l.free); n > 0 {
		slot = l.free[n-1]
		l.free = l.free[:n-1]
	} else {
		slot = uint32(len(l.conns))
		l.conns = append(l.conns, nil)
		l.gens = append(l.gens, 0)
	}
	l.conns[slot] = c
	l.open++
	return poller.Key(uint64(l.gens[slot])<<32 | uint64(slot))
}

// release frees c's slot; its next user gets another generation. 30 bits of it
// are used: the top two mark the poller's own keys.
func (l *Loop) release(c *Conn) {
	if l.onFree != nil && c.Listener() >= 0 {
		l.onFree(c)
	}
	slot := c.key.Slot()
	l.conns[slot] = nil
	l.gens[slot] = (l.gens[slot] + 1) & (1<<30 - 1)
	l.free = append(l.free, slot)
	l.open--
	if v := c.carrying(); v == nil || !v.first {
		l.shared.open.Add(-1)
	}
}

// AcceptFailed implements poller.Handler. Out of descriptors or memory, the
// listener rests for a moment instead of spinning; connections wait in the kernel.
func (l *Loop) AcceptFailed(listener int, err syscall.Errno) {
	l.n.acceptErrors++
	if l.n.acceptErrors == 1 || l.n.acceptErrors%100 == 0 {
		l.log.Warn("accept", "err", err, "failures", l.n.acceptErrors, "limit", sys.MaxFiles())
	}
	l.pauseListener(listener, l.now+acceptPause, false)
}

// pauseListener lets connections wait in the kernel until then.
func (l *Loop) pauseListener(listener int, until int64, room bool) {
	l.poller.SetAccepting(listener, false)
	if l.deaf || slices.ContainsFunc(l.paused, func(p pausedListener) bool { return p.index == listener }) {
		return
	}
	l.paused = append(l.paused, pausedListener{index: listener, until: until, room: room})
}

// waitedForRoom reports whether there has been no room for long.
func (l *Loop) waitedForRoom() bool { return l.fullSince != 0 && l.now-l.fullSince >= roomPatience }

// waitForRoom lets connections wait in the kernel while nearly as many are open as may
// be: those that are answered or refused make room in a moment. Where none has become
// free within roomPatience, one connection too many is closed at accept.
func (l *Loop) waitForRoom(listener int) {
	switch {
	case l.shared.open.Load() < l.limits.pauseAt:
		l.fullSince = 0
		return
	case l.fullSince == 0:
		l.fullSince = max(l.now, 1)
	}
	if !l.waitedForRoom() {
		l.n.acceptPauses++
		l.pauseListener(listener, l.now+roomPause, true)
	}
}

// acceptPace bounds how many connections a loop accepts in a window of time.
type acceptPace struct {
	each, n int // in a window; 0 means no bound
	at      int64
}

const paceWindow = int64(100 * time.Millisecond)

// spent counts a connection, and reports whether the window has no more.
func (p *acceptPace) spent(now int64) bool {
	if now-p.at >= paceWindow {
		p.at, p.n = now, 0
	}
	p.n++
	return p.n >= p.each
}

// stopAccepting pauses the first n listeners for good.
func (l *Loop) stopAccepting(n int) {
	l.deaf = true
	l.paused = nil
	for i := range n {
		l.poller.SetAccepting(i, false)
	}
}

// Received implements poller.Handler.
func (l *Loop) Received(k poller.Key, b []byte, err syscall.Errno) {
	c := l.conn(k)
	if c == nil {
		return
	}
	switch {
	case err != 0:
		c.Close(err)
	case len(b) == 0:
		c.endOfSocket()
	default:
		l.n.reads++
		l.n.bytesIn += uint64(len(b))
		c.arrived(b)
	}
}

// Writable implements poller.Handler.
func (l *Loop) Writable(k poller.Key) {
	if c := l.conn(k); c != nil {
		c.flush()
	}
}

// Conns calls f for every open connection until f returns false. Loop only.
func (l *Loop) Conns(f func(*Conn) bool) {
	for _, c := range l.conns {
		if c != nil && !f(c) {
			return
		}
	}
}

// shutDown closes what is still open when the loop ends. What was posted before
// is run, and what it writes is sent as far as the sockets take it.
func (l *Loop) shutDown() {
	for _, f := range l.refuse() {
		l.guard(nil, f)
	}
	l.flushDirty()
	l.flushGather()
	l.runFlushers()
	l.ended = true
	for _, c := range l.conns {
		if c != nil {
			c.Close(ErrStopped)
		}
	}
	l.n.open = 0
	l.counters.publish(&l.n)
	l.poller.Release()
}

// refuse makes Post return false from now on, and returns what is left to run.
func (l *Loop) refuse() []func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := l.inbox
	l.closed, l.inbox = true, nil
	return rest
}
