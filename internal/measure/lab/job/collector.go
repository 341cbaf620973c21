package job

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"

	"github.com/weir-gateway/weir/internal/measure/lab/rung"
)

// collector serves made-up requests that allocate, on a heap of 32 MB, and watches
// the garbage collector, three times as long as others measure. GOGC and GOMEMLIMIT come from the environment; with the
// setting headroom (a budget in MB) GOGC follows what is left of it.
func collector(ctx context.Context, p Params) (Values, error) {
	live := ballast(32 << 20)
	runtime.GC()
	stop := make(chan struct{})
	var pacing sync.WaitGroup
	if budget := p.number("headroom", 0); budget > 0 {
		pacing.Go(func() { byHeadroom(budget*(1<<20), stop) })
	}
	meter, used, cpu := rung.NewMeter(), sys.CPUTime(), gcCPU()
	var took []float64
	peak := 0.0
	runtime.LockOSThread() // whose sleep is exact, which a timer's is not
	defer runtime.UnlockOSThread()
	due := sys.Monotonic()
	n, err := repeat(ctx, 3*p.Duration, func() error {
		// Due every 500 µs: a stall is paid by all that should have started meanwhile.
		due += int64(500 * time.Microsecond)
		if sys.Monotonic() < due {
			sys.SleepUntil(due)
		}
		work()
		took = append(took, float64(sys.Monotonic()-due)/1e9)
		if len(took)%256 == 0 {
			peak = max(peak, heapNow())
		}
		return nil
	})
	close(stop)
	pacing.Wait()
	s, total := meter.Stats(), (sys.CPUTime() - used).Seconds()
	runtime.KeepAlive(live)
	share := 0.0
	if total > 0 {
		share = max(gcCPU()-cpu, 0) / total
	}
	v := Values{
		"p50": quantile(took, 0.5), "p99": quantile(took, 0.99), "p999": quantile(took, 0.999),
		"cycles": s.GCCycles / (3 * p.Duration.Seconds()), "gc_share": share, "peak": max(peak, heapNow()), "cpu_seconds": total / float64(n),
	}
	if s.GCCycles > 0 { // without any there are no pauses to speak of
		v["pause_p99"], v["pause_max"] = s.GCPauseP99, s.GCPauseMax
	}
	return v, err
}

// A node is something the collector has to follow.
type node struct {
	next *node
	_    [48]byte
}

// ballast is about n bytes of what a server holds anyway.
func ballast(n int) []*node {
	list := make([]*node, 0, n/64)
	for len(list) < cap(list) {
		x := &node{}
		if len(list) > 0 {
			x.next = list[len(list)/2]
		}
		list = append(list, x)
	}
	return list
}

// work is a request: it allocates about 100 KB in pieces and forgets them.
func work() {
	var last *node
	var kept [][]byte
	for i := range 400 {
		last = &node{next: last}
		if i%4 == 0 {
			kept = append(kept, make([]byte, 768))
		}
	}
	runtime.KeepAlive(last)
	runtime.KeepAlive(kept)
}

// byHeadroom sets GOGC so that the heap may grow into the budget and no further:
// rarely collected while there is room, often when there is none.
func byHeadroom(budget float64, stop <-chan struct{}) {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		live := read("/gc/heap/live:bytes")
		if live > 0 {
			debug.SetGCPercent(int(min(max((budget/live-1)*100, 25), 1000)))
		}
		select {
		case <-stop:
			return
		case <-t.C:
		}
	}
}

func heapNow() float64 { return read("/memory/classes/heap/objects:bytes") }

// gcCPU is the processor time of the collector, in seconds, as of its last cycle.
func gcCPU() float64 {
	return read("/cpu/classes/gc/total:cpu-seconds") - read("/cpu/classes/gc/mark/idle:cpu-seconds")
}

func read(name string) float64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	if s[0].Value.Kind() == metrics.KindFloat64 {
		return s[0].Value.Float64()
	}
	return float64(s[0].Value.Uint64())
}
