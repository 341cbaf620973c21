package report

import (
	"math"
	"strconv"
)

// Values are clamped to these so that differences and ratios stay finite.
const (
	greatest = 1e100
	least    = 1e-100 // of a logarithmic axis
)

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func clampValue(v float64) float64 { return min(max(v, -greatest), greatest) }

// A tick is a value on an axis with its text.
type tick struct {
	v    float64
	text string
}

// A ruler maps values of an axis to pixels.
type ruler struct {
	scale  Scale
	unit   Unit
	lo, hi float64 // values, lo < hi after their transform
	from   float64 // pixels of lo and hi; from > to where the axis grows upwards
	to     float64
	ticks  []tick
}

// span is the range of some values; the zero value is of none.
type span struct {
	lo, hi float64
	any    bool
}

func (s *span) add(v float64) {
	if !finite(v) {
		return
	}
	v = clampValue(v)
	if !s.any {
		s.lo, s.hi, s.any = v, v, true
		return
	}
	s.lo, s.hi = min(s.lo, v), max(s.hi, v)
}

// addOn adds v if the axis can show it.
func (s *span) addOn(a Axis, v float64) {
	if a.Scale == Log && !(v > 0) {
		return
	}
	if a.Scale == Percentile && !(v >= 0 && v <= 100) {
		return
	}
	s.add(v)
}

// newRuler fits an axis to its data. Outward axes are widened to the ticks around
// the data. want is how many ticks there is room for.
func newRuler(a Axis, data span, want int, outward bool) ruler {
	r := ruler{scale: a.Scale, unit: a.Unit}
	switch {
	case a.Min != a.Max && finite(a.Min) && finite(a.Max):
		r.lo, r.hi = clampValue(min(a.Min, a.Max)), clampValue(max(a.Min, a.Max))
		outward = false
	case data.any:
		r.lo, r.hi = data.lo, data.hi
		if a.Scale == Linear && outward && !a.Tight && r.lo > 0 {
			r.lo = 0
		}
	default:
		r.lo, r.hi = 0, 1
		if a.Scale == Log {
			r.lo, r.hi = 1, 10
		}
	}
	if a.Names != nil {
		for i, name := range a.Names {
			r.ticks = append(r.ticks, tick{float64(i), name})
		}
		return r
	}
	want = max(want, 2)
	switch a.Scale {
	case Log:
		r.fitLog(want, outward)
	case Percentile:
		r.fitPercentile(want)
	default:
		r.fitLinear(want, outward)
	}
	return r
}

func (r *ruler) fitLinear(want int, outward bool) {
	if !(r.hi-r.lo > math.Abs(r.hi)*1e-12) {
		pad := max(math.Abs(r.hi)*0.1, 1e-9)
		if r.hi == 0 {
			pad = 1
		}
		r.lo, r.hi = r.lo-pad, r.hi+pad
		if outward && r.lo < 0 && r.hi > 0 && r.hi-pad >= 0 {
			r.lo = 0
		}
	}
	step := niceStep((r.hi-r.lo)/float64(want), r.unit)
	if outward {
		r.lo, r.hi = math.Floor(r.lo/step+1e-9)*step, math.Ceil(r.hi/step-1e-9)*step
	}
	first := math.Ceil(r.lo/step - 1e-9)
	for i := 0; i <= 4*want; i++ {
		v := (first + float64(i)) * step
		if v > r.hi+step*1e-6 {
			break
		}
		if math.Abs(v) < step*1e-6 {
			v = 0
		}
		r.ticks = append(r.ticks, tick{v, ""})
	}
	r.label()
}

// niceStep is the least step not below raw that people count in.
func niceStep(raw float64, u Unit) float64 {
	if !(raw > 0) || !finite(raw) {
		return 1
	}
	if u == Seconds && raw > 5 {
		for _, s := range []float64{10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400} {
			if raw <= s {
				return s
			}
		}
	}
	scale := 1.0
	if u == Bytes && raw >= 1 {
		scale = math.Pow(1024, math.Floor(math.Log(raw)/math.Log(1024)))
		raw /= scale
	}
	base := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if raw <= m*base*(1+1e-9) {
			return m * base * scale
		}
	}
	return 10 * base * scale
}

