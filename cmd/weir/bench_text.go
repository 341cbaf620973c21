package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/pflag"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// addOutputs defines the files that all commands which measure can write.
func addOutputs(fs *pflag.FlagSet, json, html *string) {
	fs.StringVar(json, "json", "", "write the result to this `file` as JSON; - is standard output")
	fs.StringVar(html, "html", "", "write a report to this `file`, a single self-contained page")
}

// benchText prints a result.
func benchText(w io.Writer, r *loadgen.Result, j runVerdict) error {
	var b bytes.Buffer
	t := &r.Total
	fmt.Fprintf(&b, "%s\n%s\n\n", r.Spec.Target, describe(r.Spec))
	counts := countsTable(r)
	if err := counts.Text(&b, "  "); err != nil {
		return err
	}
	if times := timesTable(t); len(times.Rows) > 0 {
		b.WriteString("\n")
		if err := times.Text(&b, "  "); err != nil {
			return err
		}
		if t.Service != nil {
			b.WriteString("  response counts from the intended instant, service from the real send, lag is the generator's own\n")
		}
	}
	b.WriteString("\n")
	for _, l := range errorLines(t) {
		fmt.Fprintf(&b, "  errors     %s\n", l)
	}
	for _, l := range deliveryLines(t.Delivery) {
		fmt.Fprintf(&b, "  delivery   %s\n", l)
	}
	fmt.Fprintf(&b, "  generator  %s\n", generatorLine(t))
	if line := useLine(r); line != "" {
		fmt.Fprintf(&b, "  target     %s\n", line)
	}
	fmt.Fprintf(&b, "  machine    %s\n", machineLine(r.Machine))
	fmt.Fprintf(&b, "  meanwhile  %s\n", hostLine(t.Host))
	b.WriteString("\n")
	verdictText(&b, j)
	_, err := w.Write(b.Bytes())
	return err
}

func verdictText(b *bytes.Buffer, j runVerdict) {
	word := strings.ToUpper(string(j.Verdict))
	if len(j.Thresholds) == 0 && j.Verdict == pass {
		word = "measured, no threshold given"
	}
	fmt.Fprintf(b, "%s\n", word)
	for _, why := range j.Why {
		fmt.Fprintf(b, "  %s\n", why)
	}
	table := &draw.Table{Columns: []draw.Column{{Name: "", Left: true}, {Name: "", Left: true}, {Name: "", Left: true}}}
	for _, c := range j.Thresholds {
		table.Add(strings.ToUpper(string(c.Verdict)), c.Text, c.found())
	}
	if len(table.Rows) > 0 {
		var lines bytes.Buffer
		_ = table.Text(&lines, "  ") // a buffer accepts everything
		_, rest, _ := strings.Cut(lines.String(), "\n")
		b.WriteString(rest)
	}
}

// describe is a Spec in a line.
func describe(s loadgen.Spec) string {
	s = s.WithDefaults()
	parts := []string{string(s.Kind)}
	if s.Adapter != "plain" {
		parts[0] += " (" + s.Adapter + ")"
	}
	if s.Kind == loadgen.HTTP {
		parts[0] = s.Method + " over HTTP/" + s.Version
		if s.Pipeline > 1 {
			parts[0] += fmt.Sprintf(", %d outstanding", s.Pipeline)
		}
	}
	parts = append(parts, plural(s.Conns, "connection"))
	length := s.Duration.String()
	if s.Requests > 0 {
		length = draw.Grouped(uint64(s.Requests)) + " requests"
		if s.Duration < 24*time.Hour {
			length += " or " + s.Duration.String()
		}
	}
	switch {
	case len(s.Stages) > 0:
		var st []string
		for _, g := range s.Stages {
			st = append(st, stageText(g))
		}
		parts = append(parts, "stages "+strings.Join(st, ", "))
	case s.Closed:
		parts = append(parts, fmt.Sprintf("closed loop of %d", s.Concurrency), length)
	case s.Rate > 0:
		arrival := string(s.Arrival)
		if s.Arrival == loadgen.Burst {
			arrival = fmt.Sprintf("bursts of %d", s.Burst)
		}
		parts = append(parts, "open model "+draw.PerSec.Format(s.Rate)+" "+arrival, length)
	default:
		parts = append(parts, length)
	}
	if s.Warmup == 0 {
		return strings.Join(parts, ", ")
	}
	return strings.Join(parts, ", ") + " after " + s.Warmup.String()
}

