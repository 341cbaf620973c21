package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	draw "github.com/weir-gateway/weir/internal/measure/report"
)

// bend is how much more than the least an operation may cost before a curve bends there.
const bend = 1.15

// report prints the medians, and writes the page, the results and where the curves bend.
func report(o *options, points []point, w io.Writer) error {
	fmt.Fprintln(w, "\n| what | loops | connections | per second | µs of processor each (least to most) | P50 ms | P99 ms | KiB per connection |\n|---|---|---|---|---|---|---|---|")
	for i := range points {
		p := &points[i]
		m := p.median()
		least, most := p.spread()
		rate := fmt.Sprintf("%.0f", m.Rate)
		if p.Flat {
			rate += " (flat)"
		}
		fmt.Fprintf(w, "| %s | %d | %d | %s | %.2f (%.2f to %.2f) | %.2f | %.2f | %.1f |\n", p.Kind, p.Loops, p.Conns, rate, m.CPU, least, most, m.P50, m.P99, m.Memory/1024)
	}
	b, err := json.MarshalIndent(points, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.out, "curve.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	pg := &draw.Page{Title: "The runtime's cost curve", Footer: "Made by bench/curve. The numbers are in this file as JSON."}
	pg.Lead = fmt.Sprintf("Processor time of the gateway for each operation: %d processors, engine %s, %d rounds of %s, medians.", runtime.NumCPU(), o.engine, o.rounds, o.length)
	pg.Data = points
	pg.Blocks = append(pg.Blocks, draw.Heading("By loops, as much as can be done"), figure(o, points, false, "processor time each", func(m measurement) float64 { return m.CPU / 1e6 }, draw.Seconds),
		figure(o, points, false, "operations per second", func(m measurement) float64 { return m.Rate }, draw.PerSec),
		draw.Heading(fmt.Sprintf("By connections, at %.0f operations per second", o.rate)), figure(o, points, true, "processor time each", func(m measurement) float64 { return m.CPU / 1e6 }, draw.Seconds),
		figure(o, points, true, "P99", func(m measurement) float64 { return m.P99 / 1e3 }, draw.Seconds),
		figure(o, points, true, "memory for each connection", func(m measurement) float64 { return m.Memory }, draw.Bytes))
	for _, k := range o.kinds {
		text, growth := bends(o, points, k)
		fmt.Fprintln(w, text)
		pg.Blocks = append(pg.Blocks, draw.Heading("Where "+k+" bends"), draw.Text(text))
		if growth != "" {
			fmt.Fprintln(w, growth)
			pg.Blocks = append(pg.Blocks, draw.Code(growth))
		}
	}
	file, err := os.Create(filepath.Join(o.out, "curve.html"))
	if err != nil {
		return err
	}
	if err := pg.HTML(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// figure is a curve for each kind.
func figure(o *options, points []point, flat bool, title string, of func(measurement) float64, unit draw.Unit) draw.Figure {
	p := &draw.Plot{Title: title, X: draw.Axis{Label: "loops"}, Y: draw.Axis{Unit: unit}}
	if flat {
		p.X = draw.Axis{Label: "connections", Scale: draw.Log}
	}
	for _, k := range o.kinds {
		s := draw.Series{Name: k}
		for i := range points {
			if q := &points[i]; q.Kind == k && q.Flat == flat {
				x := float64(q.Loops)
				if flat {
					x = float64(q.Conns)
				}
				s.Points = append(s.Points, draw.Point{X: x, Y: of(q.median())})
			}
		}
		p.Series = append(p.Series, s)
	}
	return draw.Figure{Drawing: p}
}

// bends says from how many connections on an operation costs more, and which functions take it.
func bends(o *options, points []point, kind string) (text, growth string) {
	var base, last *point
	for i := range points {
		p := &points[i]
		if p.Kind != kind || !p.Flat {
			continue
		}
		if base == nil || p.median().CPU < base.median().CPU {
			base = p
		}
		last = p
	}
	if base == nil || base == last {
		return kind + ": does not bend within these numbers of connections", ""
	}
	from := 0
	for i := range points {
		p := &points[i]
		if p.Kind == kind && p.Flat && p.Conns > base.Conns && from == 0 && p.median().CPU > bend*base.median().CPU {
			from = p.Conns
		}
	}
	if from == 0 {
		return fmt.Sprintf("%s: does not bend: %.2f µs with %d connections, %.2f µs with %d", kind, base.median().CPU, base.Conns, last.median().CPU, last.Conns), ""
	}
	text = fmt.Sprintf("%s: from %d connections on an operation costs more than %.2f times what it costs with %d (%.2f µs; %.2f µs with %d). Functions that take more of the processor then:",
		kind, from, bend, base.Conns, base.median().CPU, last.median().CPU, last.Conns)
	return text, difference(base.profile(o), last.profile(o))
}

// difference is what of the processor functions take in one profile more than in another.
func difference(base, last string) string {
	cmd := exec.Command("go", "tool", "pprof", "-top", "-nodecount=14", "-diff_base", base, last)
	cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+os.TempDir())
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.Output()
	if err != nil {
		return fmt.Sprintf("(no difference of the profiles: %v; go tool pprof -top -diff_base %s %s)", err, base, last)
	}
	_, table, ok := strings.Cut(string(out), "\n      flat")
	if !ok {
		return string(out)
	}
	return "      flat" + table
}
