package metrics

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestABucketHoldsWhatIsBelowItsTop(t *testing.T) {
	f := func(d time.Duration) {
		t.Helper()
		i := Bucket(d)
		if i < 0 || i >= Buckets {
			t.Fatalf("Bucket(%v) = %d, want 0 to %d", d, i, Buckets-1)
		}
		if i < Buckets-1 && d >= BucketTop(i) {
			t.Errorf("%v counts in bucket %d, which ends at %v", d, i, BucketTop(i))
		}
		if i > 0 && d < BucketTop(i-1) {
			t.Errorf("%v counts in bucket %d, but the one before ends only at %v", d, i, BucketTop(i-1))
		}
	}
	for _, d := range []time.Duration{math.MinInt64, -1, 0, 1, 1023, 1024, 1025, 1279, 1280, time.Microsecond, time.Millisecond,
		1<<37 - 1, 1 << 37, 1<<37 + 1, time.Hour, math.MaxInt64} {
		f(d)
	}
	for d := time.Duration(1); d < 1<<40; d += d/7 + 1 {
		f(d)
	}
	for i := 1; i < Buckets-1; i++ {
		if w := float64(BucketTop(i)) / float64(BucketTop(i-1)); w > 1.26 {
			t.Errorf("bucket %d is %.2f times its beginning wide", i, w)
		}
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
	if math.Abs(c.Sum.Seconds()-sum)/sum > 0.001 {
		t.Errorf("sum %v, want %v", c.Sum, sum)
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
	if d.Total() != 1 || d.Sum != time.Second/2 {
		t.Errorf("since: %d, %v", d.Total(), d.Sum)
	}
	if q := (&Counts{}).Quantile(0.5); q != 0 {
		t.Errorf("of nothing: %v", q)
	}
}

func TestTopsAreThoseOfTheBucketsOfQuantiles(t *testing.T) {
	var h Counts
	if h.Top(0.99) != 0 || h.Total() != 0 {
		t.Error("nothing counted has a quantile")
	}
	for i := range 1000 {
		h.Observe(time.Duration(i+1) * time.Microsecond)
	}
	f := func(q float64, want time.Duration) {
		t.Helper()
		if got := h.Top(q); got < want || float64(got) > 1.26*float64(want) {
			t.Errorf("Top(%v) = %v, want %v to a quarter more", q, got, want)
		}
	}
	f(0, time.Microsecond)
	f(0.5, 500*time.Microsecond)
	f(0.99, 990*time.Microsecond)
	f(1, time.Millisecond)
	f(7, time.Millisecond)
	if h.Sum != 500500*time.Microsecond {
		t.Errorf("Sum = %v", h.Sum)
	}
}

func TestAWindowIsWhatAHistogramHasGained(t *testing.T) {
	var was, h Counts
	was.Observe(time.Millisecond)
	h.Add(&was)
	h.Observe(time.Second)
	if d := h.Since(&was); d.Total() != 1 || d.Sum != time.Second || d.N[Bucket(time.Second)] != 1 {
		t.Errorf("the window has %d, %v", d.Total(), d.Sum)
	}
	var anew Counts // its source began again
	anew.Observe(time.Minute)
	if d := anew.Since(&h); d.Total() != 1 {
		t.Errorf("after a restart the window has %d, want what was counted since", d.Total())
	}
}

func TestManyGoroutinesCountIntoAShared(t *testing.T) {
	var s Shared
	done := make(chan struct{})
	for range 4 {
		go func() {
			for range 1000 {
				s.Observe(time.Millisecond)
			}
			done <- struct{}{}
		}()
	}
	for range 4 {
		<-done
	}
	var h Counts
	s.AddTo(&h)
	if h.Total() != 4000 || h.Sum != 4*time.Second {
		t.Errorf("4 times 1000 observations are %d, %v", h.Total(), h.Sum)
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
