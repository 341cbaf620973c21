package main

import (
	"math"
	"slices"
	"testing"
)

func TestMedianIsTheMiddle(t *testing.T) {
	f := func(want float64, values ...float64) {
		t.Helper()
		before := slices.Clone(values)
		if got := median(values); got != want {
			t.Errorf("median(%v) = %v, want %v", values, got, want)
		}
		if !slices.Equal(before, values) {
			t.Errorf("median reordered its argument: %v", values)
		}
	}
	f(3, 3)
	f(2, 3, 1)
	f(5, 9, 5, 1)
	f(2.5, 4, 1, 3, 2)
	f(7, 7, 7, 1000, 7, 0)
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("the median of nothing = %v, want NaN", got)
	}
}

func TestRatiosAreOfPairs(t *testing.T) {
	f := func(a, b, want []float64) {
		t.Helper()
		if got := ratios(a, b); !slices.Equal(got, want) {
			t.Errorf("ratios(%v, %v) = %v, want %v", a, b, got, want)
		}
	}
	f([]float64{2, 9}, []float64{1, 3}, []float64{2, 3})
	f([]float64{2, 9}, []float64{0, 3}, []float64{3})
	f([]float64{0, 9}, []float64{0, 3}, []float64{3})
	f([]float64{2, 9, 4}, []float64{1}, []float64{2})
	f(nil, nil, nil)
}

func TestASpreadHasItsEnds(t *testing.T) {
	if got, want := spreadOf([]float64{3, 1, 2}), (spread{1, 2, 3}); got != want {
		t.Errorf("spreadOf(3, 1, 2) = %v, want %v", got, want)
	}
}
