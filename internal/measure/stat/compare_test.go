package stat

import (
	"math"
	"math/rand/v2"
	"testing"
)

// near fails unless got is within rel of want, relatively (absolutely below 1e-300).
func near(t *testing.T, what string, got, want, rel float64) {
	t.Helper()
	if got == want || math.IsNaN(got) && math.IsNaN(want) {
		return
	}
	if !(math.Abs(got-want) <= rel*math.Max(math.Abs(want), 1e-300)) {
		t.Errorf("%s = %.15g, want %.15g", what, got, want)
	}
}

func TestMomentsAgreeWithTheTwoPassSums(t *testing.T) {
	xs := []float64{1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16}
	m := MomentsOf(xs)
	near(t, "mean", m.Mean, 1e9+10, 1e-15)
	near(t, "variance", m.Var(), 30, 1e-12)
	var a, b Moments
	a.Add(xs[0])
	for _, x := range xs[1:] {
		b.Add(x)
	}
	b.Add(math.NaN())
	a.Merge(b)
	a.Merge(Moments{})
	near(t, "merged mean", a.Mean, m.Mean, 1e-15)
	near(t, "merged variance", a.Var(), m.Var(), 1e-12)
	near(t, "CV", CV([]float64{1, 2, 3}), 0.5, 1e-12)
	if (Moments{}).CV() != 0 {
		t.Error("the CV of nothing is not 0")
	}
}

// Values from R's pt and qt, as scipy.stats.t gives them.
func TestStudentAgreesWithTables(t *testing.T) {
	q := func(p, df, want float64) {
		t.Helper()
		near(t, "quantile", StudentQuantile(p, df), want, 1e-10)
		near(t, "lower quantile", StudentQuantile(1-p, df), -want, 1e-10)
	}
	q(0.975, 1, 12.706204736174694)
	q(0.975, 2, 4.302652729749462)
	q(0.975, 4.5, 2.6589123472044034)
	q(0.995, 29, 2.756385903670605)
	q(0.9, 1000, 1.2823987214609247)
	q(0.999, 3, 10.214531852407383)
	q(0.975, math.Inf(1), 1.959963984540054)
	near(t, "survival", studentTail(2.5, 7.3), 0.019825117332800214, 1e-11)
	near(t, "survival", studentTail(40, 30), 6.863022597203209e-28, 1e-11)
}

// The classic worked example of Welch's test (R: t.test(a, b)).
func TestWelchAgreesWithR(t *testing.T) {
	a := []float64{27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4}
	b := []float64{27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.5, 31.9}
	tt, df, p := WelchT(MomentsOf(a), MomentsOf(b))
	near(t, "t", tt, -2.935262570897106, 1e-12)
	near(t, "df", df, 27.057926762990622, 1e-12)
	near(t, "p", p, 0.006721290196656835, 1e-10)
}

func TestWelchWithoutSpread(t *testing.T) {
	f := func(a, b []float64, want float64) {
		t.Helper()
		if _, _, p := WelchT(MomentsOf(a), MomentsOf(b)); p != want {
			t.Errorf("p of %v against %v = %v, want %v", a, b, p, want)
		}
	}
	f([]float64{1, 1}, []float64{1, 1, 1}, 1)
	f([]float64{1, 1}, []float64{2, 2}, 0)
	f([]float64{1}, []float64{2, 3}, 1)
	f(nil, nil, 1)
}

func TestWelchIsWrongFiveTimesInAHundred(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	wrong, trials := 0, 4000
	for range trials {
		var a, b Moments
		for range 12 {
			a.Add(r.NormFloat64())
		}
		for range 30 {
			b.Add(4 * r.NormFloat64())
		}
		if _, _, p := WelchT(a, b); p < 0.05 {
			wrong++
		}
	}
	if share := float64(wrong) / float64(trials); share < 0.04 || share > 0.06 {
		t.Errorf("false alarms: %.3f, want about 0.05", share)
	}
}

