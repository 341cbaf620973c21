package main

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// An outcome is one of four verdicts, and an exit status.
type outcome string

const (
	pass         outcome = "pass"
	fail         outcome = "fail"
	inconclusive outcome = "inconclusive"
	invalid      outcome = "invalid"
)

func (v outcome) exit() int {
	return map[outcome]int{pass: exitPass, fail: exitFail, inconclusive: exitInconclusive, invalid: exitInvalid}[v]
}

func (v outcome) state() draw.State {
	return map[outcome]draw.State{pass: draw.Good, fail: draw.Bad, inconclusive: draw.Unknown, invalid: draw.Warn}[v]
}

// A threshold is one condition on what is measured.
type threshold struct {
	text   string
	metric string // "p99", "service.p99", "errors" …
	op     string
	limit  float64 // seconds, a share, or a count
	// share: errors and drops as a share of what was offered, not their number.
	share bool
}

var thresholdForm = regexp.MustCompile(`^\s*([a-z0-9_.]+)\s*(<=|>=|==|<|>)\s*([0-9.]+)\s*([a-zµ%/]*)\s*$`)

const thresholdHint = `write it as p99<5ms, service.p95<=2ms, mean<1ms, errors<0.1%, errors==0, lost==0, reach>=0.999, rate>=0.98 or throughput>=1000`

// The metrics by what they are.
var (
	countMetrics = []string{"errors", "dropped", "lost", "repeated", "reordered", "late", "gaps"}
	shareMetrics = []string{"rate", "reach"}
)

// parseThresholds reads conditions, each of which may hold several with commas.
func parseThresholds(texts []string) ([]threshold, error) {
	var all []threshold
	for _, text := range texts {
		for part := range strings.SplitSeq(text, ",") {
			t, err := parseThreshold(part)
			if err != nil {
				return nil, usage(thresholdHint, "threshold %q: %w", strings.TrimSpace(part), err)
			}
			all = append(all, t)
		}
	}
	return all, nil
}

func parseThreshold(text string) (threshold, error) {
	m := thresholdForm.FindStringSubmatch(text)
	if m == nil {
		return threshold{}, fmt.Errorf("not a condition")
	}
	t := threshold{text: strings.TrimSpace(text), metric: m[1], op: m[2]}
	value, err := strconv.ParseFloat(m[3], 64)
	if err != nil {
		return t, fmt.Errorf("%q is not a number", m[3])
	}
	unit := m[4]
	kind, ok := metricKind(t.metric)
	switch {
	case !ok:
		return t, fmt.Errorf("%q is not measured", t.metric)
	case kind == "time":
		d, err := time.ParseDuration(m[3] + unit)
		if err != nil || unit == "" {
			return t, fmt.Errorf("a time needs a unit: us, ms or s")
		}
		t.limit = d.Seconds()
	case unit == "%" && kind != "per second":
		t.limit, t.share = value/100, true
	case unit == "/s" && kind == "per second", unit == "":
		t.limit, t.share = value, kind == "share"
		if kind == "count" && value != math.Trunc(value) {
			return t, fmt.Errorf("a count is a whole number; a share has %%")
		}
	default:
		return t, fmt.Errorf("the unit %q does not fit %s", unit, t.metric)
	}
	if t.op == "==" && (kind != "count" || t.share) {
		return t, fmt.Errorf("only a count can be compared with ==")
	}
	return t, nil
}

// metricKind reports what a metric is: "time", "count", "share" or "per second".
func metricKind(name string) (string, bool) {
	switch {
	case slices.Contains(countMetrics, name):
		return "count", true
	case slices.Contains(shareMetrics, name):
		return "share", true
	case name == "throughput":
		return "per second", true
	}
	_, q, ok := timeMetric(name)
	return "time", ok && q >= 0
}

