package main

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// times is a histogram of n answers: service spread evenly on a log scale from lo
// to hi, in microseconds.
func times(n int, lo, hi float64) *hdrhistogram.Histogram {
	h := hdrhistogram.New(1, int64(time.Hour/time.Microsecond), 3)
	for i := range n {
		f := (float64(i) + 0.5) / float64(n)
		_ = h.RecordValue(int64(lo * math.Pow(hi/lo, f*f*f)))
	}
	return h
}

// aRun is a run of windows of a second, each of n answers between half a
// millisecond and hi.
func aRun(n int, hi ...float64) *loadgen.Result {
	r := &loadgen.Result{
		Version: loadgen.Version,
		Spec:    loadgen.Spec{Kind: loadgen.HTTP, Target: "http://127.0.0.1:8080/<a>", Conns: 50, Rate: float64(n), Duration: time.Duration(len(hi)) * time.Second, Seed: 7},
		Started: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC),
		Machine: loadgen.Machine{Weir: "devel", OS: "linux", Kernel: "6.18", CPU: "Some CPU", CPUs: 2, MemoryMB: 4096, Go: "go1.26", Limits: map[string]string{"nofile": "1048576"}},
	}
	for i, h := range hi {
		w := loadgen.Window{
			Start: r.Started.Add(time.Duration(i+1) * time.Second), Length: time.Second, Load: loadgen.Load{Rate: float64(n)}, Conns: 50,
			Counts: loadgen.Counts{Offered: uint64(n), Sent: uint64(n), Completed: uint64(n)}, InFlight: 2,
			Times:   loadgen.Times{Response: times(n, 500, h), Service: times(n, 450, h*0.8), Lag: times(n, 5, 90)},
			Batches: []loadgen.Batch{{MeanResponse: 0.001, Completed: uint64(n), InFlight: 2}},
			BytesIn: 1000, BytesOut: 2000, Generator: loadgen.GeneratorState{CPU: 0.4, GCPauses: 120 * time.Microsecond},
			Host: loadgen.Host{Busy: 0.7, Pressure: 0.05},
		}
		r.Windows = append(r.Windows, w)
		r.Total.Merge(&w)
	}
	return r
}

func mustThresholds(t *testing.T, texts ...string) []threshold {
	t.Helper()
	ts, err := parseThresholds(texts)
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

func TestThresholdsAreRead(t *testing.T) {
	f := func(text, metric, op string, limit float64, share bool) {
		t.Helper()
		got := mustThresholds(t, text)[0]
		if got.metric != metric || got.op != op || math.Abs(got.limit-limit) > 1e-12 || got.share != share {
			t.Errorf("%q: %+v", text, got)
		}
	}
	f("p99<5ms", "p99", "<", 0.005, false)
	f(" p99.9 <= 1.5s ", "p99.9", "<=", 1.5, false)
	f("service.p50<200us", "service.p50", "<", 200e-6, false)
	f("service.p50<200µs", "service.p50", "<", 200e-6, false)
	f("mean<1ms", "mean", "<", 0.001, false)
	f("lag.max<1ms", "lag.max", "<", 0.001, false)
	f("errors<0.1%", "errors", "<", 0.001, true)
	f("errors==0", "errors", "==", 0, false)
	f("errors<5", "errors", "<", 5, false)
	f("lost==0", "lost", "==", 0, false)
	f("rate>=0.98", "rate", ">=", 0.98, true)
	f("rate>=98%", "rate", ">=", 0.98, true)
	f("reach>=1", "reach", ">=", 1, true)
	f("throughput>=1000", "throughput", ">=", 1000, false)
	f("throughput>=1000/s", "throughput", ">=", 1000, false)
	if got := mustThresholds(t, "p99<5ms, errors==0", "lost==0"); len(got) != 3 {
		t.Errorf("%d conditions, want 3", len(got))
	}
}

func TestThresholdsThatMeanNothingAreRefused(t *testing.T) {
	f := func(text, why string) {
		t.Helper()
		_, err := parseThresholds([]string{text})
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want %q", text, err, why)
		}
		if hintFor(err) != thresholdHint {
			t.Errorf("%q: no hint", text)
		}
	}
	f("", "not a condition")
	f("p99", "not a condition")
	f("p99<5", "needs a unit")
	f("p99<5%", "needs a unit")
	f("p99==5ms", "only a count")
	f("rate==1", "only a count")
	f("errors==0%", "only a count")
	f("p100<5ms", "not measured")
	f("p0<5ms", "not measured")
	f("speed<5ms", "not measured")
	f("lost<5ms", "does not fit")
	f("throughput>=5%", "does not fit")
	f("errors<0.5", "whole number")
	f("p99<1.2.3ms", "is not a number")
}

