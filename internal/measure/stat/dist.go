package stat

import (
	"math"

	"gonum.org/v1/gonum/mathext"
)

// NormalQuantile is the value that a standard normal variable is at most with probability p; −Inf at 0, +Inf at 1, NaN outside.
func NormalQuantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }

// studentTail is P(T > t) for t ≥ 0, without the cancellation of 1−CDF.
func studentTail(t, df float64) float64 {
	switch {
	case math.IsNaN(t) || !(df > 0):
		return math.NaN()
	case math.IsInf(t, 1):
		return 0
	case math.IsInf(df, 1):
		return 0.5 * math.Erfc(t/math.Sqrt2)
	}
	return 0.5 * mathext.RegIncBeta(df/2, 0.5, df/(df+t*t))
}

// StudentQuantile is the value that a variable of Student's distribution with df
// degrees of freedom is at most with probability p (Abramowitz and Stegun 26.7.1). df
// need not be complete (Welch), and an infinite df is the normal distribution. NaN when p is
// outside [0, 1] or df is not above 0.
func StudentQuantile(p, df float64) float64 {
	switch {
	case !(p >= 0 && p <= 1) || !(df > 0):
		return math.NaN()
	case p == 0.5:
		return 0
	case p < 0.5:
		return -StudentQuantile(1-p, df)
	case p == 1:
		return math.Inf(1)
	case math.IsInf(df, 1):
		return NormalQuantile(p)
	}
	x := mathext.InvRegIncBeta(df/2, 0.5, 2*(1-p)) // as in studentTail
	return math.Sqrt(df * (1 - x) / x)
}

// lchoose is the logarithm of the binomial coefficient n over k.
func lchoose(n, k int) float64 {
	a, _ := math.Lgamma(float64(n) + 1)
	b, _ := math.Lgamma(float64(k) + 1)
	c, _ := math.Lgamma(float64(n-k) + 1)
	return a - b - c
}
