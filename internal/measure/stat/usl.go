package stat

import (
	"math"
	"slices"
)

// A USL is Gunther's Universal Scalability Law ("A general theory of
// computational scalability based on rational functions", arXiv 0808.1431):
// X(N) = γN / (1 + α(N−1) + βN(N−1)). N is concurrency: workers of a closed
// loop, or the measured mean in-flight; never an offered rate.
type USL struct {
	// Alpha is the share that is queued (contention), Beta the cost of
	// agreement between each two (coherency), Gamma the throughput of one.
	Alpha float64 `json:"alpha"`
	Beta  float64 `json:"beta"`
	Gamma float64 `json:"gamma"`
}

// At is the throughput at concurrency n.
func (u USL) At(n float64) float64 {
	return u.Gamma * n / (1 + u.Alpha*(n-1) + u.Beta*n*(n-1))
}

// Peak is the concurrency of the greatest throughput, N* = √((1−α)/β), and that
// throughput. Without coherency cost there is none: (+Inf, γ/α).
func (u USL) Peak() (n, x float64) {
	if u.Beta <= 0 {
		return math.Inf(1), u.Limit()
	}
	n = math.Sqrt(math.Max(1-u.Alpha, 0) / u.Beta)
	if n < 1 {
		n = 1
	}
	return n, u.At(n)
}

// Limit is Amdahl's asymptote γ/α; +Inf without contention.
func (u USL) Limit() float64 {
	if u.Alpha <= 0 {
		return math.Inf(1)
	}
	return u.Gamma / u.Alpha
}

// ScalePoint is a level's concurrency and the throughput of its repeats.
type ScalePoint struct {
	N float64
	X []float64
}

// The gates that a USL peak must pass: at least 8 levels, measured to
// at least 1.5 times the peak, no residual above 10 %, β's interval clear of 0.
const (
	minScaleLevels   = 8
	minScaleReach    = 1.5
	maxScaleResidual = 0.10
)

// A USLFit is a fitted USL and what it is worth.
type USLFit struct {
	USL
	PeakN Interval `json:"peak_n"`
	PeakX Interval `json:"peak_x"`
	BetaI Interval `json:"beta_interval"`
	// MaxResidual is the greatest relative distance of a level's median from the curve.
	MaxResidual float64 `json:"max_residual"`
	AICc        float64 `json:"aicc"`
	// Identified reports that the peak passed the gates; Why names those it did not.
	Identified bool     `json:"identified"`
	Why        []string `json:"why,omitempty"`
	// MaxN is how far was measured and AtMax the throughput there: what may be said
	// when the peak is not identified.
	MaxN  float64 `json:"max_n"`
	AtMax float64 `json:"at_max"`
}

// flat are the points one by one: n, x and which level each belongs to.
type flat struct{ n, x []float64 }

func flatten(points []ScalePoint) flat {
	var f flat
	for _, p := range points {
		for _, x := range p.X {
			if p.N > 0 && x > 0 && !math.IsInf(x, 1) && !math.IsInf(p.N, 1) {
				f.n, f.x = append(f.n, p.N), append(f.x, x)
			}
		}
	}
	return f
}

// FitUSL fits the law: non-negative least squares on the linear form
// N/X = (1/γ)(1 + α(N−1) + βN(N−1)) gives a start, Levenberg–Marquardt on log
// residuals with log parameters refines it and several other starts, the best
// wins. Intervals are by bootstrap over repeats (over the residuals where no level
// was repeated). Fewer than four points give a zero fit that is not identified.
// resamples below 1 is 200.
func FitUSL(points []ScalePoint, seed uint64, resamples int, confidence float64) USLFit {
	f := flatten(points)
	if len(f.n) < 4 {
		return USLFit{PeakN: Unknown(), PeakX: Unknown(), BetaI: Unknown(), AICc: math.MaxFloat64, Why: []string{"fewer than 4 points"}}
	}
	if resamples < 1 {
		resamples = 200
	}
	u, rss := fitUSL(f, nil)
	fit := USLFit{USL: u, AICc: aicc(rss, len(f.n), 4)}
	for _, p := range points {
		if m := Median(p.X); m > 0 {
			fit.MaxResidual = math.Max(fit.MaxResidual, math.Abs(m/u.At(p.N)-1))
			if p.N > fit.MaxN {
				fit.MaxN, fit.AtMax = p.N, m
			}
		}
	}
	r := NewRand(seed)
	peakN, peakX, beta := make([]float64, resamples), make([]float64, resamples), make([]float64, resamples)
	for k := range resamples {
		b, _ := fitUSL(resampleScale(points, f, u.At, r), &u)
		peakN[k], peakX[k] = b.Peak()
		beta[k] = b.Beta
	}
	interval := func(point float64, draws []float64) Interval {
		v := Interval{Point: point, N: len(f.n)}
		v.Lo, v.Hi = percentiles(draws, confidence)
		return v
	}
	n, x := u.Peak()
	fit.PeakN, fit.PeakX, fit.BetaI = interval(n, peakN), interval(x, peakX), interval(u.Beta, beta)
	fit.gate(len(points))
	return fit
}

