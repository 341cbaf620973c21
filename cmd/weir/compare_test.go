package main

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// sideOf is one side of a comparison.
func sideOf(name string, runs ...*loadgen.Result) side {
	s := side{name: name, runs: runs}
	for range runs {
		s.files = append(s.files, name+".json")
	}
	return s
}

// used adds what the target used: cores, the collector's share, bytes.
func used(r *loadgen.Result, cores, gc float64, rss uint64) *loadgen.Result {
	r.Uses = nil
	for range r.Windows {
		r.Uses = append(r.Uses, loadgen.Use{Seconds: 1, CPU: cores, GC: gc * 2, GCOf: 2, RSS: rss})
	}
	return r
}

// gate compares the sides and gives the verdict on one quantity, and the status.
func gate(t *testing.T, quantity string, old, new side, tolerances ...string) (gateVerdict, string, int) {
	t.Helper()
	ts, err := parseTolerances(tolerances)
	if err != nil {
		t.Fatal(err)
	}
	c := comparison{old: old, new: new, tolerances: ts}
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	c.measure()
	for _, q := range c.quantities {
		if q.Name == quantity {
			return q.Verdict, q.Why, c.verdict().exit()
		}
	}
	t.Fatalf("no %s", quantity)
	return "", "", 0
}

func TestTheGateHasAVerdictForEachQuantity(t *testing.T) {
	trial.Long(t)
	f := func(name, quantity string, old, new side, want gateVerdict, why string, status int, tolerances ...string) {
		t.Helper()
		v, reason, got := gate(t, quantity, old, new, tolerances...)
		if v != want || got != status || !strings.Contains(reason, why) {
			t.Errorf("%s: %s is %s (%s), status %d; want %s (%s), %d", name, quantity, v, reason, got, want, why, status)
		}
	}
	at := func(p99 float64) *loadgen.Result {
		return used(aRun(2000, p99, p99*1.01, p99*0.99, p99), 0.5, 0.03, 100<<20)
	}
	runs := func(name string, p99s ...float64) side {
		var rs []*loadgen.Result
		for _, p := range p99s {
			rs = append(rs, at(p))
		}
		return sideOf(name, rs...)
	}
	old := runs("old", 4000, 4040, 3970)

	f("as before", "p99", old, runs("new", 4010, 3990, 4030), gateSame, "", 0)
	f("as before", "rate", old, runs("new", 4010, 3990, 4030), gateSame, "", 0)
	f("as before", "errors", old, runs("new", 4010, 3990, 4030), gateSame, "", 0)
	f("slower", "p99", old, runs("new", 5000, 5050, 4960), gateWorse, "", 1)
	f("slower, allowed", "p99", old, runs("new", 5000, 5050, 4960), gateSame, "", 0, "p99=30%")
	f("slower, off", "p99", old, runs("new", 5000, 5050, 4960), gateWorse, "", 0, "p99=off")
	f("a little slower", "p99", old, runs("new", 4200, 4210, 4190), gateSame, "", 0)
	f("faster", "p99", old, runs("new", 3000, 3030, 2970), gateBetter, "", 0)
	f("scattered", "p99", old, runs("new", 2900, 5400, 4100), gateNone, "too noisy", 2)
	f("one run each", "p99", runs("old", 4000), runs("new", 5000), gateWorse, "", 1)
	f("one run each", "p99", runs("old", 4000), runs("new", 4020), gateSame, "", 0)

	change := func(f func(*loadgen.Result)) side {
		s := runs("new", 4010, 3990, 4030)
		for _, r := range s.runs {
			f(r)
		}
		return s
	}
	half := change(func(r *loadgen.Result) {
		for i := range r.Windows {
			r.Windows[i].Completed /= 2
		}
		r.Total.Completed /= 2
	})
	f("half the rate", "rate", old, half, gateWorse, "", 1)
	f("half the rate, twice the cost", "cpu", old, half, gateWorse, "", 1)
	f("errors", "errors", old, change(func(r *loadgen.Result) { r.Total.Errors = map[string]uint64{"timeout": 80} }), gateWorse, "", 1)
	f("few errors", "errors", old, change(func(r *loadgen.Result) { r.Total.Errors = map[string]uint64{"timeout": 4} }), gateSame, "", 0)
	f("drops", "errors", old, change(func(r *loadgen.Result) { r.Total.Dropped = 80 }), gateWorse, "", 1)
	f("hungry", "cpu", old, change(func(r *loadgen.Result) { used(r, 0.7, 0.03, 100<<20) }), gateWorse, "", 1)
	f("frugal", "cpu", old, change(func(r *loadgen.Result) { used(r, 0.3, 0.03, 100<<20) }), gateBetter, "", 0)
	f("collecting", "gc", old, change(func(r *loadgen.Result) { used(r, 0.5, 0.08, 100<<20) }), gateWorse, "", 1)
	f("collecting a little", "gc", old, change(func(r *loadgen.Result) { used(r, 0.5, 0.04, 100<<20) }), gateSame, "", 0)
	f("large", "memory", old, change(func(r *loadgen.Result) { used(r, 0.5, 0.03, 150<<20) }), gateWorse, "", 1)
	f("one-sided", "memory", old, change(func(r *loadgen.Result) { r.Uses = nil }), gateNone, "on one side only", 2)
	f("one-sided, off", "memory", old, change(func(r *loadgen.Result) { r.Uses = nil }), gateNone, "", 0, "memory=off,cpu=off,gc=off")

	bare := func(name string) side { return sideOf(name, aRun(2000, 4000, 4010), aRun(2000, 4000, 4020)) }
	f("not looked into", "cpu", bare("old"), bare("new"), gateNotMeasured, "--runtime", 0)
	f("requested", "cpu", bare("old"), bare("new"), gateNone, "--runtime", 2, "cpu=5%")

	f("another machine", "p99", old, change(func(r *loadgen.Result) { r.Machine.CPUs = 64 }), gateNone, "another machine", 2)
	f("another machine", "errors", old, change(func(r *loadgen.Result) {
		r.Machine.CPUs = 64
		r.Total.Errors = map[string]uint64{"timeout": 80}
	}), gateWorse, "", 1)
	f("limited", "p99", old, change(func(r *loadgen.Result) {
		r.Windows[0].Generator.Limited, r.Windows[1].Generator.Limited = true, true
	}), gateNone, "the generator or its machine was the limit in 2 of 4 windows", 2)
	f("too few answers", "p99", sideOf("old", aRun(100, 4000, 4000)), sideOf("new", aRun(100, 4000, 4000)), gateNone, "has 200 answers, it takes 1,000", 2)
}

