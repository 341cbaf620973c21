package stat

import (
	"math"
	"slices"
)

// Median of xs; NaN when there is none. xs is not modified.
func Median(xs []float64) float64 {
	s := sortedFinite(xs)
	if len(s) == 0 {
		return math.NaN()
	}
	return medianSorted(s)
}

// MedianOf is the median of what f gives of each of xs; NaN when there is none.
func MedianOf[T any](xs []T, f func(T) float64) float64 {
	values := make([]float64, len(xs))
	for i, x := range xs {
		values[i] = f(x)
	}
	return Median(values)
}

func medianSorted(s []float64) float64 {
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return s[n/2-1] + (s[n/2]-s[n/2-1])/2
}

// Quantile of xs by linear interpolation between order statistics (Hyndman and
// Fan's type 7, R's default); NaN when there is none. xs is not modified.
func Quantile(xs []float64, q float64) float64 {
	s := sortedFinite(xs)
	if len(s) == 0 {
		return math.NaN()
	}
	h := min(max(q, 0), 1) * float64(len(s)-1)
	i := int(h)
	if i+1 >= len(s) {
		return s[len(s)-1]
	}
	return s[i] + (h-float64(i))*(s[i+1]-s[i])
}

// GeoMean is the geometric mean of the positive values of xs; NaN when there is none.
func GeoMean(xs []float64) float64 {
	sum, n := 0.0, 0
	for _, x := range xs {
		if x > 0 && !math.IsInf(x, 1) {
			sum += math.Log(x)
			n++
		}
	}
	if n == 0 {
		return math.NaN()
	}
	return math.Exp(sum / float64(n))
}

// A Line is what TheilSen fits: y = Intercept + Slope·x.
type Line struct {
	Slope     float64 `json:"slope"`
	Intercept float64 `json:"intercept"`
	// Lo and Hi bound the slope at the confidence requested.
	Lo float64 `json:"lo"`
	Hi float64 `json:"hi"`
}

// TheilSen fits a line by the median of the slopes between all pairs of points,
// which up to 29 % of wild points cannot move (Theil, 1950; Sen, "Estimates of
// the regression coefficient based on Kendall's tau", JASA 63, 1968). The
// slope's interval is Sen's, from the normal limit of Kendall's S with his
// correction for ties in y. Fewer than two different x give a slope of 0 with
// an unbounded interval. It compares all pairs: give it hundreds of points, not
// millions.
func TheilSen(x, y []float64, confidence float64) Line {
	n := min(len(x), len(y))
	var slopes []float64
	for i := range n {
		for j := i + 1; j < n; j++ {
			if dx := x[j] - x[i]; dx != 0 {
				slopes = append(slopes, (y[j]-y[i])/dx)
			}
		}
	}
	if len(slopes) == 0 {
		return Line{Intercept: Median(y[:n]), Lo: math.Inf(-1), Hi: math.Inf(1)}
	}
	slices.Sort(slopes)
	b := medianSorted(slopes)
	l := Line{Slope: b, Intercept: Median(y[:n]) - b*Median(x[:n])}
	ties := 0.0
	for _, k := range tieGroups(y[:n]) {
		ties += k * (k - 1) * (2*k + 5)
	}
	f := float64(n)
	sigma := math.Sqrt(math.Max(0, (f*(f-1)*(2*f+5)-ties)/18))
	z := NormalQuantile(0.5 + confidence/2)
	m := float64(len(slopes))
	lo := int(math.RoundToEven((m-z*sigma)/2)) - 1
	hi := int(math.RoundToEven((m + z*sigma) / 2))
	// Where there are too few points for the confidence, the interval is open.
	l.Lo, l.Hi = math.Inf(-1), math.Inf(1)
	if lo >= 0 {
		l.Lo = slopes[lo]
	}
	if hi < len(slopes) {
		l.Hi = slopes[hi]
	}
	return l
}

// tieGroups are the sizes of the groups of equal values.
func tieGroups(ys []float64) []float64 {
	s := sortedFinite(ys)
	var sizes []float64
	for i := 0; i < len(s); {
		j := i
		for j < len(s) && s[j] == s[i] {
			j++
		}
		if j-i > 1 {
			sizes = append(sizes, float64(j-i))
		}
		i = j
	}
	return sizes
}

// Jain is the fairness index of the shares xs: 1 when all are equal, 1/n when
// one has all (Jain, Chiu, Hawe, DEC-TR-301, 1984). Nothing at all is fair: 1.
// Negative shares are taken as 0.
func Jain(xs []float64) float64 {
	top := 0.0
	for _, x := range xs {
		top = math.Max(top, x)
	}
	if top == 0 || math.IsInf(top, 1) {
		return 1
	}
	sum, squares := 0.0, 0.0
	for _, x := range xs {
		x = math.Max(x, 0) / top
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(xs)) * squares)
}
