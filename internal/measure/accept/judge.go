package accept

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// A Finding is an indicator's verdict with what it rests on.
type Finding struct {
	Indicator string  `json:"indicator"`
	Number    string  `json:"number,omitempty"`
	Title     string  `json:"title"`
	Target    string  `json:"target"`
	Verdict   Verdict `json:"verdict"`
	// Confidence is high when every check that passed or failed rests on an interval or on
	// a count, low when one rests on a single trial, none without a verdict.
	Confidence string   `json:"confidence"`
	Why        []string `json:"why,omitempty"`
	// Notes are what has to be known of the measurement, such as the processors it ran on.
	Notes   []string `json:"notes,omitempty"`
	Checks  []Check  `json:"checks"`
	Seconds float64  `json:"seconds"`
	Attempt int      `json:"attempt,omitempty"`
	// Evidence is the file of the evidence, in the directory of the run.
	Evidence string `json:"evidence"`
}

// A Check is one criterion on the evidence.
type Check struct {
	What    string  `json:"what"`
	Limit   string  `json:"limit,omitempty"`
	Got     string  `json:"got"`
	Verdict Verdict `json:"verdict,omitempty"` // empty: only reported
	// Sure says what the verdict rests on.
	Sure string `json:"sure,omitempty"`
	Why  string `json:"why,omitempty"`

	single bool // it rests on one trial
}

const confidence = 0.95

// evaluate turns evidence into a verdict. It looks at nothing else.
func (ind *Indicator) evaluate(e *Evidence) Finding {
	f := Finding{
		Indicator: ind.Name, Number: ind.Number, Title: ind.Title, Target: ind.Target,
		Seconds: e.Seconds, Attempt: e.Attempt, Confidence: "none", Notes: e.Notes, Checks: []Check{},
	}
	if e.NotRun != "" {
		f.Verdict, f.Why = capacity.Invalid, []string{"not run: " + e.NotRun}
		return f
	}
	noise := e.noise()
	if len(e.Host) == 0 && slices.ContainsFunc(ind.criteria, func(c criterion) bool { return c.timed }) {
		noise = append(noise, "the machine was not watched for long enough")
	}
	f.Verdict, f.Confidence = capacity.Pass, "high"
	for i := range ind.criteria {
		c := &ind.criteria[i]
		k := c.check(e)
		if c.timed && len(noise) > 0 && (k.Verdict == capacity.Pass || k.Verdict == capacity.Fail) {
			k.Verdict, k.Why = capacity.Inconclusive, "the machine was too noisy"
		}
		f.Checks = append(f.Checks, k)
		f.Verdict = worse(f.Verdict, k.Verdict)
		if k.Verdict != capacity.Pass && k.Verdict != "" {
			f.Why = append(f.Why, strings.TrimSuffix(fmt.Sprintf("%s: %s, %s", k.What, k.Got, k.Why), ", "))
		}
		if k.single {
			f.Confidence = "low"
		}
	}
	if e.Reduced != "" {
		f.Verdict = worse(f.Verdict, capacity.Inconclusive)
		f.Why = append(f.Why, "reduced: "+e.Reduced)
	}
	f.Why = append(f.Why, noise...)
	if f.Verdict != capacity.Pass && f.Verdict != capacity.Fail {
		f.Confidence = "none"
	}
	return f
}

// worse is the verdict of two: one failure is a failure of all, then what could not be
// measured counts, then what could not be decided.
func worse(a, b Verdict) Verdict {
	order := map[Verdict]int{"": 0, capacity.Pass: 1, capacity.Inconclusive: 2, capacity.Invalid: 3, capacity.Fail: 4}
	if order[b] > order[a] {
		return b
	}
	return a
}

func (c *criterion) check(e *Evidence) Check {
	switch c.kind {
	case none, some:
		return c.checkCount(e.Counts)
	case flat:
		return c.checkSeries(e.Series)
	}
	return c.checkValues(e.Values[c.name])
}

func verdictOf(ok bool) Verdict {
	if ok {
		return capacity.Pass
	}
	return capacity.Fail
}