// Runs that differ from each other by more than their windows show: the windows of
// one run call the difference between two runs a regression, several runs do not.
func TestNoiseBetweenRunsIsNoRegressionSimulated(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	side := func(name string, runs int, p99 float64) side {
		var rs []*loadgen.Result
		for range runs {
			m := p99 * math.Exp(0.12*r.NormFloat64())
			rs = append(rs, aRun(1000, m, m*1.01, m*0.99))
		}
		return sideOf(name, rs...)
	}
	const trials = 40
	count := func(runs int, factor float64) (worse int) {
		for range trials {
			if v, _, _ := gate(t, "p99", side("old", runs, 4000), side("new", runs, 4000*factor)); v == gateWorse {
				worse++
			}
		}
		return worse
	}
	if n := count(1, 1); n < trials/6 {
		t.Errorf("one run each: %d of %d equal pairs are worse: this noise is none", n, trials)
	}
	if n := count(4, 1); n > trials/15 {
		t.Errorf("four runs each: %d of %d equal pairs are worse", n, trials)
	}
	if n := count(4, 2); n < trials*9/10 {
		t.Errorf("four runs each: twice the latency is found in %d of %d", n, trials)
	}
}

func TestRunsAreCompared(t *testing.T) {
	a, b := aRun(2000, 4000, 4100, 3900, 4050, 4000, 3950), aRun(2000, 8000, 8200, 7900, 8050, 8000, 7950)
	b.Spec.Target, b.Spec.Seed, b.Machine.Weir = "http://127.0.0.1:9090/", 8, "v2"
	b.Total.Errors = map[string]uint64{"timeout": 2}
	used(a, 0.5, 0.02, 100<<20)
	used(b, 0.52, 0.02, 130<<20)
	c := comparison{old: sideOf("old", a), new: sideOf("new", b), tolerances: defaultTolerances()}
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	c.measure()
	var text bytes.Buffer
	if err := c.text(&text); err != nil {
		t.Fatal(err)
	}
	golden(t, "compare.txt", text.Bytes())
	text.Reset()
	if err := c.page().HTML(&text); err != nil || !strings.Contains(text.String(), "New against old") {
		t.Error(err)
	}
	if b, err := json.Marshal(c.report()); err != nil || !strings.Contains(string(b), `"verdict":"worse"`) {
		t.Errorf("%v: %s", err, b)
	}
}

