package loadgen

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// A dialer opens links at a bounded rate: all of them at the beginning, and those
// that ended again. Each link is in it at most once.
//
// At the beginning so few are opened at a time that a server's queue of connections that it has not
// accepted yet (4,096 on Linux) does not overflow by several processes' links: what the kernel
// drops then is sent again after a second and more, and takes the processor from the server.
type dialer struct {
	g    *Generator
	gap  time.Duration // between two
	kick chan struct{}

	// under is how many links are being opened; until all are open for the first time, at most mostOpening.
	under   atomic.Int64
	allOpen atomic.Bool

	mu    sync.Mutex
	queue dialQueue
	seq   uint64
}

// mostOpening is how many links are being opened at the beginning at most.
const mostOpening = 256

type dialItem struct {
	at  int64
	seq uint64
	h   endpoint
}

type dialQueue []dialItem

func (q dialQueue) Len() int { return len(q) }
func (q dialQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q dialQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *dialQueue) Push(v any)   { *q = append(*q, v.(dialItem)) }
func (q *dialQueue) Pop() any {
	old := *q
	v := old[len(old)-1]
	old[len(old)-1] = dialItem{}
	*q = old[:len(old)-1]
	return v
}

func newDialer(g *Generator) *dialer {
	return &dialer{g: g, gap: time.Duration(1e9 / g.spec.ConnectRate), kick: make(chan struct{}, 1)}
}

// add has h opened, not before at. Any goroutine.
func (d *dialer) add(h endpoint, at int64) {
	d.mu.Lock()
	d.seq++
	heap.Push(&d.queue, dialItem{at, d.seq, h})
	d.mu.Unlock()
	d.wake()
}

// opened is called for each link that was opened or could not be.
func (d *dialer) opened() {
	if d.under.Add(-1) >= mostOpening-1 {
		d.wake()
	}
}

func (d *dialer) wake() {
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// run opens what is due until ctx is done.
func (d *dialer) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	slot := d.g.now() // when the next may be opened
	for {
		now := d.g.now()
		slot = max(slot, now-int64(20*time.Millisecond)) // what was not used is not saved up
		wait := d.openDue(now, &slot)
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-d.kick:
		case <-timer.C:
		}
	}
}

// openDue opens what is due and returns how long to wait for the next.
func (d *dialer) openDue(now int64, slot *int64) time.Duration {
	for {
		h, at, ok := d.peek()
		if !ok {
			return time.Hour
		}
		if at = max(at, *slot); at > now {
			return time.Duration(at - now)
		}
		if d.under.Load() >= mostOpening && !d.allOpen.Load() {
			return time.Hour // opened wakes it
		}
		d.pop()
		d.under.Add(1)
		*slot += int64(d.gap)
		s := h.base().s
		s.loop.Post(func() { s.openLink(h) })
	}
}

func (d *dialer) peek() (endpoint, int64, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) == 0 {
		return nil, 0, false
	}
	return d.queue[0].h, d.queue[0].at, true
}

func (d *dialer) pop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	heap.Pop(&d.queue)
}

// dial starts to connect h, on its shard's loop.
func (g *Generator) dial(s *shard, h endpoint) wire {
	if l, ok := h.(*h2Conn); ok {
		return l.dial()
	}
	t := g.target
	if _, ok := h.(sender); ok && g.spec.Kind == PubSub {
		t = g.publish
	}
	if t.tls != nil {
		return dialTLS(s, h, t)
	}
	return s.loop.Dial(eventloop.Endpoint{Addr: t.addr}, eventloop.DialOptions{Local: g.source(h), Timeout: g.spec.Timeout}, h)
}
