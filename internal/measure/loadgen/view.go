package loadgen

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A view is what Snapshot shows. Any goroutine.
type view struct {
	mu      sync.Mutex
	phase   string
	began   time.Time
	total   time.Duration
	load    Load
	recent  [2]recent // the last two pieces
	deliver *Delivery
	limited bool

	last   Snapshot
	lastAt time.Time
	sums   sums
}

// recent is what a piece says of the last second.
type recent struct{ response, service, lag *hdrhistogram.Histogram }

// snapshotEvery is how often Snapshot looks anew; in between it says the same.
const snapshotEvery = 200 * time.Millisecond

func (v *view) set(phase string, began time.Time, total time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.phase = phase
	if total > 0 || phase == "connecting" || phase == "measuring" {
		v.began, v.total = began, total
	}
}

func (v *view) setLoad(l Load) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.load = l
}

// saw notes a piece.
func (v *view) saw(p *piece) {
	r := recent{coarse(p.Response), coarse(p.Service), coarse(p.Lag)}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.recent[0], v.recent[1] = v.recent[1], r
}

// finished notes a window.
func (v *view) finished(w *Window) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.limited = w.Generator.Limited
	if w.Delivery != nil {
		if v.deliver == nil {
			v.deliver = &Delivery{Reach: 1}
		}
		v.deliver.Merge(w.Delivery)
	}
}

// Snapshot is the live view: counters and recent percentiles. Any goroutine. It
// looks at most five times a second.
func (g *Generator) Snapshot() Snapshot {
	v := &g.view
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if !v.lastAt.IsZero() && now.Sub(v.lastAt) < snapshotEvery {
		return v.last
	}
	var sum sums
	s := Snapshot{Phase: v.phase, Elapsed: now.Sub(v.began), Total: v.total, Load: v.load, Limited: v.limited}
	for _, sh := range g.shards {
		l := &sh.live
		l.mu.Lock()
		sum.offered += l.offered
		sum.sent += l.sent
		sum.completed += l.completed
		sum.received += l.received
		sum.errors += l.errors
		s.Dropped += l.dropped
		s.InFlight += l.inFlight
		s.Conns += l.open
		l.mu.Unlock()
	}
	s.Errors = sum.errors
	if d := now.Sub(v.lastAt).Seconds(); !v.lastAt.IsZero() && d > 0 {
		rate := func(now, before uint64) float64 { return float64(now-min(before, now)) / d }
		s.OfferedRate = rate(sum.offered, v.sums.offered)
		s.SentRate = rate(sum.sent, v.sums.sent)
		s.CompletedRate = rate(sum.completed, v.sums.completed)
		s.ErrorRate = rate(sum.errors, v.sums.errors)
		s.ReceivedRate = rate(sum.received, v.sums.received)
	}
	v.percentiles(&s)
	if v.deliver != nil {
		d := *v.deliver
		s.Delivery = &d
	}
	v.last, v.lastAt, v.sums = s, now, sum
	return s
}

func (v *view) percentiles(s *Snapshot) {
	at := func(pick func(r *recent) *hdrhistogram.Histogram, p float64) time.Duration {
		h := mergeHistogram(mergeHistogram(nil, pick(&v.recent[0])), pick(&v.recent[1]))
		if h == nil {
			return 0
		}
		return time.Duration(h.ValueAtPercentile(p)) * time.Microsecond
	}
	response := func(r *recent) *hdrhistogram.Histogram { return r.response }
	s.P50, s.P95, s.P99 = at(response, 50), at(response, 95), at(response, 99)
	s.ServiceP99 = at(func(r *recent) *hdrhistogram.Histogram { return r.service }, 99)
	s.LagP99 = at(func(r *recent) *hdrhistogram.Histogram { return r.lag }, 99)
}
