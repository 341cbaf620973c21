package stat

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
)

// Values of scipy.stats.theilslopes, which is R's mblm with Sen's interval.
func TestTheilSenAgreesWithScipy(t *testing.T) {
	f := func(x, y []float64, confidence float64, want Line) {
		t.Helper()
		got := TheilSen(x, y, confidence)
		near(t, "slope", got.Slope, want.Slope, 1e-9)
		near(t, "intercept", got.Intercept, want.Intercept, 1e-9)
		near(t, "lo", got.Lo, want.Lo, 1e-9)
		near(t, "hi", got.Hi, want.Hi, 1e-9)
	}
	f([]float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, []float64{0.1, 1.2, 1.9, 3.3, 3.8, 5.1, 30.0, 6.9, 8.2, 9.1}, 0.95,
		Line{1, -0.05, 0.925, 1.1})
	f([]float64{1, 2, 4, 7, 11, 12.5}, []float64{3, 1, 6, 2, 9, 8}, 0.90,
		Line{0.43478260869565216, 2.108695652173913, -2.0 / 3, 1.0909090909090908})
	f([]float64{1, 1, 1}, []float64{3, 1, 2}, 0.95, Line{0, 2, math.Inf(-1), math.Inf(1)})
	f(nil, nil, 0.95, Line{0, math.NaN(), math.Inf(-1), math.Inf(1)})
}

func TestTheilSenIntervalCoversTheSlope(t *testing.T) {
	r := NewRand(5)
	hit, trials := 0, 2000
	for range trials {
		x, y := make([]float64, 20), make([]float64, 20)
		for i := range x {
			x[i], y[i] = float64(i), 0.3*float64(i)+r.NormFloat64()
		}
		if l := TheilSen(x, y, 0.95); l.Lo <= 0.3 && 0.3 <= l.Hi {
			hit++
		}
	}
	if share := float64(hit) / float64(trials); share < 0.93 || share > 0.975 {
		t.Errorf("covered %.3f of the time, want about 0.95", share)
	}
}

func TestQuantileRanksCoverTheQuantile(t *testing.T) {
	f := func(n int, q float64) {
		t.Helper()
		r := NewRand(7)
		hit, trials := 0, 1500
		truth := -math.Log(1 - q)
		xs := make([]float64, n)
		for range trials {
			for i := range xs {
				xs[i] = r.ExpFloat64()
			}
			slices.Sort(xs)
			if lo, hi := QuantileRanks(n, q, 0.95); xs[lo-1] <= truth && truth <= xs[hi-1] {
				hit++
			}
		}
		if share := float64(hit) / float64(trials); share < 0.94 || share > 0.99 {
			t.Errorf("n=%d q=%v: covered %.3f of the time, want at least 0.95 or a little more", n, q, share)
		}
	}
	f(1000, 0.99)
	f(300, 0.5)
	f(200, 0.95)
}

func TestQuantileRanksAreTheNormalOnes(t *testing.T) {
	f := func(n int, q float64, lo, hi int) {
		t.Helper()
		if l, h := QuantileRanks(n, q, 0.95); l != lo || h != hi {
			t.Errorf("QuantileRanks(%d, %v) = %d, %d, want %d, %d", n, q, l, h, lo, hi)
		}
	}
	// nq ± 1.96·√(nq(1−q)): 990 ± 6.17, 2970 ± 10.68, 50 ± 9.8; the upper rank is one further.
	f(1000, 0.99, 983, 998)
	f(3000, 0.99, 2959, 2982)
	f(100, 0.5, 40, 61)
	f(50, 0.99, 48, 51) // no order statistic bounds it from above: 51 is n+1
}

func TestEnoughIsAThousandForP99(t *testing.T) {
	f := func(n int, q float64, want bool) {
		t.Helper()
		if EnoughSamples(n, q) != want {
			t.Errorf("EnoughSamples(%d, %v) = %v", n, q, !want)
		}
	}
	f(999, 0.99, false)
	f(1000, 0.99, true)
	f(9999, 0.999, false)
	f(10000, 0.999, true)
	f(200, 0.95, true)
}

func TestLogTIsTheGeometricInterval(t *testing.T) {
	v := LogStudentInterval([]float64{1, math.E, math.E * math.E}, 0.95)
	near(t, "point", v.Point, math.E, 1e-12)
	// mean 1, sd 1, t(0.975, 2)/√3
	w := 4.302652729749462 / math.Sqrt(3)
	near(t, "lo", v.Lo, math.Exp(1-w), 1e-9)
	near(t, "hi", v.Hi, math.Exp(1+w), 1e-9)
	if v := LogStudentInterval([]float64{3}, 0.95); v.Point != 3 || v.Lo != 0 || !math.IsInf(v.Hi, 1) {
		t.Errorf("one value gives %+v", v)
	}
}

func TestLogTCoversTheMedian(t *testing.T) {
	r := NewRand(9)
	hit, trials := 0, 4000
	for range trials {
		xs := make([]float64, 3)
		for i := range xs {
			xs[i] = 0.02 * math.Exp(0.3*r.NormFloat64())
		}
		if v := LogStudentInterval(xs, 0.95); v.Lo <= 0.02 && 0.02 <= v.Hi {
			hit++
		}
	}
	if share := float64(hit) / float64(trials); share < 0.935 || share > 0.965 {
		t.Errorf("covered %.3f of the time, want about 0.95", share)
	}
}

func TestOpenIntervalsSurviveJSON(t *testing.T) {
	in := Interval{Point: math.NaN(), Lo: math.Inf(-1), Hi: math.Inf(1), N: 3}
	b, err := json.Marshal(in)
	if err != nil || string(b) != `{"point":null,"lo":null,"hi":null,"n":3}` {
		t.Fatalf("%s %v", b, err)
	}
	var out Interval
	if err := json.Unmarshal(b, &out); err != nil || !math.IsNaN(out.Point) || out.Lo != in.Lo || out.Hi != in.Hi {
		t.Errorf("%+v %v", out, err)
	}
}

func TestJain(t *testing.T) {
	f := func(want float64, xs ...float64) {
		t.Helper()
		near(t, "index", Jain(xs), want, 1e-12)
	}
	f(1, 5, 5, 5)
	f(0.25, 1, 0, 0, 0)
	f(0.9, 1, 2) // 9/(2·5)
	f(1)
	f(1, 0, 0)
}

func TestMedianAndQuantile(t *testing.T) {
	near(t, "median", Median([]float64{9, 1, 5}), 5, 0)
	near(t, "even median", Median([]float64{4, 1, 3, 2}), 2.5, 0)
	near(t, "quantile", Quantile([]float64{1, 2, 3, 4}, 0.9), 3.7, 1e-12) // R: quantile(1:4, .9)
	near(t, "geometric mean", GeoMean([]float64{1, 100, -5}), 10, 1e-12)
}
