package stat

import (
	"math"
	"testing"
)

func TestPlateauIsTheMeanOfOverloadedWindows(t *testing.T) {
	v := Plateau([]Throughput{{100, 100}, {900, 899}, {1200, 1000}, {1500, 1010}, {2000, 990}}, 0.95)
	near(t, "C", v.Point, math.Cbrt(1000*1010*990), 1e-12)
	if v.N != 3 || v.Lo > 1000 || v.Hi < 1000 {
		t.Errorf("%+v", v)
	}
	if v := Plateau([]Throughput{{100, 100}}, 0.95); v.N != 0 || !math.IsNaN(v.Point) {
		t.Errorf("without overload: %+v", v)
	}
}

// mm1 is the P99 of the sojourn time in M/M/1: ln(100)/(μ−λ).
func mm1(mu, lambda float64) float64 { return math.Log(100) / (mu - lambda) }

func TestCrossingOfMM1IsWhereTheoryPutsIt(t *testing.T) {
	const mu = 1000
	truth := mu - (mu-50)/2.5 // P99 is 2.5 times the one at 50/s: ρ = 0.62
	for _, step := range []float64{1.05, 1.1, 1.25} {
		var levels []LevelLatency
		for l := 100.0; l < 980; l *= step {
			levels = append(levels, LevelLatency{Load: l, Latencies: []float64{mm1(mu, l)}})
		}
		c := InflationCrossing(levels, []float64{mm1(mu, 50)}, 2.5, 1, 10, 0.95)
		near(t, "crossing", c.Load.Point, truth, 0.012)
	}
}

func TestCrossingIntervalCoversTheTruth(t *testing.T) {
	const mu = 1000
	truth := mu - (mu-50)/2.5
	r := NewRand(3)
	noisy := func(v float64, n int) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = v * math.Exp(0.08*r.NormFloat64())
		}
		return out
	}
	hit, near10, trials := 0, 0, 200
	for k := range trials {
		var levels []LevelLatency
		for l := 300.0; l < 900; l *= 1.15 {
			levels = append(levels, LevelLatency{Load: l, Latencies: noisy(mm1(mu, l), 5)})
		}
		c := InflationCrossing(levels, noisy(mm1(mu, 50), 9), 2.5, uint64(k), 200, 0.95)
		if c.Load.Lo <= truth && truth <= c.Load.Hi {
			hit++
		}
		if math.Abs(c.Load.Point/truth-1) < 0.1 {
			near10++
		}
	}
	if hit < trials*88/100 {
		t.Errorf("covered %d of %d times", hit, trials)
	}
	if near10 < trials*97/100 {
		t.Errorf("within 10 %%: %d of %d times", near10, trials)
	}
}

func TestCrossingSaysWhenThereIsNone(t *testing.T) {
	flat := []LevelLatency{{Load: 100, Latencies: []float64{1, 1.1}}, {Load: 200, Latencies: []float64{1.2, 1.1}}}
	if c := InflationCrossing(flat, []float64{1}, 2.5, 1, 50, 0.95); !c.Above || !math.IsNaN(c.Load.Point) || !math.IsInf(c.Load.Hi, 1) {
		t.Errorf("flat: %+v", c)
	}
	high := []LevelLatency{{Load: 100, Latencies: []float64{5}}, {Load: 200, Latencies: []float64{7}}}
	if c := InflationCrossing(high, []float64{1}, 2.5, 1, 50, 0.95); !c.Below {
		t.Errorf("beyond from the first level: %+v", c)
	}
	if c := InflationCrossing(nil, nil, 2.5, 1, 50, 0.95); !math.IsNaN(c.Load.Point) {
		t.Errorf("of nothing: %+v", c)
	}
}

func TestMonotonePoolsViolators(t *testing.T) {
	got := IsotonicRegression([]float64{1, 3, 2, 2, 5}, nil)
	want := []float64{1, 7.0 / 3, 7.0 / 3, 7.0 / 3, 5}
	for i := range want {
		near(t, "value", got[i], want[i], 1e-12)
	}
	got = IsotonicRegression([]float64{4, 1}, []float64{3, 1})
	near(t, "weighted", got[0], 3.25, 1e-12)
}

func TestHingeFindsABendAndRefusesALine(t *testing.T) {
	r := NewRand(4)
	var x, bent, line, level []float64
	for i := range 25 {
		v := float64(i) / 5
		x = append(x, v)
		e := 0.02 * r.NormFloat64()
		bent = append(bent, 1+2*math.Max(0, v-3)+e)
		line = append(line, 1+0.5*v+e)
		level = append(level, 1+e)
	}
	h := FitHinge(x, bent)
	if !h.Accepted || math.Abs(h.Break-3) > 0.1 || math.Abs(h.Slope-2) > 0.15 {
		t.Errorf("bent: %+v", h)
	}
	if h := FitHinge(x, line); h.Accepted {
		t.Errorf("a straight line is bent: %+v", h)
	}
	if h := FitHinge(x, level); h.Accepted {
		t.Errorf("a constant is bent: %+v", h)
	}
}

// Why the hinge is not the number: on one and the same curve its break follows the end of the sweep.
func TestHingeMovesWithTheRange(t *testing.T) {
	last := 0.0
	for _, end := range []float64{0.80, 0.90, 0.95, 0.98} {
		var x, y []float64
		for i := 1; i <= 60; i++ {
			rho := end * float64(i) / 60
			x, y = append(x, math.Log(rho)), append(y, -math.Log(1-rho))
		}
		at := math.Exp(FitHinge(x, y).Break)
		if at <= last || at >= end {
			t.Errorf("swept to %v the break is at %v, after %v", end, at, last)
		}
		last = at
	}
}

// For R = 1/(1−ρ) swept from 0 to e, the greatest distance is at 1 − √(1−e).
func TestKneedleOfMM1(t *testing.T) {
	for _, end := range []float64{0.7, 0.8, 0.9, 0.95, 0.99} {
		var x, y []float64
		for i := range 2001 {
			rho := end * float64(i) / 2000
			x, y = append(x, rho), append(y, 1/(1-rho))
		}
		i := Kneedle(x, y, Axes{0, end, 1, 1 / (1 - end)})
		near(t, "own axes", x[i], 1-math.Sqrt(1-end), 0.002)
	}
	if i := Kneedle([]float64{0, 1}, []float64{1, 5}, Axes{0, 1, 0, 1}); i != -1 {
		t.Errorf("a point outside the axes: %d", i)
	}
}
