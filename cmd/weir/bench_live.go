package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	draw "github.com/weir-gateway/weir/internal/measure/report"
)

// sparkColumns is how much of the past the live view keeps.
const sparkColumns = 24

// A benchLive is bench's live view. show is called by one goroutine at a time.
type benchLive struct {
	l      *draw.Live
	target string

	rates, p99s []float64 // of the last seconds
	sampled     time.Duration
}

func newBenchLive(w io.Writer, spec loadgen.Spec, quiet bool) *benchLive {
	return &benchLive{l: newLive(w, quiet), target: spec.Target, sampled: -time.Second}
}

// newLive is a view on w that shows nothing with quiet.
func newLive(w io.Writer, quiet bool) *draw.Live {
	if quiet {
		w = io.Discard
	}
	return draw.NewLive(w)
}

// follow shows snapshots until stop is called, which waits for the last one.
func (v *benchLive) follow(snapshot func() loadgen.Snapshot) (stop func()) {
	if !v.l.Enabled() {
		return func() {}
	}
	return repeat(context.Background(), 250*time.Millisecond, func(context.Context, time.Time) { v.show(snapshot()) })
}

func (v *benchLive) end() { v.l.Clear() }

func (v *benchLive) show(s loadgen.Snapshot) {
	if s.Elapsed-v.sampled >= time.Second {
		v.sampled = s.Elapsed
		v.rates = append(v.rates, s.CompletedRate)
		v.p99s = append(v.p99s, s.P99.Seconds())
		if len(v.rates) > sparkColumns {
			v.rates, v.p99s = v.rates[1:], v.p99s[1:]
		}
	}
	v.l.Show(v.lines(s)...)
}

func (v *benchLive) lines(s loadgen.Snapshot) []string {
	head := v.target + "  " + s.Phase
	if s.Total > 0 {
		head += "  " + progress(s.Elapsed, s.Total)
	} else {
		head += "  " + since(s.Elapsed)
	}
	lines := []string{head}
	rate := fmt.Sprintf("%s completed, %s offered", draw.PerSec.Format(s.CompletedRate), draw.PerSec.Format(s.OfferedRate))
	if d := s.Delivery; d != nil {
		rate = fmt.Sprintf("%s received, %s published", draw.Grouped(d.Received), draw.Grouped(d.Published))
	}
	lines = append(lines,
		"  rate      "+rate+fmt.Sprintf(", in flight %d, connections %d", s.InFlight, s.Conns),
		fmt.Sprintf("  response  P50 %s  P95 %s  P99 %s   service P99 %s   lag P99 %s",
			secs(s.P50.Seconds()), secs(s.P95.Seconds()), secs(s.P99.Seconds()), secs(s.ServiceP99.Seconds()), secs(s.LagP99.Seconds())),
		"  errors    "+v.count(s.Errors, draw.Bad)+"   dropped "+v.count(s.Dropped, draw.Warn)+v.breaks(s.Delivery)+v.limited(s))
	if len(v.rates) > 1 {
		lines = append(lines, "  "+v.l.Dim("rate ")+draw.Spark(v.rates, sparkColumns)+v.l.Dim("   P99 ")+draw.Spark(v.p99s, sparkColumns))
	}
	return lines
}

func (v *benchLive) count(n uint64, s draw.State) string {
	if n == 0 {
		return "0"
	}
	return v.l.Paint(s, draw.Grouped(n))
}

func (v *benchLive) breaks(d *loadgen.Delivery) string {
	if d == nil {
		return ""
	}
	return "   lost " + v.count(d.Lost, draw.Bad) + "   repeated " + v.count(d.Repeated, draw.Bad) + "   reordered " + v.count(d.Reordered, draw.Bad)
}

func (v *benchLive) limited(s loadgen.Snapshot) string {
	if !s.Limited {
		return ""
	}
	return "   " + v.l.Paint(draw.Warn, "the generator is the limit")
}

// progress is "4s of 11s ━━━━───────".
func progress(elapsed, total time.Duration) string {
	return since(elapsed) + " of " + since(total) + " " + progressBar(elapsed, total)
}

func progressBar(elapsed, total time.Duration) string {
	const columns = 20
	full := min(max(int(elapsed*columns/max(total, 1)), 0), columns)
	return strings.Repeat("━", full) + strings.Repeat("─", columns-full)
}