// The verdict of each condition on each run, and what the program ends with.
func TestRunsAreChecked(t *testing.T) {
	steady := func() *loadgen.Result { return aRun(2000, 4000, 4000, 4000, 4000, 4000, 4000, 4000, 4000, 4000, 4000) }
	f := func(name string, r *loadgen.Result, condition string, want, all outcome) {
		t.Helper()
		var ts []threshold
		if condition != "" {
			ts = mustThresholds(t, condition)
		}
		j := evaluateRun(r, ts)
		if len(ts) > 0 && j.Thresholds[0].Verdict != want || j.Verdict != all {
			t.Errorf("%s, %s: %+v", name, condition, j)
		}
	}
	with := func(r *loadgen.Result, change func(*loadgen.Result)) *loadgen.Result { change(r); return r }

	f("steady", steady(), "", "", pass)
	f("steady", steady(), "p99<5ms", pass, pass)
	f("steady", steady(), "p99<2ms", fail, fail)
	f("steady", steady(), "rate>=0.98", pass, pass)
	f("steady", steady(), "throughput>=1900", pass, pass)
	f("steady", steady(), "throughput>=2000", inconclusive, inconclusive) // exactly that on average
	f("steady", steady(), "throughput>=2200", fail, fail)
	f("steady", steady(), "errors<0.1%", pass, pass)
	f("steady", steady(), "errors<0.001%", inconclusive, inconclusive) // needs 300,000
	f("steady", steady(), "errors==0", pass, pass)
	f("steady", steady(), "lost==0", inconclusive, inconclusive) // no streams

	// Samples.
	f("short", aRun(300, 4000, 4000), "p99<5ms", inconclusive, inconclusive)
	f("short", aRun(300, 4000, 4000), "p90<5ms", pass, pass)
	f("short", aRun(300, 4000, 4000), "p99<1ms", fail, fail)
	f("joined", aRun(300, 4000, 4000, 4000, 4000), "p99<5ms", pass, pass)
	f("long", aRun(2000, 4000, 4000, 4000), "p99.9<5ms", inconclusive, inconclusive)

	// A run that keeps a condition on the whole and breaks it in too many windows.
	spiky := aRun(2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 9000, 9000)
	f("spiky", spiky, "p95<4ms", fail, fail)
	f("one spike", aRun(2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 9000), "p95<4ms", pass, pass)

	// Validity.
	limited := func(n int) func(*loadgen.Result) {
		return func(r *loadgen.Result) {
			for i := range n {
				r.Windows[i].Generator = loadgen.GeneratorState{Limited: true, Why: "lag P99 20ms"}
			}
		}
	}
	f("limited a little", with(steady(), limited(2)), "p99<5ms", pass, pass)
	f("limited", with(steady(), limited(3)), "p99<5ms", pass, invalid)
	f("limited", with(steady(), limited(10)), "", "", invalid)
	f("stolen", with(steady(), func(r *loadgen.Result) {
		for i := range 3 {
			r.Windows[i].Host.Steal = 0.05
		}
	}), "p99<2ms", fail, inconclusive)
	f("crowded", with(steady(), func(r *loadgen.Result) {
		for i := range 3 {
			r.Windows[i].Generator = loadgen.GeneratorState{Limited: true, Crowded: true, Why: "this machine was busy"}
		}
	}), "p99<5ms", pass, invalid)
	f("partial", with(steady(), func(r *loadgen.Result) { r.Partial = true }), "p99<5ms", pass, inconclusive)
	f("nothing", with(steady(), func(r *loadgen.Result) { r.Total.Completed = 0 }), "", "", fail)

	// Messages.
	lossy := func(r *loadgen.Result) {
		r.Total.Delivery = &loadgen.Delivery{Expected: 1000, Received: 999, Lost: 1, Reach: 0.9}
	}
	f("lossy", with(steady(), lossy), "lost==0", fail, fail)
	f("lossy and limited", with(with(steady(), lossy), limited(10)), "lost==0", fail, fail)
	f("lossy", with(steady(), lossy), "repeated==0", pass, pass)
	silent := func(r *loadgen.Result) {
		r.Total.Delivery = &loadgen.Delivery{Expected: 1000, Received: 990, Late: 3, Reach: 1}
	}
	f("silent", with(steady(), silent), "lost==0", inconclusive, inconclusive)
	f("silent", with(steady(), silent), "lost<5%", pass, pass)
	f("silent", with(steady(), silent), "late==0", fail, fail)
	f("lossy", with(steady(), lossy), "reach>=0.99", fail, fail)
}

