package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// aSearch is a search with every field set.
func aSearch() search {
	known := func(lo, p, hi float64) capacity.Limit {
		return capacity.Limit{Known: true, Rate: stat.Interval{Point: p, Lo: lo, Hi: hi, N: 5}, Bracket: [2]float64{lo, hi}, Confidence: "high"}
	}
	level := func(rate, p99 float64, d capacity.Decision) capacity.Level {
		return capacity.Level{
			Rate: rate, Windows: 3, Offered: rate, Completed: min(rate, 1450), Response: capacity.Summary{P50: p99 / 5, P95: p99 / 2, P99: p99, N: int(rate * 2)},
			Service: capacity.Summary{P99: 0.024}, InFlight: 6.5, Runtime: &capacity.Runtime{Goroutines: 57}, Knee: d, SLO: d,
		}
	}
	r := &capacity.Report{
		Version: 1, Started: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Verdict: capacity.Pass, Reasons: []string{"the estimates agree"}, Notes: []string{"stairs: cut short by the cap on time"},
		Options: capacity.Options{Mode: capacity.Quick, SLO: 50 * time.Millisecond, Kappa: 2.5}, Requests: 96993, Quantile: 0.99, Threshold: 0.058,
		Max: known(1430, 1452, 1475), SLO: capacity.Limit{By: "no level could be decided"}, Knee: known(1343, 1351, 1362), Recommended: 1017, RhoKnee: 0.93, Cliff: 2500,
		Base: capacity.Baseline{Rate: 137, Latency: stat.Interval{Point: 0.0232}}, Qualify: capacity.Qualify{HostCV: 0.004},
		Rule:    capacity.Rule{Exposed: true, Bracket: [2]float64{1259, 1574}, Literal: 1574, Step: 1.25},
		Levels:  []capacity.Level{level(1000, 0.0236, capacity.Passes), level(1574, 0.216, capacity.Fails)},
		Confirm: &capacity.Confirm{HoldRate: 1216, Held: 10 * time.Second, HoldWindows: 5, BreakRate: 1486, BreakWindows: 3, Breaks: 2, BurstRate: 4000, Recovery: 1.5},
		Model: capacity.Model{CPUCost: 0.2, CPUCapacity: 5000, ScaleAxis: "in flight", Agreement: []capacity.Agreement{{Name: "rule", OK: true, Text: "first inflection at 1574/s"}, {Name: "cpu", Text: "5000/s against 1452/s"}},
			Scaling: stat.Scaling{USL: stat.USLFit{MaxN: 530, AtMax: 1427}}},
	}
	r.Size(capacity.Demand{Clients: 5000, PerClient: 0.2, Price: 40}, 1, 50)
	r.Levels[1].Fault = "throughput: completed 1446/s of 1574/s"
	return search{target: "http://127.0.0.1:8080/", spec: loadgen.Spec{Kind: loadgen.HTTP, Target: "http://127.0.0.1:8080/", Conns: 50}, r: r, took: 108 * time.Second}
}

func TestSearchesAreReportedAsTheyWere(t *testing.T) {
	var b bytes.Buffer
	if err := kneeText(&b, aSearch()); err != nil {
		t.Fatal(err)
	}
	golden(t, "knee.txt", b.Bytes())
	// One that found nothing.
	b.Reset()
	s := aSearch()
	s.r = &capacity.Report{Verdict: capacity.Invalid, Reasons: []string{"nothing was measured"}}
	if err := kneeText(&b, s); err != nil || !strings.Contains(b.String(), "INVALID\n  nothing was measured\n") {
		t.Errorf("%v, %s", err, b.String())
	}
}

func TestKneeReportsItsProgress(t *testing.T) {
	v := &kneeLive{l: draw.NewLive(&bytes.Buffer{}), target: "http://h/"}
	w := &capacity.Window{Used: true, Obs: capacity.Observation{Length: 2 * time.Second, Load: capacity.Load{Rate: 1000}, Completed: 1990}}
	w.Obs.Response.P50.Point, w.Obs.Response.P99.Point = 0.004, 0.025
	e := capacity.Event{Phase: "stairs", Rate: 1000, Repeat: 2, Step: 3, Steps: 8, Elapsed: 30 * time.Second, Remaining: 30 * time.Second, Window: w, Text: "again"}
	v.show(e)
	f := func(want string) {
		t.Helper()
		if got := strings.Join(v.lines(e), "\n"); !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	f("http://h/  stairs  30s, about 30s to go  ━━━━━━━━━━──────────")
	f("  now   1,000/s, window 2   step 3 of about 8  again")
	f("  last  1,000/s offered, 995/s completed, P50 4 ms, P99 25 ms")
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() { w.Fault = "backlog: grows by 12/s" }, "  backlog: grows by 12/s"},
		{func() { w.Used, w.Discard = false, []string{"steal"} }, "  discarded: steal"},
		{func() { w.Void = "generator" }, "  void: generator"},
	} {
		c.change()
		v.show(e)
		f(c.want)
	}
}

func TestTheLiveViewSaysWhatIsSeen(t *testing.T) {
	v := newBenchLive(&bytes.Buffer{}, loadgen.Spec{Target: "http://h/"}, false)
	s := loadgen.Snapshot{Phase: "measuring", Elapsed: 5 * time.Second, Total: 10 * time.Second, Conns: 50, OfferedRate: 1000, CompletedRate: 990, InFlight: 3,
		Errors: 2, P50: time.Millisecond, P99: 4 * time.Millisecond, Limited: true, Delivery: &loadgen.Delivery{Published: 10, Received: 1000, Lost: 1}}
	v.show(s)
	s.Elapsed += time.Second
	v.show(s)
	got := strings.Join(v.lines(s), "\n")
	for _, want := range []string{"http://h/  measuring  6s of 10s ━━━━━━━━━━━━────────", "1,000 received, 10 published, in flight 3, connections 50", "P50 1 ms  P95 –  P99 4 ms", "errors    2   dropped 0   lost 1", "the generator is the limit", "rate ██"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}
