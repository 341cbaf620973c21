package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	draw "github.com/weir-gateway/weir/internal/measure/report"
)

// benchPage is a result as a page.
func benchPage(r *loadgen.Result, j runVerdict) *draw.Page {
	t := &r.Total
	pg := &draw.Page{
		Title:  "Load on " + r.Spec.Target,
		Lead:   describe(r.Spec) + ". Measured " + r.Started.Format("2006-01-02 15:04:05 MST") + ".",
		Footer: "Made by weir bench, " + r.Machine.Weir + ". The numbers are in this file as JSON.",
	}
	if data, err := withVerdict(r, j); err == nil {
		pg.Data = data
	}
	pg.Blocks = append(pg.Blocks, verdictBlock(j), benchFacts(t))
	if table := conditionsTable(j); len(table.Rows) > 0 {
		pg.Blocks = append(pg.Blocks, draw.Heading("Conditions"), table,
			draw.Text("A condition holds when its 95 % interval is on the right side, for the run and in nine of ten windows. Windows in which the generator was the limit or the processors were taken away are excluded."))
	}
	pg.Blocks = append(pg.Blocks, draw.Heading("Times"),
		draw.Figure{Drawing: percentilePlot(t), Caption: "How long the slowest share took. Response counts from the instant at which a request was meant to come, service from when it was really sent; between them lies the wait for a connection and what the generator itself was late."},
		timesTable(t), draw.Figure{Drawing: distribution(t)}, draw.Heading("Over time"))
	for _, f := range overTime(r) {
		pg.Blocks = append(pg.Blocks, f)
	}
	pg.Blocks = append(pg.Blocks, draw.Heading("Counts"), countsTable(r))
	for _, l := range errorLines(t) {
		pg.Blocks = append(pg.Blocks, draw.Text("Errors: "+l))
	}
	for _, l := range deliveryLines(t.Delivery) {
		pg.Blocks = append(pg.Blocks, draw.Text("Delivery: "+l))
	}
	pg.Blocks = append(pg.Blocks, validity(r)...)
	return pg
}

func verdictBlock(j runVerdict) draw.Verdict {
	v := draw.Verdict{State: j.Verdict.state(), Word: strings.ToUpper(string(j.Verdict)), Text: strings.Join(j.Why, ". ")}
	kept := 0
	for _, c := range j.Thresholds {
		if c.Verdict == pass {
			kept++
		}
	}
	switch {
	case len(j.Thresholds) > 0:
		v.Text = strings.TrimPrefix(fmt.Sprintf("%s. %d of %s kept", v.Text, kept, plural(len(j.Thresholds), "condition")), ". ")
	case j.Verdict == pass:
		v.State, v.Word, v.Text = "", "MEASURED", "No threshold was given."
	}
	return v
}

func benchFacts(t *loadgen.Window) draw.Facts {
	f := draw.Facts{}
	secs := max(t.Length.Seconds(), 1e-9)
	if t.Offered > 0 {
		f = append(f, draw.Fact{Name: "completed", Value: draw.PerSec.Format(float64(t.Answered()) / secs),
			Note: draw.Share.Format(float64(t.Completed+t.Drained)/float64(t.Offered)) + " of what was offered"})
	}
	if d := t.Delivery; d != nil {
		state := draw.Good
		if d.Lost+d.Repeated+d.Reordered > 0 {
			state = draw.Bad
		}
		f = append(f, draw.Fact{Name: "received", Value: draw.PerSec.Format(float64(d.Received) / secs), Note: "the worst message reached " + draw.Share.Format(d.Reach) + " of its subscribers"},
			draw.Fact{Name: "lost, repeated, reordered", Value: fmt.Sprintf("%s, %s, %s", draw.Grouped(d.Lost), draw.Grouped(d.Repeated), draw.Grouped(d.Reordered)), State: state})
	}
	if h := t.Response; h != nil && h.TotalCount() > 0 {
		for _, q := range []float64{0.5, 0.99, 0.999} {
			f = append(f, draw.Fact{Name: fmt.Sprintf("response P%g", q*100), Value: atQuantile(h, q), Note: "n " + draw.Grouped(uint64(h.TotalCount()))})
		}
	}
	errs := draw.Fact{Name: "errors", Value: draw.Grouped(errorCount(t)), State: draw.Good}
	if errorCount(t) > 0 {
		errs.State = draw.Bad
	}
	return append(f, errs)
}

func conditionsTable(j runVerdict) *draw.Table {
	table := &draw.Table{Columns: []draw.Column{{Name: "condition", Left: true}, {Name: "verdict", Left: true}, {Name: "found", Left: true}}}
	for _, c := range j.Thresholds {
		table.Rows = append(table.Rows, []draw.Cell{{Text: c.Text}, {Text: string(c.Verdict), State: c.Verdict.state()}, {Text: c.found()}})
	}
	return table
}

