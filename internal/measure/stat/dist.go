package stat

import "math"

// NormalCDF is the probability that a standard normal variable is at most x.
func NormalCDF(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }

// NormalQuantile is the inverse of NormalCDF; −Inf at 0, +Inf at 1, NaN outside.
func NormalQuantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }

// StudentCDF is the probability that a variable of Student's distribution with
// df degrees of freedom is at most t (Abramowitz and Stegun 26.7.1). df need
// not be whole (Welch) and an infinite df is the normal distribution.
func StudentCDF(t, df float64) float64 {
	tail := studentTail(math.Abs(t), df)
	if t < 0 {
		return tail
	}
	return 1 - tail
}

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
	return 0.5 * betaInc(df/2, 0.5, df/(df+t*t))
}

// StudentQuantile is the inverse of StudentCDF. NaN when p is outside [0, 1]
// or df is not above 0.
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
	}
	// The tail falls in t, so bisection cannot fail; on the log scale because
	// one degree of freedom has quantiles in the thousands.
	lo, hi := 0.0, 1.0
	for studentTail(hi, df) > 1-p && hi < 1e300 {
		lo, hi = hi, hi*2
	}
	for range 200 {
		mid := lo + (hi-lo)/2
		if mid == lo || mid == hi {
			break
		}
		if studentTail(mid, df) > 1-p {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo + (hi-lo)/2
}

// betaInc is the regularised incomplete beta function I_x(a, b), by the
// continued fraction of Abramowitz and Stegun 26.5.8 evaluated with Lentz's
// method, on whichever side of the mean it converges.
func betaInc(a, b, x float64) float64 {
	switch {
	case !(x > 0):
		return 0
	case x >= 1:
		return 1
	case x > (a+1)/(a+b+2):
		return 1 - betaInc(b, a, 1-x)
	}
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab - la - lb + a*math.Log(x) + b*math.Log1p(-x))
	return front * betaFraction(a, b, x) / a
}

func betaFraction(a, b, x float64) float64 {
	const tiny = 1e-300
	keep := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	c := 1.0
	d := 1 / keep(1-(a+b)*x/(a+1))
	f := d
	for m := 1.0; m < 10000; m++ {
		even := m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		d = 1 / keep(1+even*d)
		c = keep(1 + even/c)
		f *= d * c
		odd := -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		d = 1 / keep(1+odd*d)
		c = keep(1 + odd/c)
		step := d * c
		f *= step
		if math.Abs(step-1) < 1e-15 {
			break
		}
	}
	return f
}

// lchoose is the logarithm of the binomial coefficient n over k.
func lchoose(n, k int) float64 {
	a, _ := math.Lgamma(float64(n) + 1)
	b, _ := math.Lgamma(float64(k) + 1)
	c, _ := math.Lgamma(float64(n-k) + 1)
	return a - b - c
}
