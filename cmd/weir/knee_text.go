package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// kneeText prints what a search found.
func kneeText(w io.Writer, s search) error {
	var b bytes.Buffer
	r := s.r
	fmt.Fprintf(&b, "%s\n%s; %s search, %s, %s requests\n\n", s.target, describeTarget(s.spec), r.Options.Mode, since(s.took), draw.Grouped(r.Requests))
	fmt.Fprintf(&b, "%s\n", strings.ToUpper(string(r.Verdict)))
	for _, why := range r.Reasons {
		fmt.Fprintf(&b, "  %s\n", why)
	}
	if s.err != nil {
		fmt.Fprintf(&b, "  ended: %v\n", s.err)
	}
	b.WriteString("\n")
	if err := limitsTable(r).Text(&b, "  "); err != nil {
		return err
	}
	for _, l := range kneeLines(r) {
		fmt.Fprintf(&b, "  %s\n", l)
	}
	if len(r.Levels) > 0 {
		b.WriteString("\n")
		if err := levelsTable(r).Text(&b, "  "); err != nil {
			return err
		}
		fmt.Fprintf(&b, "  medians over windows; knee: P%g against %s, %g times low load\n",
			r.Quantile*100, draw.Seconds.Format(r.Threshold), r.Options.Kappa)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// describeTarget is describe without rate and duration, which the search chooses.
func describeTarget(s loadgen.Spec) string {
	s.Rate, s.Closed, s.Stages = 0, false, nil
	text := describe(s)
	if i := strings.LastIndex(text, ", "); i > 0 {
		text = text[:i]
	}
	return text
}

func limitsTable(r *capacity.Report) *draw.Table {
	t := &draw.Table{Columns: []draw.Column{{Name: "", Left: true}, {Name: "rate"}, {Name: "95 % interval"}, {Name: "passed … failed"}, {Name: "confidence", Left: true}, {Name: "", Left: true}}}
	slo := "the P99 meets the objective"
	if r.Options.SLO > 0 {
		slo = fmt.Sprintf("P99 within %v", r.Options.SLO)
	}
	for _, l := range []struct {
		name, what string
		l          capacity.Limit
		show       bool
	}{
		{"λ max", "completed at most", r.Max, true},
		{"λ SLO", slo, r.SLO, r.Options.SLO > 0},
		{"λ knee", "latency starts to run away", r.Knee, true},
	} {
		switch {
		case !l.show:
		case l.l.Between != [2]float64{}:
			t.Add(l.name, "between", bracket(l.l.Between), bracket(l.l.Bracket), "low", l.what)
		case !l.l.Known:
			t.Add(l.name, "unknown", "–", bracket(l.l.Bracket), "", l.l.By)
		default:
			t.Add(l.name, perSecond(l.l.Rate.Point), interval(l.l.Rate), bracket(l.l.Bracket), l.l.Confidence, l.what)
		}
	}
	return t
}

// interval writes bounds; an open one is "?".
func interval(v stat.Interval) string {
	side := func(x float64) string {
		if x != x || x > 1e12 || x <= 0 {
			return "?"
		}
		return perSecond(x)
	}
	return side(v.Lo) + " … " + side(v.Hi)
}

func bracket(b [2]float64) string {
	side := func(x float64) string {
		if x == 0 {
			return "none"
		}
		return perSecond(x)
	}
	if b == [2]float64{} {
		return "–"
	}
	return side(b[0]) + " … " + side(b[1])
}

// kneeLines are the findings that are no table.
func kneeLines(r *capacity.Report) []string {
	var lines []string
	add := func(format string, a ...any) { lines = append(lines, fmt.Sprintf(format, a...)) }
	if r.Recommended > 0 {
		add("operate at or below %s", perSecond(r.Recommended))
	}
	if r.Sizing != nil {
		add("%s", r.Sizing.Text())
		if cost := r.Sizing.Cost(); cost != "" {
			add("%s", cost)
		}
	}
	if r.RhoKnee > 0 {
		add("the knee lies at %s of what is completed at most", draw.Share.Format(r.RhoKnee))
	}
	if r.Cliff > 0 {
		add("from %s on more load means less throughput", perSecond(r.Cliff))
	}
	switch rule := r.Rule; {
	case rule.Bracket != [2]float64{}:
		stand := "goroutines"
		if !rule.Exposed {
			stand = "work in flight, for want of the target's goroutines"
		}
		add("two-condition rule (P99 and %s): last steady and first inflection %s", stand, bracket(rule.Bracket))
		if rule.Literal > 0 {
			add("literally (P99 ≥ 2.5× and goroutines ≥ 3× the level before, steps of ×%.2f): %s", rule.Step, perSecond(rule.Literal))
		}
	}
	if u := r.Model.Scaling.USL; u.Identified {
		add("scalability (%s): peak of %s at concurrency %.3g", r.Model.ScaleAxis, perSecond(u.PeakX.Point), u.PeakN.Point)
	} else if u.MaxN > 0 {
		add("scalability (%s): peak not identified; at least %s up to concurrency %.3g", r.Model.ScaleAxis, perSecond(u.AtMax), u.MaxN)
	}
	if m := r.Model; m.CPUCost > 0 {
		add("processor time %s per 1,000 requests, which would make %s", draw.Seconds.Format(m.CPUCost), perSecond(m.CPUCapacity))
	}
	for _, a := range r.Model.Agreement {
		word := "agrees"
		if !a.OK {
			word = "differs"
		}
		add("%s: %s, %s", word, a.Name, a.Text)
	}
	if c := r.Confirm; c != nil {
		add("held %s for %v: %d of %d windows broke", perSecond(c.HoldRate), c.Held.Round(time.Second), c.HoldViolations, c.HoldWindows)
		if c.BreakWindows > 0 {
			add("at %s %d of %d broke", perSecond(c.BreakRate), c.Breaks, c.BreakWindows)
		}
		switch {
		case c.Recovery > 0:
			add("after a burst of %s it recovered within %s", perSecond(c.BurstRate), draw.Seconds.Format(c.Recovery))
		case c.Recovery < 0:
			add("after a burst of %s it did not recover in the time given", perSecond(c.BurstRate))
		}
	}
	if r.Base.Rate > 0 {
		add("low load is %s, with a P%g of %s", perSecond(r.Base.Rate), r.Quantile*100, draw.Seconds.Format(r.Base.Latency.Point))
	}
	if r.Qualify.HostCV > 0 {
		add("equal work took this machine times that scatter by %s", draw.Share.Format(r.Qualify.HostCV))
	}
	return lines
}

// levelsTable is a line for each level that was measured.
func levelsTable(r *capacity.Report) *draw.Table {
	t := &draw.Table{Columns: []draw.Column{
		{Name: "offered"}, {Name: "completed"}, {Name: "errors"}, {Name: "P50"}, {Name: "P95"}, {Name: "P99"}, {Name: "service P99"}, {Name: "n"},
		{Name: "in flight"}, {Name: "goroutines"}, {Name: "windows"}, {Name: "knee", Left: true}, {Name: "SLO", Left: true}, {Name: "", Left: true},
	}}
	for _, l := range r.Levels {
		goroutines := "–"
		if l.Runtime != nil && l.Runtime.Goroutines > 0 {
			goroutines = draw.Number.Format(l.Runtime.Goroutines)
		}
		row := draw.Cells(perSecond(l.Offered), perSecond(l.Completed), draw.Grouped(l.Errors), draw.Seconds.Format(l.Response.P50), draw.Seconds.Format(l.Response.P95),
			draw.Seconds.Format(l.Response.P99), draw.Seconds.Format(l.Service.P99), draw.Grouped(uint64(max(l.Response.N, 0))), draw.Number.Format(l.InFlight), goroutines,
			fmt.Sprint(l.Windows), string(l.Knee), string(l.SLO), l.Fault)
		row[11].State, row[12].State = decisionState(l.Knee), decisionState(l.SLO)
		t.Rows = append(t.Rows, row)
	}
	return t
}

func decisionState(d capacity.Decision) draw.State {
	return map[capacity.Decision]draw.State{capacity.Passes: draw.Good, capacity.Fails: draw.Bad, capacity.Undecided: draw.Unknown}[d]
}

// A kneeLive is knee's live view; show is called by the search's goroutine.
type kneeLive struct {
	l      *draw.Live
	target string
	last   string // the window measured last
	p99s   []float64
}

func newKneeLive(w io.Writer, target string, quiet bool) *kneeLive {
	return &kneeLive{l: newLive(w, quiet), target: target}
}

func (v *kneeLive) end() { v.l.Clear() }

func (v *kneeLive) show(e capacity.Event) {
	if w := e.Window; w != nil {
		v.last = v.window(w)
		v.p99s = append(v.p99s, w.Obs.Response.P99.Point)
		if len(v.p99s) > 2*sparkColumns {
			v.p99s = v.p99s[1:]
		}
	}
	v.l.Show(v.lines(e)...)
}

func (v *kneeLive) lines(e capacity.Event) []string {
	head := fmt.Sprintf("%s  %s  %s", v.target, e.Phase, since(e.Elapsed))
	if e.Remaining > 0 {
		head += fmt.Sprintf(", about %s to go  %s", since(e.Remaining), progressBar(e.Elapsed, e.Elapsed+e.Remaining))
	}
	level := ""
	if e.Rate > 0 {
		level = fmt.Sprintf("%s, window %d", perSecond(e.Rate), max(e.Repeat, 1))
	}
	if e.Steps > 0 {
		level += fmt.Sprintf("   step %d of about %d", e.Step, e.Steps)
	}
	lines := []string{head, "  now   " + level + "  " + v.l.Dim(e.Text), "  last  " + v.last}
	if len(v.p99s) > 1 {
		lines = append(lines, "  "+v.l.Dim("P99   ")+draw.Spark(v.p99s, 2*sparkColumns))
	}
	return lines
}

// window is one window in a line, with what the search thinks of it.
func (v *kneeLive) window(w *capacity.Window) string {
	o := &w.Obs
	completed := "–"
	if s := o.Length.Seconds(); s > 0 {
		completed = perSecond(float64(o.Completed) / s)
	}
	text := fmt.Sprintf("%s offered, %s completed, P50 %s, P99 %s", perSecond(o.Load.Rate), completed,
		draw.Seconds.Format(o.Response.P50.Point), draw.Seconds.Format(o.Response.P99.Point))
	switch {
	case w.Void != "":
		return text + "  " + v.l.Paint(draw.Unknown, "void: "+w.Void)
	case !w.Used:
		return text + "  " + v.l.Paint(draw.Unknown, "discarded: "+strings.Join(w.Discard, ", "))
	case w.Fault != "":
		return text + "  " + v.l.Paint(draw.Bad, w.Fault)
	}
	return text
}
