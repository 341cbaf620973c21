package capacity

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// Page is the report as one HTML file. title says what was measured; made is the
// last line.
func (r *Report) Page(title, made string) *report.Page {
	pg := &report.Page{
		Title:  title,
		Lead:   fmt.Sprintf("%s search, %s, %.0f s, %d requests", r.Options.Mode, r.Started.Format("2006-01-02 15:04:05 MST"), r.Elapsed.Seconds(), r.Requests),
		Data:   r,
		Footer: made,
	}
	pg.Blocks = append(pg.Blocks, r.headline(), r.facts())
	for _, n := range r.Notes {
		pg.Blocks = append(pg.Blocks, report.Text(n))
	}
	figure := func(p *report.Plot, caption string) {
		if p = withData(p); p != nil {
			pg.Blocks = append(pg.Blocks, report.Figure{Drawing: p, Caption: caption})
		}
	}
	if len(r.Levels) > 0 {
		pg.Blocks = append(pg.Blocks, report.Heading("Load and what came of it"))
		figure(r.throughputPlot(), "Completed against offered. The stripe is where the knee lies; above the diagonal's end the rest queues or is refused.")
		figure(r.latencyPlot(), fmt.Sprintf("Response time from the intended instant. The knee is where P%s is %.3g times its value at low load.", quantileName(r.Quantile), r.Options.Kappa))
		figure(r.goroutinePlot(), "The target's goroutines: all, those that its connections do not explain, and those that wait for a processor.")
		pg.Blocks = append(pg.Blocks, r.levelTable())
	}
	if len(r.Windows) > 0 {
		pg.Blocks = append(pg.Blocks, report.Heading("How it went"),
			report.Figure{Drawing: r.timeline(), Caption: "Every window in order. Discarded ones are grey: for what the machine did, never for what was measured."})
		figure(r.noisePlot(), "What else the machine did meanwhile.")
		figure(r.cpuPlot(), "Processors used by the generator and, where it is known, by the target.")
	}
	if len(r.Model.ScalePoints) > 0 || len(r.Model.Agreement) > 0 || len(r.Levels) > 0 {
		pg.Blocks = append(pg.Blocks, report.Heading("Models"))
		figure(r.scalingPlot(), r.scalingText())
	}
	if len(r.Model.Agreement) > 0 {
		pg.Blocks = append(pg.Blocks, r.agreementTable())
	}
	if len(r.Levels) > 0 {
		pg.Blocks = append(pg.Blocks, r.ruleText())
	}
	pg.Blocks = append(pg.Blocks, r.machineFacts())
	return pg
}

// withData is p without the series that hold nothing to draw; nil when none is left
// that was measured.
func withData(p *report.Plot) *report.Plot {
	if p == nil {
		return nil
	}
	measured := false
	p.Series = slices.DeleteFunc(p.Series, func(s report.Series) bool {
		some := slices.ContainsFunc(s.Points, func(pt report.Point) bool { return pt.Y > 0 && !math.IsInf(pt.Y, 1) })
		measured = measured || some && !s.Dashed
		return !some
	})
	if !measured {
		return nil
	}
	return p
}

func quantileName(q float64) string { return strconv.FormatFloat(100*q, 'g', 4, 64) }

func (r *Report) headline() report.Verdict {
	v := report.Verdict{State: report.Unknown, Word: string(r.Verdict), Text: strings.Join(r.Reasons, "; ")}
	switch r.Verdict {
	case Pass:
		v.State = report.Good
	case Fail:
		v.State = report.Bad
	}
	if v.Text == "" && r.Recommended > 0 {
		v.Text = "operate at " + report.PerSec.Format(r.Recommended) + " or below"
	}
	return v
}