// negligibleBeta is what counts as no coherency at all: a peak beyond 10⁵.
const negligibleBeta = 1e-10

func (f *USLFit) gate(levels int) {
	if levels < minScaleLevels {
		f.Why = append(f.Why, "fewer than 8 levels")
	}
	if n, _ := f.Peak(); f.MaxN < minScaleReach*n {
		f.Why = append(f.Why, "not measured to 1.5 times the peak")
	}
	if f.MaxResidual > maxScaleResidual {
		f.Why = append(f.Why, "a residual above 10 %")
	}
	if !(f.BetaI.Lo > negligibleBeta) {
		f.Why = append(f.Why, "coherency cost not distinguishable from none")
	}
	f.Identified = len(f.Why) == 0
}

// resampleScale draws each level's repeats anew, or, where no level has two, the
// residuals about the curve.
func resampleScale(points []ScalePoint, f flat, at func(float64) float64, r interface{ IntN(int) int }) flat {
	out := flat{n: f.n, x: make([]float64, 0, len(f.x))}
	repeated := slices.ContainsFunc(points, func(p ScalePoint) bool { return len(p.X) > 1 })
	if !repeated {
		for _, n := range f.n {
			j := r.IntN(len(f.n))
			out.x = append(out.x, at(n)*f.x[j]/at(f.n[j]))
		}
		return out
	}
	for i := 0; i < len(f.n); {
		j := i
		for j < len(f.n) && f.n[j] == f.n[i] {
			j++
		}
		for range j - i {
			out.x = append(out.x, f.x[i+r.IntN(j-i)])
		}
		i = j
	}
	return out
}

func fitUSL(f flat, near *USL) (USL, float64) {
	starts := []USL{linearUSL(f)}
	if near != nil {
		starts = append(starts, *near)
	} else {
		g := starts[0].Gamma
		starts = append(starts, []USL{{0.01, 1e-4, g}, {0.1, 1e-6, g}, {0.3, 1e-3, g}, {1e-3, 1e-2, g}}...)
	}
	best, rss := starts[0], math.Inf(1)
	for _, s := range starts {
		if u, r := refineUSL(f, s); r < rss {
			best, rss = u, r
		}
	}
	if best.Beta < negligibleBeta {
		best.Beta = 0
	}
	if best.Alpha < 1e-9 {
		best.Alpha = 0
	}
	return best, rss
}

// linearUSL solves the linear form with coefficients held at or above 0. With
// three of them every set of active ones is tried, which is exact.
func linearUSL(f flat) USL {
	best, bestRSS := [3]float64{}, math.Inf(1)
	for set := 1; set < 8; set++ {
		if set&1 == 0 {
			continue // 1/γ is never 0
		}
		c, rss, ok := subsetUSL(f, set)
		if ok && rss < bestRSS {
			best, bestRSS = c, rss
		}
	}
	if !(best[0] > 0) {
		return USL{Gamma: f.x[0] / f.n[0], Alpha: 0.1, Beta: 1e-4}
	}
	return USL{Gamma: 1 / best[0], Alpha: best[1] / best[0], Beta: best[2] / best[0]}
}

func subsetUSL(f flat, set int) (c [3]float64, rss float64, ok bool) {
	var a [3][3]float64
	var b [3]float64
	row := func(i int) ([3]float64, float64) {
		n, y := f.n[i], f.n[i]/f.x[i]
		v := [3]float64{1 / y, (n - 1) / y, n * (n - 1) / y} // relative residuals
		for k := range v {
			if set&(1<<k) == 0 {
				v[k] = 0
			}
		}
		return v, 1
	}
	for i := range f.n {
		v, y := row(i)
		for p := range v {
			b[p] += v[p] * y
			for q := range v {
				a[p][q] += v[p] * v[q]
			}
		}
	}
	for k := range a {
		if set&(1<<k) == 0 {
			a[k][k] = 1
		}
	}
	c, ok = solve3(a, b)
	for _, v := range c {
		ok = ok && v >= 0
	}
	for i := range f.n {
		v, y := row(i)
		d := y - v[0]*c[0] - v[1]*c[1] - v[2]*c[2]
		rss += d * d
	}
	return c, rss, ok
}

