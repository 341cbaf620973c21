package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// A tolerance is how much worse a quantity may get.
type tolerance struct {
	name, what string
	// limit is a share of the old value, or with points a difference of shares;
	// negative means off.
	limit  float64
	points bool
	// named: the user requested it, so it has to be comparable.
	named bool
}

// maxTolerance is ten times the old value, or ten whole shares.
const maxTolerance = 10

// defaultTolerances are the gate without any --tolerance.
func defaultTolerances() []tolerance {
	return []tolerance{
		{name: "rate", what: "answers per second; lower is worse", limit: 0.05},
		{name: "p99", what: "P99 of the response time", limit: 0.10},
		{name: "errors", what: "errors and drops as a share of what was offered, in percentage points", limit: 0.001, points: true},
		{name: "cpu", what: "the target's processor time per answer", limit: 0.10},
		{name: "gc", what: "its collector's share of its processors, in percentage points", limit: 0.02, points: true},
		{name: "memory", what: "its resident memory, the median over the run", limit: 0.10},
	}
}

func toleranceHelp() string {
	var b strings.Builder
	for _, t := range defaultTolerances() {
		fmt.Fprintf(&b, "  %-7s %5s  %s\n", t.name, t.text(), t.what)
	}
	return b.String()
}

func (t *tolerance) text() string {
	if t.limit < 0 {
		return "off"
	}
	return strconv.FormatFloat(math.Round(t.limit*1e6)/1e4, 'f', -1, 64) + "%"
}

// parseTolerances reads --tolerance over the defaults.
func parseTolerances(texts []string) ([]tolerance, error) {
	all := defaultTolerances()
	var names []string
	for _, t := range all {
		names = append(names, t.name)
	}
	for _, text := range texts {
		for part := range strings.SplitSeq(text, ",") {
			name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
			i := slices.Index(names, name)
			if !ok || i < 0 {
				return nil, usage("write it as p99=10% or p99=off; the quantities are "+strings.Join(names, ", "), "tolerance %q is not known", part)
			}
			t := &all[i]
			if value == "off" {
				t.limit, t.named = -1, false
				continue
			}
			digits, percent := strings.CutSuffix(value, "%")
			v, err := strconv.ParseFloat(digits, 64)
			if !percent || err != nil || !(v >= 0) || v/100 > maxTolerance {
				return nil, usage("write a percentage from 0% to 1000%, such as 10%, or off", "invalid tolerance %q for %s", value, name)
			}
			t.limit, t.named = v/100, true
		}
	}
	return all, nil
}

// A gateVerdict is what became of a quantity, or of all.
type gateVerdict string

const (
	gateBetter      gateVerdict = "better"
	gateSame        gateVerdict = "same"
	gateWorse       gateVerdict = "worse"
	gateNone        gateVerdict = "not comparable"
	gateNotMeasured gateVerdict = "not measured"
	gatePass        gateVerdict = "pass" // of all
)

func (v gateVerdict) exit() int {
	switch v {
	case gateWorse:
		return exitFail
	case gateNone:
		return exitNotCompared
	}
	return exitPass
}

func (v gateVerdict) state() draw.State {
	return map[gateVerdict]draw.State{gateBetter: draw.Good, gatePass: draw.Good, gateWorse: draw.Bad, gateNone: draw.Warn}[v]
}

// A quantity is one number of both sides, and how it changed.
type quantity struct {
	Name     string
	Unit     draw.Unit
	Old, New float64
	// Change is new/old, or with Points new − old, with its interval.
	Change stat.Interval
	Points bool
	// Tolerance of the gate; negative: not part of it.
	Tolerance float64
	Verdict   gateVerdict
	Why       string
	less      bool // less of it is better
}

// verdict is the gate's: worse before not comparable before pass.
func (c *comparison) verdict() gateVerdict {
	all := gatePass
	for _, q := range c.quantities {
		switch {
		case q.Tolerance < 0:
		case q.Verdict == gateWorse:
			return gateWorse
		case q.Verdict == gateNone:
			all = gateNone
		}
	}
	return all
}

// measure fills the quantities and the further percentiles.
func (c *comparison) measure() {
	for _, t := range c.tolerances {
		q := quantity{Name: t.name, Tolerance: t.limit, Points: t.points, less: t.name != "rate"}
		switch t.name {
		case "rate":
			q.Unit = draw.PerSec
			c.ofWindows(&q, threshold{metric: "throughput"})
		case "p99":
			q.Unit = draw.Seconds
			c.ofWindows(&q, threshold{metric: "p99"})
		case "errors":
			q.Unit = draw.Share
			c.ofErrors(&q)
		default:
			c.ofTarget(&q)
		}
		if q.Verdict == gateNotMeasured && t.named {
			q.Verdict = gateNone
		}
		c.quantities = append(c.quantities, q)
	}
	for _, from := range []string{"response", "service", "publish"} {
		for _, what := range []string{"mean", "p50", "p90", "p99", "p99.9"} {
			q := quantity{Name: from + " " + strings.ToUpper(what[:1]) + what[1:], Unit: draw.Seconds, Tolerance: -1, less: true}
			if what == "mean" {
				q.Name = from + " mean"
			}
			c.ofWindows(&q, threshold{metric: from + "." + what})
			if q.Change.N > 0 {
				c.ratios = append(c.ratios, q)
			}
		}
	}
}