func TestEachVerdictHasItsStatus(t *testing.T) {
	f := func(v outcome, want int) {
		t.Helper()
		if got := report(&bytes.Buffer{}, nil, exitWith(v.exit())); got != want {
			t.Errorf("%s: status %d, want %d", v, got, want)
		}
	}
	f(pass, 0)
	f(fail, 1)
	f(inconclusive, 2)
	f(invalid, 3)
	var b bytes.Buffer
	if got := report(&b, newBench(), &exitError{exitUsage, usage("do that", "wrong")}); got != 64 || b.String() != "weir: wrong\nhint: do that\n" {
		t.Errorf("status %d, %q", got, b.String())
	}
}

func TestRatesStagesAndArrivalsAreRead(t *testing.T) {
	rate := func(text string, want float64) {
		t.Helper()
		if got, err := parseRate(text); err != nil || math.Abs(got-want) > 1e-9 {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	rate("1000", 1000)
	rate("2.5k", 2500)
	rate("1M", 1e6)
	rate("2k/s", 2000)
	rate("90/m", 1.5)
	for _, bad := range []string{"", "k", "-1", "NaN", "Inf", "1 000", "fast"} {
		if v, err := parseRate(bad); err == nil {
			t.Errorf("%q: %v", bad, v)
		}
	}
	stages := func(text string, want ...loadgen.Stage) {
		t.Helper()
		if got, err := parseStages(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	stages("30s:1000", loadgen.Stage{Duration: 30 * time.Second, Rate: 1000})
	stages("30s:1k, 1m:-:500", loadgen.Stage{Duration: 30 * time.Second, Rate: 1000}, loadgen.Stage{Duration: time.Minute, Rate: -1, Conns: 500})
	for _, bad := range []string{"30s", "30:5", "30s:x", "30s:1:2:3", "30s:1:-2", ","} {
		if v, err := parseStages(bad); err == nil {
			t.Errorf("%q: %v", bad, v)
		}
	}
	arrival := func(text string, want loadgen.Arrival, n int) {
		t.Helper()
		if got, k, err := parseArrival(text); err != nil || got != want || k != n {
			t.Errorf("%q: %v %v %v", text, got, k, err)
		}
	}
	arrival("poisson", loadgen.Poisson, 0)
	arrival("uniform", loadgen.Uniform, 0)
	arrival("burst", loadgen.Burst, 0)
	arrival("burst:25", loadgen.Burst, 25)
	for _, bad := range []string{"", "burst:0", "burst:x", "poisson:3", "daily"} {
		if v, _, err := parseArrival(bad); err == nil {
			t.Errorf("%q: %v", bad, v)
		}
	}
}

func TestTheKindIsGuessedWhereOnlyOneMakesSense(t *testing.T) {
	f := func(target, adapter string, sends bool, want loadgen.Kind) {
		t.Helper()
		fl := targetFlags{arrival: "poisson", spec: loadgen.Spec{Adapter: adapter}}
		got, err := fl.kindFor(target, sends)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s %q %v: %q, %v", target, adapter, sends, got, err)
		}
	}
	f("http://h/", "", false, loadgen.HTTP)
	f("https://h/", "plain", true, loadgen.HTTP)
	f("ws://h/", "", true, loadgen.Echo)
	f("ws://h/", "", false, "")
	f("ws://h/", "centrifuge", true, loadgen.PubSub)
	f("http://h/", "weir", true, loadgen.PubSub)
	f("127.0.0.1:80", "", true, "")
}

// A result written with its verdict is still a result.
func TestAResultIsReadBackWithoutItsVerdict(t *testing.T) {
	r := aRun(1000, 4000, 5000)
	var b bytes.Buffer
	if err := writeResult(&b, r, evaluateRun(r, mustThresholds(t, "p99<5ms", "lost==0"))); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), `"verdict":{"verdict":"inconclusive"`) {
		t.Error("the verdict is not there")
	}
	got, err := loadgen.ReadResult(&b)
	if err != nil || got.Total.Completed != r.Total.Completed || got.Total.Response.ValueAtPercentile(99) != r.Total.Response.ValueAtPercentile(99) {
		t.Errorf("%v, %v", got, err)
	}
}

// golden compares with testdata/name, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what is printed (%v); look at the difference, then run: go test ./cmd/weir -update\n%s", path, err, got)
	}
}

