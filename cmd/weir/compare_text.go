package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

func (q *quantity) value(v float64) string {
	switch {
	case v != v:
		return "–"
	case q.Unit == draw.PerSec:
		return perSecond(v)
	}
	return q.Unit.Format(v)
}

// change writes a ratio as a percentage, +12 %, and a difference in points.
func (q *quantity) change(v float64) string {
	if !q.Points {
		v--
	}
	if v != v || v > 1e6 || v < -1e6 {
		return "?"
	}
	unit := " %"
	if q.Points {
		unit = " pp"
	}
	text := strings.TrimSuffix(draw.Share.Format(v), " %")
	if v > 0 {
		text = "+" + text
	}
	return text + unit
}

func (q *quantity) interval() string {
	if q.Change.N < 2 {
		return "–"
	}
	return q.change(q.Change.Lo) + " … " + q.change(q.Change.Hi)
}

func (q *quantity) allowed() string {
	if q.Tolerance < 0 {
		return "–"
	}
	t := tolerance{limit: q.Tolerance}
	text := t.text()
	if q.Points {
		return strings.TrimSuffix(text, "%") + " pp"
	}
	return strings.TrimSuffix(text, "%") + " %"
}

// table is the gate, or the further percentiles, a line each.
func (c *comparison) table(qs []quantity, gate bool) *draw.Table {
	t := &draw.Table{Columns: []draw.Column{{Name: "", Left: true}, {Name: "old"}, {Name: "new"}, {Name: "change"}, {Name: "95 % interval"}}}
	if gate {
		t.Columns = append(t.Columns, draw.Column{Name: "tolerance"}, draw.Column{Name: "", Left: true})
	}
	for _, q := range qs {
		known := q.Change.N > 0
		cells := []string{q.Name, "–", "–", "–", "–"}
		if known {
			cells = []string{q.Name, q.value(q.Old), q.value(q.New), q.change(q.Change.Point), q.interval()}
		}
		if gate {
			text := string(q.Verdict)
			if q.Why != "" {
				text += ": " + q.Why
			}
			if q.Tolerance < 0 {
				text = "off"
			}
			cells = append(cells, q.allowed(), text)
		}
		row := draw.Cells(cells...)
		if gate && q.Tolerance >= 0 {
			row[6].State = q.Verdict.state()
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// counts are what is counted and not compared.
func (c *comparison) counts() *draw.Table {
	t := &draw.Table{Columns: []draw.Column{{Name: "", Left: true}, {Name: "old"}, {Name: "new"}}}
	add := func(name string, n func(*loadgen.Window) uint64) {
		var sum [2]uint64
		for i, s := range []*side{&c.old, &c.new} {
			for _, r := range s.runs {
				sum[i] += n(&r.Total)
			}
		}
		t.Add(name, draw.Grouped(sum[0]), draw.Grouped(sum[1]))
	}
	add("offered", func(w *loadgen.Window) uint64 { return w.Offered })
	add("errors", errorCount)
	add("dropped", func(w *loadgen.Window) uint64 { return w.Dropped })
	if c.old.runs[0].Total.Delivery != nil && c.new.runs[0].Total.Delivery != nil {
		of := func(name string, n func(*loadgen.Delivery) uint64) {
			add(name, func(w *loadgen.Window) uint64 {
				if w.Delivery == nil {
					return 0
				}
				return n(w.Delivery)
			})
		}
		of("lost", func(d *loadgen.Delivery) uint64 { return d.Lost })
		of("repeated", func(d *loadgen.Delivery) uint64 { return d.Repeated })
		of("reordered", func(d *loadgen.Delivery) uint64 { return d.Reordered })
	}
	return t
}

// sources names a side's runs.
func (s *side) sources() string {
	name := s.files[0]
	if n := len(s.files); n > 1 {
		name = fmt.Sprintf("%s and %d more", name, n-1)
	}
	return name
}

func (c *comparison) text(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "old  %s  %s\nnew  %s  %s\n     %s\n\n", c.old.sources(), c.old.runs[0].Spec.Target, c.new.sources(), c.new.runs[0].Spec.Target, describe(c.old.runs[0].Spec))
	err := c.table(c.quantities, true).Text(&b, "  ")
	if len(c.ratios) > 0 {
		b.WriteString("\n")
		err = errors.Join(err, c.table(c.ratios, false).Text(&b, "  "))
	}
	b.WriteString("\n")
	if err := errors.Join(err, c.counts().Text(&b, "  ")); err != nil {
		return err
	}
	for _, n := range c.notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	fmt.Fprintf(&b, "\n%s\n", c.headline())
	_, err = w.Write(b.Bytes())
	return err
}

// headline is the verdict with the quantities that made it.
func (c *comparison) headline() string {
	v := c.verdict()
	var which []string
	for _, q := range c.quantities {
		if q.Tolerance >= 0 && q.Verdict == v {
			which = append(which, q.Name)
		}
	}
	text := strings.ToUpper(string(v))
	if len(which) > 0 {
		text += ": " + strings.Join(which, ", ")
	}
	return text
}

// A compareReport is the comparison as JSON, of version 1.
type compareReport struct {
	Version    int              `json:"version"`
	Verdict    gateVerdict      `json:"verdict"`
	Old        []string         `json:"old"`
	New        []string         `json:"new"`
	Quantities []quantityReport `json:"quantities"`
	Notes      []string         `json:"notes,omitempty"`
}

// A quantityReport is one quantity; what is not known is null. Times are in
// seconds, memory in bytes; Change is new/old, or new − old of shares (Points).
type quantityReport struct {
	Name      string        `json:"name"`
	Verdict   gateVerdict   `json:"verdict"`
	Why       string        `json:"why,omitempty"`
	Old       *float64      `json:"old"`
	New       *float64      `json:"new"`
	Change    stat.Interval `json:"change"`
	Points    bool          `json:"points,omitempty"`
	Tolerance *float64      `json:"tolerance"`
}

func (c *comparison) report() compareReport {
	r := compareReport{Version: 1, Verdict: c.verdict(), Old: c.old.files, New: c.new.files, Notes: c.notes}
	for _, q := range c.quantities {
		one := quantityReport{Name: q.Name, Verdict: q.Verdict, Why: q.Why, Change: q.Change, Points: q.Points}
		if q.Change.N > 0 && q.Old == q.Old && q.New == q.New {
			one.Old, one.New = &q.Old, &q.New
		}
		if q.Tolerance >= 0 {
			one.Tolerance = &q.Tolerance
		}
		r.Quantities = append(r.Quantities, one)
	}
	return r
}

// page is the comparison as a page.
func (c *comparison) page() *draw.Page {
	bars := &draw.Bars{Title: "New against old", X: draw.Axis{Label: "new/old", Unit: draw.Times, Scale: draw.Log}, Reference: 1, ReferenceLabel: "the same"}
	for _, qs := range [][]quantity{c.quantities, c.ratios} {
		for _, q := range qs {
			if q.Points || !(q.Change.Point > 0) {
				continue
			}
			p := draw.Point{Y: q.Change.Point, State: q.Verdict.state(), Label: q.Name + ": " + q.interval()}
			if q.Change.N > 1 {
				p.Lo, p.Hi = q.Change.Lo, q.Change.Hi
			}
			bars.Groups = append(bars.Groups, draw.Group{Name: q.Name, Bars: []draw.Point{p}})
		}
	}
	whole := func(s *side) []draw.Point {
		var w loadgen.Window
		for _, r := range s.runs {
			w.Merge(&r.Total)
		}
		return percentilePoints(w.Response)
	}
	v := c.verdict()
	pg := &draw.Page{
		Title: "New against old", Lead: "Old is " + c.old.sources() + " (" + c.old.runs[0].Spec.Target + "), new is " + c.new.sources() + " (" + c.new.runs[0].Spec.Target + "). " + describe(c.old.runs[0].Spec) + ".",
		Footer: "Made by weir bench compare.", Data: c.report(),
		Blocks: []draw.Block{
			draw.Verdict{State: v.state(), Word: string(v), Text: strings.TrimLeft(strings.TrimPrefix(c.headline(), strings.ToUpper(string(v))), ": ")},
			c.table(c.quantities, true),
			draw.Figure{Drawing: bars, Caption: "The bars are ratios, the black lines their 95 % intervals."},
			draw.Figure{Drawing: &draw.Plot{Title: "Response by percentile", X: draw.Axis{Label: "percentile", Scale: draw.Percentile},
				Y: draw.Axis{Unit: draw.Seconds, Scale: draw.Log}, Series: []draw.Series{{Name: "old", Points: whole(&c.old)}, {Name: "new", Points: whole(&c.new)}}}},
			c.table(c.ratios, false),
			c.counts(),
		},
	}
	for _, n := range c.notes {
		pg.Blocks = append(pg.Blocks, draw.Text("Note: "+n+"."))
	}
	return pg
}
