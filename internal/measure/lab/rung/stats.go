package rung

import (
	"encoding/json"
	"math"
	"net/http"
	"runtime/metrics"
	"sync"
)

// Extra are named numbers that any goroutine may set.
type Extra struct {
	mu     sync.Mutex
	values map[string]float64
}

// Put sets a number.
func (e *Extra) Put(name string, v float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.values == nil {
		e.values = map[string]float64{}
	}
	e.values[name] = v
}

// Add adds to a number.
func (e *Extra) Add(name string, v float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.values == nil {
		e.values = map[string]float64{}
	}
	e.values[name] += v
}

func (e *Extra) take(reset bool) map[string]float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(map[string]float64, len(e.values))
	for k, v := range e.values {
		out[k] = v
	}
	if reset {
		clear(e.values)
	}
	return out
}

// Stats are what a process's own runtime says, since the last mark where they
// count. Times are in seconds.
type Stats struct {
	Goroutines   float64            `json:"goroutines"`
	HeapLive     float64            `json:"heap_live"`
	AllocBytes   float64            `json:"alloc_bytes"`
	AllocObjects float64            `json:"alloc_objects"`
	GCCycles     float64            `json:"gc_cycles"`
	GCPauseMean  float64            `json:"gc_pause_mean"`
	GCPauseP99   float64            `json:"gc_pause_p99"`
	GCPauseMax   float64            `json:"gc_pause_max"`
	SchedP99     float64            `json:"sched_p99"`
	Extra        map[string]float64 `json:"extra,omitempty"`
}

// A Meter reads the runtime's metrics as differences from a mark. It is for one
// goroutine.
type Meter struct {
	from, now []metrics.Sample
}

var metered = []string{
	"/sched/goroutines:goroutines",
	"/gc/heap/live:bytes",
	"/gc/heap/allocs:bytes",
	"/gc/heap/allocs:objects",
	"/gc/cycles/total:gc-cycles",
	"/sched/pauses/total/gc:seconds",
	"/sched/latencies:seconds",
}

// NewMeter returns a Meter whose mark is now.
func NewMeter() *Meter {
	m := &Meter{}
	m.Mark()
	return m
}

func readMetrics() []metrics.Sample {
	s := make([]metrics.Sample, len(metered))
	for i, name := range metered {
		s[i].Name = name
	}
	metrics.Read(s)
	return s
}

// Mark makes later Stats count from here.
func (m *Meter) Mark() { m.from = readMetrics() }

// Stats returns what there is now, and what came since the mark.
func (m *Meter) Stats() Stats {
	m.now = readMetrics()
	since := func(i int) float64 { return float64(m.now[i].Value.Uint64() - m.from[i].Value.Uint64()) }
	pauses := difference(m.from[5].Value.Float64Histogram(), m.now[5].Value.Float64Histogram())
	waits := difference(m.from[6].Value.Float64Histogram(), m.now[6].Value.Float64Histogram())
	return Stats{
		Goroutines:   float64(m.now[0].Value.Uint64()),
		HeapLive:     float64(m.now[1].Value.Uint64()),
		AllocBytes:   since(2),
		AllocObjects: since(3),
		GCCycles:     since(4),
		GCPauseMean:  mean(pauses),
		GCPauseP99:   quantile(pauses, 0.99),
		GCPauseMax:   quantile(pauses, 1),
		SchedP99:     quantile(waits, 0.99),
	}
}

// difference returns what b counted beyond a. The runtime never changes buckets.
func difference(a, b *metrics.Float64Histogram) *metrics.Float64Histogram {
	d := &metrics.Float64Histogram{Counts: make([]uint64, len(b.Counts)), Buckets: b.Buckets}
	for i := range b.Counts {
		d.Counts[i] = b.Counts[i] - a.Counts[i]
	}
	return d
}

// quantile is the upper edge of the bucket that holds the q-quantile; 0 for an
// empty histogram.
func quantile(h *metrics.Float64Histogram, q float64) float64 {
	var total uint64
	for _, c := range h.Counts {
		total += c
	}
	if total == 0 {
		return 0
	}
	want := uint64(math.Ceil(q * float64(total)))
	var seen uint64
	for i, c := range h.Counts {
		if seen += c; seen >= want && c > 0 {
			if edge := h.Buckets[i+1]; !math.IsInf(edge, 0) {
				return edge
			}
			return h.Buckets[i]
		}
	}
	return 0
}

// mean takes each bucket at its middle.
func mean(h *metrics.Float64Histogram) float64 {
	var n, sum float64
	for i, c := range h.Counts {
		lo, hi := h.Buckets[i], h.Buckets[i+1]
		if c == 0 {
			continue
		}
		if math.IsInf(lo, 0) {
			lo = hi
		}
		if math.IsInf(hi, 0) {
			hi = lo
		}
		n += float64(c)
		sum += float64(c) * (lo + hi) / 2
	}
	if n == 0 {
		return 0
	}
	return sum / n
}

// statsHandler is the side port: POST /mark starts to count, GET /stats returns the counts.
func statsHandler(extra *Extra) http.Handler {
	var mu sync.Mutex // guards meter
	meter := NewMeter()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mark", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		extra.take(true)
		meter.Mark()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		s := meter.Stats()
		s.Extra = extra.take(false)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s) // the reader is gone otherwise
	})
	return mux
}
