package metrics

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestBucketsFollowOneAnother(t *testing.T) {
	for i := range Buckets - 1 {
		if got := bucketOf(uint64(lower(i))); got != i {
			t.Fatalf("bucket %d begins with %v, which falls into %d", i, lower(i), got)
		}
		if got := bucketOf(uint64(upper(i)) - 1); got != i {
			t.Fatalf("bucket %d ends before %v, but %v falls into %d", i, upper(i), upper(i)-1, got)
		}
		if i > 0 && (upper(i)-lower(i))/lower(i) > 0.25 {
			t.Errorf("bucket %d is %v wide at %v", i, upper(i)-lower(i), lower(i))
		}
	}
	if got := bucketOf(math.MaxUint64); got != Buckets-1 {
		t.Errorf("the longest falls into %d of %d", got, Buckets)
	}
	if lower(Buckets-1) < 60e9 {
		t.Errorf("all from %v s on is one bucket", lower(Buckets-1)/1e9)
	}
}

func TestQuantilesAreWithinABucket(t *testing.T) {
	var h Histogram
	r := rand.New(rand.NewPCG(1, 2))
	var all []float64
	for range 50_000 {
		d := math.Exp(r.NormFloat64()*1.5) * 1e6
		all = append(all, d/1e9)
		h.Observe(time.Duration(d))
	}
	slices.Sort(all)
	var c Counts
	h.AddTo(&c)
	if c.Total() != 50_000 {
		t.Fatalf("counted %d", c.Total())
	}
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999} {
		want, got := all[int(q*float64(len(all)))], c.Quantile(q)
		if math.Abs(got-want)/want > 0.3 {
			t.Errorf("quantile %v: %v, want about %v", q, got, want)
		}
	}
	sum := 0.0
	for _, v := range all {
		sum += v
	}
	if math.Abs(c.Sum()-sum)/sum > 0.001 {
		t.Errorf("sum %v, want %v", c.Sum(), sum)
	}
}

func TestCumulativeAndBetweenAgree(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{-1, 0, time.Microsecond, time.Millisecond, 20 * time.Millisecond, time.Hour} {
		h.Observe(d)
	}
	var c Counts
	h.AddTo(&c)
	bounds := []float64{1e-5, 1e-2, 1}
	if got := c.Cumulative(bounds); !slices.Equal(got, []uint64{3, 4, 5}) {
		t.Errorf("cumulative %v", got)
	}
	if got := c.Between(bounds); !slices.Equal(got, []uint64{3, 1, 1, 1}) {
		t.Errorf("between %v", got)
	}
	earlier := c
	h.Observe(time.Second / 2)
	var now Counts
	h.AddTo(&now)
	d := now.Since(&earlier)
	if d.Total() != 1 || d.Sum() != 0.5 {
		t.Errorf("since: %d, %v s", d.Total(), d.Sum())
	}
	if q := (&Counts{}).Quantile(0.5); q != 0 {
		t.Errorf("of nothing: %v", q)
	}
}

func TestRingKeepsOrderAndCountsDrops(t *testing.T) {
	r := NewRing[int](3)
	for i := range 6 {
		if ok := r.Put(i); ok != (i < 4) {
			t.Errorf("put %d: %v", i, ok)
		}
	}
	var got []int
	if n := r.Drain(func(v int) { got = append(got, v) }); n != 4 || !slices.Equal(got, []int{0, 1, 2, 3}) || r.Dropped() != 2 {
		t.Errorf("%d: %v, dropped %d", n, got, r.Dropped())
	}
}

func TestRingLosesOnlyWhatItCounts(t *testing.T) {
	const puts = 200_000
	r := NewRing[int](64)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		for i := range puts {
			r.Put(i)
		}
	})
	got, last, ended := 0, -1, false
	for !ended {
		select {
		case <-done:
			ended = true
		default:
		}
		r.Drain(func(v int) {
			if v <= last {
				t.Errorf("%d after %d", v, last)
			}
			got, last = got+1, v
		})
	}
	wg.Wait()
	if uint64(got)+r.Dropped() != puts {
		t.Errorf("%d taken and %d dropped of %d", got, r.Dropped(), puts)
	}
}

func TestObservingAllocatesNothing(t *testing.T) {
	var h Histogram
	r := NewRing[[2]int](8)
	if n := testing.AllocsPerRun(100, func() { h.Observe(time.Millisecond); r.Put([2]int{}); r.Drain(func([2]int) {}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