func TestTolerancesAreRead(t *testing.T) {
	ts, err := parseTolerances([]string{"p99=25%,gc=off", "errors=0.5%"})
	if err != nil || ts[1].limit != 0.25 || !ts[1].named || ts[4].limit >= 0 || ts[2].limit != 0.005 || ts[0].limit != 0.05 {
		t.Errorf("%+v, %v", ts, err)
	}
	for text, want := range map[string]string{
		"p98=1%": `"p98=1%" is not known`, "p99": "is not known", "p99=5": `invalid tolerance "5"`, "p99=-1%": "invalid", "p99=2000%": "invalid", "p99=x%": "invalid",
	} {
		if _, err := parseTolerances([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What two runs may differ in is noted, what they may not is refused by name.
func TestRunsOfOtherLoadAreNotCompared(t *testing.T) {
	f := func(change func(*loadgen.Spec), refused, noted string) {
		t.Helper()
		a, b := aRun(100, 1000), aRun(100, 1000)
		a2, b2 := aRun(100, 1000), aRun(100, 1000)
		change(&b.Spec)
		c := comparison{old: sideOf("a", a, a2), new: sideOf("b", b, b2)}
		err := c.check()
		if (err != nil) != (refused != "") || err != nil && !strings.Contains(err.Error(), refused) {
			t.Errorf("%v, want %q", err, refused)
		}
		if got := strings.Join(c.notes, "; "); got != noted {
			t.Errorf("%q, want %q", got, noted)
		}
		forced := comparison{old: sideOf("a", a), new: sideOf("b", b), force: true}
		if err := forced.check(); err != nil {
			t.Error(err)
		}
	}
	f(func(*loadgen.Spec) {}, "", "")
	f(func(s *loadgen.Spec) { s.Seed = 9 }, "", "")
	f(func(s *loadgen.Spec) { s.Method = "GET" }, "", "") // what empty means
	f(func(s *loadgen.Spec) { s.Adapter = "weir" }, "", "adapter: plain against weir")
	f(func(s *loadgen.Spec) { s.Headers = []string{"X-API-Key: secret"} }, "", "headers differ")
	f(func(s *loadgen.Spec) { s.Rate = 50 }, "b.json: rate: 100 against 50", "")
	f(func(s *loadgen.Spec) { s.Conns = 5 }, "conns: 50 against 5", "")
	f(func(s *loadgen.Spec) { s.Stages = []loadgen.Stage{{Duration: 1}} }, "stages: ", "")
}

// The interval covers the truth about as often as it says.
func TestTheRatioIsInItsInterval(t *testing.T) {
	rnd := stat.NewRand(3)
	hit := 0
	const runs = 400
	for range runs {
		var a, b []float64
		for range 10 {
			a = append(a, 1+rnd.NormFloat64()*0.1)
			b = append(b, 1.2*(1+rnd.NormFloat64()*0.2))
		}
		if iv := ratioInterval(a, b); iv.Lo <= 1.2*0.985 && iv.Hi >= 1.2*0.985 { // E log differs by the spread
			hit++
		}
	}
	if hit < runs*91/100 || hit > runs*985/1000 {
		t.Errorf("%d of %d intervals hold the ratio", hit, runs)
	}
}
