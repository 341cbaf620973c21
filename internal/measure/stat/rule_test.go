package stat

import (
	"encoding/json"
	"math"
	"testing"
)

func level(p99, goroutines, excess float64) RuleLevel {
	return RuleLevel{Repeats: []RuleSample{
		{P99: p99 * 0.97, Goroutines: goroutines, Excess: excess},
		{P99: p99, Goroutines: goroutines, Excess: excess},
		{P99: p99 * 1.03, Goroutines: goroutines, Excess: excess},
	}}
}

var quiet = RuleSample{P99: 0.002, Goroutines: 100, Excess: 1}

func TestRuleNeedsBothConditions(t *testing.T) {
	f := func(p99, goroutines, excess float64, want State, literal bool) {
		t.Helper()
		r := NewRule(RuleConfig{Procs: 2}, quiet)
		var got Reading
		for range 2 { // a step to alert takes two equal readings
			r.prev = quiet
			got = r.Level(level(p99, goroutines, excess))
		}
		if got.State != want || got.Literal != literal {
			t.Errorf("P99 %v, %v goroutines, %v excess: %v (literal %v), want %v (%v); %v",
				p99, goroutines, excess, got.State, got.Literal, want, literal, got.Causes)
		}
	}
	f(0.002, 100, 1, Steady, false)
	f(0.0051, 310, 210, Inflection, true)
	f(0.0051, 120, 20, Inflection, false) // hidden in the total, plain in the excess
	f(0.0051, 104, 5, Alert, false)
	f(0.0021, 310, 210, Alert, false)
	f(0.0032, 100, 1, Alert, false) // 1.6 times, and its interval excludes 1
}

func TestConnectionRampDoesNotCountRawGoroutines(t *testing.T) {
	r := NewRule(RuleConfig{Procs: 2, ConnectionRamp: true}, quiet)
	if got := r.Level(level(0.0051, 400, 3)); got.State == Inflection || !got.Literal {
		t.Errorf("%+v", got)
	}
}

func TestOneOfThreeRepeatsIsNoInflection(t *testing.T) {
	r := NewRule(RuleConfig{}, quiet)
	bad, good := RuleSample{P99: 0.02, Goroutines: 900, Excess: 800}, quiet
	got := r.Level(RuleLevel{Repeats: []RuleSample{good, bad, good}})
	if got.State != Steady {
		t.Errorf("one of three: %+v", got)
	}
	if got = r.Level(RuleLevel{Repeats: []RuleSample{bad, bad, good}}); got.State != Inflection {
		t.Errorf("two of three: %+v", got)
	}
}

func TestInflectionLatches(t *testing.T) {
	r := NewRule(RuleConfig{}, quiet)
	r.Level(level(0.01, 500, 400))
	for range 5 {
		if got := r.Level(level(0.002, 100, 1)); got.State != Inflection {
			t.Fatalf("fell back to %v", got.State)
		}
	}
	r.Reset()
	if r.state != Steady {
		t.Error("Reset left it latched")
	}
}