// ofWindows compares a metric that the generator measured.
func (c *comparison) ofWindows(q *quantity, t threshold) {
	var values [2][]float64
	for i, s := range []*side{&c.old, &c.new} {
		if q.Verdict == "" {
			values[i], q.Verdict, q.Why = s.windowValues(t, c.paired())
		}
	}
	c.decide(q, values[0], values[1])
}

// windowValues are a metric's values on one side: one of each run, or with runs
// unset one of each stretch of windows that has the samples for it.
func (s *side) windowValues(t threshold, runs bool) (values []float64, v gateVerdict, why string) {
	for i, r := range s.runs {
		whole := t.read(&r.Total)
		if whole.absent || whole.n == 0 {
			return nil, gateNotMeasured, ""
		}
		if whole.few {
			_, want := t.windowsWanted(&r.Total)
			return nil, gateNone, fmt.Sprintf("%s has %s answers, it takes %s", s.files[i], draw.Grouped(whole.n), draw.Grouped(want))
		}
		quiet, _, _ := quietWindows(r)
		if n := len(r.Windows); float64(n-len(quiet)) > discarded*float64(n) {
			return nil, gateNone, fmt.Sprintf("%s: the generator or its machine was the limit in %d of %d windows", s.files[i], n-len(quiet), n)
		}
		if runs {
			if v := t.read(s.wholeOf(r, quiet)); v.Point > 0 {
				values = append(values, v.Point)
			}
			continue
		}
		for _, w := range joined(quiet, t) {
			if v := t.read(&w); v.Point > 0 {
				values = append(values, v.Point)
			}
		}
	}
	return values, "", ""
}

// wholeOf is what the windows of r that count are together, which is the same for every metric.
func (s *side) wholeOf(r *loadgen.Result, windows []loadgen.Window) *loadgen.Window {
	w := s.whole[r]
	if w == nil {
		if s.whole == nil {
			s.whole = map[*loadgen.Result]*loadgen.Window{}
		}
		w = merged(windows)
		s.whole[r] = w
	}
	return w
}

// ofErrors compares errors and drops, which no other machine and no noise excuses.
func (c *comparison) ofErrors(q *quantity) {
	var k, n [2]uint64
	var shares [2][]float64
	for i, s := range []*side{&c.old, &c.new} {
		for _, r := range s.runs {
			bad, all := errorCount(&r.Total)+r.Total.Dropped, attempts(&r.Total)
			if all == 0 {
				q.Verdict, q.Why = gateNone, "nothing was offered in a run"
				return
			}
			k[i], n[i] = k[i]+bad, n[i]+all
			shares[i] = append(shares[i], float64(bad)/float64(all))
		}
	}
	a, b := wilson(min(k[0], n[0]), n[0]), wilson(min(k[1], n[1]), n[1])
	q.Old, q.New = a.Point, b.Point
	d := b.Point - a.Point
	// Newcombe, "Interval estimation for the difference between independent proportions", 1998.
	q.Change = stat.Interval{
		Point: d, N: int(min(n[0], n[1])),
		Lo: d - math.Hypot(b.Point-b.Lo, a.Hi-a.Point), Hi: d + math.Hypot(b.Hi-b.Point, a.Point-a.Lo),
	}
	if c.paired() { // runs may differ by more than counting
		iv := differenceInterval(shares[0], shares[1])
		q.Change.Lo, q.Change.Hi = math.Min(q.Change.Lo, d+iv.Lo-iv.Point), math.Max(q.Change.Hi, d+iv.Hi-iv.Point)
	}
	q.conclude()
	if q.Verdict == gateNone && q.Change.Point <= q.Tolerance {
		// Few errors among few requests: what was seen is within the tolerance.
		q.Verdict, q.Why = gateSame, ""
	}
}

// ofTarget compares what the target used of its machine.
func (c *comparison) ofTarget(q *quantity) {
	q.Unit = map[string]draw.Unit{"cpu": draw.Seconds, "gc": draw.Share, "memory": draw.Bytes}[q.Name]
	var values [2][]float64
	for i, s := range []*side{&c.old, &c.new} {
		for _, r := range s.runs {
			v := useValues(q.Name, r, c.paired())
			if len(v) == 0 {
				values[i] = nil
				break
			}
			values[i] = append(values[i], v...)
		}
	}
	switch a, b := len(values[0]) > 0, len(values[1]) > 0; {
	case !a && !b:
		q.Verdict, q.Why = gateNotMeasured, "run bench with --runtime"
	case a != b:
		q.Verdict, q.Why = gateNone, "measured on one side only; run bench with --runtime on both"
	}
	c.decide(q, values[0], values[1])
}