// A run with every field set.
func fullRun() *loadgen.Result {
	r := aRun(2000, 3000, 3200, 3100, 9000, 3000, 2900)
	r.Windows[3].Generator = loadgen.GeneratorState{Limited: true, Why: "lag P99 12ms"}
	r.Windows[4].Host.Steal = 0.03
	r.Total = loadgen.Window{}
	for i := range r.Windows {
		r.Total.Merge(&r.Windows[i])
	}
	r.Total.Completed -= 5
	r.Total.Errors = map[string]uint64{"timeout": 3, "status 503": 2}
	r.Total.Delivery = &loadgen.Delivery{Published: 100, Expected: 5000, Received: 4998, Lost: 2, Gaps: 1, Reconnects: 3, Resumed: 2, Reach: 0.98, Closes: map[string]uint64{"1012": 3}}
	return r
}

func TestReportsAreAsTheyWere(t *testing.T) {
	r := fullRun()
	j := evaluateRun(r, mustThresholds(t, "p99<5ms", "p99.99<5ms", "errors==0", "lost==0", "rate>=0.98"))
	var text, page bytes.Buffer
	if err := benchText(&text, r, j); err != nil {
		t.Fatal(err)
	}
	golden(t, "bench.txt", text.Bytes())
	if err := benchPage(r, j).HTML(&page); err != nil {
		t.Fatal(err)
	}
	// The page's pieces, not its pixels: internal/measure/report holds those.
	for _, want := range []string{"Load on http://127.0.0.1:8080/&lt;a&gt;", ">FAIL<", "Time by percentile", "Response, all of it", "lag P99 12ms", `id="data"`, "script-src"} {
		if has := strings.Contains(page.String(), want); has != (want != "script-src") {
			t.Errorf("the page has %q: %v", want, has)
		}
	}
}

// What has nothing in it is drawn too.
func TestAnEmptyRunIsReported(t *testing.T) {
	r := &loadgen.Result{Version: 1, Spec: loadgen.Spec{Kind: loadgen.SSE, Target: "http://h/"}, Partial: true}
	j := evaluateRun(r, mustThresholds(t, "p99<5ms", "errors<1%", "rate>=1", "throughput>=1", "reach>=1"))
	if j.Verdict != inconclusive {
		t.Errorf("%+v", j)
	}
	var b bytes.Buffer
	if err := errors.Join(benchText(&b, r, j), benchPage(r, j).HTML(&b), writeResult(&b, r, j)); err != nil {
		t.Error(err)
	}
}

func FuzzThresholds(f *testing.F) {
	for _, s := range []string{"p99<5ms", "errors<0.1%", "rate>=0.98", "lost==0,late<3", "service.p99.9<=1s", "p99<9999999999999h"} {
		f.Add(s)
	}
	r := aRun(100, 2000)
	f.Fuzz(func(t *testing.T, text string) {
		ts, err := parseThresholds([]string{text})
		if err != nil {
			return
		}
		j := evaluateRun(r, ts)
		if _, err := withVerdict(r, j); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		for _, c := range j.Thresholds {
			_ = c.found()
		}
	})
}

func TestSnapshotsOfWorkersAddUp(t *testing.T) {
	w := func(conns int, p99 time.Duration) *worker {
		return &worker{known: true, last: loadgen.Snapshot{
			Phase: "measuring", Conns: conns, P99: p99, Delivery: &loadgen.Delivery{Published: 1, Expected: 10, Received: 8, Late: 2, Reach: 0.5},
		}}
	}
	s := together([]*worker{w(3, time.Second), w(4, time.Millisecond), {}})
	if s.Conns != 7 || s.P99 != time.Second || s.Delivery == nil {
		t.Fatalf("%+v", s)
	}
	if d := s.Delivery; d.Published != 2 || d.Expected != 20 || d.Received != 16 || d.Late != 4 || d.Reach != 0.5 {
		t.Errorf("%+v", d)
	}
}