func (r *Report) facts() report.Facts {
	one := func(name string, l Limit) report.Fact {
		f := report.Fact{Name: name, Value: "–", Note: l.By}
		// Where the estimates contradict each other no number is the headline.
		if l.Known && (r.Verdict == Pass || r.Verdict == Fail) {
			f.Value = report.PerSec.Format(l.Rate.Point)
			f.Note = strings.TrimPrefix(betweenEnds(l.Rate)+", confidence "+l.Confidence+", limited by "+l.By, ", ")
		} else if l.Known {
			f.Note = "not certain: about " + betweenEnds(l.Rate)
		}
		if b := l.Between; b[0] > 0 && b[1] > 0 {
			f.Note = "between " + report.PerSec.Format(b[0]) + " and " + report.PerSec.Format(b[1]) + ", confidence low"
		}
		return f
	}
	out := report.Facts{one("λ knee", r.Knee), one("λ max", r.Max)}
	if r.Options.SLO > 0 {
		out = slices.Insert(out, 1, one("λ SLO", r.SLO))
	}
	rec := report.Fact{Name: "recommended", Value: "–", Note: "0.7 of λ max, or less where the objective or the knee requires it"}
	if r.Recommended > 0 {
		rec.Value = report.PerSec.Format(r.Recommended)
	}
	base := report.Fact{
		Name: "P" + quantileName(r.Quantile) + " at low load", Value: report.Seconds.Format(r.Base.Latency.Point),
		Note: "at " + report.PerSec.Format(r.Base.Rate),
	}
	out = append(out, rec, base)
	if z := r.Sizing; z != nil {
		out = append(out, report.Fact{Name: "machines for " + report.Grouped(uint64(z.Clients)) + " clients", Value: strconv.Itoa(z.Machines), Note: strings.TrimSuffix(z.Text()+"; "+z.Cost(), "; ")})
	}
	return out
}

// betweenEnds writes an interval's ends.
func betweenEnds(v stat.Interval) string {
	return report.PerSec.Format(v.Lo) + " … " + report.PerSec.Format(v.Hi)
}

// points are the levels”s value; what is not positive is left out.
func points(levels []Level, f func(*Level) report.Point) []report.Point {
	var out []report.Point
	for i := range levels {
		if p := f(&levels[i]); p.Y > 0 && p.X > 0 {
			out = append(out, p)
		}
	}
	return out
}

func (r *Report) kneeMarks() []report.Mark {
	var out []report.Mark
	if k := r.Knee; k.Known && k.Rate.Lo > 0 && !math.IsInf(k.Rate.Hi, 1) {
		out = append(out, report.Mark{At: k.Rate.Lo, To: k.Rate.Hi, Label: "knee", State: report.Warn})
	}
	if r.SLO.Known {
		out = append(out, report.Mark{At: r.SLO.Rate.Point, Label: "λ SLO"})
	}
	return out
}

func (r *Report) throughputPlot() *report.Plot {
	p := &report.Plot{
		Title: "Throughput",
		X:     report.Axis{Label: "offered", Unit: report.PerSec},
		Y:     report.Axis{Label: "completed", Unit: report.PerSec},
		Marks: r.kneeMarks(),
	}
	top := 0.0
	s := report.Series{Name: "completed", Kind: report.Points}
	for i := range r.Windows {
		w := &r.Windows[i]
		if w.Obs.Load.Concurrency > 0 || w.Pass == "burst" {
			continue
		}
		top = math.Max(top, w.Obs.offeredRate())
		s.Points = append(s.Points, report.Point{X: w.Obs.offeredRate(), Y: w.Obs.completedRate(), State: w.state(), Label: w.label()})
	}
	p.Series = append(p.Series, s, report.Series{Name: "all of it", Dashed: true, Thin: true, Points: []report.Point{{}, {X: top, Y: top}}})
	if r.Max.Known {
		p.Marks = append(p.Marks, report.Mark{OnY: true, At: r.Max.Rate.Point, Label: "λ max"})
	}
	return p
}

// state colours a window.
func (w *Window) state() report.State {
	switch {
	case !w.Used:
		return report.Unknown
	case w.Fault != "":
		return report.Bad
	}
	return report.Good
}

func (w *Window) label() string {
	text := fmt.Sprintf("%s, %s at %s", w.Phase, w.Pass, rateText(w.Obs.Load))
	for _, more := range []string{w.Fault, w.Void, strings.Join(w.Discard, ", ")} {
		if more != "" {
			text += ": " + more
		}
	}
	return text
}

