package accept

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// good is evidence of ind that passes, on a quiet machine.
func good(ind *Indicator) *Evidence {
	e := &Evidence{Version: version, Indicator: ind.Name, Attempt: 1, Seconds: 60}
	for i := range 60 {
		e.Host = append(e.Host, Watch{At: float64(i), Covariates: stat.Covariates{Busy: 0.5, Own: 0.5}})
	}
	for _, c := range ind.criteria {
		switch c.kind {
		case none:
			e.count(c.name, 0, 1000)
		case some:
			e.count(c.name, 5, 5)
		case flat:
			for i := range 60 {
				e.point(c.name, float64(i), 100+float64(i*7%5))
			}
		case atMost:
			for i := range 5 {
				e.value(c.name, c.limit*(0.5+0.001*float64(i)))
			}
		case atLeast:
			for i := range 5 {
				e.value(c.name, c.limit*(1.04+0.001*float64(i)))
			}
		}
	}
	return e
}

// broken makes one criterion's evidence a violation.
func broken(e *Evidence, c *criterion) {
	switch c.kind {
	case none:
		e.count(c.name, 1, 1, "planted")
	case some:
		e.Counts[c.name] = Count{}
	case flat:
		s := e.Series[c.name]
		for i := range s.Y {
			s.Y[i] += float64(i) * (10 + c.slack)
		}
	case atMost:
		for i := range e.Values[c.name] {
			e.Values[c.name][i] = c.limit * (2 + 0.001*float64(i))
		}
	case atLeast:
		for i := range e.Values[c.name] {
			e.Values[c.name][i] = c.limit * (0.5 + 0.001*float64(i))
		}
	}
}

// Each criterion of each indicator, violated alone, decides the verdict; on a noisy machine what
// depends on time is inconclusive, and what was counted fails as before.
func TestEachViolationTurnsItsIndicator(t *testing.T) {
	noisy := func(e *Evidence) *Evidence {
		for i := range e.Host {
			e.Host[i].Steal = 0.2
		}
		return e
	}
	for _, ind := range Indicators() {
		if len(ind.criteria) == 0 {
			continue
		}
		if f := ind.evaluate(good(&ind)); f.Verdict != capacity.Pass || f.Confidence != "high" {
			t.Fatalf("%s: good evidence: %s (%s) %v", ind.Name, f.Verdict, f.Confidence, f.Why)
		}
		timed := slices.ContainsFunc(ind.criteria, func(c criterion) bool { return c.timed })
		if f := ind.evaluate(noisy(good(&ind))); timed && f.Verdict != capacity.Inconclusive {
			t.Errorf("%s: good evidence of a noisy machine: %s", ind.Name, f.Verdict)
		}
		for i := range ind.criteria {
			c := &ind.criteria[i]
			want, wantNoisy := capacity.Fail, capacity.Fail
			switch {
			case c.kind == info:
				continue
			case c.kind == some:
				want, wantNoisy = capacity.Invalid, capacity.Invalid
			case c.timed:
				wantNoisy = capacity.Inconclusive
			}
			e := good(&ind)
			broken(e, c)
			if f := ind.evaluate(e); f.Verdict != want || len(f.Why) != 1 || !strings.HasPrefix(f.Why[0], c.what) {
				t.Errorf("%s, %s violated: %s, %q", ind.Name, c.name, f.Verdict, f.Why)
			}
			if f := ind.evaluate(noisy(e)); f.Verdict != wantNoisy {
				t.Errorf("%s, %s violated on a noisy machine: %s, want %s", ind.Name, c.name, f.Verdict, wantNoisy)
			}
		}
	}
}

