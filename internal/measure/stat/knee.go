package stat

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// Throughput is what a window was offered and what it completed, per second.
type Throughput struct {
	Offered   float64 `json:"offered"`
	Completed float64 `json:"completed"`
}

// Plateau is the capacity C: the geometric mean of the completed rate over the
// windows that were overloaded (offered ≥ 1.1·completed), with a t-interval on
// the logarithms. N is the number of such windows; with none the point is NaN.
func Plateau(windows []Throughput, confidence float64) Interval {
	var xs []float64
	for _, w := range windows {
		if w.Completed > 0 && w.Offered >= 1.1*w.Completed {
			xs = append(xs, w.Completed)
		}
	}
	v := LogStudentInterval(xs, confidence)
	v.Point = GeoMean(xs)
	return v
}

// LevelLatency are a level's load and the latency of each of its repeats.
type LevelLatency struct {
	Load      float64
	Latencies []float64
	// Least is as in LevelSample.
	Least float64
}

// A LevelSample is a load whose latency is estimated over windows.
type LevelSample struct {
	Load float64
	// Windows is how many there are, Latency the estimate over some of them, by their
	// indexes, which may repeat.
	Windows int
	Latency func(windows []int) float64
	// Least is what the standard deviation of the logarithm of the estimate is at least.
	Least float64
}

// A Crossing is where the latency has grown by a factor over its baseline.
type Crossing struct {
	// Load is NaN when no level lies beyond the factor (the load is above all that
	// was tried) or none below it.
	Load Interval `json:"load"`
	// Above reports that every level stayed below the factor; Below that every level
	// was beyond it.
	Above bool `json:"above"`
	Below bool `json:"below"`
}

// InflationCrossing is the load λ_κ at which the latency is κ times its fixed
// low-load baseline: log-linear interpolation between the two neighbouring
// levels, on the medians over repeats, made monotone first (a level that came
// out lower than one before it is pooled with it: Ayer et al., "An empirical
// distribution function for sampling with incomplete information", 1955) so that
// there is one crossing. The interval is a parametric bootstrap: levels and baseline are
// drawn with the scatter between windows, which is pooled over the levels near the
// crossing, and with what is not known of it (Student's t). For M/M/1 and κ = 2.5 it is a utilisation of about 0.62 whatever
// the levels are.
func InflationCrossing(levels []LevelLatency, baseline []float64, kappa float64, seed uint64, resamples int, confidence float64) Crossing {
	var samples []LevelSample
	for _, l := range levels {
		logs := logsOf(l.Latencies)
		if !(l.Load > 0) || len(logs) == 0 {
			continue
		}
		buf := make([]float64, 0, len(logs))
		samples = append(samples, LevelSample{Load: l.Load, Windows: len(logs), Least: l.Least, Latency: func(windows []int) float64 {
			buf = buf[:0]
			for _, w := range windows {
				buf = append(buf, logs[w])
			}
			slices.Sort(buf)
			return math.Exp(medianSorted(buf))
		}})
	}
	return SampledCrossing(samples, baseline, kappa, seed, resamples, confidence)
}

