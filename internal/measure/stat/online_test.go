package stat

import "testing"

// window weighs and settles s, and reports whether the result was confirmed.
func (r *Rule) window(s RuleSample) (State, bool) {
	_, raw := r.Evaluate(s)
	return r.Confirm(raw, s)
}

func TestAnInflectionUnlatchesAfterSteadyWindows(t *testing.T) {
	r := NewRule(RuleConfig{Unlatch: 3, ConnectionRamp: true}, RuleSample{})
	good, bad := RuleSample{P99: 0.01, Excess: 1}, RuleSample{P99: 0.05, Excess: 50}
	step := func(s RuleSample, want State) {
		t.Helper()
		if got, _ := r.window(s); got != want {
			t.Errorf("state %v, want %v", got, want)
		}
	}
	for range 5 {
		step(good, Steady)
	}
	step(bad, Steady)
	step(bad, Inflection)
	step(good, Inflection)
	step(good, Inflection)
	step(bad, Inflection) // it starts to count again
	step(good, Inflection)
	step(good, Inflection)
	step(good, Steady)
	if r.SteadyWindows() == 0 || r.Baseline().P99 != 0.01 {
		t.Errorf("the baseline is %+v of %d windows", r.Baseline(), r.SteadyWindows())
	}
}

func TestSettleTakesWhatTheCallerKnows(t *testing.T) {
	r := NewRule(RuleConfig{}, RuleSample{})
	s := RuleSample{P99: 0.01}
	if _, raw := r.Evaluate(s); raw != Steady {
		t.Fatalf("weighed as %v", raw)
	}
	if state, _ := r.Confirm(Alert, s); state != Steady {
		t.Errorf("after one alert %v", state)
	}
	if state, _ := r.Confirm(Alert, s); state != Alert {
		t.Errorf("after two alerts %v", state)
	}
	if r.SteadyWindows() != 0 {
		t.Error("a window that the caller calls an alert became the baseline")
	}
	if _, confirmed := r.Confirm(Inflection, s); confirmed {
		t.Error("one inflection is confirmed")
	}
	if state, confirmed := r.Confirm(Inflection, s); state != Inflection || !confirmed {
		t.Errorf("after two inflections %v, confirmed %v", state, confirmed)
	}
	r.Reset()
	if r.LatchInflection(); r.state != Inflection {
		t.Errorf("latched, it is %v", r.state)
	}
}

func TestTheRulesThresholdsCanBeGiven(t *testing.T) {
	f := func(cfg RuleConfig, s RuleSample, want State) {
		t.Helper()
		if _, got := NewRule(cfg, RuleSample{}).Evaluate(s); got != want {
			t.Errorf("%+v under %+v is %v, want %v", s, cfg, got, want)
		}
	}
	f(RuleConfig{}, RuleSample{Runnable: 3}, Alert)
	f(RuleConfig{RunQueue: 4}, RuleSample{Runnable: 3}, Steady)
	f(RuleConfig{}, RuleSample{SchedP99: 0.002}, Alert)
	f(RuleConfig{SchedLatency: 0.005}, RuleSample{SchedP99: 0.002}, Steady)
}
