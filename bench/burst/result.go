package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// A phase is what became of one kind of publication in a piece of time.
type phase struct {
	Offered, Completed, Refused, Failed uint64
	P50, P95, P99                       float64 // milliseconds, of the answers to those that were published
	times                               *hdrhistogram.Histogram
}

func (p *phase) add(w *loadgen.Window) {
	p.Offered += w.Offered
	p.Completed += w.Completed + w.Drained
	for why, n := range w.Errors {
		if why == "status 503" {
			p.Refused += n
		} else {
			p.Failed += n
		}
	}
	p.Failed += w.Dropped
	if w.Response == nil {
		return
	}
	if p.times == nil {
		p.times = hdrhistogram.New(1, 60_000_000, 3)
	}
	p.times.Merge(w.Response)
}

// finish fills in the percentiles.
func (p *phase) finish() {
	if p.times == nil {
		return
	}
	at := func(q float64) float64 { return float64(p.times.ValueAtQuantile(q)) / 1000 }
	p.P50, p.P95, p.P99 = at(50), at(95), at(99)
}

// both is p with what q has.
func both(p, q phase) phase {
	p.Offered, p.Completed, p.Refused, p.Failed = p.Offered+q.Offered, p.Completed+q.Completed, p.Refused+q.Refused, p.Failed+q.Failed
	all := hdrhistogram.New(1, 60_000_000, 3)
	for _, h := range []*hdrhistogram.Histogram{p.times, q.times} {
		if h != nil {
			all.Merge(h)
		}
	}
	p.times = all
	p.finish()
	return p
}

// A result is what a run found.
type result struct {
	Options  string
	Capacity float64
	CPU      time.Duration
	// By phase: before, the burst, the two seconds after it, and the rest.
	Market, Orders, All [4]phase
	Goodput             float64 // the work that was done in the burst, of what can be
	Closed              uint64  // connections that ended
	Limited             []string
	// Delivered and Expected are the deliveries to all subscribers, of the whole run.
	Delivered, Expected uint64
	Load                string // the machine's load average at the end
	orders              float64
}

// recovery is how long the tail may take to be as before.
const recovery = 2 * time.Second

func (r *result) evaluate(o *options, market, orders *loadgen.Result) {
	for i, res := range []*loadgen.Result{market, orders} {
		to := &r.Market
		if i == 1 {
			to = &r.Orders
		}
		for k := range res.Windows {
			w := &res.Windows[k]
			at := w.Start.Sub(res.Windows[0].Start)
			n := 0
			switch {
			case at+w.Length <= o.settle:
			case at < o.settle:
				continue // the border is in it
			case at+w.Length <= o.settle+o.burst:
				n = 1
			case at < o.settle+o.burst:
				continue
			case at < o.settle+o.burst+recovery:
				n = 2
			default:
				n = 3
			}
			to[n].add(w)
			if w.Generator.Limited {
				r.Limited = append(r.Limited, fmt.Sprintf("%v: %s", at.Round(time.Millisecond), w.Generator.Why))
			}
		}
		for n := range to {
			to[n].finish()
		}
		t := &res.Total
		for why, n := range t.Errors {
			if strings.HasPrefix(why, "disconnect") || strings.HasPrefix(why, "connect") {
				r.Closed += n
			}
		}
		r.Closed += t.Reconnects
	}
	for n := range r.All {
		r.All[n] = both(r.Market[n], r.Orders[n])
	}
	r.Goodput = float64(r.All[1].Completed) / (r.Capacity * o.burst.Seconds())
	b, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		r.Load = strings.TrimSpace(string(b))
	}
}

func (r *result) print(w io.Writer) {
	fmt.Fprintf(w, "capacity %.0f/s, gateway CPU %v, load average %s\n", r.Capacity, r.CPU, r.Load)
	fmt.Fprintln(w, "phase       kind     offered  published  refused  failed     p50     p95     p99 ms")
	for n, name := range []string{"before", "burst", "first 2 s", "after"} {
		for _, k := range []struct {
			name string
			p    phase
		}{{"market", r.Market[n]}, {"orders", r.Orders[n]}, {"all", r.All[n]}} {
			fmt.Fprintf(w, "%-11s %-7s %8d  %9d %8d %7d %7.2f %7.2f %7.2f\n", name, k.name, k.p.Offered, k.p.Completed, k.p.Refused, k.p.Failed, k.p.P50, k.p.P95, k.p.P99)
		}
	}
	check := func(what string, ok bool, format string, args ...any) {
		verdict := "holds"
		if !ok {
			verdict = "FAILS"
		}
		fmt.Fprintf(w, "%-6s %s: %s\n", verdict, what, fmt.Sprintf(format, args...))
	}
	check("P95 of the admitted in the burst at most 15 ms", r.All[1].P95 <= 15, "%.2f ms (orders %.2f)", r.All[1].P95, r.Orders[1].P95)
	check("no order refused", r.Orders[1].Refused+r.Orders[1].Failed == 0, "%d of %d", r.Orders[1].Refused+r.Orders[1].Failed, r.Orders[1].Offered)
	check("goodput at least 0.95 of the capacity", r.Goodput >= 0.95, "%.3f", r.Goodput)
	check("P99 as before (x1.5) 2 s after", r.All[3].P99 <= 1.5*r.All[0].P99, "%.2f, before %.2f ms", r.All[3].P99, r.All[0].P99)
	check("no disconnects", r.Closed == 0, "%d", r.Closed)
	if r.Expected > 0 {
		check("every admitted message was delivered to all", r.Delivered == r.Expected, "%d of %d", r.Delivered, r.Expected)
	}
	if len(r.Limited) > 0 {
		fmt.Fprintf(w, "the generator was the limit in %d windows, the first: %s\n", len(r.Limited), r.Limited[0])
	}
}
