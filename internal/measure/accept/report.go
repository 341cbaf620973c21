package accept

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/measure/report"
)

// The units of criteria.
const (
	bytesUnit = report.Bytes
	seconds   = report.Seconds
	perSecond = report.PerSec
	share     = report.Share
)

var colours = map[Verdict]report.State{capacity.Pass: report.Good, capacity.Fail: report.Bad, capacity.Inconclusive: report.Warn, capacity.Invalid: report.Unknown}

func (r *Report) lead() string {
	text := fmt.Sprintf("%s run, %s, %.0f s", r.Plan, r.Started.UTC().Format("2006-01-02 15:04:05 MST"), r.Seconds)
	if r.Partial {
		text += ", stopped early"
	}
	if r.Target != "" {
		text += ", target " + r.Target
	}
	return text
}

func (r *Report) machine() string {
	m := r.Machine
	return fmt.Sprintf("%s; %d × %s, allowed %s; %d MB; %s, Linux %s; %s", m.Weir, m.CPUs, m.CPU, r.CPUs, m.MemoryMB, m.OS, m.Kernel, m.Go)
}

// Summary is a table with a line for each indicator.
func (r *Report) Summary() *report.Table {
	t := &report.Table{Columns: []report.Column{
		{Name: "no.", Left: true}, {Name: "indicator", Left: true}, {Name: "verdict", Left: true}, {Name: "confidence", Left: true}, {Name: "why", Left: true}, {Name: "target", Left: true},
	}}
	for _, f := range r.Findings {
		why := firstOf(f.Why) // all are with the indicator's checks
		if more := len(f.Why) - 1; more > 0 {
			why += fmt.Sprintf("; and %d more", more)
		}
		row := report.Cells(f.Number, f.Indicator, string(f.Verdict), f.Confidence, why, f.Target)
		row[2].State = colours[f.Verdict]
		t.Rows = append(t.Rows, row)
	}
	return t
}

func (f *Finding) table() *report.Table {
	t := &report.Table{Columns: []report.Column{
		{Name: "check", Left: true}, {Name: "verdict", Left: true}, {Name: "measured", Left: true}, {Name: "target", Left: true}, {Name: "basis", Left: true},
	}}
	for _, c := range f.Checks {
		word := string(c.Verdict)
		if word == "" {
			word = "reported"
		}
		row := report.Cells(c.What, word, c.Got, c.Limit, strings.Trim(c.Sure+"; "+c.Why, "; "))
		if c.Verdict != "" {
			row[1].State = colours[c.Verdict]
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// Markdown writes the report.
func (r *Report) Markdown(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Acceptance: %s\n\n%s\n\nMachine: %s\n\n", r.Verdict, r.lead(), r.machine())
	if err := r.Summary().Markdown(&b); err != nil {
		return err
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		ind, err := Find(f.Indicator)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "\n## %s: %s\n\n**Definition.** %s\n\n**Target.** %s\n\n**Method.** %s\n\n**Evidence.** `%s`, %.0f s\n\n",
			f.Title, f.Verdict, ind[0].Definition, f.Target, ind[0].Method, f.Evidence, f.Seconds)
		if len(f.Checks) > 0 {
			if err := f.table().Markdown(&b); err != nil {
				return err
			}
		}
		for _, line := range append(f.Notes[:len(f.Notes):len(f.Notes)], f.Why...) {
			fmt.Fprintf(&b, "\n- %s\n", line)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// page is the report as one HTML file with drawings.
func (r *Report) page(evidence map[string]*Evidence) *report.Page {
	pg := &report.Page{Title: "Acceptance", Lead: r.lead(), Data: r, Footer: "Made by weir accept: weir accept verify checks it."}
	n := map[Verdict]int{}
	for _, f := range r.Findings {
		n[f.Verdict]++
	}
	pg.Blocks = append(pg.Blocks,
		report.Verdict{State: colours[r.Verdict], Word: string(r.Verdict), Text: fmt.Sprintf("%d pass, %d fail, %d inconclusive, %d invalid",
			n[capacity.Pass], n[capacity.Fail], n[capacity.Inconclusive], n[capacity.Invalid])},
		report.Text(r.machine()), r.Summary())
	for i := range r.Findings {
		f := &r.Findings[i]
		pg.Blocks = append(pg.Blocks, f.blocks(evidence[f.Indicator])...)
	}
	return pg
}

func (f *Finding) blocks(e *Evidence) []report.Block {
	out := []report.Block{report.Heading(f.Title), report.Verdict{State: colours[f.Verdict], Word: string(f.Verdict), Text: strings.Join(f.Why, "; ")}}
	ind, err := Find(f.Indicator)
	if err != nil || e == nil {
		return out
	}
	out = append(out, report.Text("Target: "+f.Target), report.Details{Summary: "Definition and method", Blocks: []report.Block{
		report.Text(ind[0].Definition), report.Text(ind[0].Method), report.Text("Evidence: " + f.Evidence + " " + strings.Join(e.Files, " ")),
	}})
	if len(f.Checks) > 0 {
		out = append(out, f.table())
	}
	for _, n := range f.Notes {
		out = append(out, report.Text(n))
	}
	for _, p := range ind[0].plots {
		if d := p.drawing(e); d != nil {
			out = append(out, report.Figure{Drawing: d})
		}
	}
	if d := noisePlot(e); d != nil {
		out = append(out, report.Details{Summary: "The machine meanwhile", Blocks: []report.Block{report.Figure{Drawing: d}}})
	}
	return out
}

// drawing is nil when there is nothing to draw.
func (p *plot) drawing(e *Evidence) report.Drawing {
	d := &report.Plot{Title: p.title, X: report.Axis{Label: "time", Unit: report.Seconds}, Y: report.Axis{Unit: p.unit}}
	for _, name := range p.series {
		s := e.Series[name]
		one := report.Series{Name: name}
		for i := range min(len(s.X), len(s.Y)) {
			one.Points = append(one.Points, report.Point{X: s.X[i], Y: s.Y[i]})
		}
		if len(one.Points) > 0 {
			d.Series = append(d.Series, one)
		}
	}
	if len(d.Series) == 0 {
		return nil
	}
	return d
}

// noisePlot is what others did to the machine.
func noisePlot(e *Evidence) report.Drawing {
	if len(e.Host) == 0 {
		return nil
	}
	names := []string{"steal", "pressure", "others"}
	series := make([]report.Series, len(names))
	for i, n := range names {
		series[i] = report.Series{Name: n}
	}
	for _, h := range e.Host {
		for i, v := range []float64{h.Steal, h.Pressure, math.Max(h.Busy-h.Own, 0)} {
			series[i].Points = append(series[i].Points, report.Point{X: h.At, Y: v})
		}
	}
	return &report.Plot{Title: "The machine", X: report.Axis{Label: "time", Unit: report.Seconds}, Y: report.Axis{Unit: report.Share}, Series: series}
}
