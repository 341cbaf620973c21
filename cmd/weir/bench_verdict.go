package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	draw "github.com/weir-gateway/weir/internal/measure/report"
)

// What a run may have of windows that say nothing about the target, and of windows
// that break a condition which the run as a whole keeps.
const (
	tolerated = 0.10
	discarded = 0.20
	// stealLimit is the share of the processors that another machine took.
	stealLimit = 0.01
)

// A verdict is a run compared with its thresholds.
type runVerdict struct {
	Verdict outcome `json:"verdict"`
	// Why is what the verdict rests on where no threshold says it.
	Why        []string    `json:"why,omitempty"`
	Thresholds []condition `json:"thresholds,omitempty"`
}

// A condition is one threshold with what was found.
type condition struct {
	Text    string  `json:"text"`
	Verdict outcome `json:"verdict"`
	// Value with its bounds, of N.
	Value float64 `json:"value"`
	Lo    float64 `json:"lo"`
	Hi    float64 `json:"hi"`
	N     uint64  `json:"n"`
	// Windows that were evaluated, and how many of them kept and broke it.
	Windows int    `json:"windows"`
	Kept    int    `json:"kept"`
	Broken  int    `json:"broken"`
	Note    string `json:"note,omitempty"`

	t threshold
}

// quietWindows are those that nothing disturbed, and how many there are in which the generator
// was the limit or the hypervisor took the processors away. They are set aside by what disturbed
// them, never by what they showed.
func quietWindows(r *loadgen.Result) (quiet []loadgen.Window, limited, stolen int) {
	for _, w := range r.Windows {
		switch {
		case w.Generator.Limited:
			limited++
		case w.Host.Steal > stealLimit:
			stolen++
		default:
			quiet = append(quiet, w)
		}
	}
	return quiet, limited, stolen
}

// evaluateRun is the verdict on a run, from its quiet windows.
func evaluateRun(r *loadgen.Result, thresholds []threshold) runVerdict {
	quiet, limited, stolen := quietWindows(r)
	j := runVerdict{Verdict: pass}
	all := len(r.Windows)
	for _, t := range thresholds {
		c := evaluateThreshold(r, quiet, all, t)
		j.Thresholds = append(j.Thresholds, c)
		j.Verdict = worse(j.Verdict, c.Verdict)
	}
	j.disturbances(r, limited, stolen)
	if r.Partial {
		j.Why = append(j.Why, "ended early")
		j.Verdict = worse(j.Verdict, inconclusive)
	}
	if n := unaccounted(r.Total.Delivery); n > 0 {
		j.Why = append(j.Why, draw.Grouped(n)+" deliveries did not come and are not known to be lost")
	}
	if t := &r.Total; t.Completed > 0 && t.Offered > 0 && float64(t.Completed) < 0.9*float64(t.Offered) {
		j.Why = append(j.Why, fmt.Sprintf("only %s of what was offered was completed in time", draw.Share.Format(float64(t.Completed)/float64(t.Offered))))
	}
	if r.Total.Completed == 0 && (r.Total.Offered > 0 || len(r.Total.Errors) > 0) {
		j.Why = append(j.Why, "nothing was completed")
		if j.Verdict != invalid {
			j.Verdict = fail
		}
	}
	return j
}

// disturbances takes a verdict back that rests on too few windows.
func (j *runVerdict) disturbances(r *loadgen.Result, limited, stolen int) {
	all := float64(len(r.Windows))
	if limited > 0 {
		what, why := limiting(r)
		j.Why = append(j.Why, fmt.Sprintf("the %s was the limit in %d of %d windows: %s", what, limited, len(r.Windows), why))
	}
	if stolen > 0 {
		j.Why = append(j.Why, fmt.Sprintf("other machines took the processors in %d of %d windows", stolen, len(r.Windows)))
	}
	switch {
	// Lost messages fail the run even where the generator was slow.
	case j.broke("lost", "repeated", "reordered"):
	case float64(limited) > discarded*all:
		j.Verdict = invalid
	case float64(limited+stolen) > discarded*all && j.timed():
		j.Verdict = inconclusive
	}
}

// timed reports whether a condition is on more than counts, which no other machine changes.
func (j *runVerdict) timed() bool {
	for _, c := range j.Thresholds {
		if kind, _ := metricKind(c.t.metric); kind != "count" {
			return true
		}
	}
	return false
}

