package capacity

import (
	"context"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

const perSec = 4000.0

var ordinary = queue{cores: 2, service: exponential(2 / perSec)}

func TestDisturbedMachineIsInconclusiveSimulated(t *testing.T) {
	f := func(name string, q queue) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inconclusive := 0
			for seed := range uint64(10) {
				r := find(t, q.seeded(seed), Options{Mode: Quick, Seed: seed})
				if r.Verdict == Inconclusive && len(r.Reasons) > 0 {
					inconclusive++
				} else {
					t.Logf("seed %d: %s", seed, line(r, 3160))
				}
				if r.Verdict == Pass || r.Recommended != 0 {
					t.Errorf("seed %d: a number for the headline", seed)
				}
			}
			if inconclusive < 10 {
				t.Errorf("%d of 10 runs are inconclusive", inconclusive)
			}
		})
	}
	// Stalls that the machine's covariates show.
	q := ordinary
	q.stallEvery, q.stallFor, q.reported = 0.5, 0.03, true
	f("reported", q)
	q.stallEvery, q.stallFor = 1, 0.25
	f("reported, heavy", q)
	// And stalls that nothing shows but the measurement itself.
	q.reported = false
	q.stallEvery, q.stallFor = 4, 0.08
	f("hidden, rare", q)
	q.stallEvery, q.stallFor = 2, 0.15
	f("hidden", q)
	q.stallEvery, q.stallFor = 6, 0.4
	f("hidden, long", q)
	q = queue{cores: 1, service: lognormal(1/perSec, 0.7), stallEvery: 3, stallFor: 0.1}
	f("hidden, lognormal", q)
}

func TestGeneratorThatIsTheLimitIsInvalid(t *testing.T) {
	f := func(name string, q queue, opt Options) {
		t.Helper()
		opt.Mode = Quick
		for seed := range uint64(5) {
			if r := find(t, q.seeded(seed), opt); r.Verdict != Invalid || !strings.Contains(strings.Join(r.Reasons, " "), "generator") || r.Recommended != 0 {
				t.Errorf("%s: %s", name, line(r, math.NaN()))
			}
		}
	}
	q := ordinary
	q.generatorMax = 900
	f("sends no more", q, Options{})
	f("low ceiling", ordinary, Options{Ceiling: func(context.Context) (float64, error) { return 3000, nil }})
	q.generatorMax = 2
	f("sends nearly nothing", q, Options{})
}

// A machine that keeps the generator from its work says nothing about either.
func TestLateGeneratorOnADisturbedMachineIsInconclusive(t *testing.T) {
	q := ordinary.seeded(1)
	late := breaking{q, 0, func(o *Observation) { o.Generator.LagP99 = 0.02 }}
	work := func(context.Context, int) []float64 { return []float64{0.02, 0.05, 0.02, 0.11} }
	r, err := Find(context.Background(), late, Options{Mode: Quick, Now: q.clock, FixedWork: work})
	if err != nil || r.Verdict != Inconclusive {
		t.Errorf("disturbed: err %v, %s", err, line(r, 0))
	}
	q = ordinary.seeded(1)
	late.queue = q
	r, err = Find(context.Background(), late, Options{Mode: Quick, Now: q.clock, FixedWork: evenWork})
	if err != nil || r.Verdict != Invalid {
		t.Errorf("quiet: err %v, %s", err, line(r, 0))
	}
}

