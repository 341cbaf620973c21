package stat

import (
	"cmp"
	"math"
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
	v := LogT(xs, confidence)
	v.Point = GeoMean(xs)
	return v
}

// LevelLatency are a level's load and the latency of each of its repeats.
type LevelLatency struct {
	Load      float64
	Latencies []float64
}

// A Crossing is where the latency has grown by a factor over its baseline.
type Crossing struct {
	// Load is NaN when no level lies beyond the factor (the load is above all that
	// was tried) or none below it.
	Load Interval `json:"load"`
	// Above says that every level stayed below the factor; Below that every level
	// was beyond it.
	Above bool `json:"above"`
	Below bool `json:"below"`
}

// InflationCrossing is the load λ_κ at which the latency is κ times its fixed
// low-load baseline: log-linear interpolation between the two neighbouring
// levels, on the medians over repeats, made monotone first (a level that came
// out lower than one before it is pooled with it: Ayer et al., "An empirical
// distribution function for sampling with incomplete information", 1955) so that
// there is one crossing. The interval is the bootstrap over repeats of levels
// and baseline. For M/M/1 and κ = 2.5 it is a utilisation of about 0.62 whatever
// the levels are.
func InflationCrossing(levels []LevelLatency, baseline []float64, kappa float64, seed uint64, resamples int, confidence float64) Crossing {
	ls := slices.DeleteFunc(slices.Clone(levels), func(l LevelLatency) bool {
		return !(l.Load > 0) || len(l.Latencies) == 0
	})
	slices.SortFunc(ls, func(a, b LevelLatency) int { return cmp.Compare(a.Load, b.Load) })
	logLoad, logMed := make([]float64, len(ls)), make([]float64, len(ls))
	weight := make([]float64, len(ls))
	logs := make([][]float64, len(ls))
	total := 0
	for i, l := range ls {
		logLoad[i], weight[i] = math.Log(l.Load), float64(len(l.Latencies))
		logs[i] = logsOf(l.Latencies)
		logMed[i] = Median(logs[i])
		total += len(l.Latencies)
	}
	base := logsOf(baseline)
	unknown := Interval{Point: math.NaN(), Lo: math.Inf(-1), Hi: math.Inf(1), N: total}
	if len(ls) == 0 || len(base) == 0 {
		return Crossing{Load: unknown}
	}
	at, side := crossing(logLoad, logMed, weight, Median(base)+math.Log(kappa))
	c := Crossing{Load: unknown, Above: side > 0, Below: side < 0}
	if side == 0 {
		c.Load.Point = math.Exp(at)
	}
	if resamples < 1 {
		resamples = 1000
	}
	r := NewRand(seed)
	draw := make([]float64, resamples)
	buf := make([]float64, 0, 16)
	resample := func(xs []float64) float64 {
		buf = buf[:0]
		for range xs {
			buf = append(buf, xs[r.IntN(len(xs))])
		}
		slices.Sort(buf)
		return medianSorted(buf)
	}
	for k := range draw {
		for i := range logs {
			logMed[i] = resample(logs[i])
		}
		at, side := crossing(logLoad, logMed, weight, resample(base)+math.Log(kappa))
		switch {
		case side > 0:
			draw[k] = math.Inf(1)
		case side < 0:
			draw[k] = 0
		default:
			draw[k] = math.Exp(at)
		}
	}
	c.Load.Lo, c.Load.Hi = percentiles(draw, confidence)
	return c
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
// +1 when it stays below and −1 when it begins above.
func crossing(x, y, weight []float64, level float64) (at float64, side int) {
	m := Monotone(y, weight)
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

// Monotone is the non-decreasing sequence nearest to y in weighted least
// squares (pool adjacent violators). A weight of 0 or a missing one is 1.
func Monotone(y, weight []float64) []float64 {
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

// Hinge fits log latency against log load by two segments, for the plot: where
// it breaks depends on where the sweep ends, so it is no estimate of the knee.
// The break is sought on a grid of 400 places between the least and the greatest
// x. Fewer than five points are not accepted.
func Hinge(x, y []float64) HingeFit {
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