// percentilePlot is the HDR curve of response and service.
func percentilePlot(t *loadgen.Window) *draw.Plot {
	p := &draw.Plot{
		Title: "Time by percentile",
		X:     draw.Axis{Label: "percentile", Scale: draw.Percentile}, Y: draw.Axis{Unit: draw.Seconds, Scale: draw.Log},
	}
	for i, h := range []struct {
		name   string
		h      *hdrhistogram.Histogram
		dashed bool
	}{{"response", t.Response, false}, {"service", t.Service, false}, {"generator lag", t.Lag, true}} {
		if pts := percentilePoints(h.h); len(pts) > 0 {
			p.Series = append(p.Series, draw.Series{Name: h.name, Points: pts, Color: i + 1, Dashed: h.dashed})
		}
	}
	return p
}

// percentilePoints ends where the sample does: at 1 − 1/n.
func percentilePoints(h *hdrhistogram.Histogram) []draw.Point {
	if h == nil || h.TotalCount() == 0 {
		return nil
	}
	var pts []draw.Point
	n := float64(h.TotalCount())
	for i := 0.0; ; i++ {
		q := 1 - math.Pow(10, -i/8)
		if i > 0 && (1-q)*n < 1 {
			break
		}
		v := float64(h.ValueAtPercentile(q*100)) / 1e6
		if i == 0 {
			v = float64(h.Min()) / 1e6
		}
		pts = append(pts, draw.Point{X: q * 100, Y: max(v, 1e-6)})
	}
	return pts
}

// distribution is the histogram of response, 16 bars to a factor of ten.
func distribution(t *loadgen.Window) *draw.Plot {
	p := &draw.Plot{Title: "Distribution of response", X: draw.Axis{Unit: draw.Seconds, Scale: draw.Log}, Y: draw.Axis{Label: "answers"}}
	h := t.Response
	if h == nil || h.TotalCount() == 0 {
		return p
	}
	first, last := math.Floor(edgeOf(max(h.Min(), 1))), math.Ceil(edgeOf(max(h.Max(), 1))+1e-9)
	if last <= first {
		last = first + 1
	}
	counts := binned(h, first, int(last-first))
	s := draw.Series{Name: "answers", Kind: draw.Histogram}
	for i := 0; i <= len(counts); i++ {
		pt := draw.Point{X: binEdge(first + float64(i))}
		if i < len(counts) {
			pt.Y = counts[i]
		}
		s.Points = append(s.Points, pt)
	}
	p.Series = []draw.Series{s}
	return p
}

const binsPerDecade = 16

func edgeOf(us int64) float64      { return math.Log10(float64(us)) * binsPerDecade }
func binEdge(edge float64) float64 { return math.Pow(10, edge/binsPerDecade) / 1e6 }

// binned counts a histogram's values in n bins from an edge on.
func binned(h *hdrhistogram.Histogram, first float64, n int) []float64 {
	counts := make([]float64, n)
	if h == nil {
		return counts
	}
	for _, bar := range h.Distribution() {
		if bar.Count == 0 {
			continue
		}
		i := int(math.Floor(edgeOf(max((bar.From+bar.To)/2, 1)) - first))
		counts[min(max(i, 0), n-1)] += float64(bar.Count)
	}
	return counts
}

// overTime are the plots by window.
func overTime(r *loadgen.Result) []draw.Figure {
	at := func(w *loadgen.Window) float64 { return w.Start.Sub(r.Started).Seconds() }
	line := func(name string, y func(*loadgen.Window) float64) draw.Series {
		s := draw.Series{Name: name}
		for i := range r.Windows {
			s.Points = append(s.Points, draw.Point{X: at(&r.Windows[i]), Y: y(&r.Windows[i])})
		}
		return s
	}
	rate := func(n func(*loadgen.Window) uint64) func(*loadgen.Window) float64 {
		return func(w *loadgen.Window) float64 { return float64(n(w)) / w.Length.Seconds() }
	}
	p := func(q float64) func(*loadgen.Window) float64 {
		return func(w *loadgen.Window) float64 {
			if w.Response == nil || w.Response.TotalCount() == 0 {
				return math.NaN()
			}
			return float64(w.Response.ValueAtPercentile(q*100)) / 1e6
		}
	}
	time := draw.Axis{Label: "time since the start", Unit: draw.Seconds}
	rates := &draw.Plot{Title: "Rate", X: time, Y: draw.Axis{Unit: draw.PerSec}}
	if r.Total.Offered > 0 {
		rates.Series = append(rates.Series,
			line("offered", rate(func(w *loadgen.Window) uint64 { return w.Offered })),
			line("completed", rate((*loadgen.Window).Answered)))
	}
	if r.Total.Delivery != nil {
		rates.Series = append(rates.Series, line("received", rate(func(w *loadgen.Window) uint64 {
			if w.Delivery == nil {
				return 0
			}
			return w.Delivery.Received
		})))
	}
	if errorCount(&r.Total) > 0 {
		s := line("errors", rate(errorCount))
		s.Color = 5
		rates.Series = append(rates.Series, s)
	}
	figures := []draw.Figure{{Drawing: rates}}
	if r.Total.Response != nil {
		figures = append(figures,
			draw.Figure{Drawing: &draw.Plot{Title: "Response", X: time, Y: draw.Axis{Unit: draw.Seconds, Scale: draw.Log},
				Series: []draw.Series{line("P50", p(0.5)), line("P95", p(0.95)), line("P99", p(0.99))}}},
			draw.Figure{Drawing: responseHeat(r, time), Caption: "Each column is a window, each cell a sixteenth of a factor of ten; the stronger, the more answers took that long."})
	}
	return append(figures, draw.Figure{Drawing: &draw.Grid{Drawings: []draw.Drawing{
		&draw.Plot{Title: "In flight", X: time, Series: []draw.Series{line("in flight", func(w *loadgen.Window) float64 { return w.InFlight })}},
		&draw.Plot{Title: "Connections", X: time, Series: []draw.Series{line("connections", func(w *loadgen.Window) float64 { return w.Conns })}},
	}}})
}