// timeMetric splits "service.p99" into its histogram and quantile. The mean has a
// quantile of 0, the greatest value of 1.
func timeMetric(name string) (from string, q float64, ok bool) {
	from, what, _ := strings.Cut(name, ".")
	if _, known := new(loadgen.Times).Named(from); !known || what == "" {
		from, what = "response", name
	}
	switch what {
	case "mean":
		return from, 0, true
	case "max":
		return from, 1, true
	}
	digits, isP := strings.CutPrefix(what, "p")
	p, err := strconv.ParseFloat(digits, 64)
	if !isP || err != nil || p <= 0 || p >= 100 {
		return "", 0, false
	}
	return from, p / 100, true
}

// A reading is what a threshold is compared with: the value with its bounds, of n.
type reading struct {
	stat.Interval
	n uint64
	// few: n does not carry a verdict.
	few bool
	// absent: there is no such thing in this run.
	absent bool
}

const confidence = 0.95

// read takes t's metric from a window.
func (t *threshold) read(w *loadgen.Window) reading {
	exact := func(v float64, n uint64) reading {
		return reading{Interval: stat.Interval{Point: v, Lo: v, Hi: v, N: int(n)}, n: n}
	}
	switch t.metric {
	case "errors":
		return t.counted(errorCount(w), attempts(w))
	case "dropped":
		return t.counted(w.Dropped, w.Offered)
	case "rate":
		if w.Offered == 0 {
			return reading{few: true}
		}
		r := exact(float64(w.Completed+w.Drained)/float64(w.Offered), w.Offered)
		if w.Drained == 0 {
			// A piece of a run: what was under way at its borders belongs to either side.
			r.Lo, r.Hi = r.Point-w.InFlight/float64(w.Offered), r.Point+w.InFlight/float64(w.Offered)
		}
		return r
	case "throughput":
		if w.Length <= 0 {
			return reading{few: true}
		}
		n := w.Answered()
		r := exact(float64(n)/w.Length.Seconds(), n)
		noise := stat.NormalQuantile(0.5+confidence/2) * math.Sqrt(float64(n)) / w.Length.Seconds()
		r.Lo, r.Hi = r.Point-noise, r.Point+noise // of random arrivals
		return r
	case "lost", "repeated", "reordered", "late", "gaps", "reach":
		return t.delivery(w, exact)
	}
	from, q, _ := timeMetric(t.metric)
	h, _ := w.Named(from) // it was known when the threshold was parsed
	return quantile(h, q)
}

func (t *threshold) delivery(w *loadgen.Window, exact func(float64, uint64) reading) reading {
	d := w.Delivery
	if d == nil {
		return reading{absent: true}
	}
	switch t.metric {
	case "reach":
		return exact(d.Reach, d.Expected)
	case "lost":
		r := t.counted(d.Lost, d.Expected)
		if n := unaccounted(d); n > 0 && t.share {
			r.Hi = max(r.Hi, float64(d.Lost+n)/float64(d.Expected))
		} else if n > 0 {
			r.Hi = float64(d.Lost + n)
		}
		return r
	case "gaps":
		return t.counted(d.Gaps, max(d.Expected, d.Gaps))
	}
	return t.counted(map[string]uint64{"repeated": d.Repeated, "reordered": d.Reordered, "late": d.Late}[t.metric], d.Expected)
}

// unaccounted are deliveries that were expected, did not come, and are not known to
// be lost or late: they may be either.
func unaccounted(d *loadgen.Delivery) uint64 {
	if d == nil || d.Expected <= d.Received+d.Lost+d.Late {
		return 0
	}
	return d.Expected - d.Received - d.Lost - d.Late
}

// counted is a number of events, or their share with Wilson's bounds.
func (t *threshold) counted(k, n uint64) reading {
	if !t.share {
		v := float64(k)
		return reading{Interval: stat.Interval{Point: v, Lo: v, Hi: v, N: int(n)}, n: n}
	}
	if n == 0 {
		return reading{few: true}
	}
	r := reading{n: n, Interval: wilson(k, n)}
	// Fewer than the rule of three needs cannot show a share that small.
	r.few = float64(n)*t.limit < 3 && k == 0
	return r
}

