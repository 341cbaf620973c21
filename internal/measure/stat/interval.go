package stat

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
)

// An Interval is a number and how sure it is. An open side is infinite, an
// unknown point NaN; both are null in JSON, which has neither.
type Interval struct {
	Point float64
	Lo    float64
	Hi    float64
	// N is how many values it rests on.
	N int
}

// Unknown is the Interval of which nothing is known.
func Unknown() Interval {
	return Interval{Point: math.NaN(), Lo: math.Inf(-1), Hi: math.Inf(1)}
}

type intervalJSON struct {
	Point *float64 `json:"point"`
	Lo    *float64 `json:"lo"`
	Hi    *float64 `json:"hi"`
	N     int      `json:"n"`
}

// MarshalJSON writes what is open or unknown as null.
func (v Interval) MarshalJSON() ([]byte, error) {
	finite := func(x float64) *float64 {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
		return &x
	}
	return json.Marshal(intervalJSON{finite(v.Point), finite(v.Lo), finite(v.Hi), v.N})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (v *Interval) UnmarshalJSON(b []byte) error {
	var j intervalJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	or := func(p *float64, null float64) float64 {
		if p == nil {
			return null
		}
		return *p
	}
	*v = Interval{or(j.Point, math.NaN()), or(j.Lo, math.Inf(-1)), or(j.Hi, math.Inf(1)), j.N}
	return nil
}

// Ratio is Hi/Lo: how wide the interval of a positive number is. Infinite when
// a side is open.
func (v Interval) Ratio() float64 {
	if !(v.Lo > 0) || math.IsInf(v.Hi, 1) {
		return math.Inf(1)
	}
	return v.Hi / v.Lo
}

// EnoughSamples reports whether n samples carry a verdict on the q-quantile: ten of them
// beyond it, so 1,000 for P99 and 10,000 for P99.9.
func EnoughSamples(n int, q float64) bool { return float64(n)*(1-q) >= 10-1e-6 }

// QuantileRanks are the ranks (1 is the least) of the order statistics that
// bound the q-quantile of n independent values: nq ± z√(nq(1−q)) (Conover,
// Practical Nonparametric Statistics, §3.2). A bound that the sample is too
// small for is 0, or n+1. Response times within a window are not independent,
// so this is the least the width can be.
func QuantileRanks(n int, q, confidence float64) (lo, hi int) {
	f := float64(n)
	w := NormalQuantile(0.5+confidence/2) * math.Sqrt(f*q*(1-q))
	lo, hi = int(math.Floor(f*q-w)), int(math.Ceil(f*q+w))+1
	return max(lo, 0), min(hi, n+1)
}

// LogStudentInterval is the interval of a positive quantity over repeats by Student's t on
// the logarithms, the form in which latencies scatter symmetrically. Point is the
// median of the repeats. Fewer than two give an open interval. Values that are
// not positive are ignored.
func LogStudentInterval(values []float64, confidence float64) Interval {
	var m Moments
	var kept []float64
	for _, v := range values {
		if v > 0 && !math.IsInf(v, 1) {
			m.Add(math.Log(v))
			kept = append(kept, v)
		}
	}
	v := Interval{Point: Median(kept), Lo: 0, Hi: math.Inf(1), N: m.N}
	if m.N < 2 {
		return v
	}
	w := StudentQuantile(0.5+confidence/2, float64(m.N-1)) * m.Std() / math.Sqrt(float64(m.N))
	v.Lo, v.Hi = math.Exp(m.Mean-w), math.Exp(m.Mean+w)
	return v
}

// NewRand returns the generator of a seed, the same everywhere in this package.
func NewRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)) }

// percentiles are the ends of the central share of draws. A draw that is NaN
// counts as unknown on both sides: too many of them open the interval.
func percentiles(draws []float64, confidence float64) (lo, hi float64) {
	low, high := make([]float64, len(draws)), make([]float64, len(draws))
	for i, d := range draws {
		low[i], high[i] = d, d
		if math.IsNaN(d) {
			low[i], high[i] = math.Inf(-1), math.Inf(1)
		}
	}
	slices.Sort(low)
	slices.Sort(high)
	tail := (1 - confidence) / 2
	n := float64(len(draws) - 1)
	return low[int(math.Floor(tail*n))], high[int(math.Ceil((1-tail)*n))]
}
