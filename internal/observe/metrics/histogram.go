// Package metrics are the counters that a hot path can afford: histograms of fixed
// size, with one writer or with many, and a bounded ring between one writer and one
// reader.
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
// begins with, and one more accepts everything from 2^top ns (two minutes) on.
const (
	parts  = 4
	bottom = 10
	top    = 37
	// Buckets is how many there are.
	Buckets = parts*(top-bottom) + 2
)

// A Histogram counts durations in fixed buckets from a microsecond to two minutes. One
// goroutine observes, any reads. The zero value is empty.
type Histogram struct {
	counts [Buckets]atomic.Uint64
	sum    atomic.Int64 // nanoseconds
}

// Observe counts d; negative durations are zero. Its owner only.
func (h *Histogram) Observe(d time.Duration) {
	d = max(d, 0)
	c := &h.counts[Bucket(d)]
	c.Store(c.Load() + 1) // one writer: no locked instruction is needed
	h.sum.Store(h.sum.Load() + int64(d))
}

// AddTo adds what was counted to c. Any goroutine; what is observed meanwhile is in
// or not.
func (h *Histogram) AddTo(c *Counts) { c.load(&h.counts, &h.sum) }

// A Shared is a Histogram that any goroutine may count into. The zero value is empty.
// Counting is two atomic additions and no allocation.
type Shared struct {
	counts [Buckets]atomic.Uint64
	sum    atomic.Int64
}

// Observe counts d; negative durations are zero.
func (s *Shared) Observe(d time.Duration) {
	d = max(d, 0)
	s.counts[Bucket(d)].Add(1)
	s.sum.Add(int64(d))
}

// AddTo adds what was counted so far to c.
func (s *Shared) AddTo(c *Counts) { c.load(&s.counts, &s.sum) }

// Bucket is where a duration counts.
func Bucket(d time.Duration) int {
	if d < 1<<bottom {
		return 0
	}
	octave := bits.Len64(uint64(d)) - 1
	if octave >= top {
		return Buckets - 1
	}
	return 1 + (octave-bottom)*parts + int(uint64(d)>>(octave-2))%parts
}

// begins is where bucket i starts.
func begins(i int) time.Duration {
	if i <= 0 {
		return 0
	}
	return time.Duration(parts+(i-1)%parts) << (bottom + (i-1)/parts - 2)
}

// BucketTop is where bucket i ends; of the last, which has no end, where it starts.
func BucketTop(i int) time.Duration { return begins(min(max(i, 0)+1, Buckets-1)) }

// Bounds returns where bucket i starts and ends, in seconds; the last has no end, and
// where it starts is returned for that too.
func Bounds(i int) (lo, hi float64) { return begins(i).Seconds(), BucketTop(i).Seconds() }

// Counts are what histograms counted, summed; or the difference of two such sums. It is
// a plain value: one goroutine at a time.
type Counts struct {
	N [Buckets]uint64
	// Sum is of all durations.
	Sum time.Duration
}

// Observe counts d; negative durations are zero.
func (c *Counts) Observe(d time.Duration) {
	d = max(d, 0)
	c.N[Bucket(d)]++
	c.Sum += d
}

// Add counts what o has.
func (c *Counts) Add(o *Counts) {
	for i, n := range o.N {
		c.N[i] += n
	}
	c.Sum += o.Sum
}

func (c *Counts) load(counts *[Buckets]atomic.Uint64, sum *atomic.Int64) {
	for i := range counts {
		c.N[i] += counts[i].Load()
	}
	c.Sum += time.Duration(sum.Load())
}

// Since returns what c has more than an earlier state of the same histograms. A bucket
// that shrank, as after a restart of its source, counts as it is.
func (c *Counts) Since(earlier *Counts) (d Counts) {
	for i, n := range c.N {
		if d.N[i] = n - earlier.N[i]; n < earlier.N[i] {
			d.N[i] = n
		}
	}
	if d.Sum = c.Sum - earlier.Sum; d.Sum < 0 {
		d.Sum = c.Sum
	}
	return d
}

// Total returns how many durations were counted.
func (c *Counts) Total() (n uint64) {
	for _, v := range c.N {
		n += v
	}
	return n
}

// Top is the end of the bucket in which the q-quantile lies: no less than that was. 0
// when nothing was counted.
func (c *Counts) Top(q float64) time.Duration {
	n := c.Total()
	if n == 0 {
		return 0
	}
	rank := max(uint64(math.Ceil(min(max(q, 0), 1)*float64(n))), 1)
	for i, v := range c.N {
		if rank <= v {
			return BucketTop(i)
		}
		rank -= v
	}
	return BucketTop(Buckets - 1)
}

// Quantile is about what the share q of all did not exceed, in seconds: as if all of a
// bucket were spread over it evenly; 0 when nothing was counted.
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
			lo, hi := Bounds(i)
			return lo + max(rank-below, 0)/float64(v)*(hi-lo)
		}
		below += float64(v)
	}
	return BucketTop(Buckets - 1).Seconds() // not reached
}

// Cumulative returns how many did not exceed each bound, in seconds and rising. A
// bucket counts for a bound when it ends at or before it, or when most of it does.
func (c *Counts) Cumulative(bounds []float64) []uint64 {
	out := make([]uint64, len(bounds))
	n, i := uint64(0), 0
	for b, bound := range bounds {
		for ; i < Buckets; i++ {
			if lo, hi := Bounds(i); (lo+hi)/2 > bound {
				break
			}
			n += c.N[i]
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
