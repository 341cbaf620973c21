package governor

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/metrics"
)

// A pacingRun is what one policy did in one round.
type pacingRun struct {
	gc, p99, p999, busyRSS, idleRSS, cycles float64
}

const (
	pacingWork = 2 * time.Second
	pacingIdle = 600 * time.Millisecond
	// pacingTick replaces the second at which a running governor looks.
	pacingTick = 50 * time.Millisecond
	// pacingRate is messages per millisecond, pacingSize the bytes of one.
	pacingRate = 100
	pacingSize = 2048
)

// connection is about what one costs: a struct with pointers, and a buffer.
type connection struct {
	next   *connection
	name   string
	buffer []byte
}

// heapOf is a live heap of so many bytes.
func heapOf(bytes int) (all []*connection) {
	for i := 0; i*1100 < bytes; i++ {
		c := &connection{name: fmt.Sprint("c", i), buffer: filled(1024)}
		if i > 0 {
			c.next = all[i-1]
		}
		all = append(all, c)
	}
	return all
}

// filled is memory that is really there: a page that was never written takes none.
func filled(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 512 {
		b[i] = 1
	}
	return b
}

// pacingRound does the same work under a policy: messages at a fixed rate, allocated,
// linked into the heap briefly and dropped, each timed from when it was due; then
// nothing for a while.
func pacingRound(policy string, percent int, limit uint64, live []*connection, work, idle time.Duration) pacingRun {
	runtime.LockOSThread() // to be woken on time
	defer runtime.UnlockOSThread()
	p := newPacer(MemoryConfig{Policy: policy, Percent: percent}, limit)
	undo := p.start()
	defer undo()
	r := newRuntimeReader()
	runtime.GC()
	debug.FreeOSMemory()
	r.read()
	gc, idleMark, cycles, cpu := r.f(rtCPUGC), r.f(rtCPUMarkIdle), r.u(rtCycles), sys.CPUTime()
	var h metrics.Shared
	var out pacingRun
	var activity uint64
	looks := 0.0
	rss := openProc("/proc/self/statm", 128)
	defer rss.close()
	resident := func() float64 {
		pages, _ := parseStatm(rss.read())
		return float64(pages) * float64(os.Getpagesize())
	}
	begin, start := time.Now(), sys.Monotonic()
	look := begin
	tick := func() {
		if time.Now().Before(look) {
			return
		}
		look = look.Add(pacingTick)
		r.read()
		p.second(r, activity, true)
		if time.Since(begin) < work {
			out.busyRSS += resident()
			looks++
		}
	}
	slots := make([]*connection, 1024)
	for ms := 0; ms < int(work/time.Millisecond); ms++ {
		due := begin.Add(time.Duration(ms) * time.Millisecond)
		sys.SleepUntil(start + int64(ms)*int64(time.Millisecond))
		for i := range pacingRate {
			slots[(ms*pacingRate+i)%len(slots)] = &connection{next: live[(ms*pacingRate+i)%len(live)], buffer: filled(pacingSize)}
			h.Observe(time.Since(due))
		}
		activity++
		tick()
	}
	for time.Since(begin) < work+idle {
		time.Sleep(pacingTick / 5) // the idle time itself
		tick()
	}
	out.idleRSS = resident() / (1 << 20)
	used := (sys.CPUTime() - cpu).Seconds()
	runtime.GC() // the account moves when a cycle ends
	r.read()
	out.cycles = float64(r.u(rtCycles) - cycles - 1)
	out.gc = max(r.f(rtCPUGC)-gc-(r.f(rtCPUMarkIdle)-idleMark), 0) / max(used, 1e-9)
	out.busyRSS /= max(looks, 1) * (1 << 20)
	var all metrics.Counts
	h.AddTo(&all)
	out.p99, out.p999 = all.Top(0.99).Seconds()*1e6, all.Top(0.999).Seconds()*1e6
	runtime.KeepAlive(slots)
	return out
}

// BenchmarkPacing compares the collector's policies under the same work. Rounds of all
// policies follow one another, each time beginning with another, so that what the
// machine does meanwhile meets all alike; the table has the medians, and of the P99 the
// least too, which a busy machine moves less.
//
//	go test ./internal/observe/governor -run '^$' -bench Pacing -benchtime 5x -v
func BenchmarkPacing(b *testing.B) {
	rungs := []struct {
		name, policy string
		percent      int
	}{{"fixed 50", PolicyFixed, 50}, {"fixed 100", PolicyFixed, 100}, {"fixed 200", PolicyFixed, 200}, {"fixed 400", PolicyFixed, 400},
		{"headroom", PolicyHeadroom, 100}, {"phase", PolicyPhase, 100}}
	for _, size := range []struct{ live, limit int }{{32, 256}, {128, 256}, {128, 2048}} {
		b.Run(fmt.Sprintf("live=%dMiB,limit=%dMiB", size.live, size.limit), func(b *testing.B) {
			live := heapOf(size.live << 20)
			was := debug.SetMemoryLimit(int64(size.limit) << 20 * 9 / 10)
			defer debug.SetMemoryLimit(was)
			runs := make([][]pacingRun, len(rungs))
			turn := 0
			for b.Loop() {
				for i := range rungs {
					k := (i + turn) % len(rungs)
					runs[k] = append(runs[k], pacingRound(rungs[k].policy, rungs[k].percent, uint64(size.limit)<<20, live, pacingWork, pacingIdle))
				}
				turn++
			}
			b.ReportMetric(0, "ns/op")
			var t strings.Builder
			fmt.Fprintf(&t, "\n| policy | gc, %% of cpu used | cycles | p99 µs | least p99 µs | p99.9 µs | RSS at work MiB | RSS idle MiB |\n|---|---:|---:|---:|---:|---:|---:|---:|\n")
			for k, rung := range rungs {
				col := func(f func(pacingRun) float64) float64 {
					var xs []float64
					for _, r := range runs[k] {
						xs = append(xs, f(r))
					}
					return median(xs)
				}
				least := runs[k][0].p99
				for _, r := range runs[k] {
					least = min(least, r.p99)
				}
				fmt.Fprintf(&t, "| %s | %.1f | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f |\n", rung.name, 100*col(func(r pacingRun) float64 { return r.gc }),
					col(func(r pacingRun) float64 { return r.cycles }), col(func(r pacingRun) float64 { return r.p99 }), least, col(func(r pacingRun) float64 { return r.p999 }),
					col(func(r pacingRun) float64 { return r.busyRSS }), col(func(r pacingRun) float64 { return r.idleRSS }))
			}
			b.Log(t.String())
			runtime.KeepAlive(live)
		})
	}
}

// One short round of each policy must do its work: the benchmark itself is not to rot.
func TestEveryPolicyCarriesTheLoad(t *testing.T) {
	live := heapOf(4 << 20)
	for _, policy := range []string{PolicyFixed, PolicyHeadroom, PolicyPhase} {
		if r := pacingRound(policy, 100, 256<<20, live, 500*time.Millisecond, 100*time.Millisecond); r.cycles < 1 || r.gc <= 0 || r.busyRSS <= 4 || r.p99 <= 0 {
			t.Errorf("%s: %+v", policy, r)
		}
	}
	runtime.KeepAlive(live)
}
