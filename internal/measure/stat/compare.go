package stat

import (
	"math"
	"slices"
	"sort"
)

// WelchT tests whether two samples of unequal variance have the same mean
// (Welch, "The generalization of Student's problem when several different
// population variances are involved", Biometrika 34, 1947). t is positive when
// a's mean is the greater, df the Welch–Satterthwaite degrees of freedom and p
// two-sided; the one-sided p for "a is greater" is p/2 when t > 0.
//
// It needs two values on each side: below that the answer is t = 0, df = 0,
// p = 1 (nothing is known). Two constant samples give p = 1 when they are equal
// and t = ±Inf, p = 0 when they are not.
func WelchT(a, b Moments) (t, df, p float64) {
	if a.N < 2 || b.N < 2 {
		return 0, 0, 1
	}
	va, vb := a.Var()/float64(a.N), b.Var()/float64(b.N)
	d := a.Mean - b.Mean
	if va+vb == 0 {
		df = float64(a.N + b.N - 2)
		if d == 0 {
			return 0, df, 1
		}
		return math.Inf(1) * d, df, 0
	}
	t = d / math.Sqrt(va+vb)
	df = (va + vb) * (va + vb) / (va*va/float64(a.N-1) + vb*vb/float64(b.N-1))
	return t, df, math.Min(1, 2*studentTail(math.Abs(t), df))
}

// Side reports which alternative a test is for. The zero value is TwoSided.
type Side int

const (
	// TwoSided: the two differ, either way.
	TwoSided Side = iota
	// Less: the first is below the second.
	Less
	// Greater: the first is above the second.
	Greater
)

// FisherExact is the p-value of Fisher's exact test (The Design of Experiments,
// 1935, §11) on the table
//
//	          yes  no
//	first      a   b
//	second     c   d
//
// for the alternative that the first row's share of yes is Less than, Greater
// than or different from the second's. Two-sided sums the tables that are no
// more probable than this one, as R's fisher.test does. A row or column of
// zeros, and negative counts (which are taken as 0), carry no information: p = 1.
func FisherExact(a, b, c, d int, side Side) float64 {
	a, b, c, d = max(a, 0), max(b, 0), max(c, 0), max(d, 0)
	row, col, n := a+b, a+c, a+b+c+d
	if row == 0 || row == n || col == 0 || col == n {
		return 1
	}
	lo, hi := max(0, col-(n-row)), min(row, col)
	total := lchoose(n, col)
	prob := func(k int) float64 {
		return math.Exp(lchoose(row, k) + lchoose(n-row, col-k) - total)
	}
	// The probability rises to the mode and falls after it, so each tail is
	// summed from its far side or outwards until the terms vanish.
	sum := func(from, step int) float64 {
		s := 0.0
		for k := from; k >= lo && k <= hi; k += step {
			p := prob(k)
			s += p
			if p < s*1e-18 && (k-col*row/n)*step > 0 {
				break
			}
		}
		return math.Min(1, s)
	}
	switch side {
	case Less:
		return sum(a, -1)
	case Greater:
		return sum(a, +1)
	}
	mode := min(max((row+1)*(col+1)/(n+2), lo), hi)
	return fisherTwoSided(a, lo, mode, hi, prob, sum)
}

func fisherTwoSided(a, lo, mode, hi int, prob func(int) float64, sum func(from, step int) float64) float64 {
	// R's tolerance for "no more probable": tables tie exactly in theory and
	// differ in the last digits when computed.
	limit := prob(a) * (1 + 1e-7)
	if prob(mode) <= limit {
		return 1
	}
	first := lo + sort.Search(mode-lo, func(k int) bool { return prob(lo+k) > limit })
	last := hi - sort.Search(hi-mode, func(k int) bool { return prob(hi-k) > limit })
	return math.Min(1, sum(first-1, -1)+sum(last+1, +1))
}

// exactKS is the greatest product of sample sizes for which the distribution
// of D is computed exactly: a few milliseconds.
const exactKS = 1 << 20

// KolmogorovSmirnov tests whether two samples come from one distribution. D is
// the greatest distance between their empirical distribution functions; p is
// two-sided, exact given the ties while len(a)·len(b) ≤ 2²⁰ (the lattice path
// count of Hodges, "The significance probability of the Smirnov two-sample
// test", 1957, restricted to steps where a value changes: Schröer and Trenkler,
// 1995) and by Kolmogorov's limit beyond. An empty sample carries no information:
// d = 0, p = 1. The samples are not modified; a NaN in one is ignored.
func KolmogorovSmirnov(a, b []float64) (d, p float64) {
	x, y := sortedFinite(a), sortedFinite(b)
	m, n := len(x), len(y)
	if m == 0 || n == 0 {
		return 0, 1
	}
	// edge[k] reports whether the pooled sample changes value after its k-th.
	edge := make([]bool, m+n+1)
	// The distance is kept as the whole number |i·n − j·m|, so that comparing
	// a path's distance with it is exact.
	var worst int64
	for i, j := 0, 0; i < m || j < n; {
		v := math.Inf(1)
		if i < m {
			v = x[i]
		}
		if j < n {
			v = math.Min(v, y[j])
		}
		for i < m && x[i] == v {
			i++
		}
		for j < n && y[j] == v {
			j++
		}
		edge[i+j] = true
		worst = max(worst, abs64(int64(i)*int64(n)-int64(j)*int64(m)))
	}
	d = float64(worst) / (float64(m) * float64(n))
	if m*n <= exactKS {
		return d, math.Min(1, pathsBeyond(m, n, worst, edge))
	}
	return d, kolmogorovTail(m, n, d)
}

// pathsBeyond is the probability that a random order of m and n values reaches
// the distance limit at some edge. The mass is counted where it leaves, so that
// a small p is not the difference of two numbers near 1.
func pathsBeyond(m, n int, limit int64, edge []bool) float64 {
	if limit == 0 {
		return 1
	}
	alive := make([]float64, n+1)
	gone := 0.0
	for i := 0; i <= m; i++ {
		for j := 0; j <= n; j++ {
			var mass float64
			switch {
			case i == 0 && j == 0:
				mass = 1
			default:
				left := float64(m + n - i - j + 1)
				if i > 0 {
					mass += alive[j] * float64(m-i+1) / left
				}
				if j > 0 {
					mass += alive[j-1] * float64(n-j+1) / left
				}
			}
			if edge[i+j] && abs64(int64(i)*int64(n)-int64(j)*int64(m)) >= limit {
				gone += mass
				mass = 0
			}
			alive[j] = mass
		}
	}
	return gone
}

// kolmogorovTail is the limit distribution with Stephens's correction for
// finite samples ("Use of the Kolmogorov–Smirnov … without extensive tables",
// J. R. Statist. Soc. B 32, 1970).
func kolmogorovTail(m, n int, d float64) float64 {
	r := math.Sqrt(float64(m) * float64(n) / float64(m+n))
	z := d * (r + 0.12 + 0.11/r)
	if z < 0.2 {
		return 1
	}
	sum, sign := 0.0, 1.0
	for k := 1.0; k <= 100; k++ {
		term := math.Exp(-2 * k * k * z * z)
		sum += sign * term
		if term < 1e-17 {
			break
		}
		sign = -sign
	}
	return min(max(2*sum, 0), 1)
}

func sortedFinite(xs []float64) []float64 {
	out := make([]float64, 0, len(xs))
	for _, x := range xs {
		if !math.IsNaN(x) {
			out = append(out, x)
		}
	}
	slices.Sort(out)
	return out
}

func abs64(x int64) int64 {
	if x < 0 {
		return -x
	}
	return x
}