// SampledCrossing is InflationCrossing for latencies that are estimated otherwise than by
// the median over windows.
func SampledCrossing(levels []LevelSample, baseline []float64, kappa float64, seed uint64, resamples int, confidence float64) Crossing {
	ls := slices.Clone(levels)
	slices.SortFunc(ls, func(a, b LevelSample) int { return cmp.Compare(a.Load, b.Load) })
	logLoad, logs, weight := make([]float64, len(ls)), make([]float64, len(ls)), make([]float64, len(ls))
	total := 0
	for i, l := range ls {
		all := make([]int, l.Windows)
		for w := range all {
			all[w] = w
		}
		logLoad[i], logs[i], weight[i] = math.Log(l.Load), math.Log(l.Latency(all)), float64(l.Windows)
		total += l.Windows
	}
	base := logsOf(baseline)
	c := Crossing{Load: Unknown()}
	c.Load.N = total
	if len(ls) == 0 || len(base) == 0 {
		return c
	}
	level := Median(base) + math.Log(kappa)
	at, side := crossing(logLoad, logs, weight, level)
	c.Above, c.Below = side > 0, side < 0
	if side == 0 {
		c.Load.Point = math.Exp(at)
	}
	near := 0 // the first level beyond, or the last
	for near < len(ls)-1 && (side > 0 || logLoad[near] < at) {
		near++
	}
	scatter, freedom := pooledScatter(ls[max(0, near-2):min(len(ls), near+2)])
	baseScatter := 0.0
	if len(base) > 1 {
		baseScatter = medianScatter * MomentsOf(base).Std() / math.Sqrt(float64(len(base)))
	}
	r := NewRand(seed)
	found, drawn := make([]float64, max(resamples, 200)), make([]float64, len(ls))
	for k := range found {
		// One scale for all levels: their scatter is known from freedom degrees alone.
		scale := scatter * math.Sqrt(float64(freedom)/chiSquare(r, freedom))
		for i := range drawn {
			drawn[i] = logs[i] + math.Max(scale*medianScatter/math.Sqrt(weight[i]), ls[i].Least)*r.NormFloat64()
		}
		switch at, side := crossing(logLoad, drawn, weight, level+baseScatter*r.NormFloat64()); {
		case side > 0:
			found[k] = math.Inf(1)
		case side < 0:
			found[k] = 0
		default:
			found[k] = math.Exp(at)
		}
	}
	c.Load.Lo, c.Load.Hi = percentiles(found, confidence)
	return c
}

// medianScatter is the standard deviation of a median of normal values over that of their
// mean, at most (Kenney and Keeping, Mathematics of Statistics, §13.13).
const medianScatter = 1.2533

// pooledScatter is the standard deviation of the logarithm of one window's latency, pooled
// over levels, with its degrees of freedom. A level has two to five windows, which alone say
// little of it. Without any it is a factor of two, known as if from one window.
// Without repeats of any level it is what LevelSample.Least says.
func pooledScatter(levels []LevelSample) (scatter float64, freedom int) {
	sum, least := 0.0, true
	for _, l := range levels {
		least = least && l.Least > 0
		var m Moments
		for w := range l.Windows {
			m.Add(math.Log(l.Latency([]int{w})))
		}
		if l.Windows > 1 {
			sum, freedom = sum+m.M2, freedom+l.Windows-1
		}
	}
	switch {
	case freedom > 0:
		return math.Sqrt(sum / float64(freedom)), freedom
	case least:
		return 0, 1
	}
	return math.Ln2, 1
}

// chiSquare draws from the distribution of that many degrees of freedom.
func chiSquare(r *rand.Rand, freedom int) (x float64) {
	for range freedom {
		z := r.NormFloat64()
		x += z * z
	}
	return x
}

func logsOf(xs []float64) []float64 {
	out := make([]float64, 0, len(xs))
	for _, x := range xs {
		if x > 0 && !math.IsInf(x, 1) {
			out = append(out, math.Log(x))
		}
	}
	return out
}

// crossing is where the monotone curve through (x, y) reaches level; side is
// +1 when it stays below and −1 when it starts above.
func crossing(x, y, weight []float64, level float64) (at float64, side int) {
	m := IsotonicRegression(y, weight)
	if m[len(m)-1] < level {
		return 0, +1
	}
	if m[0] >= level {
		return 0, -1
	}
	i := 1
	for m[i] < level {
		i++
	}
	// A pooled stretch is one level at its middle: interpolate from the last
	// point below to the first at or above.
	share := (level - m[i-1]) / (m[i] - m[i-1])
	return x[i-1] + share*(x[i]-x[i-1]), 0
}

// IsotonicRegression is the non-decreasing sequence nearest to y in weighted least
// squares (pool adjacent violators). A weight of 0 or a missing one is 1.
func IsotonicRegression(y, weight []float64) []float64 {
	type block struct {
		mean, weight float64
		n            int
	}
	var blocks []block
	for i, v := range y {
		w := 1.0
		if i < len(weight) && weight[i] > 0 {
			w = weight[i]
		}
		blocks = append(blocks, block{v, w, 1})
		for len(blocks) > 1 {
			a, b := blocks[len(blocks)-2], blocks[len(blocks)-1]
			if a.mean <= b.mean {
				break
			}
			sum := a.weight + b.weight
			blocks = blocks[:len(blocks)-1]
			blocks[len(blocks)-1] = block{(a.mean*a.weight + b.mean*b.weight) / sum, sum, a.n + b.n}
		}
	}
	out := make([]float64, 0, len(y))
	for _, b := range blocks {
		for range b.n {
			out = append(out, b.mean)
		}
	}
	return out
}

