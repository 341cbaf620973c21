package report

import (
	"math"
	"strconv"
	"strings"
)

// A Unit is what the numbers of an axis or a fact are.
type Unit int

// The units. Values are in base units: seconds, bytes, shares of one.
const (
	Number  Unit = iota // 1.5k, 2M
	Seconds             // 150 µs, 2.5 ms, 3 s
	PerSec              // 1.5k/s
	Bytes               // 2 KiB
	Share               // 0.25 is 25 %
	Times               // a ratio: ×2.5
)

// Format writes v with three significant digits and its unit. What is not finite
// is "–".
func (u Unit) Format(v float64) string { return u.format(v, 3) }

func (u Unit) format(v float64, digits int) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	switch u {
	case Seconds:
		return scaled(v, digits, secondSteps)
	case PerSec:
		if v == 0 {
			return "0"
		}
		return scaled(v, digits, countSteps) + "/s"
	case Bytes:
		return scaled(v, digits, byteSteps)
	case Share:
		// Nearly all is not all.
		s := significant(v*100, digits)
		for d := digits + 1; s == "100" && v < 1 && d < 9; d++ {
			s = significant(v*100, d)
		}
		return s + " %"
	case Times:
		return "×" + scaled(v, digits, countSteps)
	}
	return scaled(v, digits, countSteps)
}

type unitStep struct {
	size   float64
	suffix string
}

// Greatest first; the last also takes what is smaller.
var (
	secondSteps = []unitStep{{1, " s"}, {1e-3, " ms"}, {1e-6, " µs"}, {1e-9, " ns"}}
	countSteps  = []unitStep{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}}
	byteSteps   = []unitStep{{1 << 40, " TiB"}, {1 << 30, " GiB"}, {1 << 20, " MiB"}, {1 << 10, " KiB"}, {1, " B"}}
)

func scaled(v float64, digits int, steps []unitStep) string {
	if v == 0 {
		return "0" + zeroSuffix(steps)
	}
	abs := math.Abs(v)
	for _, s := range steps {
		// 999.6 µs to three digits is 1 ms.
		if abs >= s.size*(1-1e-12) || roundTo(abs, digits) >= s.size || s == steps[len(steps)-1] {
			return significant(v/s.size, digits) + s.suffix
		}
	}
	return ""
}

// zeroSuffix is the unit of a zero: of the base.
func zeroSuffix(steps []unitStep) string {
	for _, s := range steps {
		if s.size == 1 {
			return s.suffix
		}
	}
	return ""
}

// roundTo rounds to a number of significant digits.
func roundTo(v float64, digits int) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'e', digits-1, 64), 64)
	if err != nil {
		return v
	}
	return r
}

// significant writes v with a number of significant digits and no zeros after
// the last; what is too long without an exponent gets one.
func significant(v float64, digits int) string {
	r := roundTo(v, digits)
	abs := math.Abs(r)
	if abs != 0 && (abs >= 1e7 || abs < 1e-4) {
		return strconv.FormatFloat(r, 'g', digits, 64)
	}
	s := strconv.FormatFloat(r, 'f', -1, 64)
	if strings.Contains(s, ".") && len(s) > digits+7 {
		s = strconv.FormatFloat(r, 'g', digits, 64)
	}
	return s
}

// Grouped writes a count in full, in groups: 1,234,567.
func Grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	var b strings.Builder
	for i, r := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteRune(',')
		}
		b.WriteRune(r)
	}
	return b.String()
}