func TestAlertTakesTwoReadingsEitherWay(t *testing.T) {
	r := NewRule(RuleConfig{Procs: 1}, quiet)
	loud := RuleSample{P99: 0.002, Goroutines: 100, Excess: 1, Runnable: 3}
	f := func(s RuleSample, want State) {
		t.Helper()
		if got, _ := r.window(s); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	f(loud, Steady)
	f(quiet, Steady)
	f(loud, Steady)
	f(loud, Alert)
	f(quiet, Alert)
	f(quiet, Steady)
}

func TestSmallStepsCreepIntoInflection(t *testing.T) {
	r := NewRule(RuleConfig{Procs: 1}, quiet)
	p, excess, last := 0.002, 1.0, Steady
	for range 14 {
		p, excess = p*1.2, excess*1.2
		last = r.Level(level(p, 100+excess, excess)).State
	}
	if last != Inflection {
		t.Errorf("P99 at %.0f times the baseline: %v", p/0.002, last)
	}
}

func TestGrowingBacklogIsInflection(t *testing.T) {
	r := NewRule(RuleConfig{}, quiet)
	s := quiet
	s.Growing = true
	if got := r.Level(RuleLevel{Repeats: []RuleSample{s, s}}); got.State != Inflection {
		t.Errorf("%+v", got)
	}
}

func TestOnlineBaselineRolls(t *testing.T) {
	r := NewRule(RuleConfig{}, RuleSample{})
	for i := range 40 { // a slow drift to four times is not an inflection
		s := quiet
		s.P99 *= 1 + 3*float64(i)/40
		if got, _ := r.window(s); got != Steady {
			t.Fatalf("window %d: %+v", i, got)
		}
	}
	bad := RuleSample{P99: 0.03, Goroutines: 900, Excess: 800}
	if got, _ := r.window(bad); got == Inflection {
		t.Error("one window confirmed itself")
	}
	if got, _ := r.window(bad); got != Inflection {
		t.Errorf("two windows: %+v", got)
	}
}

// The false alarms of a stall of 20 ms in one window of twenty (median service 1 ms, lognormal σ 0.5): a
// single window each lets the literal ratio fire; the median of three hardly.
func TestRepeatsTameStalls(t *testing.T) {
	r := NewRand(10)
	p99 := func() float64 {
		v := 0.001 * math.Exp(2.33*0.5) * math.Exp(0.05*r.NormFloat64())
		if r.Float64() < 0.05 {
			v = 0.020
		}
		return v
	}
	fires := func(repeats int) float64 {
		n := 0
		const trials = 4000
		for range trials {
			a, b := make([]float64, repeats), make([]float64, repeats)
			for i := range a {
				a[i], b[i] = p99(), p99()
			}
			if Median(b) >= 2.5*Median(a) {
				n++
			}
		}
		return float64(n) / trials
	}
	if one, three := fires(1), fires(3); one < 0.035 || one > 0.06 || three > 0.012 {
		t.Errorf("one window fires %.3f, three %.3f; want about 0.048 and 0.007", one, three)
	}
}

func TestFiresAtIsTheTableOfSteps(t *testing.T) {
	f := func(step, want float64) {
		t.Helper()
		if got := AlarmUtilization(2.5, step); math.Abs(got-want) > 0.0006 {
			t.Errorf("AlarmUtilization(2.5, %v) = %.4f, want %v", step, got, want)
		}
	}
	f(1, 0.375)
	f(0.5, 0.545)
	f(0.25, 0.706)
	f(0.1, 0.857)
	f(0.05, 0.923)
	f(0.02, 0.968)
}

func TestGoroutinesOfConnectionsAreNotExcess(t *testing.T) {
	g0, g1 := FitGoroutines([]float64{0, 100, 200, 400}, []float64{12, 212, 412, 812})
	near(t, "g0", g0, 12, 1e-9)
	near(t, "g1", g1, 2, 1e-9)
	near(t, "excess", ExcessGoroutines(2042, g0, g1, 1000), 30, 1e-9)
	near(t, "none", ExcessGoroutines(5, g0, g1, 0), 1, 0)
	g0, g1 = FitGoroutines([]float64{50, 50, 50}, []float64{60, 62, 61})
	near(t, "g0 without a ramp", g0, 61, 0)
	near(t, "g1 without a ramp", g1, 0, 0)
}

func TestStatesHaveNames(t *testing.T) {
	for s := Steady; s <= Inflection; s++ {
		b, err := json.Marshal(s)
		var back State
		if err != nil || json.Unmarshal(b, &back) != nil || back != s {
			t.Errorf("%v became %s and %v", s, b, back)
		}
	}
	var s State
	if json.Unmarshal([]byte(`"melted"`), &s) == nil {
		t.Error("a state of no known name was taken")
	}
}