func (r *Report) latencyPlot() *report.Plot {
	p := &report.Plot{
		Title: "Response time",
		X:     report.Axis{Label: "offered", Unit: report.PerSec},
		Y:     report.Axis{Label: "response time", Unit: report.Seconds, Scale: report.Log},
		Marks: r.kneeMarks(),
	}
	add := func(name string, q float64, f func(*Level) float64) {
		s := report.Series{Name: name, Points: points(r.Levels, func(l *Level) report.Point {
			pt := report.Point{X: l.Rate, Y: f(l)}
			if q == r.Quantile && l.Latency.N >= 3 && l.Latency.Lo > 0 { // of two the interval says nothing
				pt.Lo, pt.Hi = l.Latency.Lo, l.Latency.Hi
			}
			return pt
		})}
		s.Dashed = q == 0
		if len(s.Points) > 0 {
			p.Series = append(p.Series, s)
		}
	}
	add("P50", 0.5, func(l *Level) float64 { return l.Response.P50 })
	add("P95", 0.95, func(l *Level) float64 { return l.Response.P95 })
	add("P99", 0.99, func(l *Level) float64 { return l.Response.P99 })
	add("P99.9", 0.999, func(l *Level) float64 {
		if !stat.EnoughSamples(l.Response.N, 0.999) {
			return 0
		}
		return l.Response.P999
	})
	add("P99 service", 0, func(l *Level) float64 { return l.Service.P99 })
	if r.Threshold > 0 {
		p.Marks = append(p.Marks, report.Mark{OnY: true, At: r.Threshold, Label: fmt.Sprintf("%.3g × low load", r.Options.Kappa)})
	}
	if r.Options.SLO > 0 {
		p.Marks = append(p.Marks, report.Mark{OnY: true, At: r.Options.SLO.Seconds(), Label: "objective"})
	}
	return p
}

// goroutinePlot is nil when the target does not show its goroutines.
func (r *Report) goroutinePlot() *report.Plot {
	if !r.Rule.Exposed {
		return nil
	}
	get := func(name string, f func(*Level) float64) report.Series {
		return report.Series{Name: name, Points: points(r.Levels, func(l *Level) report.Point {
			if l.Runtime == nil {
				return report.Point{}
			}
			return report.Point{X: l.Rate, Y: f(l)}
		})}
	}
	return &report.Plot{
		Title: "Goroutines",
		X:     report.Axis{Label: "offered", Unit: report.PerSec},
		Y:     report.Axis{Label: "goroutines", Scale: report.Log},
		Series: []report.Series{
			get("all", func(l *Level) float64 { return l.Runtime.Goroutines }),
			get("excess", func(l *Level) float64 { return l.Excess }),
			get("runnable", func(l *Level) float64 { return l.Runtime.Runnable }),
		},
		Marks: r.kneeMarks(),
	}
}

// since is a window's beginning in seconds of the search.
func (r *Report) since(w *Window) float64 { return w.Obs.Start.Sub(r.Started).Seconds() }

func (r *Report) timeline() *report.Strip {
	s := &report.Strip{Title: "Windows", X: report.Axis{Label: "time", Unit: report.Seconds}}
	rows := map[string]int{}
	for i := range r.Windows {
		w := &r.Windows[i]
		n, ok := rows[w.Phase]
		if !ok {
			n = len(s.Rows)
			rows[w.Phase] = n
			s.Rows = append(s.Rows, report.StripRow{Name: w.Phase})
		}
		from := r.since(w)
		state := w.state()
		if w.Used && w.Fault == "" && r.Threshold > 0 {
			if v := w.Obs.Response.At(r.Quantile); v.Point > r.Threshold {
				state = report.Warn
			}
		}
		s.Rows[n].Spans = append(s.Rows[n].Spans, report.Span{From: from, To: from + w.Obs.seconds(), State: state, Label: w.label()})
	}
	if row := r.ruleRow(); len(row.Spans) > 0 {
		s.Rows = append(s.Rows, row)
	}
	return s
}

// ruleRow is the two-condition rule's state over the ascending levels.
func (r *Report) ruleRow() report.StripRow {
	row := report.StripRow{Name: "rule"}
	readings := map[float64]*stat.Reading{}
	for i := range r.Levels {
		readings[r.Levels[i].Rate] = r.Levels[i].Reading
	}
	for i := range r.Windows {
		w := &r.Windows[i]
		g := readings[w.Obs.Load.Rate]
		if w.Pass != "up" || g == nil {
			continue
		}
		state := map[stat.State]report.State{stat.Steady: report.Good, stat.Alert: report.Warn, stat.Inflection: report.Bad}[g.State]
		from := r.since(w)
		row.Spans = append(row.Spans, report.Span{From: from, To: from + w.Obs.seconds(), State: state,
			Label: strings.Join(append([]string{g.State.String()}, g.Causes...), ", ")})
	}
	return row
}

// overTime is a series of the windows.
func (r *Report) overTime(name string, f func(*Observation) float64) report.Series {
	s := report.Series{Name: name, Kind: report.Steps}
	for i := range r.Windows {
		w := &r.Windows[i]
		s.Points = append(s.Points, report.Point{X: r.since(w), Y: f(&w.Obs)})
	}
	return s
}

