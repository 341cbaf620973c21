package stat

import (
	"math"
	"slices"
	"testing"
)

func TestMSERCutsAPlantedWarmup(t *testing.T) {
	r := NewRand(1)
	off := 0
	for range 200 {
		ys := make([]float64, 60)
		for i := range ys {
			ys[i] = 1 + 0.05*r.NormFloat64()
			if i < 15 {
				ys[i] += 3 * (1 - float64(i)/15)
			}
		}
		w := MSER(ys)
		if !w.Steady || w.Cut < 11 || w.Cut > 25 {
			off++
		}
	}
	if off > 10 {
		t.Errorf("%d of 200 cuts are not near 15", off)
	}
}

func TestMSERByHand(t *testing.T) {
	// d=0: M2 of all ten is 9·10²/10·… = 90, /100 = 0.9; d=1: 0/81 = 0.
	w := MSER([]float64{10, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	if w.Cut != 1 || !w.Steady {
		t.Errorf("got %+v, want a cut of 1", w)
	}
	// A series that rises to its end has its best cut at the latest place.
	if w := MSER([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}); w.Steady || w.Cut != 6 {
		t.Errorf("a ramp passes for steady: %+v", w)
	}
	if w := MSER([]float64{9, 1, 1, 1}); !w.Steady || w.Cut != 0 {
		t.Errorf("four batches: %+v", w)
	}
}

func TestBacklogDistinguishesGrowthFromScatter(t *testing.T) {
	r := NewRand(2)
	f := func(growth, mean, rate float64, stationary, growing bool) {
		t.Helper()
		for range 100 {
			b := make([]float64, 20)
			for i := range b {
				b[i] = math.Max(0, mean+growth*float64(i)+math.Sqrt(mean)*r.NormFloat64())
			}
			if v := Backlog(b, 1, rate); v.Stationary != stationary || v.Growing != growing {
				t.Errorf("growth %v about %v at %v/s: %+v", growth, mean, rate, v)
				return
			}
		}
	}
	f(0, 9, 1000, true, false)
	f(100, 50, 1000, false, true) // 10 % of the arrivals stay
	f(-40, 1000, 1000, false, false)
	f(5, 50, 1000, true, false) // 0.5 % is within the limit of 1 %
}

func TestLittlesLawFindsWrongBooks(t *testing.T) {
	f := func(l, x, r float64, n int, ok bool) {
		t.Helper()
		if a := LittlesLaw(l, x, r, n); a.OK != ok {
			t.Errorf("LittlesLaw(%v, %v, %v, %d) = %+v", l, x, r, n, a)
		}
	}
	f(10, 1000, 0.010, 10000, true)
	f(10, 1000, 0.0104, 10000, true)
	f(10, 1000, 0.012, 10000, false)
	f(10, 500, 0.010, 10000, false) // half of what came back was not counted
	f(0, 0, 0, 0, true)
}

func TestClassifyNamesWhatTheMachineDid(t *testing.T) {
	base := Covariates{Wait: 0.02, Busy: 0.2, Own: 0.1}
	f := func(c Covariates, want ...string) {
		t.Helper()
		if got := Classify(c, base); !slices.Equal(got, want) {
			t.Errorf("Classify(%+v) = %v, want %v", c, got, want)
		}
	}
	f(Covariates{Steal: 0.005, Wait: 0.03, Busy: 0.3, Own: 0.2})
	f(Covariates{Steal: 0.03, Wait: 0.03, Busy: 0.3, Own: 0.2}, "steal")
	f(Covariates{Wait: 0.2, Busy: 0.6, Own: 0.35}, "run-queue wait")
	f(Covariates{Wait: 0.2, Busy: 0.4, Own: 0.3})
	f(Covariates{Wait: 0.2, Busy: 0.6})
	f(Covariates{Wait: 0.2, Busy: 0.2}, "run-queue wait")
	f(Covariates{Wait: 0.5, Busy: 0.99, Own: 0.95})
	f(Covariates{Wait: 0.5, Busy: 0.99})
	f(Covariates{Wait: 0.5, Busy: 0.99, Own: 0.4}, "run-queue wait", "neighbours")
	base = Covariates{}
	f(Covariates{Wait: 0.5, Busy: 0.5, Own: 0.1})
	f(Covariates{Steal: 0.02, Wait: 0.5}, "steal")
}