// A HingeFit is two segments, level and then rising: y = Level + Slope·max(0, x−Break).
type HingeFit struct {
	Break float64 `json:"break"`
	Level float64 `json:"level"`
	Slope float64 `json:"slope"`
	// Gain is by how much the hinge's BIC is below the better of a constant's and
	// a straight line's; from 6 on it is Accepted.
	Gain     float64 `json:"gain"`
	Accepted bool    `json:"accepted"`
}

// FitHinge fits log latency against log load by two segments, for the plot: where
// it breaks depends on where the sweep ends, so it is not an estimate of the knee.
// The break is sought on a grid of 400 places between the least and the greatest
// x. Fewer than five points are not accepted.
func FitHinge(x, y []float64) HingeFit {
	n := min(len(x), len(y))
	if n < 3 {
		return HingeFit{}
	}
	x, y = x[:n], y[:n]
	lo, hi := slices.Min(x), slices.Max(x)
	best, bestRSS := HingeFit{}, math.Inf(1)
	u := make([]float64, n)
	const grid = 400
	for k := range grid {
		at := lo + (hi-lo)*float64(k)/grid
		for i := range x {
			u[i] = math.Max(0, x[i]-at)
		}
		b, c, rss := leastSquares(u, y)
		if c >= 0 && rss < bestRSS {
			best, bestRSS = HingeFit{Break: at, Level: b, Slope: c}, rss
		}
	}
	_, _, line := leastSquares(x, y)
	constant := MomentsOf(y).M2
	bic := func(rss float64, k int) float64 {
		return float64(n)*math.Log(math.Max(rss/float64(n), 1e-24)) + float64(k)*math.Log(float64(n))
	}
	if math.IsInf(bestRSS, 1) {
		return HingeFit{Level: MomentsOf(y).Mean, Break: hi}
	}
	best.Gain = math.Min(bic(constant, 1), bic(line, 2)) - bic(bestRSS, 3)
	best.Accepted = n >= 5 && best.Gain >= 6
	return best
}

// leastSquares fits y = a + b·x and gives the residual sum of squares.
func leastSquares(x, y []float64) (a, b, rss float64) {
	mx, my := MomentsOf(x).Mean, MomentsOf(y).Mean
	var sxx, sxy float64
	for i := range x {
		sxx += (x[i] - mx) * (x[i] - mx)
		sxy += (x[i] - mx) * (y[i] - my)
	}
	if sxx > 0 {
		b = sxy / sxx
	}
	a = my - b*mx
	for i := range x {
		d := y[i] - a - b*x[i]
		rss += d * d
	}
	return a, b, rss
}

// Axes are what Kneedle's curve is normalised on.
type Axes struct{ MinX, MaxX, MinY, MaxY float64 }

// Kneedle is the place of the greatest distance of a rising convex curve below
// the diagonal (Satopää et al., "Finding a 'Kneedle' in a haystack", 2011), as
// an index into x; −1 when the curve nowhere lies below it. It is an
// illustration: normalised on the measured range, as is usual, it moves with the
// range, therefore the axes are given (0 … λ_max, P99_0 … the objective).
// Points outside the axes are left out.
func Kneedle(x, y []float64, axes Axes) int {
	best, at := 0.0, -1
	for i := range min(len(x), len(y)) {
		u := (x[i] - axes.MinX) / (axes.MaxX - axes.MinX)
		v := (y[i] - axes.MinY) / (axes.MaxY - axes.MinY)
		if u < 0 || u > 1 || v < 0 || v > 1 {
			continue
		}
		if u-v > best {
			best, at = u-v, i
		}
	}
	return at
}