// solve3 solves a·x = b by elimination with pivots.
func solve3(a [3][3]float64, b [3]float64) (x [3]float64, ok bool) {
	for k := range 3 {
		p := k
		for i := k + 1; i < 3; i++ {
			if math.Abs(a[i][k]) > math.Abs(a[p][k]) {
				p = i
			}
		}
		a[k], a[p], b[k], b[p] = a[p], a[k], b[p], b[k]
		if a[k][k] == 0 {
			return x, false
		}
		for i := k + 1; i < 3; i++ {
			m := a[i][k] / a[k][k]
			for j := k; j < 3; j++ {
				a[i][j] -= m * a[k][j]
			}
			b[i] -= m * b[k]
		}
	}
	for k := 2; k >= 0; k-- {
		x[k] = b[k]
		for j := k + 1; j < 3; j++ {
			x[k] -= a[k][j] * x[j]
		}
		x[k] /= a[k][k]
		if math.IsNaN(x[k]) || math.IsInf(x[k], 0) {
			return x, false
		}
	}
	return x, true
}

// refineUSL is Levenberg–Marquardt (Marquardt 1963) on r = log X − log X(N) in
// (log γ, log α, log β).
func refineUSL(f flat, s USL) (USL, float64) {
	theta := [3]float64{math.Log(s.Gamma), math.Log(math.Max(s.Alpha, 1e-7)), math.Log(math.Max(s.Beta, 1e-9))}
	rss := rssUSL(f, theta)
	damp := 1e-3
	for range 200 {
		a, g := normalUSL(f, theta)
		var step [3]float64
		improved := false
		for range 12 {
			m := a
			for k := range m {
				m[k][k] += damp * (a[k][k] + 1e-9)
			}
			var ok bool
			if step, ok = solve3(m, g); ok {
				next := theta
				for k := range next {
					next[k] = min(max(theta[k]+min(max(step[k], -3), 3), -30), 60)
				}
				if r := rssUSL(f, next); r < rss {
					improved = rss-r > 1e-13*rss
					theta, rss = next, r
					damp = math.Max(damp/5, 1e-12)
					break
				}
			}
			damp *= 4
		}
		if !improved {
			break
		}
	}
	return paramsUSL(theta), rss
}

func paramsUSL(t [3]float64) USL {
	return USL{Gamma: math.Exp(t[0]), Alpha: math.Exp(t[1]), Beta: math.Exp(t[2])}
}

func rssUSL(f flat, t [3]float64) float64 {
	u, sum := paramsUSL(t), 0.0
	for i, n := range f.n {
		x := u.At(n)
		if !(x > 0) {
			return math.Inf(1)
		}
		d := math.Log(f.x[i] / x)
		sum += d * d
	}
	return sum
}

// normalUSL is JᵀJ and Jᵀr of the log residuals.
func normalUSL(f flat, t [3]float64) (a [3][3]float64, g [3]float64) {
	u := paramsUSL(t)
	for i, n := range f.n {
		d := 1 + u.Alpha*(n-1) + u.Beta*n*(n-1)
		j := [3]float64{1, -u.Alpha * (n - 1) / d, -u.Beta * n * (n - 1) / d}
		r := math.Log(f.x[i] / u.At(n))
		for p := range j {
			g[p] += j[p] * r
			for q := range j {
				a[p][q] += j[p] * j[q]
			}
		}
	}
	return a, g
}

// aicc is Akaike's criterion corrected for small samples (Hurvich and Tsai,
// 1989) of a least-squares fit with k parameters, the variance among them. With
// too few points for k parameters it is greater than any other.
func aicc(rss float64, n, k int) float64 {
	if n-k-1 <= 0 {
		return math.MaxFloat64
	}
	v := float64(n)*math.Log(math.Max(rss/float64(n), 1e-24)) + 2*float64(k)
	return v + 2*float64(k)*float64(k+1)/float64(n-k-1)
}