// A generator that falls behind for good ends the search: what follows would not be used.
func TestSearchEndsWhenTheGeneratorIsTheLimitOfMostWindows(t *testing.T) {
	search := func(late bool) *Report {
		q := ordinary.seeded(1)
		n := 0
		target := breaking{q, 0, func(o *Observation) {
			if n++; late && n > 8 {
				o.Generator.LagP99 = 0.02
			}
		}}
		r, err := Find(context.Background(), target, Options{Mode: Quick, Now: q.clock, FixedWork: evenWork})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	whole, r := search(false), search(true)
	if r.Verdict != Invalid || !r.Partial || !strings.Contains(strings.Join(r.Reasons, " "), "the generator was the limit in") || r.Elapsed > whole.Elapsed*2/3 {
		t.Errorf("ended after %v, a whole search after %v: %s", r.Elapsed, whole.Elapsed, line(r, math.NaN()))
	}
	if whole.Verdict == Invalid {
		t.Errorf("the whole search: %s", line(whole, math.NaN()))
	}
}

func TestErrorsAreALimit(t *testing.T) {
	for seed := range uint64(5) {
		q := queue{cores: 8, service: exponential(8 / perSec), errorsAbove: 2500}
		r := find(t, q.seeded(seed), Options{Mode: Quick})
		if r.Verdict != Pass || !r.Max.Known || !strings.HasPrefix(r.Max.By, "errors: status 503") || math.Abs(r.Max.Rate.Point/2500-1) > 0.10 {
			t.Errorf("λ_max %+v: %s", r.Max, line(r, 2500))
		}
		if r.Knee.Known || !strings.Contains(r.Knee.By, "errors") {
			t.Errorf("a knee where errors come first: %+v", r.Knee)
		}
	}
}

func TestTargetThatAlwaysFailsIsInvalid(t *testing.T) {
	q := ordinary
	q.errorsAbove = 1e-9
	if r := find(t, q.seeded(1), Options{Mode: Quick}); r.Verdict != Invalid || !r.Partial {
		t.Errorf("%s", line(r, 0))
	}
}

func TestFlatTargetIsNotSaturated(t *testing.T) {
	for seed := range uint64(3) {
		opt := Options{Mode: Quick, MaxRate: 1000}
		r := find(t, ordinary.seeded(seed), opt)
		if r.Verdict != Inconclusive || r.Saturated || r.Knee.Known || !strings.Contains(r.Reasons[0], "at least 1000/s") {
			t.Errorf("%s", line(r, 0))
		}
		opt.Expect = 900
		if r = find(t, ordinary.seeded(seed), opt); r.Verdict != Pass {
			t.Errorf("expected 900/s: %s", line(r, 0))
		}
	}
}

func TestExpectationPassesAndFails(t *testing.T) {
	f := func(expect float64, want Verdict) {
		t.Helper()
		if r := find(t, ordinary.seeded(2), Options{Mode: Quick, Expect: expect}); r.Verdict != want {
			t.Errorf("expected %v: %s", expect, line(r, 3160))
		}
	}
	f(2200, Pass)
	f(3900, Fail)
}

// In M/M/1 P99 = ln(100)/(μ−λ), so an objective of 5 ms is met up to μ − 4.605/0.005.
func TestObjectiveIsFoundSimulated(t *testing.T) {
	truth := perSec - math.Log(100)/0.005
	good := 0
	for seed := range uint64(10) {
		q := queue{cores: 1, service: exponential(1 / perSec)}
		r := find(t, q.seeded(seed), Options{Mode: Quick, SLO: 5 * time.Millisecond, Seed: seed})
		if r.SLO.Known && r.SLO.Rate.Lo <= truth*1.03 && r.SLO.Rate.Hi >= truth*0.97 && r.SLO.Rate.Lo > 0.7*truth {
			good++
		} else {
			t.Logf("seed %d: λ_slo %+v, truth %.0f", seed, r.SLO, truth)
		}
		if r.Verdict == Pass && r.Recommended > math.Min(r.SLO.Rate.Lo, 0.7*r.Max.Rate.Point) {
			t.Errorf("recommends %v", r.Recommended)
		}
	}
	if good < 9 {
		t.Errorf("%d of 10 are right", good)
	}
	r := find(t, ordinary.seeded(1), Options{Mode: Quick, SLO: 500 * time.Microsecond})
	if r.Verdict != Fail || r.SLO.Known {
		t.Errorf("an objective below the service time: %+v %s", r.SLO, line(r, 0))
	}
}

func TestCancelledSearchKeepsWhatItMeasured(t *testing.T) {
	for _, after := range []int{1, 9, 20, 40} {
		q := ordinary.seeded(1)
		ctx, cancel := context.WithCancel(context.Background())
		r, err := Find(ctx, q, Options{Mode: Quick, Now: q.clock, FixedWork: evenWork, Progress: func(Event) {
			if q.windows > after {
				cancel()
			}
		}})
		cancel()
		if err != nil || !r.Partial || r.Verdict != Inconclusive || len(r.Windows) == 0 {
			t.Errorf("after %d: err %v, report %+v", after, err, r)
		}
	}
}

// breaking answers as the queue does until a window, and then as change makes it.
type breaking struct {
	*queue
	from   int
	change func(*Observation)
}

func (b breaking) Measure(ctx context.Context, load Load, d time.Duration) (Observation, error) {
	o, err := b.queue.Measure(ctx, load, d)
	if b.windows >= b.from {
		b.change(&o)
	}
	return o, err
}

// A server that, once behind, works slower until it has caught up: going down it is
// lost at loads that it bore going up, and throughput falls when more is offered.
func TestMetastableTargetIsReported(t *testing.T) {
	for seed := range uint64(5) {
		q := ordinary
		q.sticky = 1.7
		r := find(t, q.seeded(seed), Options{Mode: Quick, Seed: seed})
		if !r.Ambiguous || r.Verdict != Inconclusive || r.Recommended != 0 || !strings.Contains(strings.Join(r.Reasons, "; "), "hysteresis") {
			t.Errorf("seed %d: %s", seed, line(r, 0))
		}
		if r.Cliff < 0.9*perSec {
			t.Errorf("seed %d: λ_cliff %v", seed, r.Cliff)
		}
	}
}

func TestStopConditions(t *testing.T) {
	f := func(reason string, verdict Verdict, opt Options, change func(*Observation)) {
		t.Helper()
		q := ordinary.seeded(1)
		opt.Mode, opt.Now, opt.FixedWork = Quick, q.clock, evenWork
		r, err := Find(context.Background(), breaking{q, 12, change}, opt)
		if err != nil || r.Verdict != verdict || !r.Partial || !strings.Contains(strings.Join(r.Reasons, "; "), reason) {
			t.Errorf("want %q: err %v, %s", reason, err, line(r, 0))
		}
		if q.windows > 40 {
			t.Errorf("%q: went on for %d windows", reason, q.windows)
		}
	}
	none := func(*Observation) {}
	f("descriptors", Invalid, Options{}, func(o *Observation) { o.Errors["dial: too many open files"] = 3 })
	f("local ports", Invalid, Options{}, func(o *Observation) { o.Errors["connect: cannot assign requested address"] = 3 })
	f("memory", Inconclusive, Options{MaxRSS: 100 << 20}, func(o *Observation) { o.Runtime = &Runtime{RSS: 200 << 20} })
	f("hypervisor", Inconclusive, Options{}, func(o *Observation) { o.Host.Steal = 0.3 })
	f("requests", Inconclusive, Options{MaxRequests: 5000}, none)
}

func TestBooksThatDoNotAddUpAreInvalid(t *testing.T) {
	q := ordinary.seeded(1)
	r, err := Find(context.Background(), breaking{q, 0, func(o *Observation) { o.InFlight *= 2 }},
		Options{Mode: Quick, Now: q.clock, FixedWork: evenWork})
	if err != nil || r.Verdict != Invalid || !strings.Contains(strings.Join(r.Reasons, ";"), "Little") {
		t.Errorf("err %v, %s", err, line(r, 0))
	}
}

func TestUnevenMachineIsInconclusive(t *testing.T) {
	q := ordinary.seeded(1)
	r, err := Find(context.Background(), q, Options{Mode: Quick, Now: q.clock, FixedWork: func(context.Context, int) []float64 {
		return []float64{0.02, 0.02, 0.05, 0.02, 0.06}
	}})
	if err != nil || r.Verdict != Inconclusive || !strings.Contains(r.Reasons[0], "the same work") {
		t.Errorf("err %v, %s", err, line(r, 0))
	}
}

func TestReportSurvivesJSON(t *testing.T) {
	q := ordinary
	q.exposed = true
	r := find(t, q.seeded(1), Options{Mode: Quick, SLO: 5 * time.Millisecond})
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.Version != 1 || len(back.Windows) != len(r.Windows) || !reflect.DeepEqual(back.Rule, r.Rule) || back.Knee.Rate != r.Knee.Rate {
		t.Error("the report came back different")
	}
	if !r.Rule.Exposed || len(r.Levels) < 6 || r.Model.CPUCost == 0 || r.Model.Scaling.Model == "" || len(r.Model.Agreement) < 3 {
		t.Errorf("the report is not complete: %+v %+v %v %v", r.Rule, r.Model.Agreement, r.Model.CPUCost, r.Model.Scaling.Model)
	}
	// A search that was over at once has no numbers, and still a form.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r, err = Find(ctx, ordinary.seeded(1), Options{FixedWork: evenWork})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestProgressIsReportedInOrder(t *testing.T) {
	q := ordinary.seeded(1)
	var phases []string
	windows := 0
	last := time.Duration(0)
	r, err := Find(context.Background(), q, Options{Mode: Quick, Now: q.clock, FixedWork: evenWork, Progress: func(e Event) {
		if len(phases) == 0 || phases[len(phases)-1] != e.Phase {
			phases = append(phases, e.Phase)
		}
		if e.Elapsed < last || e.Remaining < 0 || e.Step > e.Steps {
			t.Errorf("event %+v", e)
		}
		last = e.Elapsed
		if e.Window != nil {
			windows++
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(phases, " "); got != "qualify bracket stairs refine confirm model" {
		t.Errorf("phases: %s", got)
	}
	if windows != len(r.Windows) {
		t.Errorf("%d windows reported, %d measured", windows, len(r.Windows))
	}
	if r.Elapsed > 2*time.Minute {
		t.Errorf("quick took %v", r.Elapsed)
	}
}

func TestSlowTargetIsMeasuredByALowerQuantile(t *testing.T) {
	q := queue{cores: 2, service: exponential(2.0 / 200)}
	r := find(t, q.seeded(3), Options{Mode: Quick})
	if r.Quantile >= 0.99 {
		t.Errorf("P99 of %v/s in windows of seconds", r.Base.Rate)
	}
	if r.Verdict == Pass && math.Abs(r.Knee.Rate.Point/160-1) > 0.25 {
		t.Errorf("%s", line(r, 160))
	}
}

func TestStandardSearchIsSureOfItselfSimulated(t *testing.T) {
	q := ordinary
	q.exposed = true
	r := find(t, q.seeded(1), Options{Mode: Standard, ClosedLoop: true})
	truth := newCurve(ordinary, 0.99).knee(r.Base.Rate, 2.5)
	if r.Verdict != Pass || math.Abs(r.Knee.Rate.Point/truth-1) > 0.06 || r.Knee.Confidence == "low" {
		t.Errorf("%s, confidence %s", line(r, truth), r.Knee.Confidence)
	}
	if r.Confirm == nil || r.Confirm.Held < 55*time.Second || r.Confirm.Recovery <= 0 {
		t.Errorf("confirm: %+v", r.Confirm)
	}
	if r.Elapsed > 12*time.Minute {
		t.Errorf("took %v", r.Elapsed)
	}
}

func TestOptionsThatCannotBeMeant(t *testing.T) {
	f := func(opt Options, want string) {
		t.Helper()
		_, err := Find(context.Background(), ordinary.seeded(1), opt)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", opt, err, want)
		}
	}
	f(Options{Mode: "brisk"}, `mode "brisk"`)
	f(Options{Quantile: 0.9}, "quantile 0.9")
	f(Options{Kappa: 1}, "kappa 1")
	f(Options{SLO: -1}, "negative")
	f(Options{Start: 10, MaxRate: 5}, "above max_rate")
	f(Options{Conns: 10, MaxConns: 5}, "above max_conns")
}

// On a noisy machine a search ends at once, and says what to do.
func TestANoisyMachineEndsTheSearchAtOnce(t *testing.T) {
	uneven := func(_ context.Context, n int) []float64 { return []float64{0.02, 0.05, 0.02, 0.11} }
	q := ordinary.seeded(1)
	r, err := Find(context.Background(), q, Options{Mode: Quick, Now: q.clock, FixedWork: uneven})
	if err != nil || r.Verdict != Inconclusive || len(r.Windows) > 0 || !strings.Contains(r.Reasons[0], "too noisy") || !strings.Contains(r.Reasons[0], "--bounded") {
		t.Errorf("uneven work: err %v, %d windows, %v", err, len(r.Windows), r.Reasons)
	}
	// A machine that is disturbed in its windows: a few of them are enough to know.
	q = ordinary.seeded(1)
	q.stallEvery, q.stallFor, q.reported, q.stallAt = 0.4, 0.02, true, 0.1
	r, err = Find(context.Background(), q, Options{Mode: Quick, Now: q.clock, FixedWork: evenWork})
	if err != nil || r.Verdict != Inconclusive || r.Elapsed > 15*time.Second || !strings.Contains(r.Reasons[0], "windows were disturbed (") {
		t.Errorf("stalls: err %v, %v, %v", err, r.Elapsed, r.Reasons)
	}
	// A single disturbance before the search does not count.
	q, first := ordinary.seeded(1), true
	r, err = Find(context.Background(), q, Options{Mode: Quick, Now: q.clock, FixedWork: func(ctx context.Context, n int) []float64 {
		if first {
			first = false
			return uneven(ctx, n)
		}
		return evenWork(ctx, n)
	}})
	if err != nil || r.Verdict != Pass {
		t.Errorf("a disturbance: err %v, %s", err, line(r, 0))
	}
}

// On request it continues, and its bounds hold what a quiet machine would find.
func TestBoundsOnANoisyMachineSimulated(t *testing.T) {
	truth := newCurve(ordinary, 0.99)
	held := 0
	for seed := range uint64(20) {
		q := ordinary.seeded(seed)
		q.stallEvery, q.stallFor, q.reported, q.stallAt = 3, 0.015, true, 0.1
		r, err := Find(context.Background(), q, Options{Mode: Quick, Bounded: true, Seed: seed, Now: q.clock, FixedWork: func(_ context.Context, n int) []float64 {
			return []float64{0.02, 0.05, 0.02, 0.11}
		}})
		if err != nil || r.Verdict != Inconclusive || r.Recommended != 0 {
			t.Fatalf("err %v, %s", err, line(r, 0))
		}
		want, b := truth.knee(r.Base.Rate, 2.5), r.Knee.Between
		if b[0] > 0 && b[1] > 0 && b[0] <= want*1.06 && b[1] >= want*0.97 && b[1] < 3*b[0] {
			held++
		} else {
			t.Logf("seed %d: between %v, truth %.0f", seed, b, want)
		}
	}
	if held < 17 {
		t.Errorf("%d of 20 bounds hold the knee", held)
	}
}