func TestEachKindOfNoiseKeepsFromPassing(t *testing.T) {
	ind := burst()
	f := func(what string, disturb func(e *Evidence)) {
		t.Helper()
		e := good(&ind)
		disturb(e)
		if got := ind.evaluate(e); got.Verdict != capacity.Inconclusive {
			t.Errorf("%s: %s, %q", what, got.Verdict, got.Why)
		}
	}
	all := func(c stat.Covariates) func(e *Evidence) {
		return func(e *Evidence) {
			for i := range e.Host {
				e.Host[i].Covariates = c
			}
		}
	}
	f("steal", all(stat.Covariates{Steal: 0.05}))
	f("others", all(stat.Covariates{Busy: 0.9, Own: 0.4}))
	f("others that were there before", func(e *Evidence) {
		e.Quiet = stat.Covariates{Busy: 0.6}
		all(stat.Covariates{Busy: 0.95, Own: 0.3})(e)
	})
	f("run queue", all(stat.Covariates{Busy: 0.6, Own: 0.45, Wait: 0.9}))
	f("equal work that scatters", func(e *Evidence) { e.HostCV = 0.5 })
	f("a generator short of its rate", func(e *Evidence) { e.Limited = Count{N: 30, Of: 100} })
	f("not watched", func(e *Evidence) { e.Host = nil })
	f("less than the target", func(e *Evidence) { e.Reduced = "fewer" })
}

func TestWhatWasNotMeasuredIsInvalid(t *testing.T) {
	ind := sustained()
	e := good(&ind)
	delete(e.Series, "rss")
	if f := ind.evaluate(e); f.Verdict != capacity.Invalid {
		t.Errorf("without a series: %s", f.Verdict)
	}
	sites := twoSites()
	if f := sites.evaluate(&Evidence{NotRun: "no second site"}); f.Verdict != capacity.Invalid || f.Why[0] != "not run: no second site" {
		t.Errorf("%+v", f)
	}
}

// An interval that holds the limit decides nothing; a slope is none when its interval reaches 0.
func TestIntervalsDecide(t *testing.T) {
	ratio := criterion{kind: atLeast, limit: 0.95}
	f := func(want Verdict, values ...float64) {
		t.Helper()
		if got := ratio.checkValues(values); got.Verdict != want {
			t.Errorf("%v: %s, %s", values, got.Verdict, got.Got)
		}
	}
	f(capacity.Pass, 0.99, 1.00, 0.98, 0.99)
	f(capacity.Fail, 0.90, 0.91, 0.90, 0.89)
	f(capacity.Inconclusive, 0.90, 1.02, 0.97, 0.93)
	f(capacity.Pass, 0.99)
	f(capacity.Inconclusive, 0.94, 0.96)
	slope := criterion{name: "s", kind: flat}
	g := func(want Verdict, y func(i int) float64) {
		t.Helper()
		var s Series
		for i := range 100 {
			s.X, s.Y = append(s.X, float64(i)), append(s.Y, y(i))
		}
		if got := slope.checkSeries(map[string]Series{"s": s}); got.Verdict != want {
			t.Errorf("%s, %s", got.Verdict, got.Got)
		}
	}
	noise := func(i int) float64 { return math.Sin(float64(i * i)) }
	g(capacity.Pass, func(i int) float64 { return 100 + noise(i) })
	g(capacity.Pass, func(i int) float64 { return 200 - float64(i) })
	g(capacity.Fail, func(i int) float64 { return 100 + 0.1*float64(i) + noise(i) })
}

// written is a directory with a run of two indicators in it.
func written(t *testing.T) (dir string, r *Report) {
	t.Helper()
	dir = t.TempDir()
	o := Options{Dir: dir}
	s := &session{opt: &o, chain: &chain{dir: dir}}
	r = &Report{Version: version, Plan: "quick"}
	evidence := map[string]*Evidence{}
	for _, ind := range []Indicator{burst(), auditLog()} {
		e := good(&ind)
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.chain.add(evidenceFile(&ind, 1), b); err != nil {
			t.Fatal(err)
		}
		f := ind.evaluate(e)
		f.Evidence = evidenceFile(&ind, 1)
		r.Findings, r.Verdict = append(r.Findings, f), worse(r.Verdict, f.Verdict)
		evidence[ind.Name] = e
	}
	if err := s.write(r, evidence); err != nil {
		t.Fatal(err)
	}
	r.Head = s.chain.head
	return dir, r
}

