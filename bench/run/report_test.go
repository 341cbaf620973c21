package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAVerdictReadsTheMedian(t *testing.T) {
	f := func(m metric, weir, limit []float64, want string) {
		t.Helper()
		r := &result{scenario: &scenario{Name: "x", Metrics: []metric{m}}}
		for i := range weir {
			r.rounds = append(r.rounds, round{"weir": {"k": weir[i]}, "limit": {"k": limit[i]}})
		}
		m.Key = "k"
		if got := compareRow(m, "limit", r); got.Verdict != want {
			t.Errorf("%+v: weir %v, limit %v: %q, want %q", m, weir, limit, got.Verdict, want)
		}
	}
	f(metric{Target: 1.2}, []float64{1.2, 1, 9}, []float64{1, 1, 1}, "yes")
	f(metric{Target: 1.2}, []float64{1.3, 1, 9}, []float64{1, 1, 1}, "no")
	f(metric{}, []float64{9}, []float64{1}, "–")
	f(metric{Target: 450, Absolute: true}, []float64{450}, []float64{10}, "yes")
	f(metric{Target: 450, Absolute: true}, []float64{451}, []float64{0}, "no")
	f(metric{Target: 1.2}, []float64{1}, []float64{0}, "not run")
	f(metric{Target: 1.2}, nil, nil, "not run")
}

func TestANoisyRoundIsLeftOut(t *testing.T) {
	quiet := func(v float64) measure { return measure{"k": v, "cpu0_percent": 60, "server_percent": 50} }
	noisy := func(v float64) measure { return measure{"k": v, "cpu0_percent": 70, "server_percent": 50} }
	f := func(rounds []round, want []float64, wantKept int) {
		t.Helper()
		if x, _, kept := pairs(rounds, "k", "weir", "limit"); !slices.Equal(x, want) || kept != wantKept {
			t.Errorf("pairs = %v, %d kept; want %v, %d", x, kept, want, wantKept)
		}
	}
	f([]round{{"weir": quiet(1), "limit": quiet(1)}, {"weir": noisy(2), "limit": quiet(1)}}, []float64{1}, 1)
	f([]round{{"weir": quiet(1), "limit": noisy(1)}, {"weir": noisy(2), "limit": quiet(1)}}, []float64{1, 2}, 0)
	f([]round{{"weir": quiet(1)}, {"weir": quiet(2), "limit": quiet(1)}}, []float64{2}, 1)
}

func TestAReportIsNeverReplaced(t *testing.T) {
	dir := t.TempDir()
	rep := report{Facts: facts{Date: "2026-01-02 03:04 UTC"}, commands: map[string][]string{"weir x": {"taskset", "weir"}}}
	rep.add(&result{scenario: scenarios()[2], rounds: []round{{"weir": {"cpu_us": 2}, "limit": {"cpu_us": 1}, "nchan": {"cpu_us": 4}}},
		cannot: map[string]string{"centrifugo": "cannot do it"}})
	for _, want := range []string{"2026-01-02-a", "2026-01-02-a-2"} {
		path, err := rep.write(dir, "a")
		if err != nil || filepath.Base(path) != want {
			t.Fatalf("write = %s, %v; want %s", path, err, want)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "2026-01-02-a.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back struct{ Results []outcome }
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if got := back.Results[0].Rows[0]; got.Ratio == nil || got.Ratio.Median != 2 || got.Verdict != "no" {
		t.Errorf("read back: %+v", got)
	}
	if got := back.Results[0].Peers[0]; got.OfWeir == nil || got.OfWeir.Median != 0.5 || got.ToLimit.Median != 4 {
		t.Errorf("peer read back: %+v", got)
	}
	if md := rep.markdown(); !strings.Contains(md, "| fanout-1k | CPU µs per delivery | 2.00 | 1.00 |") || !strings.Contains(md, "cannot do it") {
		t.Errorf("the table lacks a row:\n%s", md)
	}
}

func TestACommandLineCanBePasted(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		if got := commandLine(args); got != want {
			t.Errorf("commandLine(%q) = %s, want %s", args, got, want)
		}
	}
	f("taskset -c 0", "taskset", "-c", "0")
	f(`load --path '/ws?channel=c%c&hello=1'`, "load", "--path", "/ws?channel=c%c&hello=1")
	f(`a 'it'\''s' ''`, "a", "it's", "")
	f("weir.yaml", "/tmp/weir-bench-1/weir-2/weir.yaml")
}
