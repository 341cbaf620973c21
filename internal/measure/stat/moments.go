package stat

import "math"

// Moments are the running mean and variance of a sample, without the sample
// (Welford, "Note on a method for calculating corrected sums of squares and
// products", Technometrics 4, 1962). The zero value is an empty sample.
//
// It is not safe for concurrent use; keep one per worker and Merge.
type Moments struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean"`
	// M2 is the sum of squared distances from the mean.
	M2 float64 `json:"m2"`
}

// Add puts x into the sample. A NaN or an infinity is ignored: one of them
// would make every later answer meaningless.
func (m *Moments) Add(x float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return
	}
	m.N++
	d := x - m.Mean
	m.Mean += d / float64(m.N)
	m.M2 += d * (x - m.Mean)
}

// Merge puts the sample o into m (Chan, Golub, LeVeque, "Updating formulae and
// a pairwise algorithm for computing sample variances", 1979).
func (m *Moments) Merge(o Moments) {
	if o.N == 0 {
		return
	}
	if m.N == 0 {
		*m = o
		return
	}
	n := float64(m.N + o.N)
	d := o.Mean - m.Mean
	m.M2 += o.M2 + d*d*float64(m.N)*float64(o.N)/n
	m.Mean += d * float64(o.N) / n
	m.N += o.N
}

// Var is the unbiased sample variance; 0 for fewer than two values.
func (m Moments) Var() float64 {
	if m.N < 2 {
		return 0
	}
	return m.M2 / float64(m.N-1)
}

// Std is the square root of Var.
func (m Moments) Std() float64 { return math.Sqrt(m.Var()) }

// CV is the coefficient of variation Std/|Mean|; 0 for fewer than two values,
// infinite when the values scatter about 0.
func (m Moments) CV() float64 {
	s := m.Std()
	if s == 0 {
		return 0
	}
	return s / math.Abs(m.Mean)
}

// MomentsOf are the moments of xs.
func MomentsOf(xs []float64) Moments {
	var m Moments
	for _, x := range xs {
		m.Add(x)
	}
	return m
}

// CV is the coefficient of variation of xs. See [Moments.CV].
func CV(xs []float64) float64 { return MomentsOf(xs).CV() }
