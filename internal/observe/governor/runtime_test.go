package governor

import (
	"runtime"
	"testing"

	"github.com/weir-gateway/weir/internal/observe/metrics"
)

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
	if total == 0 || r.pause.now.Total() != total {
		t.Errorf("the runtime counted %d pauses, we have %d", total, r.pause.now.Total())
	}
	bounds := r.samples[rtPause].Value.Float64Histogram().Buckets
	for i, place := range r.pause.place {
		if lo := bounds[i]; lo > 2e-6 && lo < 60 {
			top, bottom := metrics.BucketTop(int(place)).Seconds(), metrics.BucketTop(int(place)-1).Seconds()
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