func (c *criterion) checkCount(counts map[string]Count) Check {
	n, there := counts[c.name]
	k := Check{What: c.what, Limit: "0", Got: report.Grouped(n.N) + " of " + report.Grouped(n.Of)}
	if c.kind == some {
		k.Limit, k.Got = "at least 1", report.Grouped(n.N)
		if k.Verdict = capacity.Pass; n.N == 0 {
			k.Verdict, k.Why = capacity.Invalid, "it was not exercised"
		}
		return k
	}
	if !there || n.Of == 0 && n.N == 0 {
		k.Verdict, k.Why = capacity.Invalid, "it was not exercised"
		return k
	}
	k.Verdict, k.Why = verdictOf(n.N == 0), strings.Join(n.Examples, "; ")
	if n.N == 0 {
		// The rule of three: none of n bounds the share from above by 3/n.
		k.Sure = fmt.Sprintf("95 %%: at most %.2g of each", 3/float64(n.Of))
	} else {
		k.Sure = "counted"
	}
	return k
}

func (c *criterion) checkValues(values []float64) Check {
	k := Check{What: c.what}
	switch c.kind {
	case atMost:
		k.Limit = "≤ " + c.unit.Format(c.limit)
	case atLeast:
		k.Limit = "≥ " + c.unit.Format(c.limit)
	}
	if len(values) == 0 {
		k.Got = "–"
		if c.kind != info {
			k.Verdict, k.Why = capacity.Invalid, "it was not measured"
		}
		return k
	}
	mid := stat.Median(values)
	k.Got = c.unit.Format(mid)
	v := stat.Interval{Point: mid, Lo: mid, Hi: mid, N: len(values)}
	k.Sure, k.single = "one trial", true
	if len(values) >= 3 && stat.Median(values) > 0 {
		v = stat.LogStudentInterval(values, confidence)
		k.Got += fmt.Sprintf(" (%s … %s)", c.unit.Format(v.Lo), c.unit.Format(v.Hi))
		k.Sure, k.single = fmt.Sprintf("95 %%, %d trials", len(values)), false
	} else if len(values) == 2 {
		k.Sure, v.Lo, v.Hi = "two trials", min(values[0], values[1]), max(values[0], values[1])
	}
	switch {
	case c.kind == info:
		k.single = false
	case c.kind == atMost && v.Hi <= c.limit, c.kind == atLeast && v.Lo >= c.limit:
		k.Verdict = capacity.Pass
	case c.kind == atMost && v.Lo > c.limit, c.kind == atLeast && v.Hi < c.limit:
		k.Verdict = capacity.Fail
	default:
		k.Verdict, k.Why = capacity.Inconclusive, "the limit is within the interval"
	}
	return k
}

// leastPoints are how many a slope needs, and over how many seconds: a process that has just
// started grows.
const (
	leastPoints = 8
	leastSpan   = 20
)

func (c *criterion) checkSeries(all map[string]Series) Check {
	s := all[c.name]
	k := Check{What: c.what, Limit: "no growth", Got: "–"}
	n := min(len(s.X), len(s.Y))
	if n == 0 {
		k.Verdict, k.Why = capacity.Invalid, "it was not measured"
		return k
	}
	x, y := thin(s.X[:n]), thin(s.Y[:n])
	line := stat.TheilSen(x, y, confidence)
	span, mid := x[len(x)-1]-x[0], stat.Median(y)
	allowed := max(c.limit*mid, c.slack)
	k.Limit = "growth ≤ " + c.unit.Format(allowed) + ", or none that is sure"
	if n >= leastPoints && span < leastSpan {
		k.Verdict, k.Why = capacity.Inconclusive, fmt.Sprintf("%.0f s are too short for a slope", span)
		return k
	}
	if n < leastPoints || math.IsInf(line.Lo, 0) || math.IsInf(line.Hi, 0) {
		k.Verdict, k.Why = capacity.Inconclusive, fmt.Sprintf("%d points are too few for a slope", n)
		return k
	}
	k.Got = fmt.Sprintf("%s over %.0f s (%s … %s), median %s",
		c.signed(line.Slope*span), span, c.signed(line.Lo*span), c.signed(line.Hi*span), c.unit.Format(mid))
	k.Sure = fmt.Sprintf("95 %%, Theil–Sen over %d points", len(x))
	k.Verdict = verdictOf(line.Lo <= 0 || line.Slope*span <= allowed)
	return k
}

// signed writes a growth.
func (c *criterion) signed(v float64) string {
	if v > 0 {
		return "+" + c.unit.Format(v)
	}
	return c.unit.Format(v)
}

// maxPoints bounds what a slope is fitted to: it compares all pairs.
const maxPoints = 600

// thin leaves at most maxPoints of a series, evenly.
func thin(v []float64) []float64 {
	if len(v) <= maxPoints {
		return v
	}
	out := make([]float64, maxPoints)
	for i := range out {
		out[i] = v[i*(len(v)-1)/(maxPoints-1)]
	}
	return out
}
