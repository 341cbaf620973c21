// Package metrics are the counters that a hot path can afford: a histogram of fixed
// size with one writer, and a bounded ring between one writer and one reader.
// Neither locks nor allocates, and what reads them never makes the writer wait.
package metrics

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// A histogram's buckets: below 2^bottom ns there is one, then each power of two is cut
// into parts of equal width, so that a bucket is never wider than a quarter of what it
// begins with, and one more takes everything from 2^top ns (two minutes) on.
const (
	parts  = 4
	bottom = 10
	top    = 37
	// Buckets is how many there are.
	Buckets = parts*(top-bottom) + 2
)

// A Histogram counts durations in fixed buckets from a microsecond to two minutes. One goroutine observes, any reads. The zero value is empty.
type Histogram struct {
	counts [Buckets]atomic.Uint64
	sum    atomic.Uint64 // nanoseconds
}

// Observe counts d; negative durations are zero. Its owner only.
func (h *Histogram) Observe(d time.Duration) {
	n := uint64(max(d, 0))
	c := &h.counts[bucketOf(n)]
	c.Store(c.Load() + 1) // one writer: no locked instruction is needed
	h.sum.Store(h.sum.Load() + n)
}

// AddTo adds what was counted to c. Any goroutine; what is observed meanwhile is in
// or not.
func (h *Histogram) AddTo(c *Counts) {
	for i := range h.counts {
		c.N[i] += h.counts[i].Load()
	}
	c.SumNanos += h.sum.Load()
}

// bucketOf returns the bucket of n nanoseconds.
func bucketOf(n uint64) int {
	octave := bits.Len64(n) - 1
	switch {
	case n < 1<<bottom:
		return 0
	case octave >= top:
		return Buckets - 1
	}
	return 1 + (octave-bottom)*parts + int(n>>(octave-2))%parts
}

// lower returns where bucket i begins, upper where it ends, in nanoseconds. The last
// has no end: where it begins is taken for it.
func lower(i int) float64 {
	if i == 0 {
		return 0
	}
	return math.Ldexp(float64(parts+(i-1)%parts), bottom+(i-1)/parts-2)
}

func upper(i int) float64 { return lower(min(i+1, Buckets-1)) }

// Counts are what histograms counted, summed; or the difference of two such sums.
type Counts struct {
	N        [Buckets]uint64
	SumNanos uint64
}

// Total returns how many durations were counted.
func (c *Counts) Total() (n uint64) {
	for _, v := range c.N {
		n += v
	}
	return n
}

// Sum returns all durations together, in seconds.
func (c *Counts) Sum() float64 { return float64(c.SumNanos) / 1e9 }

// Since returns what c has more than an earlier state of the same histograms.
func (c *Counts) Since(earlier *Counts) (d Counts) {
	for i := range c.N {
		d.N[i] = c.N[i] - earlier.N[i]
	}
	d.SumNanos = c.SumNanos - earlier.SumNanos
	return d
}

// Quantile returns a duration that the share q of all did not exceed, in seconds,
// within the width of its bucket; 0 when nothing was counted.
func (c *Counts) Quantile(q float64) float64 {
	total := c.Total()
	if total == 0 {
		return 0
	}
	rank := q * float64(total)
	below := 0.0
	for i, v := range c.N {
		if v == 0 {
			continue
		}
		if below+float64(v) >= rank {
			part := max(rank-below, 0) / float64(v)
			return (lower(i) + part*(upper(i)-lower(i))) / 1e9
		}
		below += float64(v)
	}
	return upper(Buckets-1) / 1e9 // not reached
}

// Cumulative returns how many did not exceed each bound, in seconds and rising. A
// bucket counts for a bound when it ends at or before it, or when most of it does.
func (c *Counts) Cumulative(bounds []float64) []uint64 {
	out := make([]uint64, len(bounds))
	n, i := uint64(0), 0
	for b, bound := range bounds {
		for i < Buckets && (lower(i)+upper(i))/2 <= bound*1e9 {
			n += c.N[i]
			i++
		}
		out[b] = n
	}
	return out
}

// Between returns how many fell between neighbours of bounds: before the first, between
// the first and the second, and so on; the last is for what exceeds all.
func (c *Counts) Between(bounds []float64) []uint64 {
	out := append(c.Cumulative(bounds), c.Total())
	for i := len(out) - 1; i > 0; i-- {
		out[i] -= out[i-1]
	}
	return out
}

// Bounds returns where bucket i begins and ends, in seconds; the last has no end, and
// where it begins is returned for that too.
func Bounds(i int) (lo, hi float64) { return lower(i) / 1e9, upper(i) / 1e9 }
