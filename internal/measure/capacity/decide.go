package capacity

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

const confidence = 0.95

// clear is how far beyond a threshold two windows must both lie to need no third.
const clear = 1.4

// used are the windows of these that count.
func (s *evidence) used(index []int) []*Window {
	var out []*Window
	for _, i := range index {
		if w := &s.rep.Windows[i]; w.Used {
			out = append(out, w)
		}
	}
	return out
}

// sloQuantile is what an objective is about, whatever quantile the knee is evaluated by.
const sloQuantile = 0.99

// sloSamples is what a window must have for its P99 to be one of several that an
// objective is decided on together. How they scatter says how sure that is.
const sloSamples = 300

// enough reports whether n samples of a window carry a quantile.
func enough(n int, q float64) bool {
	return stat.EnoughSamples(n, q) || q == sloQuantile && n >= sloSamples
}

// latencies are the evaluated quantile of each window that has the samples for it.
func (s *evidence) latencies(ws []*Window) []float64 {
	return latenciesAt(ws, s.rep.Quantile, stat.EnoughSamples)
}

func latenciesAt(ws []*Window, q float64, enough func(n int, q float64) bool) []float64 {
	var out []float64
	for _, w := range ws {
		if v := w.Obs.Response.At(q); enough(v.N, q) && v.Point > 0 {
			out = append(out, v.Point)
		}
	}
	return out
}

// latency is the interval over windows: t on the logarithms, but never narrower than
// the order statistics of that many windows allow.
func (s *evidence) latency(ws []*Window) stat.Interval {
	return intervalOf(ws, s.latencies(ws), s.rep.Quantile)
}

func intervalOf(ws []*Window, latencies []float64, quantile float64) stat.Interval {
	v := stat.LogStudentInterval(latencies, confidence)
	if v.N < 2 {
		return v
	}
	var floor []float64
	for _, w := range ws {
		q := w.Obs.Response.At(quantile)
		if q.Lo > 0 && !math.IsInf(q.Hi, 1) {
			floor = append(floor, math.Log(q.Hi/q.Lo)/2)
		}
	}
	if half := stat.Median(floor) / math.Sqrt(float64(v.N)); half > 0 {
		v.Lo = math.Min(v.Lo, v.Point*math.Exp(-half))
		v.Hi = math.Max(v.Hi, v.Point*math.Exp(half))
	}
	return v
}

// decide holds a level's windows against a latency threshold. A strict decision
// (the objective's) fails by any error; the knee's takes a fault in most windows,
// for one reset connection is not a knee. Two windows decide only when both are
// clearly to one side (t with one degree of freedom never would).
func (s *evidence) decide(ws []*Window, threshold float64, strict bool) (Decision, string) {
	quantile, carries := s.rep.Quantile, stat.EnoughSamples
	if strict {
		quantile, carries = sloQuantile, enough
	}
	faults := map[string]int{}
	count := 0
	for _, w := range ws {
		if w.Fault != "" {
			kind, _, _ := strings.Cut(w.Fault, ":")
			faults[kind]++
			count++
			if strict && kind == "errors" {
				return Fails, w.Fault
			}
		}
	}
	if count >= 2 && 2*count > len(ws) {
		for _, w := range slices.Backward(ws) {
			if w.Fault != "" {
				return Fails, w.Fault
			}
		}
	}
	below, above := 0, 0
	n := 0
	for _, w := range ws {
		v := w.Obs.Response.At(quantile)
		if !carries(v.N, quantile) {
			continue
		}
		n++
		if v.Hi < threshold/clear && w.Fault == "" {
			below++
		}
		if v.Lo > threshold*clear {
			above++
		}
	}
	switch v := intervalOf(ws, latenciesAt(ws, quantile, carries), quantile); {
	case n < 2:
		return Undecided, ""
	case below == n:
		return Passes, ""
	case above == n:
		return Fails, "latency"
	case n < 3:
		return Undecided, ""
	case v.Hi <= threshold && 2*count <= len(ws):
		return Passes, ""
	case v.Lo > threshold:
		return Fails, "latency"
	}
	return Undecided, ""
}

// threshold is what the evaluated quantile must stay below for the knee: κ times the
// median over all windows of the baseline so far.
func (s *evidence) threshold() float64 {
	return s.opt.Kappa * stat.Median(s.latencies(s.used(s.base)))
}

// sortedKeys are a map's rates, ascending.
func sortedKeys(m map[float64][]float64) []float64 { return slices.Sorted(maps.Keys(m)) }

// rates are the levels that were measured, ascending.
func (s *evidence) rates() []float64 { return slices.Sorted(maps.Keys(s.levels)) }

// bracketOf is the highest level that passes below the lowest that fails, for the
// decisions that f makes. inverted says that some level passes above one that fails.
func (s *evidence) bracketOf(f func(ws []*Window) Decision) (lo, hi float64, inverted bool) {
	for _, rate := range s.rates() {
		switch f(s.used(s.levels[rate])) {
		case Passes:
			if hi > 0 {
				inverted = true
				continue
			}
			lo = rate
		case Fails:
			if hi == 0 {
				hi = rate
			}
		}
	}
	return lo, hi, inverted
}

func (s *evidence) byKnee(ws []*Window) Decision {
	d, _ := s.decide(ws, s.threshold(), false)
	return d
}

func (s *evidence) bySLO(ws []*Window) Decision {
	d, _ := s.decide(ws, s.opt.SLO.Seconds(), true)
	return d
}
