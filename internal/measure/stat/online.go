package stat

// Evaluate is one window against the rolling baseline, without memory: what the rule
// says of it alone, before anything is confirmed. The Reading's State is that too.
func (r *Rule) Evaluate(s RuleSample) (Reading, State) {
	base := r.Baseline()
	out, raw := r.read(s, base, base, false)
	out.State = raw
	return out, raw
}

// Baseline is the medians of the steady windows, or what the rule was made with.
func (r *Rule) Baseline() RuleSample {
	if len(r.steady) > 0 {
		return medianSample(r.steady)
	}
	return r.base
}

// SteadyWindows is how many windows the baseline is made of.
func (r *Rule) SteadyWindows() int { return len(r.steady) }

// Confirm takes window s, evaluated as raw, into the state: two equal readings between
// steady and alert, two of three for an inflection. raw may be another than
// Evaluate's: the caller may know more. confirmed is false when an inflection still
// lacks its second window. Steady windows become the baseline.
func (r *Rule) Confirm(raw State, s RuleSample) (state State, confirmed bool) {
	r.inflects = append(r.inflects, raw == Inflection)
	if len(r.inflects) > 3 {
		r.inflects = r.inflects[1:]
	}
	if raw == Steady {
		r.calm++
	} else {
		r.calm = 0
	}
	if r.state == Inflection && r.cfg.Unlatch > 0 && r.calm >= r.cfg.Unlatch {
		calm := r.calm
		r.Reset()
		r.calm = calm
	}
	confirmed = true
	if raw == Inflection {
		votes := 0
		for _, v := range r.inflects {
			if v {
				votes++
			}
		}
		if votes < 2 {
			raw, confirmed = Alert, false
		}
	}
	state = r.move(raw)
	if raw == Steady && state == Steady && s.P99 > 0 {
		r.steady = append(r.steady, s)
		if len(r.steady) > r.cfg.Window {
			r.steady = r.steady[1:]
		}
	}
	return state, confirmed
}

// LatchInflection is Confirm for what needs no confirmation: the state is Inflection from now on,
// until Reset or RuleConfig.Unlatch steady windows.
func (r *Rule) LatchInflection() {
	r.state, r.hasPend, r.calm = Inflection, false, 0
}