func (r *ruler) fitLog(want int, outward bool) {
	r.lo, r.hi = max(r.lo, least), max(r.hi, least)
	if r.hi <= r.lo*(1+1e-9) {
		r.lo, r.hi = r.lo/2, r.hi*2
	}
	if outward {
		r.lo, r.hi = logFloor(r.lo), logCeil(r.hi)
	}
	decades := math.Log10(r.hi / r.lo)
	if decades < 0.5 {
		// Within half a decade 1, 2, 5 are too few: count as on a linear axis.
		l := ruler{unit: r.unit, lo: r.lo, hi: r.hi}
		l.fitLinear(want, false)
		r.ticks = l.ticks
		return
	}
	every, parts := 1, []float64{1, 2, 5}
	switch {
	case decades*3 <= float64(want)+1:
	case decades*2 <= float64(want)+1:
		parts = []float64{1, 3}
	default:
		parts = []float64{1}
		every = max(1, int(math.Ceil(decades/float64(want))))
	}
	if decades < 2 && want < 5 {
		parts = []float64{1, 3} // or there might be no tick but one
	}
	r.decadeTicks(every, parts)
	if len(r.ticks) < 2 {
		r.decadeTicks(1, []float64{1, 2, 5}) // one tick has no scale
	}
	r.label()
}

// decadeTicks sets ticks at these parts of each decade that is a multiple of every.
func (r *ruler) decadeTicks(every int, parts []float64) {
	r.ticks = nil
	first := int(math.Floor(math.Log10(r.lo) + 1e-9))
	last := int(math.Ceil(math.Log10(r.hi) - 1e-9))
	for e := first; e <= last; e++ {
		if mod(e, every) != 0 {
			continue
		}
		for _, p := range parts {
			if v := p * math.Pow(10, float64(e)); v >= r.lo*(1-1e-9) && v <= r.hi*(1+1e-9) {
				r.ticks = append(r.ticks, tick{v, ""})
			}
		}
	}
}

func mod(a, b int) int { return ((a % b) + b) % b }

func logFloor(v float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(v)+1e-9))
	for _, m := range []float64{5, 2} {
		if v >= m*base*(1-1e-9) {
			return m * base
		}
	}
	return base
}

func logCeil(v float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(v)+1e-9))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*base*(1+1e-9) {
			return m * base
		}
	}
	return 10 * base
}

// nines is how many nines a percentile has: 90 → 1, 99 → 2. 100 has none; it
// is where the axis ends.
func nines(p float64) float64 { return -math.Log10(max(1-p/100, 1e-9)) }

func (r *ruler) fitPercentile(want int) {
	last := 0.0
	if r.hi > 0 {
		last = nines(min(r.hi, 100-1e-7))
	}
	n := max(2, min(int(math.Ceil(last-1e-9)), 7))
	r.lo, r.hi = 0, 100-100*math.Pow(10, -float64(n))
	r.ticks = append(r.ticks, tick{0, "0 %"})
	if want > n+1 {
		r.ticks = append(r.ticks, tick{50, "50 %"})
	}
	every := max(1, int(math.Ceil(float64(n)/float64(want))))
	for i := 1; i <= n; i++ {
		if (n-i)%every != 0 {
			continue
		}
		v := 100 - 100*math.Pow(10, -float64(i))
		r.ticks = append(r.ticks, tick{v, strconv.FormatFloat(v, 'f', max(0, i-2), 64) + " %"})
	}
}

// label writes the ticks' texts with as many digits as distinguish neighbours.
func (r *ruler) label() {
	for digits := 2; digits <= 9; digits++ {
		again := false
		for i := range r.ticks {
			r.ticks[i].text = r.unit.format(r.ticks[i].v, digits)
			again = again || i > 0 && r.ticks[i].text == r.ticks[i-1].text
			// A tick that rounds to another value would be a lie.
			again = again || digits < 6 && r.unit.format(r.ticks[i].v, digits+3) != r.ticks[i].text
		}
		if !again {
			return
		}
	}
}

// at is the pixel of a value, beyond the ends where the value is.
func (r *ruler) at(v float64) float64 {
	lo, hi := r.lo, r.hi
	v = clampValue(v)
	switch r.scale {
	case Log:
		lo, hi, v = math.Log(lo), math.Log(hi), math.Log(max(v, least))
	case Percentile:
		lo, hi, v = nines(lo), nines(hi), nines(v)
	}
	if hi == lo {
		return r.from
	}
	// Far outside is as good as just outside, and stays a small number.
	f := min(max((v-lo)/(hi-lo), -2), 3)
	return r.from + f*(r.to-r.from)
}

// shows reports whether the axis has a place for v.
func (r *ruler) shows(v float64) bool {
	switch {
	case !finite(v):
		return false
	case r.scale == Log:
		return v > 0
	case r.scale == Percentile:
		return v >= 0 && v <= 100
	}
	return true
}
