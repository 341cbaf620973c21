package eventloop

import (
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/metrics"
)

// tickTimes is how long the ticks of a loop took: from the return of the poller to the
// end of all work that it brought.
type tickTimes struct {
	times metrics.Histogram
	// busy is the nanoseconds of all ticks, last those of the last one, began when the
	// one under way began, on the loop's clock; 0 between ticks.
	busy, last, began atomic.Int64
}

// begin is called when the poller has something.
func (t *tickTimes) begin(now int64) {
	if t.began.Load() == 0 {
		t.began.Store(max(now, 1))
	}
}

// end is called when all that it brought was worked on.
func (t *tickTimes) end(now int64) {
	if began := t.began.Load(); began != 0 {
		t.times.Observe(time.Duration(now - began))
		t.last.Store(now - began)
		t.busy.Store(t.busy.Load() + now - began)
		t.began.Store(0)
	}
}

// OnTickEnd sets f to run at the end of every tick, when what was queued has been handed to
// the kernel, with the loop's clock read anew. Before Run only. It must be quick.
func (l *Loop) OnTickEnd(f func(now int64)) { l.onEnd = f }

// Ticks are how a loop spent its time.
type Ticks struct {
	// Times of all ticks that have ended.
	Times metrics.Counts
	// Busy is the time spent in ticks, the one under way included.
	Busy time.Duration
	// Last is how long the last tick took.
	Last time.Duration
	// Current is how long the tick under way has taken so far; 0 between ticks. One
	// that grows is a handler that does not return.
	Current time.Duration
	// Inbox is how many functions wait to be run.
	Inbox int
}

// Ticks may be called from any goroutine.
func (l *Loop) Ticks() (t Ticks) {
	l.ticking.times.AddTo(&t.Times)
	t.Busy, t.Last = time.Duration(l.ticking.busy.Load()), time.Duration(l.ticking.last.Load())
	if began := l.ticking.began.Load(); began != 0 {
		t.Current = max(time.Since(l.base)-time.Duration(began), 0)
		t.Busy += t.Current
	}
	t.Inbox = l.inbox.length()
	return t
}

// Clock returns what Now would if the clock were read now. Any goroutine.
func (l *Loop) Clock() int64 { return int64(time.Since(l.base)) }

// TCPInfo returns what the kernel says of the connection; false when it says nothing,
// as of sockets that are no TCP, and of those of io_uring, which no system call names.
// Loop only.
func (c *Conn) TCPInfo() (sys.TCPInfo, bool) {
	c = c.Socket()
	const named = 1 << 30 // a descriptor from there on is an entry of a ring's own table
	if c.isClosed() || c.Connecting() || c.fd >= named || c.peerPort == 0 {
		return sys.TCPInfo{}, false
	}
	info, errno := sys.ReadTCPInfo(int(c.fd))
	return info, errno == 0
}
