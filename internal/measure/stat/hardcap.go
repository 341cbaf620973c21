package stat

import (
	"math"
	"slices"
)

// A HardCap is the scalability of a server that is simply full: X = min(γN, C).
type HardCap struct {
	Gamma float64 `json:"gamma"`
	C     float64 `json:"c"`
}

// At is the throughput at concurrency n.
func (h HardCap) At(n float64) float64 { return math.Min(h.Gamma*n, h.C) }

// KneeN is the concurrency at which it is full, C/γ.
func (h HardCap) KneeN() float64 { return h.C / h.Gamma }

// A HardCapFit is a fitted cap and what it is worth.
type HardCapFit struct {
	HardCap
	CI Interval `json:"c_interval"`
	// MaxResidual is the greatest relative distance of a level's median from the curve.
	MaxResidual float64 `json:"max_residual"`
	AICc        float64 `json:"aicc"`
	// Capped reports that levels lie on both sides of the bend: without one beyond
	// it C is a lower bound.
	Capped bool `json:"capped"`
}

// FitHardCap fits X = min(γN, C) by least squares on logarithms, exactly: for
// each way to divide the levels between the slope and the plateau both are
// geometric means, and the bend may lie on a level. The interval of C is by
// bootstrap as in [FitUSL]. Fewer than two points give a zero fit.
func FitHardCap(points []ScalePoint, seed uint64, resamples int, confidence float64) HardCapFit {
	f := flatten(points)
	if len(f.n) < 2 {
		return HardCapFit{CI: Unknown(), AICc: math.MaxFloat64}
	}
	if resamples < 1 {
		resamples = 200
	}
	h, rss := fitHardCap(f)
	fit := HardCapFit{HardCap: h, AICc: aicc(rss, len(f.n), 3)}
	below, above := false, false
	for _, p := range points {
		if m := Median(p.X); m > 0 {
			fit.MaxResidual = math.Max(fit.MaxResidual, math.Abs(m/h.At(p.N)-1))
			below = below || p.N < h.KneeN()
			above = above || p.N > h.KneeN()
		}
	}
	fit.Capped = below && above
	r := NewRand(seed)
	draws := make([]float64, resamples)
	for k := range draws {
		b, _ := fitHardCap(resampleScale(points, f, h.At, r))
		draws[k] = b.C
	}
	fit.CI = Interval{Point: h.C, N: len(f.n)}
	fit.CI.Lo, fit.CI.Hi = percentiles(draws, confidence)
	return fit
}

func fitHardCap(f flat) (HardCap, float64) {
	knees := slices.Clone(f.n)
	slices.Sort(knees)
	knees = slices.Compact(knees)
	best, bestRSS := HardCap{}, math.Inf(1)
	try := func(h HardCap) {
		sum := 0.0
		for i, n := range f.n {
			d := math.Log(f.x[i] / h.At(n))
			sum += d * d
		}
		if sum < bestRSS {
			best, bestRSS = h, sum
		}
	}
	for _, knee := range knees {
		var slope, plateau, both Moments
		for i, n := range f.n {
			if n <= knee {
				slope.Add(math.Log(f.x[i] / n))
			} else {
				plateau.Add(math.Log(f.x[i]))
			}
			both.Add(math.Log(f.x[i] / math.Min(n, knee)))
		}
		if plateau.N > 0 {
			try(HardCap{Gamma: math.Exp(slope.Mean), C: math.Exp(plateau.Mean)})
		}
		g := math.Exp(both.Mean)
		try(HardCap{Gamma: g, C: g * knee})
	}
	return best, bestRSS
}

// Scaling is both models of one set of points and which fits better.
type Scaling struct {
	USL     USLFit     `json:"usl"`
	HardCap HardCapFit `json:"hard_cap"`
	// Model is "usl" or "hard cap": the lower AICc. Empty without enough points.
	Model string `json:"model"`
}

// FitScaling fits both scalability models and chooses by AICc.
func FitScaling(points []ScalePoint, seed uint64, resamples int, confidence float64) Scaling {
	s := Scaling{
		USL:     FitUSL(points, seed, resamples, confidence),
		HardCap: FitHardCap(points, seed, resamples, confidence),
	}
	switch {
	case s.USL.AICc == math.MaxFloat64 && s.HardCap.AICc == math.MaxFloat64:
	case s.USL.AICc < s.HardCap.AICc:
		s.Model = "usl"
	default:
		s.Model = "hard cap"
	}
	return s
}

// Capacity is the greatest throughput that the chosen model allows: the USL's
// peak (or its Amdahl limit without one) or the cap. NaN without a model.
func (s Scaling) Capacity() float64 {
	switch s.Model {
	case "usl":
		_, x := s.USL.Peak()
		return x
	case "hard cap":
		return s.HardCap.C
	}
	return math.NaN()
}