// wilson is the share k/n with its one-sided bounds at 95 % (Wilson 1927).
func wilson(k, n uint64) stat.Interval {
	z := stat.NormalQuantile(confidence)
	f, p := float64(n), min(float64(k)/float64(n), 1)
	mid := (p + z*z/(2*f)) / (1 + z*z/f)
	half := z / (1 + z*z/f) * math.Sqrt(p*(1-p)/f+z*z/(4*f*f))
	iv := stat.Interval{Point: p, Lo: max(mid-half, 0), Hi: min(mid+half, 1), N: int(n)}
	switch k {
	case 0:
		iv.Lo = 0 // exactly, whatever the rounding
	case n:
		iv.Hi = 1
	}
	return iv
}

// quantile is a time from a histogram in seconds. The bounds are those of order
// statistics, which is the least they can be.
func quantile(h *hdrhistogram.Histogram, q float64) reading {
	if h == nil || h.TotalCount() == 0 {
		return reading{few: true}
	}
	n := h.TotalCount()
	r := reading{n: uint64(n)}
	r.N = int(n)
	switch q {
	case 0:
		r.Point = h.Mean() / 1e6
		w := stat.NormalQuantile(0.5+confidence/2) * h.StdDev() / 1e6 / math.Sqrt(float64(n))
		r.Lo, r.Hi, r.few = r.Point-w, r.Point+w, n < 30
		return r
	case 1:
		r.Point = float64(h.Max()) / 1e6
		r.Lo, r.Hi = r.Point, r.Point
		return r
	}
	at := func(rank int) float64 { return float64(h.ValueAtPercentile(float64(rank)/float64(n)*100)) / 1e6 }
	r.Point = float64(h.ValueAtPercentile(q*100)) / 1e6
	lo, hi := stat.QuantileRanks(int(n), q, confidence)
	r.Lo, r.Hi = at(max(lo, 1)), at(min(hi, int(n)))
	r.few = !stat.EnoughSamples(int(n), q) || !stat.EnoughSamples(int(n), 1-q)
	return r
}

// evaluate holds a reading against the limit: the whole interval decides.
func (t *threshold) evaluate(r reading) outcome {
	holds := func(v float64) bool {
		switch t.op {
		case "<":
			return v < t.limit
		case "<=":
			return v <= t.limit
		case ">":
			return v > t.limit
		case ">=":
			return v >= t.limit
		}
		return v == t.limit
	}
	lo, hi := holds(r.Lo), holds(r.Hi)
	switch {
	case r.absent || r.n == 0:
		return inconclusive
	case r.few && lo == hi && !lo:
		return fail // too few to pass, enough to see that it does not
	case r.few || lo != hi:
		return inconclusive
	case lo:
		return pass
	}
	return fail
}

// windowsWanted is how many samples t needs before a window says anything.
func (t *threshold) windowsWanted(w *loadgen.Window) (have, want uint64) {
	kind, _ := metricKind(t.metric)
	switch {
	case kind == "time":
		from, q, _ := timeMetric(t.metric)
		if h, _ := w.Named(from); h != nil {
			have = uint64(h.TotalCount())
		}
		switch q {
		case 0:
			return have, 30
		case 1:
			return have, 1
		}
		return have, uint64(math.Ceil(10/min(q, 1-q) - 1e-6))
	case kind == "count" && t.share && t.limit > 0:
		return attempts(w), uint64(math.Ceil(3 / t.limit))
	}
	return cmp.Or(w.Offered, 1), 1
}

// attempts is what could have gone wrong: exchanges, or connections where there are none.
func attempts(w *loadgen.Window) uint64 {
	if w.Offered == 0 && w.Connect != nil {
		return uint64(w.Connect.TotalCount()) + errorCount(w)
	}
	return max(w.Offered, errorCount(w))
}

// errorCount is all errors of a window.
func errorCount(w *loadgen.Window) uint64 {
	var n uint64
	for _, k := range w.Errors {
		n += k
	}
	return n
}