func responseHeat(r *loadgen.Result, x draw.Axis) *draw.Heat {
	h := &draw.Heat{Title: "Response, all of it", X: x, Y: draw.Axis{Unit: draw.Seconds, Scale: draw.Log}}
	all := r.Total.Response
	if all == nil || all.TotalCount() == 0 || len(r.Windows) == 0 {
		return h
	}
	first := math.Floor(edgeOf(max(all.Min(), 1)))
	n := max(int(math.Ceil(edgeOf(max(all.Max(), 1))+1e-9)-first), 1)
	for i := 0; i <= n; i++ {
		h.YEdges = append(h.YEdges, binEdge(first+float64(i)))
	}
	// More columns than pixels would only be bytes.
	per := (len(r.Windows) + 239) / 240
	for group := range slices.Chunk(r.Windows, per) {
		column := make([]float64, n)
		for i := range group {
			for k, c := range binned(group[i].Response, first, n) {
				column[k] += c
			}
		}
		last := &group[len(group)-1]
		if len(h.XEdges) == 0 {
			h.XEdges = append(h.XEdges, group[0].Start.Sub(r.Started).Seconds())
		}
		h.XEdges = append(h.XEdges, last.Start.Add(last.Length).Sub(r.Started).Seconds())
		h.Values = append(h.Values, column)
	}
	return h
}

// validity is what reports whether the numbers can be trusted.
func validity(r *loadgen.Result) []draw.Block {
	at := func(w *loadgen.Window) float64 { return w.Start.Sub(r.Started).Seconds() }
	generator, host := draw.StripRow{Name: "generator"}, draw.StripRow{Name: "host"}
	for i := range r.Windows {
		w := &r.Windows[i]
		span := draw.Span{From: at(w), To: at(w) + w.Length.Seconds(), State: draw.Good, Label: "ok"}
		g, h := span, span
		if w.Generator.Limited {
			g.State, g.Label = draw.Warn, "limited"
		}
		if w.Host.Steal > stealLimit {
			h.State, h.Label = draw.Unknown, "taken"
		}
		generator.Spans, host.Spans = joinSpan(generator.Spans, g), joinSpan(host.Spans, h)
	}
	table := &draw.Table{Columns: []draw.Column{{Name: "", Left: true}, {Name: "", Left: true}}}
	table.Add("generator", generatorLine(&r.Total))
	if line := useLine(r); line != "" {
		table.Add("target", line)
	}
	table.Add("machine", machineLine(r.Machine))
	table.Add("meanwhile", hostLine(r.Total.Host))
	limits := make([]string, 0, len(r.Machine.Limits))
	for k, v := range r.Machine.Limits {
		limits = append(limits, k+" "+v)
	}
	slices.Sort(limits)
	table.Add("limits", strings.Join(limits, ", "))
	table.Add("seed", fmt.Sprint(r.Spec.Seed))
	return []draw.Block{
		draw.Heading("Can it be trusted?"),
		draw.Figure{Drawing: &draw.Strip{Title: "Windows", X: draw.Axis{Unit: draw.Seconds}, Rows: []draw.StripRow{generator, host}},
			Caption: "A window in which the generator was the limit, or another machine took more than 1 % of the processors, says nothing about the target."},
		table,
	}
}

func joinSpan(spans []draw.Span, s draw.Span) []draw.Span {
	if n := len(spans); n > 0 && spans[n-1].State == s.State {
		spans[n-1].To = s.To
		return spans
	}
	return append(spans, s)
}
