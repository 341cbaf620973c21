package governor

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets is how many buckets a [Histogram] has. The first holds what is below a
// microsecond (1,024 ns), the last what is above two minutes (2³⁷ ns); between them
// there are four to each doubling.
const Buckets = 4*(histTop-histBottom) + 2

const (
	histBottom = 10 // 2¹⁰ ns
	histTop    = 37 // 2³⁷ ns
)

// A Histogram counts durations in logarithmic buckets, at most 25 % wide. It is a
// plain value: one goroutine at a time.
type Histogram struct {
	Counts [Buckets]uint64
	// Sum is of all durations.
	Sum time.Duration
}

// Bucket is where a duration of d counts.
func Bucket(d time.Duration) int {
	if d < 1<<histBottom {
		return 0
	}
	exp := bits.Len64(uint64(d)) - 1
	if exp >= histTop {
		return Buckets - 1
	}
	return 1 + ((exp-histBottom)<<2 | int(uint64(d)>>(exp-2)&3))
}

// BucketTop is where bucket i ends; of the last, which has no end, where it begins.
func BucketTop(i int) time.Duration {
	if i <= 0 {
		return 1 << histBottom
	}
	i = min(i, Buckets-2) - 1
	exp := histBottom + i>>2
	return time.Duration(uint64(5+i&3) << (exp - 2))
}

// Observe counts d.
func (h *Histogram) Observe(d time.Duration) {
	h.Counts[Bucket(d)]++
	h.Sum += d
}

// Add counts what o has.
func (h *Histogram) Add(o *Histogram) {
	for i, n := range o.Counts {
		h.Counts[i] += n
	}
	h.Sum += o.Sum
}

// Since is what h has more than was: a window of a histogram that only grows. A
// bucket that shrank, as after a restart of its source, counts as it stands.
func (h *Histogram) Since(was *Histogram) Histogram {
	var d Histogram
	for i, n := range h.Counts {
		if d.Counts[i] = n - was.Counts[i]; n < was.Counts[i] {
			d.Counts[i] = n
		}
	}
	if d.Sum = h.Sum - was.Sum; d.Sum < 0 {
		d.Sum = h.Sum
	}
	return d
}

// N is how many were counted.
func (h *Histogram) N() (n uint64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// Quantile is the top of the bucket in which the q-quantile lies; 0 when nothing was
// counted.
func (h *Histogram) Quantile(q float64) time.Duration {
	n := h.N()
	if n == 0 {
		return 0
	}
	rank := max(uint64(math.Ceil(min(max(q, 0), 1)*float64(n))), 1)
	for i, c := range h.Counts {
		if rank <= c {
			return BucketTop(i)
		}
		rank -= c
	}
	return BucketTop(Buckets - 1)
}

// Quantiles sums h up.
func (h *Histogram) Quantiles() Quantiles {
	return Quantiles{
		N: h.N(), P50: h.Quantile(0.5).Seconds(), P90: h.Quantile(0.9).Seconds(),
		P99: h.Quantile(0.99).Seconds(), Max: h.Quantile(1).Seconds(),
	}
}

// Quantiles are of N durations, in seconds, each the top of a bucket.
type Quantiles struct {
	N   uint64  `json:"n"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// A SharedHistogram is a Histogram that any goroutine may count into and read. The
// zero value is ready. Counting is two atomic additions and no allocation.
type SharedHistogram struct {
	counts [Buckets]atomic.Uint64
	sum    atomic.Int64
}

// Observe counts d.
func (s *SharedHistogram) Observe(d time.Duration) {
	s.counts[Bucket(d)].Add(1)
	s.sum.Add(int64(d))
}

// AddTo counts into h what was counted here so far.
func (s *SharedHistogram) AddTo(h *Histogram) {
	for i := range s.counts {
		h.Counts[i] += s.counts[i].Load()
	}
	h.Sum += time.Duration(s.sum.Load())
}