// cpuCost is the target's processor time per answer in seconds; 0 means unknown.
func cpuCost(r *loadgen.Result) float64 {
	u, answers := totalUse(r.Uses), float64(r.Total.Answered())
	if r.Total.Delivery != nil {
		answers = float64(r.Total.Delivery.Received)
	}
	if u.seconds <= 0 || answers == 0 || r.Total.Length <= 0 {
		return 0
	}
	return u.cpu / u.seconds / (answers / r.Total.Length.Seconds())
}

// useValues are a quantity of a run's Uses: of the whole run, or of each piece.
func useValues(name string, r *loadgen.Result, whole bool) (values []float64) {
	u := totalUse(r.Uses)
	add := func(v float64) { values = append(values, v) }
	switch cost := cpuCost(r); {
	case name == "cpu" && cost > 0 && whole:
		add(cost)
	case name == "cpu" && cost > 0:
		for _, p := range r.Uses { // at the run's rate of answers
			add(cost * (p.CPU / p.Seconds) / (u.cpu / u.seconds))
		}
	case name == "gc" && u.gcOf > 0 && whole:
		add(u.gc / u.gcOf)
	case name == "gc":
		for _, p := range r.Uses {
			if p.GCOf > 0 {
				add(p.GC / p.GCOf)
			}
		}
	case name == "memory" && len(u.rss) > 0 && whole:
		add(stat.Median(u.rss))
	case name == "memory":
		values = u.rss
	}
	return values
}

// decide is the verdict on values of both sides.
func (c *comparison) decide(q *quantity, a, b []float64) {
	if q.Verdict != "" {
		return
	}
	q.Old, q.New = stat.Median(a), stat.Median(b)
	if q.Points {
		q.Change = differenceInterval(a, b)
	} else {
		q.Change = ratioInterval(a, b)
	}
	switch least := 3; {
	case c.host != "":
		q.Verdict, q.Why = gateNone, "another machine"
		return
	case !c.paired() && q.Change.N < least:
		q.Verdict, q.Why = gateNone, "too few windows: run longer, or several times"
		return
	}
	q.conclude()
}

// conclude holds the change against the tolerance. Where the interval is wider than
// the tolerance, only a change that is beyond both counts.
func (q *quantity) conclude() {
	noChange := 1.0
	worse, lo, hi := q.Change.Point-1, q.Change.Lo-1, q.Change.Hi-1
	if q.Points {
		noChange = 0
		worse, lo, hi = q.Change.Point, q.Change.Lo, q.Change.Hi
	}
	shown := q.Change.Lo > noChange || q.Change.Hi < noChange
	if !q.less {
		worse, lo, hi = -worse, -hi, -lo
	}
	limit := max(q.Tolerance, 0)
	switch {
	case math.IsNaN(worse):
		q.Verdict, q.Why = gateNone, "no value on one side"
	case shown && worse > limit:
		q.Verdict = gateWorse
	case shown && worse < -limit:
		q.Verdict = gateBetter
	case q.Tolerance >= 0 && (hi-lo)/2 > limit && hi > limit:
		q.Verdict, q.Why = gateNone, "too noisy for this tolerance: more or longer runs, or a quieter machine"
	default:
		q.Verdict = gateSame
	}
}

// ratioInterval is mean(log b) − mean(log a) with Welch's interval, as a ratio.
func ratioInterval(a, b []float64) stat.Interval {
	logs := func(values []float64) []float64 {
		out := make([]float64, len(values))
		for i, v := range values {
			out[i] = math.Log(v)
		}
		return out
	}
	d := differenceInterval(logs(a), logs(b))
	return stat.Interval{Point: math.Exp(d.Point), Lo: math.Exp(d.Lo), Hi: math.Exp(d.Hi), N: d.N}
}

// differenceInterval is mean(b) − mean(a) with Welch's interval.
func differenceInterval(a, b []float64) stat.Interval {
	ma, mb := stat.MomentsOf(a), stat.MomentsOf(b)
	iv := stat.Interval{Point: math.NaN(), Lo: math.Inf(-1), Hi: math.Inf(1), N: min(ma.N, mb.N)}
	if iv.N == 0 {
		return iv
	}
	iv.Point = mb.Mean - ma.Mean
	if iv.N < 2 {
		return iv
	}
	_, df, _ := stat.WelchT(mb, ma)
	se := math.Sqrt(ma.Var()/float64(ma.N) + mb.Var()/float64(mb.N))
	w := stat.StudentQuantile(0.5+confidence/2, max(df, 1)) * se
	iv.Lo, iv.Hi = iv.Point-w, iv.Point+w
	return iv
}
