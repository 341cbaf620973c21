package capacity

import (
	"context"
	"fmt"
	"math"
	"testing"
)

// evenWork simulates a quiet machine, so that the tests do not depend on theirs.
func evenWork(_ context.Context, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = 0.02
	}
	return out
}

func find(t *testing.T, q *queue, opt Options) *Report {
	t.Helper()
	opt.Now, opt.FixedWork = q.clock, evenWork
	r, err := Find(context.Background(), q, opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func line(r *Report, truth float64) string {
	return fmt.Sprintf("%v knee %.4g (%.4g … %.4g) truth %.4g [%+.1f%%] max %.4g base %.3g/s P%v %d windows %.0fs: %v %v",
		r.Verdict, r.Knee.Rate.Point, r.Knee.Rate.Lo, r.Knee.Rate.Hi, truth, 100*(r.Knee.Rate.Point/truth-1), r.Max.Rate.Point,
		r.Base.Rate, 100*r.Quantile, len(r.Windows), r.Elapsed.Seconds(), r.Reasons, r.Notes)
}

func TestKneeIsWithinTenPercentOfTheTruthSimulated(t *testing.T) {
	f := func(name string, q queue) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var truth *curve
			good := 0
			for seed := range uint64(10) {
				r := find(t, q.seeded(seed), Options{Mode: Quick, Seed: seed})
				if truth == nil {
					truth = newCurve(q, r.Quantile)
				}
				want := truth.knee(r.Base.Rate, 2.5)
				off := math.Abs(r.Knee.Rate.Point/want - 1)
				if r.Verdict == Pass && r.Knee.Known && off <= 0.10 {
					good++
				} else {
					t.Logf("seed %d: %s", seed, line(r, want))
				}
			}
			if good < 9 {
				t.Errorf("%d of 10 runs are within 10 %%", good)
			}
		})
	}
	const c = 4000.0 // per second
	f("one core, exponential", queue{cores: 1, service: exponential(1 / c)})
	f("one core, lognormal", queue{cores: 1, service: lognormal(1/c, 0.7)})
	f("one core, fixed", queue{cores: 1, service: fixed(1 / c)})
	f("two cores, exponential", queue{cores: 2, service: exponential(2 / c)})
	f("two cores, lognormal", queue{cores: 2, service: lognormal(2/c, 0.7)})
	f("two cores, fixed", queue{cores: 2, service: fixed(2 / c)})
	f("eight cores, exponential", queue{cores: 8, service: exponential(8 / c)})
	f("eight cores, lognormal", queue{cores: 8, service: lognormal(8/c, 0.7)})
	f("eight cores, fixed", queue{cores: 8, service: fixed(8 / c)})
	f("hard cap", queue{cores: 20, service: fixed(20 / c)})
	f("lock-limited", queue{cores: 8, service: exponential(1 / c), lock: exponential(1 / c)})
	f("runtime exposed", queue{cores: 2, service: exponential(2 / c), exposed: true})
}
