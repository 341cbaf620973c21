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
	"runtime/debug"
	"time"

	"github.com/weir-gateway/weir/internal/net/poller"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/net/timerwheel"
)

// A Loop owns connections. Methods are for its goroutine only unless they say
// otherwise.
type Loop struct {
	// Local is for anyone who gives the loop its work, who sets it before the loop runs: what
	// is found by it need not be kept for every connection. The loop does not look at it.
	Local any

	// Fixed at New.
	id     int
	accept func(*Conn) Handler
	onTick func()
	onEnd  func(now int64) // nil: none
	onFree func(*Conn)     // nil: none
	limits limits
	// dialSettings are for every socket that Dial opens.
	dialSettings []sys.Setting
	// unmarked is the Mark of accepted connections.
	unmarked Mark
	// maxSleep bounds a sleep for no reason but to be found out if one is missed.
	maxSleep time.Duration
	log      *slog.Logger
	base     time.Time // where the loop's clock counts from
	shared   *groupCounters

	// Any goroutine.
	inbox    // what waits for the loop
	counters published
	ticking  tickTimes

	// Owned by the loop's goroutine. No lock.
	now   int64 // nanoseconds since base, read once per tick
	table connTable
	sent  sentSockets // that another process has; nil mostly
	// exporting is the batch of an Export under way; nil mostly. stays are the connections that another process
	// refused, until the next pause; nil mostly.
	exporting *batch
	arriving  bool // input is shown that another process had received, however much its handler consumes
	stays     map[poller.Key]struct{}
	accepting acceptor
	timers    *timerwheel.Wheel[*Conn]
	running   []func()
	dirty     []*Conn   // have queued bytes to be written at the end of the tick
	stalled   stallList // wait for their socket to take more
	queues    queuePool
	gather    gatherer // what Write took in this tick and is not sent yet
	scratch   []byte   // for outQueue.merge
	sealed    []byte   // for seal
	one       [1]int32 // for one socket of the process that the poller adopts
	// flushers wait for the end of the tick.
	flushers []Flusher
	// dispatching are the connections whose Data call is running: one, mostly.
	dispatching []*Conn
	failures    failureList
	n           counts
	stopping    bool
	pause       *pausePoint // where to pause after this tick; nil mostly
	ended       bool
}

const (
	timerTick   = 100 * time.Millisecond
	gatherLimit = 64 << 10
	burstLimit  = 16 << 10
)

func newLoop(id int, p poller.Poller, g *Group) *Loop {
	l := &Loop{
		id: id, inbox: inbox{poller: p}, accept: g.accept, limits: g.limits, dialSettings: g.socks.dialSettings(), unmarked: Mark{DSCP: g.socks.cfg.DSCP, Priority: g.socks.cfg.Priority}, log: g.log, base: g.base, shared: &g.counters,
		timers: timerwheel.New[*Conn](timerTick, 0), gather: gatherer{b: make([]byte, 0, 4<<10)}, onTick: func() {},
		maxSleep: time.Second, stalled: stallList{every: min(int64(time.Second), g.limits.writeStall/4+1)},
	}
	l.accepting.loop = l
	return l
}

// ID is the loop's number in its group, from 0. Any goroutine.
func (l *Loop) ID() int { return l.id }

// Engine names what moves its bytes. Any goroutine.
func (l *Loop) Engine() string { return l.poller.Name() }

// OnTick sets f to run in every tick, after what was posted. Before Run only.
func (l *Loop) OnTick(f func()) { l.onTick = f }

// OnRelease sets f to be called for every accepted connection that leaves the loop: closed,
// or handed on. Before Run only. It must be quick.
func (l *Loop) OnRelease(f func(*Conn)) { l.onFree = f }

// Now returns the loop's clock in nanoseconds. It is read once per tick.
func (l *Loop) Now() int64 { return l.now }

// Time returns the wall time of a value of Now.
func (l *Loop) Time(now int64) time.Time { return l.base.Add(time.Duration(now)) }

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
		if err := l.poller.Wait(timeout, pollEvents{l}); err != nil {
			return fmt.Errorf("loop %d: %w", l.id, err)
		}
		if err := l.tick(); err != nil {
			return err
		}
		if l.pause != nil {
			l.pauseTick()
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
	if len(l.dirty) > 0 || len(l.failures) > 0 || len(l.gather.list) > 0 || len(l.flushers) > 0 {
		return 0
	}
	wait := l.maxSleep
	if d, ok := l.timers.Next(l.now); ok {
		wait = min(wait, d)
	}
	if len(l.stalled.conns) > 0 {
		wait = min(wait, time.Duration(l.stalled.swept+l.stalled.every-l.now))
	}
	for _, p := range l.accepting.paused {
		wait = min(wait, time.Duration(p.until-l.now))
	}
	return max(wait, 0)
}

func (l *Loop) runInbox() {
	l.running = l.inbox.take(l.running[:0])
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
	case len(l.stalled.conns) == 0:
		l.n.queued = 0
	case l.now-l.stalled.swept >= l.stalled.every:
		l.n.queued = l.stalled.sweep(l.now)
	}
	l.accepting.resume()
	l.failures.report()
	l.flushDirty()
	l.gather.flush()
	l.runFlushers()
	l.poller.Flush()
	l.n.ticks++
	l.n.open, l.n.waiting = uint64(l.table.open), uint64(len(l.stalled.conns))
	l.counters.publish(&l.n)
	l.tickEnds()
}

// tickEnds looks at the clock once more: how long the tick took can be known in no
// other way.
func (l *Loop) tickEnds() {
	now := l.Clock()
	if l.ticking.end(now); l.onEnd != nil {
		l.onEnd(now)
	}
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

func fireTimer(c *Conn) {
	l := c.loop
	switch d := c.out.dialing(); {
	case c.isClosed():
	case d != nil:
		d.due()
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

// release takes c, whose socket is given back, off the loop.
func (l *Loop) release(c *Conn) {
	if l.onFree != nil && c.Listener() >= 0 {
		l.onFree(c)
	}
	l.table.remove(c.key)
	delete(l.stays, c.key)
	if v := c.carrying(); v == nil || !v.first {
		l.shared.open.Add(-1)
	}
}

// shutDown closes what is still open when the loop ends. What was posted before
// is run, and what it writes is sent as far as the sockets take it.
func (l *Loop) shutDown() {
	for _, f := range l.inbox.refuse() {
		l.guard(nil, f)
	}
	l.flushDirty()
	l.gather.flush()
	l.runFlushers()
	l.ended = true
	for _, c := range l.table.conns {
		if c != nil {
			c.Close(ErrStopped)
		}
	}
	l.n.open = 0
	l.counters.publish(&l.n)
	l.poller.Release()
}