func (r *Report) noisePlot() *report.Plot {
	return &report.Plot{
		Title: "The machine",
		X:     report.Axis{Label: "time", Unit: report.Seconds},
		Y:     report.Axis{Label: "share", Unit: report.Share},
		Series: []report.Series{
			r.overTime("steal", func(o *Observation) float64 { return o.Host.Steal }),
			r.overTime("cpu pressure", func(o *Observation) float64 { return o.Host.Pressure }),
			r.overTime("run-queue wait", func(o *Observation) float64 { return o.Host.Wait }),
			r.overTime("busy", func(o *Observation) float64 { return o.Host.Busy }),
		},
		Height: 220,
	}
}

func (r *Report) cpuPlot() *report.Plot {
	return &report.Plot{
		Title: "Processors",
		X:     report.Axis{Label: "time", Unit: report.Seconds},
		Y:     report.Axis{Label: "cores"},
		Series: []report.Series{
			r.overTime("generator", func(o *Observation) float64 { return o.Generator.CPU }),
			r.overTime("target", func(o *Observation) float64 {
				if o.Runtime == nil || o.Length <= 0 {
					return math.NaN()
				}
				return o.Runtime.CPUSeconds / o.seconds()
			}),
		},
		Height: 220,
	}
}

func (r *Report) scalingPlot() *report.Plot {
	p := &report.Plot{
		Title: "Scalability",
		X:     report.Axis{Label: "concurrency (" + r.Model.ScaleAxis + ")", Scale: report.Log},
		Y:     report.Axis{Label: "completed", Unit: report.PerSec, Scale: report.Log},
	}
	s := report.Series{Name: "measured", Kind: report.Points}
	lo, hi := math.Inf(1), 0.0
	for _, v := range r.Model.ScalePoints {
		s.Points = append(s.Points, report.Point{X: v.N, Y: v.X})
		lo, hi = math.Min(lo, v.N), math.Max(hi, v.N)
	}
	p.Series = append(p.Series, s)
	curve := func(name string, at func(float64) float64) {
		line := report.Series{Name: name, Dashed: true}
		for i := range 60 {
			n := lo * math.Pow(hi/lo, float64(i)/59)
			line.Points = append(line.Points, report.Point{X: n, Y: at(n)})
		}
		p.Series = append(p.Series, line)
	}
	if m := &r.Model.Scaling; m.Model != "" && lo > 0 && lo < hi {
		if m.USL.Gamma > 0 {
			curve("USL", m.USL.At)
		}
		curve("hard cap", m.HardCap.At)
	}
	return p
}

func (r *Report) scalingText() string {
	m := &r.Model.Scaling
	switch {
	case m.Model == "usl" && m.USL.Identified:
		return fmt.Sprintf("USL: α %.3g, β %.3g, peak %s at concurrency %.3g.", m.USL.Alpha, m.USL.Beta,
			report.PerSec.Format(m.USL.PeakX.Point), m.USL.PeakN.Point)
	case m.Model == "usl":
		return fmt.Sprintf("USL fits better, but its peak is not identified (%s): at least %s up to concurrency %.3g.",
			strings.Join(m.USL.Why, ", "), report.PerSec.Format(m.USL.AtMax), m.USL.MaxN)
	case m.Model == "hard cap" && m.HardCap.Capped:
		return fmt.Sprintf("A hard cap fits better: %s, reached at concurrency %.3g.", report.PerSec.Format(m.HardCap.C), m.HardCap.KneeN())
	case m.Model == "hard cap":
		return "A hard cap fits better, but nothing beyond it was measured."
	}
	return "Too few points for a model."
}