func TestVerifyFindsEachKindOfTampering(t *testing.T) {
	dir, r := written(t)
	if again, err := Verify(dir, r.Head); err != nil || again.Verdict != capacity.Pass || again.Head != r.Head {
		t.Fatalf("untouched: %+v, %v", again, err)
	}
	edit := func(name, old, new string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || !strings.Contains(string(b), old) {
				t.Fatalf("%s has no %q: %v", name, old, err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Replace(string(b), old, new, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	// anew writes a valid chain over files that were changed.
	anew := func(change func(t *testing.T, dir string)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			names, _, err := checkChain(dir)
			if err != nil {
				t.Fatal(err)
			}
			change(t, dir)
			if err := os.Remove(filepath.Join(dir, chainFile)); err != nil {
				t.Fatal(err)
			}
			c := &chain{dir: dir}
			for _, name := range names {
				b, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
				if err := c.add(name, b); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	evidence := "evidence/burst/1.json"
	for i, c := range []struct {
		what   string
		change func(t *testing.T, dir string)
		want   string
		head   string
	}{
		{"a number of the evidence", edit(evidence, `"n":0`, `"n":7`), "changed after", ""},
		{"the report", edit("report.md", "burst", "quiet"), "changed after", ""},
		{"the chain", edit(chainFile, "  evidence/audit", "  evidence/other"), "breaks", ""},
		{"a file more", func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "evidence", "more"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not in the chain", ""},
		{"a file less", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, evidence)); err != nil {
				t.Fatal(err)
			}
		}, "no such file", ""},
		{"the verdict, with a new chain", anew(edit(reportFile, `"verdict": "pass"`, `"verdict": "fail"`)), "findings give pass", ""},
		{"the evidence, with a new chain", anew(edit(evidence, `"refused orders":{"n":0`, `"refused orders":{"n":3`)), "evidence gives fail", ""},
		{"a new chain", anew(edit("report.md", "burst", "quiet")), "not in " + r.Head[:8], r.Head},
	} {
		t.Run(fmt.Sprint(i, " ", c.what), func(t *testing.T) {
			dir, _ := written(t)
			c.change(t, dir)
			if _, err := Verify(dir, c.head); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestTheChaosSuitesTableIsRead(t *testing.T) {
	b, err := os.ReadFile("../../../docs/chaos.md")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := chaosRows(string(b))
	if err != nil || len(rows) < 4 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, r := range rows {
		if r.Faults == 0 || r.Fault == "" {
			t.Errorf("%+v", r)
		}
	}
	if rows[0].Outage <= 0 || rows[0].Received == 0 {
		t.Errorf("%+v", rows[0])
	}
	if _, err := chaosRows("# nothing"); err == nil {
		t.Error("a page without the table is taken")
	}
}

func TestLeaksAreFoundByTheirLine(t *testing.T) {
	const heap = `heap profile: 2: 200 [9: 900] @ heap/1
10: 40960 [10: 40960] @ 0x1 0x2
#	0x1	os.newFile+0x1	os/file_unix.go:1
#	0x2	github.com/weir-gateway/weir/x.open+0x2	x/x.go:7
#	0x3	main.main+0x2	main.go:9

1: 16 [1: 16] @ 0x5
#	0x5	runtime.malg+0x5	runtime/proc.go:5
`
	n, b := sites(heap, func(string) bool { return true })
	if len(n) != 1 || n["x/x.go:7"] != 10 || b["x/x.go:7"] != 40960 {
		t.Errorf("%v, %v", n, b)
	}
	round := func(i int, line string) profile {
		return profile{Goroutines: map[string]float64{line: float64(10 * i), "still:1": 9}, Descriptors: 20}
	}
	if got := grown([]profile{round(1, "a:1"), round(2, "a:1"), round(3, "a:1")}); len(got) != 1 || got[0].Line != "a:1" || got[0].Kind != "goroutine" {
		t.Errorf("%+v", got)
	}
	if got := grown([]profile{round(1, "a:1"), round(3, "a:1"), round(2, "a:1")}); len(got) != 0 {
		t.Errorf("what falls again is no leak: %+v", got)
	}
}
