package main

import (
	"math"
	"slices"
)

// median of values; NaN of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// A spread is the least, the middle and the greatest of some values.
type spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	return spread{slices.Min(values), median(values), slices.Max(values)}
}

// ratios divides pair by pair: the two values of one pair were measured within
// seconds of each other, those of different pairs may be minutes apart. Pairs
// with nothing to divide by are left out.
func ratios(a, b []float64) []float64 {
	var r []float64
	for i := range min(len(a), len(b)) {
		if q := a[i] / b[i]; !math.IsNaN(q) && !math.IsInf(q, 0) {
			r = append(r, q)
		}
	}
	return r
}