func stageText(g loadgen.Stage) string {
	s := g.Duration.String() + " to "
	if g.Rate >= 0 {
		s += draw.PerSec.Format(g.Rate)
	} else {
		s += "the same rate"
	}
	if g.Conns > 0 {
		s += " on " + plural(g.Conns, "connection")
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return draw.Grouped(uint64(n)) + " " + what + "s"
}

// countsTable is what became of the arrivals.
func countsTable(r *loadgen.Result) *draw.Table {
	t := &r.Total
	table := &draw.Table{Columns: []draw.Column{{Name: "", Left: true}, {Name: "count"}, {Name: "per second"}, {Name: "share"}}}
	add := func(name string, n uint64, always bool) {
		if n == 0 && !always {
			return
		}
		share := ""
		if t.Offered > 0 {
			share = draw.Share.Format(float64(n) / float64(t.Offered))
		}
		rate := "–"
		if s := t.Length.Seconds(); s > 0 {
			rate = perSecond(float64(n) / s)
		}
		table.Add(name, draw.Grouped(n), rate, share)
	}
	exchanges := t.Offered > 0 || t.Delivery == nil
	add("offered", t.Offered, exchanges)
	add("sent", t.Sent, exchanges)
	add("completed", t.Completed, exchanges)
	add("drained", t.Drained, false)
	if t.Carried > 0 {
		add("answered, with the warm-up's", t.Answered(), true)
	}
	add("dropped", t.Dropped, exchanges)
	add("errors", errorCount(t), true)
	if t.Delivery != nil {
		share := ""
		if t.Delivery.Expected > 0 {
			share = draw.Share.Format(float64(t.Delivery.Received) / float64(t.Delivery.Expected))
		}
		table.Add("received", draw.Grouped(t.Delivery.Received), perSecond(float64(t.Delivery.Received)/max(t.Length.Seconds(), 1e-9)), share)
	}
	return table
}

// perSecond writes a rate in full where that is short enough to be read.
func perSecond(v float64) string {
	if v >= 1000 && v < 1e7 {
		return draw.Grouped(uint64(v+0.5)) + "/s"
	}
	return draw.PerSec.Format(v)
}

// The percentiles that are printed.
var printed = []float64{0.5, 0.9, 0.95, 0.99, 0.999, 0.9999}

// timesTable is the percentiles; one that its n does not carry is "–".
func timesTable(w *loadgen.Window) *draw.Table {
	table := &draw.Table{Columns: []draw.Column{{Name: "", Left: true}, {Name: "n"}, {Name: "mean"}}}
	for _, q := range printed {
		table.Columns = append(table.Columns, draw.Column{Name: fmt.Sprintf("P%g", q*100)})
	}
	table.Columns = append(table.Columns, draw.Column{Name: "max"})
	for _, h := range []struct {
		name string
		h    *hdrhistogram.Histogram
	}{{"response", w.Response}, {"service", w.Service}, {"publish", w.Publish}, {"lag", w.Lag}, {"connect", w.Connect}} {
		if h.h == nil || h.h.TotalCount() == 0 {
			continue
		}
		row := []string{h.name, draw.Grouped(uint64(h.h.TotalCount())), draw.Seconds.Format(h.h.Mean() / 1e6)}
		for _, q := range printed {
			row = append(row, atQuantile(h.h, q))
		}
		table.Add(append(row, draw.Seconds.Format(float64(h.h.Max())/1e6))...)
	}
	return table
}

func atQuantile(h *hdrhistogram.Histogram, q float64) string {
	if h == nil || !stat.EnoughSamples(int(h.TotalCount()), q) {
		return "–"
	}
	return draw.Seconds.Format(float64(h.ValueAtPercentile(q*100)) / 1e6)
}

// errorLines are the errors by number, the commonest first.
func errorLines(w *loadgen.Window) []string {
	reasons := slices.SortedFunc(maps.Keys(w.Errors), func(a, b string) int {
		return cmp.Or(cmp.Compare(w.Errors[b], w.Errors[a]), cmp.Compare(a, b))
	})
	var lines []string
	for i, r := range reasons {
		if i == 8 {
			lines = append(lines, fmt.Sprintf("%d further reasons", len(reasons)-i))
			break
		}
		lines = append(lines, draw.Grouped(w.Errors[r])+" × "+r)
	}
	return lines
}

func deliveryLines(d *loadgen.Delivery) []string {
	if d == nil {
		return nil
	}
	lines := []string{fmt.Sprintf("published %s, expected %s, received %s, worst message reached %s of its subscribers",
		draw.Grouped(d.Published), draw.Grouped(d.Expected), draw.Grouped(d.Received), draw.Share.Format(d.Reach))}
	lines = append(lines, fmt.Sprintf("lost %s, repeated %s, reordered %s, late %s, gap events %s",
		draw.Grouped(d.Lost), draw.Grouped(d.Repeated), draw.Grouped(d.Reordered), draw.Grouped(d.Late), draw.Grouped(d.Gaps)))
	if d.Reconnects > 0 || len(d.Closes) > 0 {
		var closes []string
		for _, k := range slices.Sorted(maps.Keys(d.Closes)) {
			closes = append(closes, fmt.Sprintf("%s × %s", draw.Grouped(d.Closes[k]), k))
		}
		lines = append(lines, strings.TrimSuffix(fmt.Sprintf("reconnects %s, resumed %s; ended by the server: %s",
			draw.Grouped(d.Reconnects), draw.Grouped(d.Resumed), strings.Join(closes, ", ")), "; ended by the server: "))
	}
	if d.Foreign > 0 {
		lines = append(lines, draw.Grouped(d.Foreign)+" messages of others")
	}
	return lines
}

func generatorLine(w *loadgen.Window) string {
	s := fmt.Sprintf("%.2f cores", w.Generator.CPU)
	if w.Lag != nil && w.Lag.TotalCount() > 0 {
		s += ", lag P99 " + draw.Seconds.Format(float64(w.Lag.ValueAtPercentile(99))/1e6)
	}
	s += ", stopped by its collector for " + short(w.Generator.GCPauses).String()
	if w.Generator.Limited {
		first, _, more := strings.Cut(w.Generator.Why, "; ")
		if more {
			first += ", and the like"
		}
		s += "; was the limit at times: " + first
	}
	return s
}

func machineLine(m loadgen.Machine) string {
	parts := []string{fmt.Sprintf("%d × %s", m.CPUs, cmp.Or(m.CPU, "processor"))}
	if m.MemoryMB > 0 {
		parts = append(parts, draw.Bytes.Format(float64(m.MemoryMB)*(1<<20)))
	}
	return strings.Join(append(parts, strings.TrimSpace(m.OS+" "+m.Kernel), m.Go, "weir "+m.Weir), ", ")
}

// useLine is what the target used, where it was looked into.
func useLine(r *loadgen.Result) string {
	u := totalUse(r.Uses)
	var parts []string
	if cost := cpuCost(r); cost > 0 {
		parts = append(parts, fmt.Sprintf("%.2f cores, %s of processor time per answer", u.cpu/u.seconds, draw.Seconds.Format(cost)))
	}
	if u.gcOf > 0 {
		parts = append(parts, draw.Share.Format(u.gc/u.gcOf)+" of its processors for the collector")
	}
	if len(u.rss) > 0 {
		parts = append(parts, draw.Bytes.Format(stat.Median(u.rss))+" resident")
	}
	return strings.Join(parts, ", ")
}

func hostLine(h loadgen.Host) string {
	return fmt.Sprintf("processors %s in use, %s taken by other machines, pressure %s",
		draw.Share.Format(h.Busy), draw.Share.Format(h.Steal), draw.Share.Format(h.Pressure))
}

// since is a duration for a view that counts seconds.
func since(d time.Duration) string { return d.Round(time.Second).String() }
