package loadgen

import (
	"runtime"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/net/sys"
)

const (
	// coalesce is the shortest sleep: what is due within it goes out together. It
	// does not change what is measured, which counts from each intended instant.
	coalesce = int64(100_000)
	// nap is the longest, so that a stop is noticed.
	nap = int64(20_000_000)
	// handful is how many late arrivals are passed on at a time.
	handful = 256
)

// A clock is what a pacer goes by.
type clock interface {
	now() int64
	sleepUntil(at int64)
}

// threadClock sleeps on a thread of its own. now is the generator's.
type threadClock struct {
	g *Generator
	// offset is from the generator's clock to the system's.
	offset int64
}

func (c *threadClock) now() int64          { return c.g.now() }
func (c *threadClock) sleepUntil(at int64) { sys.SleepUntil(at + c.offset) }

// pace hands out what sch has, from start on, when it is due. It never skips: what
// it is late for goes out at once. It ends when take allows no more.
func pace(c clock, sch *schedule, begin int64, stop *atomic.Bool, take func() bool, hand func(at int64), flush func()) {
	now := c.now()
	n := 0
	for !stop.Load() {
		at, ok := sch.next()
		if !ok || !take() {
			break
		}
		due := begin + int64(at)
		if due > now {
			now = c.now()
		}
		if due > now {
			flush()
			n = 0
			for wake := max(due, now+coalesce); now < wake && !stop.Load(); now = c.now() {
				c.sleepUntil(min(wake, now+nap))
			}
			if stop.Load() {
				break
			}
		}
		hand(due)
		if n++; n == handful {
			flush()
			n = 0
		}
	}
	flush()
}

// startPacer runs sch on a thread of its own. done is closed when everything was
// handed out.
func (g *Generator) startPacer(sch *schedule, begin int64, stop *atomic.Bool) (done <-chan struct{}) {
	ch := make(chan struct{})
	g.work.Go(func() {
		defer close(ch)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		c := &threadClock{g: g, offset: sys.Monotonic() - g.now()}
		due := make([][]int64, len(g.shards))
		turn := int64(0)
		hand := func(at int64) {
			if turn++; turn >= g.requestConns.Load() {
				turn = 0
			}
			i := int(turn) % len(due)
			due[i] = append(due[i], at)
		}
		flush := func() {
			for i, d := range due {
				if len(d) > 0 {
					g.shards[i].deal(d)
					due[i] = d[:0]
				}
			}
		}
		pace(c, sch, begin, stop, g.quota.take, hand, flush)
	})
	return ch
}
