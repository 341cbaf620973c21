package governor

import (
	"math"
	"runtime"
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

func TestQuantilesAreTheTopsOfTheirBuckets(t *testing.T) {
	var h Histogram
	if h.Quantile(0.99) != 0 || h.Quantiles().N != 0 {
		t.Error("nothing counted has a quantile")
	}
	for i := range 1000 {
		h.Observe(time.Duration(i+1) * time.Microsecond)
	}
	f := func(q float64, want time.Duration) {
		t.Helper()
		if got := h.Quantile(q); got < want || float64(got) > 1.26*float64(want) {
			t.Errorf("Quantile(%v) = %v, want %v to a quarter more", q, got, want)
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
	var was, h Histogram
	was.Observe(time.Millisecond)
	h.Add(&was)
	h.Observe(time.Second)
	if d := h.Since(&was); d.N() != 1 || d.Sum != time.Second || d.Counts[Bucket(time.Second)] != 1 {
		t.Errorf("the window has %d, %v", d.N(), d.Sum)
	}
	var anew Histogram // its source began again
	anew.Observe(time.Minute)
	if d := anew.Since(&h); d.N() != 1 {
		t.Errorf("after a restart the window has %d, want what was counted since", d.N())
	}
}

func TestManyGoroutinesCountIntoASharedHistogram(t *testing.T) {
	var s SharedHistogram
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
	var h Histogram
	s.AddTo(&h)
	if h.N() != 4000 || h.Sum != 4*time.Second {
		t.Errorf("4 times 1000 observations are %d, %v", h.N(), h.Sum)
	}
}

// The runtime's own histogram must keep its counts and its order in our buckets.
func TestTheRuntimesBucketsFallIntoOurs(t *testing.T) {
	for range 200 {
		runtime.Gosched()
	}
	runtime.GC()
	r := newRuntimeReader()
	r.read()
	total := uint64(0)
	for _, n := range r.samples[rtPause].Value.Float64Histogram().Counts {
		total += n
	}
	if total == 0 || r.pause.now.N() != total {
		t.Errorf("the runtime counted %d pauses, we have %d", total, r.pause.now.N())
	}
	bounds := r.samples[rtPause].Value.Float64Histogram().Buckets
	for i, place := range r.pause.place {
		if lo := bounds[i]; lo > 2e-6 && lo < 60 {
			top, bottom := BucketTop(int(place)).Seconds(), BucketTop(int(place)-1).Seconds()
			if top < lo*0.99 || bottom > bounds[i+1]*1.01 {
				t.Fatalf("the runtime's bucket %g to %g went to ours of %g to %g", lo, bounds[i+1], bottom, top)
			}
		}
	}
	for i := range runtimeNames {
		if r.samples[i].Value.Kind() == 0 {
			t.Errorf("this runtime has no %s", runtimeNames[i])
		}
	}
}