// broke reports whether a condition on one of these failed.
func (j *runVerdict) broke(metrics ...string) bool {
	for _, c := range j.Thresholds {
		if c.Verdict == fail && slices.Contains(metrics, c.t.metric) {
			return true
		}
	}
	return false
}

// limiting names what kept a generator from measuring, itself or the machine, and how.
func limiting(r *loadgen.Result) (what, why string) {
	for _, w := range r.Windows {
		switch g := w.Generator; {
		case !g.Limited || g.Why == "":
		case g.Crowded:
			return "host", g.Why
		default:
			return "generator", g.Why
		}
	}
	return "generator", "it was late"
}

// worse is the graver of two verdicts on conditions.
func worse(a, b outcome) outcome {
	rank := map[outcome]int{pass: 0, inconclusive: 1, fail: 2, invalid: 3}
	if rank[b] > rank[a] {
		return b
	}
	return a
}

// evaluateThreshold holds one condition against the run as a whole and against its
// windows, joined until each has the samples that a verdict needs.
func evaluateThreshold(r *loadgen.Result, quiet []loadgen.Window, all int, t threshold) condition {
	whole := &r.Total
	if kind, _ := metricKind(t.metric); kind == "time" && len(quiet) < all && len(quiet) > 0 {
		whole = merged(quiet)
	}
	v := t.read(whole)
	c := condition{Text: t.text, t: t, Value: v.Point, Lo: v.Lo, Hi: v.Hi, N: v.n, Verdict: t.evaluate(v)}
	switch {
	case v.absent:
		c.Note = "not measured with this kind"
		return c
	case v.few:
		_, want := t.windowsWanted(whole)
		c.Note = fmt.Sprintf("n %s, a verdict needs %s", draw.Grouped(v.n), draw.Grouped(want))
		return c
	}
	if t.wholeOnly() {
		return c
	}
	for _, w := range joined(quiet, t) {
		c.Windows++
		switch t.evaluate(t.read(&w)) {
		case pass:
			c.Kept++
		case fail:
			c.Broken++
		}
	}
	if c.Verdict == pass && float64(c.Broken) > tolerated*float64(c.Windows) {
		c.Verdict = fail
		c.Note = "kept on the whole, broken in too many windows"
	}
	return c
}

// wholeOnly: a count of events is one of the run.
func (t *threshold) wholeOnly() bool {
	kind, _ := metricKind(t.metric)
	_, q, _ := timeMetric(t.metric)
	return kind == "count" && !t.share || t.metric == "reach" || kind == "time" && q == 1
}

// joined merges neighbours until each has enough samples for t; what is left over
// at the end joins the last.
func joined(windows []loadgen.Window, t threshold) []loadgen.Window {
	var out []loadgen.Window
	var cur loadgen.Window
	for i := range windows {
		cur.Merge(&windows[i])
		if have, want := t.windowsWanted(&cur); have >= want {
			out = append(out, cur)
			cur = loadgen.Window{}
		}
	}
	if cur.Length > 0 && len(out) > 0 {
		out[len(out)-1].Merge(&cur)
	}
	return out
}

func merged(windows []loadgen.Window) *loadgen.Window {
	var all loadgen.Window
	for i := range windows {
		all.Merge(&windows[i])
	}
	return &all
}

// unit is how a metric's values are written.
func (t *threshold) unit() draw.Unit {
	kind, _ := metricKind(t.metric)
	switch {
	case kind == "time":
		return draw.Seconds
	case kind == "per second":
		return draw.PerSec
	case t.share:
		return draw.Share
	}
	return draw.Number
}

// found is a condition's value with its bounds and windows, in words.
func (c *condition) found() string {
	u := c.t.unit()
	if c.N == 0 && c.Note != "" {
		return c.Note
	}
	s := u.Format(c.Value)
	if c.Lo != c.Hi {
		s += " (" + u.Format(c.Lo) + " … " + u.Format(c.Hi) + ")"
	}
	s += ", n " + draw.Grouped(c.N)
	if c.Windows > 1 {
		s += fmt.Sprintf(", kept in %d of %d windows", c.Kept, c.Windows)
		if c.Broken > 0 {
			s += fmt.Sprintf(", broken in %d", c.Broken)
		}
	}
	if c.Note != "" && !strings.Contains(s, c.Note) {
		s += "; " + strings.TrimPrefix(c.Note, "n "+draw.Grouped(c.N)+", ")
	}
	return s
}
