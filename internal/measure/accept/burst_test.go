package accept

import (
	"math"
	"testing"
)

func TestTheQuantileOfBucketsIsOfWhatCameBetween(t *testing.T) {
	all := math.Inf(1)
	before := map[float64]float64{0.001: 900, 0.005: 900, 0.01: 900, all: 900}
	f := func(after map[float64]float64, want float64) {
		t.Helper()
		if got := bucketQuantile(before, after, 0.95); got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("%v: %v, want %v", after, got, want)
		}
	}
	f(map[float64]float64{0.001: 910, 0.005: 994, 0.01: 999, all: 1000}, 0.01)
	f(map[float64]float64{0.001: 910, 0.005: 995, 0.01: 999, all: 1000}, 0.005)
	f(map[float64]float64{0.001: 900, 0.005: 900, 0.01: 900, all: 1000}, all)
	f(before, math.NaN())
}