// Fisher's tea, and values of R's fisher.test (scipy agrees).
func TestFisherAgreesWithR(t *testing.T) {
	f := func(a, b, c, d int, two, less, greater float64) {
		t.Helper()
		near(t, "two-sided", FisherExact(a, b, c, d, TwoSided), two, 1e-8)
		near(t, "less", FisherExact(a, b, c, d, Less), less, 1e-8)
		near(t, "greater", FisherExact(a, b, c, d, Greater), greater, 1e-8)
	}
	f(3, 1, 1, 3, 0.48571428571428565, 0.9857142857142858, 0.24285714285714283)
	f(1, 9, 11, 3, 0.0027594561852200836, 0.0013797280926100418, 0.9999663480953022)
	f(8, 2, 1, 5, 0.034965034965034975, 0.9991258741258742, 0.024475524475524483)
	f(0, 5, 5, 0, 0.007936507936507938, 0.003968253968253969, 1)
	f(10, 90, 25, 75, 0.008503571478623954, 0.004251785739311977, 0.9987315877064636)
	f(120, 4880, 180, 4820, 0.0005230002785682024, 0.0002615001392841012, 0.9998327907941417)
	f(2, 1000000, 15, 1000000, 0.0023497601420003535, 0.0011749812325950449, 0.9998626646727381)
	f(7, 7, 7, 7, 1, 0.646804863821959, 0.646804863821959)
	f(0, 0, 3, 4, 1, 1, 1)
	f(5, 0, 7, 0, 1, 1, 1)
}

func TestFisherTwoSidedEqualsTheSumOverAllTables(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		a, b, c, d := r.IntN(15), r.IntN(15), r.IntN(15), r.IntN(15)
		row, col, n := a+b, a+c, a+b+c+d
		if row == 0 || row == n || col == 0 || col == n {
			continue
		}
		prob := func(k int) float64 { return math.Exp(lchoose(row, k) + lchoose(n-row, col-k) - lchoose(n, col)) }
		want := 0.0
		for k := max(0, col-(n-row)); k <= min(row, col); k++ {
			if prob(k) <= prob(a)*(1+1e-7) {
				want += prob(k)
			}
		}
		near(t, "two-sided", FisherExact(a, b, c, d, TwoSided), math.Min(1, want), 1e-9)
	}
}

// Values of R's ks.test and scipy.stats.ks_2samp.
func TestKolmogorovSmirnovAgreesWithR(t *testing.T) {
	f := func(a, b []float64, wantD, wantP float64) {
		t.Helper()
		d, p := KolmogorovSmirnov(a, b)
		near(t, "D", d, wantD, 1e-12)
		near(t, "p", p, wantP, 1e-9)
		d, p = KolmogorovSmirnov(b, a)
		near(t, "D swapped", d, wantD, 1e-12)
		near(t, "p swapped", p, wantP, 1e-9)
	}
	x := []float64{0.61, 0.29, 0.06, 0.59, -1.73, -0.74, 0.51, -0.56, 0.39, 1.64, 0.05, -0.06, 0.64, -0.82, 0.37,
		1.77, 1.09, -1.28, 2.36, 1.31, 1.05, -0.32, -0.40, 1.06, -2.47}
	y := []float64{1.5, 0.2, 2.2, -0.3, 1.9, 2.8, 0.9, 1.1, 3.0, 0.77}
	f(x, y, 0.52, 0.029641060590481518)
	f([]float64{1, 2, 3}, []float64{4, 5, 6}, 1, 0.1)
	f([]float64{1, 2, 3, 4, 5}, []float64{3.5, 4.5, 5.5, 6.5, 7.5, 8.5}, 2.0/3, 0.10822510822510821)
	f([]float64{1, 2}, []float64{1, 2}, 0, 1)
	f(nil, []float64{1}, 0, 1)
}

func TestKolmogorovSmirnovCountsOrdersWithTies(t *testing.T) {
	// Of the orders of {1,1,2 | 1,2,2} only where the value changes counts: the
	// distance after the three 1s. |i/3 − (3−i)/3| ≥ 1/3 always (i is 0 … 3), so p = 1.
	d, p := KolmogorovSmirnov([]float64{1, 1, 2}, []float64{1, 2, 2})
	near(t, "D", d, 1.0/3, 1e-12)
	near(t, "p", p, 1, 1e-12)
	// All of one side's values are 1 and all of the other's 2: the two extreme orders of choose(6,3) = 20.
	d, p = KolmogorovSmirnov([]float64{1, 1, 1}, []float64{2, 2, 2})
	near(t, "D", d, 1, 1e-12)
	near(t, "p", p, 2.0/20, 1e-12)
}

func TestKolmogorovSmirnovOfManyIsNearTheExactValue(t *testing.T) {
	var x, y []float64
	for i := range 2000 {
		v := math.Sin(float64(i)*12.9898) * 43758.5453
		v -= math.Floor(v)
		x = append(x, v)
		if i < 1500 {
			y = append(y, math.Pow(v, 1.1))
		}
	}
	d, p := KolmogorovSmirnov(x, y) // exact would be 0.06705
	near(t, "D", d, 0.044333333333333336, 1e-3)
	near(t, "p", p, 0.0670513510619156, 0.02)
}
