package governor

import (
	"math"
	runtimemetrics "runtime/metrics"
	"time"

	"github.com/weir-gateway/weir/internal/observe/metrics"
)

// The runtime's metrics that are read, by their place in runtimeReader.samples.
const (
	rtGoroutines = iota
	rtRunning
	rtRunnable
	rtWaiting
	rtNotInGo
	rtCreated
	rtThreads
	rtSchedLatency
	rtPause
	rtStop
	rtLockWait
	rtCycles
	rtCPUGC
	rtCPUAssist
	rtCPUMarkIdle
	rtCPUScavenge
	rtCPUTotal
	rtCPUIdle
	rtLive
	rtGoal
	rtMemLimit
	rtPercent
	rtLimiter
	rtAllocs
	rtStacks
	rtObjects
	rtFree
	rtUnused
	rtTotal
	rtReleased
	rtMetrics
)

var runtimeNames = [rtMetrics]string{
	rtGoroutines: "/sched/goroutines:goroutines", rtRunning: "/sched/goroutines/running:goroutines",
	rtRunnable: "/sched/goroutines/runnable:goroutines", rtWaiting: "/sched/goroutines/waiting:goroutines",
	rtNotInGo: "/sched/goroutines/not-in-go:goroutines", rtCreated: "/sched/goroutines-created:goroutines",
	rtThreads:      "/sched/threads/total:threads",
	rtSchedLatency: "/sched/latencies:seconds", rtPause: "/sched/pauses/total/gc:seconds",
	rtStop: "/sched/pauses/stopping/gc:seconds", rtLockWait: "/sync/mutex/wait/total:seconds",
	rtCycles: "/gc/cycles/total:gc-cycles", rtCPUGC: "/cpu/classes/gc/total:cpu-seconds",
	rtCPUAssist: "/cpu/classes/gc/mark/assist:cpu-seconds", rtCPUMarkIdle: "/cpu/classes/gc/mark/idle:cpu-seconds",
	rtCPUScavenge: "/cpu/classes/scavenge/total:cpu-seconds", rtCPUTotal: "/cpu/classes/total:cpu-seconds",
	rtCPUIdle: "/cpu/classes/idle:cpu-seconds", rtLive: "/gc/heap/live:bytes", rtGoal: "/gc/heap/goal:bytes",
	rtMemLimit: "/gc/gomemlimit:bytes", rtPercent: "/gc/gogc:percent", rtLimiter: "/gc/limiter/last-enabled:gc-cycle",
	rtAllocs: "/gc/heap/allocs:bytes", rtStacks: "/memory/classes/heap/stacks:bytes",
	rtObjects: "/memory/classes/heap/objects:bytes", rtFree: "/memory/classes/heap/free:bytes",
	rtUnused: "/memory/classes/heap/unused:bytes", rtTotal: "/memory/classes/total:bytes",
	rtReleased: "/memory/classes/heap/released:bytes",
}

// A runtimeReader reads the runtime's metrics without stopping the world and without
// allocating. One goroutine.
type runtimeReader struct {
	samples [rtMetrics]runtimemetrics.Sample
	// The histograms that the runtime keeps, in our buckets, as of the last read.
	sched, pause, stop runtimeHistogram
}

// A runtimeHistogram is one of the runtime's in our buckets.
type runtimeHistogram struct {
	place []uint8 // our bucket for each of the runtime's
	mid   []time.Duration
	now   metrics.Counts
}

func newRuntimeReader() *runtimeReader {
	r := &runtimeReader{}
	for i, name := range runtimeNames {
		r.samples[i].Name = name
	}
	return r
}

func (r *runtimeReader) read() {
	runtimemetrics.Read(r.samples[:])
	r.sched.update(&r.samples[rtSchedLatency])
	r.pause.update(&r.samples[rtPause])
	r.stop.update(&r.samples[rtStop])
}

func (h *runtimeHistogram) update(s *runtimemetrics.Sample) {
	if s.Value.Kind() != runtimemetrics.KindFloat64Histogram {
		return // an older runtime: stays empty
	}
	f := s.Value.Float64Histogram()
	if len(h.place) != len(f.Counts) {
		h.learn(f.Buckets)
	}
	h.now = metrics.Counts{}
	for i, n := range f.Counts {
		if n != 0 {
			h.now.N[h.place[i]] += n
			h.now.Sum += time.Duration(n) * h.mid[i]
		}
	}
}

// learn places each of the runtime's buckets by its geometric middle.
func (h *runtimeHistogram) learn(bounds []float64) {
	h.place, h.mid = make([]uint8, len(bounds)-1), make([]time.Duration, len(bounds)-1)
	for i := range h.place {
		lo, hi := bounds[i], bounds[i+1]
		mid := math.Sqrt(max(lo, 0) * hi)
		switch {
		case math.IsInf(hi, 1):
			mid = max(lo, 0)
		case !(lo > 0):
			mid = max(hi, 0) / 2
		}
		h.mid[i] = time.Duration(min(mid*1e9, 1e18))
		h.place[i] = uint8(metrics.Bucket(h.mid[i]))
	}
}

// u is a counter or gauge as an integer, f as seconds; 0 when the runtime has none.
func (r *runtimeReader) u(i int) uint64 {
	switch v := r.samples[i].Value; v.Kind() {
	case runtimemetrics.KindUint64:
		return v.Uint64()
	case runtimemetrics.KindFloat64:
		return uint64(v.Float64())
	}
	return 0
}

func (r *runtimeReader) f(i int) float64 {
	switch v := r.samples[i].Value; v.Kind() {
	case runtimemetrics.KindUint64:
		return float64(v.Uint64())
	case runtimemetrics.KindFloat64:
		return v.Float64()
	}
	return 0
}

// footprint is what the runtime has of the system and did not give back.
func (r *runtimeReader) footprint() uint64 {
	total, released := r.u(rtTotal), r.u(rtReleased)
	return total - min(released, total)
}

// percent is GOGC, −1 when it is off.
func (r *runtimeReader) percent() int {
	if v := r.u(rtPercent); v <= math.MaxInt32 {
		return int(v)
	}
	return -1
}