func (r *Report) levelTable() *report.Table {
	t := &report.Table{Caption: "Levels: medians over the windows that count."}
	for _, c := range []string{"offered", "sent", "completed", "dropped", "errors", "P50", "P95", "P99", "P99.9", "service P99", "n", "in flight", "goroutines", "excess", "runnable", "sched P99", "GC"} {
		t.Columns = append(t.Columns, report.Column{Name: c})
	}
	t.Columns = append(t.Columns, report.Column{Name: "knee", Left: true}, report.Column{Name: "rule", Left: true}, report.Column{Name: "why", Left: true})
	for i := range r.Levels {
		l := &r.Levels[i]
		row := report.Cells(report.PerSec.Format(l.Rate), report.PerSec.Format(l.Sent), report.PerSec.Format(l.Completed),
			report.Grouped(l.Dropped), report.Grouped(l.Errors))
		for _, v := range []float64{l.Response.P50, l.Response.P95, l.Response.P99, l.Response.P999, l.Service.P99} {
			row = append(row, report.Cell{Text: report.Seconds.Format(v)})
		}
		row = append(row, report.Cells(report.Grouped(uint64(max(l.Response.N, 0))), report.Number.Format(l.InFlight))...)
		if rt := l.Runtime; rt != nil {
			row = append(row, report.Cells(report.Number.Format(rt.Goroutines), report.Number.Format(l.Excess),
				report.Number.Format(rt.Runnable), report.Seconds.Format(rt.SchedP99), report.Share.Format(rt.GCFraction))...)
		} else {
			row = append(row, report.Cells("–", "–", "–", "–", "–")...)
		}
		state := map[Decision]report.State{Passes: report.Good, Fails: report.Bad, Undecided: report.Unknown}[l.Knee]
		row = append(row, report.Cell{Text: string(l.Knee), State: state}, report.Cell{Text: ruleWord(l.Reading)}, report.Cell{Text: l.Fault})
		t.Rows = append(t.Rows, row)
	}
	return t
}

func ruleWord(g *stat.Reading) string {
	if g == nil {
		return "–"
	}
	return g.State.String()
}

func (r *Report) agreementTable() *report.Table {
	t := &report.Table{Caption: "Do the estimates agree?", Columns: []report.Column{{Name: "test", Left: true}, {Name: "", Left: true}, {Name: "values", Left: true}}}
	for _, a := range r.Model.Agreement {
		cell := report.Cell{Text: "agrees", State: report.Good}
		switch {
		case !a.OK && a.Finding:
			cell = report.Cell{Text: "a finding", State: report.Warn}
		case !a.OK:
			cell = report.Cell{Text: "disagrees", State: report.Bad}
		}
		t.Rows = append(t.Rows, []report.Cell{{Text: a.Name}, cell, {Text: a.Text}})
	}
	return t
}

func (r *Report) ruleText() report.Text {
	line := "The two-condition rule, literally (P99 ≥ 2.5× and goroutines ≥ 3× the level before): "
	switch {
	case !r.Rule.Exposed:
		line = "The target does not show its goroutines, so the two-condition rule was read with the work in flight in their place: "
	case r.Rule.Literal > 0:
		line += "first at " + report.PerSec.Format(r.Rule.Literal) + ". "
	default:
		line += "at no level. "
	}
	if b := r.Rule.Bracket; b[1] > 0 {
		line += fmt.Sprintf("Last steady at %s, inflection at %s. ", report.PerSec.Format(b[0]), report.PerSec.Format(b[1]))
	} else {
		line += "No inflection. "
	}
	if s := r.Rule.Step - 1; s > 0 {
		line += fmt.Sprintf("With steps of %.0f %% the ratio is met from a utilisation of %.2f before the step on; other steps would move it.", 100*s, stat.AlarmUtilization(r.Options.Kappa, s))
	}
	return report.Text(line)
}

func (r *Report) machineFacts() report.Facts {
	worst, limited, discarded := 0.0, 0, 0
	for i := range r.Windows {
		w := &r.Windows[i]
		worst = math.Max(worst, w.Obs.Generator.LagP99)
		if w.Limited {
			limited++
		}
		if len(w.Discard) > 0 {
			discarded++
		}
	}
	ceiling := "not measured"
	if r.Qualify.Ceiling > 0 {
		ceiling = report.PerSec.Format(r.Qualify.Ceiling)
	}
	m := r.Machine
	return report.Facts{
		{Name: "machine", Value: fmt.Sprintf("%d × %s", m.CPUs, m.CPU), Note: fmt.Sprintf("%s %s, %d MB, %s", m.OS, m.Kernel, m.MemoryMB, m.Go)},
		{Name: "equal work differs by", Value: report.Share.Format(r.Qualify.HostCV), Note: "coefficient of variation"},
		{Name: "generator's ceiling", Value: ceiling},
		{Name: "generator's worst lag", Value: report.Seconds.Format(worst), Note: "P99 of a window"},
		{Name: "windows", Value: strconv.Itoa(len(r.Windows)), Note: fmt.Sprintf("%d discarded, %d limited by the generator", discarded, limited)},
	}
}
