package stat

import (
	"fmt"
	"math"
)

// A State is how a server fares by the two-condition rule.
type State int

// The states, in order of trouble.
const (
	Steady State = iota
	Alert
	Inflection
)

func (s State) String() string {
	switch s {
	case Alert:
		return "alert"
	case Inflection:
		return "inflection"
	}
	return "steady"
}

// MarshalText writes the state's name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *State) UnmarshalText(b []byte) error {
	for v := Steady; v <= Inflection; v++ {
		if v.String() == string(b) {
			*s = v
			return nil
		}
	}
	return fmt.Errorf("state %q: want steady, alert or inflection", b)
}

// A RuleSample is one repeat of a level, or one online window.
type RuleSample struct {
	// P99 in seconds; 0 or less means too few samples to say.
	P99 float64
	// Goroutines lives, Excess of them are beyond what the connections explain
	// (see FitGoroutines), at least 1. Runnable wait for a processor. 0: not known.
	Goroutines, Excess, Runnable float64
	// SchedP99 is the scheduler latency's P99 in seconds; 0: not known.
	SchedP99 float64
	// Dropped arrivals were never sent; Growing says that the backlog was.
	Dropped uint64
	Growing bool
}

// A RuleLevel are the repeats of one level of load.
type RuleLevel struct {
	Load    float64
	Repeats []RuleSample
}

// RuleConfig are the rule's numbers. The zero value means the defaults.
type RuleConfig struct {
	// Latency is the ratio of P99 that counts; 0 means 2.5.
	Latency float64 `json:"latency,omitempty"`
	// Goroutines is the ratio of goroutines that counts; 0 means 3.
	Goroutines float64 `json:"goroutines,omitempty"`
	// Procs is the target's GOMAXPROCS; 0 means 1.
	Procs int `json:"procs,omitempty"`
	// ConnectionRamp reports that connections rise, not rate: then raw goroutines only
	// echo the ramp and do not count.
	ConnectionRamp bool `json:"connection_ramp,omitempty"`
	// Window is how many steady windows the online baseline spans; 0 means 12.
	Window int `json:"window,omitempty"`
	// Unlatch is how many steady windows in a row end an inflection online; 0 means
	// that only Reset does.
	Unlatch int `json:"unlatch,omitempty"`
	// RunQueue is runnable goroutines per processor at alert, RunQueueFull those that
	// make a crept latency an inflection; 0 means 2 and 8.
	RunQueue     float64 `json:"run_queue,omitempty"`
	RunQueueFull float64 `json:"run_queue_full,omitempty"`
	// SchedLatency is the scheduler latency's P99 in seconds at alert; 0 means 0.001.
	SchedLatency float64 `json:"sched_latency,omitempty"`
}

func (c RuleConfig) withDefaults() RuleConfig {
	if !(c.Latency > 0) {
		c.Latency = 2.5
	}
	if !(c.Goroutines > 0) {
		c.Goroutines = 3
	}
	c.Procs = max(c.Procs, 1)
	if c.Window <= 0 {
		c.Window = 12
	}
	if !(c.RunQueue > 0) {
		c.RunQueue = 2
	}
	if !(c.RunQueueFull > 0) {
		c.RunQueueFull = 8
	}
	if !(c.SchedLatency > 0) {
		c.SchedLatency = 1e-3
	}
	return c
}

// A Reading is what the rule says of one level or window.
type Reading struct {
	State State `json:"state"`
	// Literal is the rule as it was stated: P99 ≥ 2.5× and goroutines ≥ 3× the
	// level before. It depends on the size of the step.
	Literal bool `json:"literal"`
	// The ratios: of P99 to the level before and to the baseline, of goroutines raw
	// and in excess, and the run queue per processor. 0 means unknown.
	LatencyStep float64 `json:"latency_step"`
	LatencyBase float64 `json:"latency_base"`
	Goroutines  float64 `json:"goroutines"`
	Excess      float64 `json:"excess"`
	RunQueue    float64 `json:"run_queue"`
	// Causes name what speaks for the state.
	Causes []string `json:"causes,omitempty"`
}

// A Rule is the two-condition rule as a state machine: P99 at 2.5 times and
// goroutines at 3 times what they were is the inflection, one of the two an
// alert. Offline it compares consecutive levels ([Rule.Level]), online windows
// with a rolling baseline of steady ones ([Rule.Window]); one Rule is used in one
// way. A step between steady and alert takes two equal readings; inflection takes
// two of three repeats and then stays until Reset.
//
// It is not safe for concurrent use.
type Rule struct {
	cfg   RuleConfig
	state State

	// The fixed baseline, offline; the steady windows, online.
	base   RuleSample
	steady []RuleSample

	prev     RuleSample
	hasPrev  bool
	pending  State // a reading that differs from state, seen once
	hasPend  bool
	inflects []bool // online: of the last three windows
	calm     int    // online: steady windows in a row
}

// NewRule is a rule that measures against baseline: the medians at low load.
// Online a zero baseline is learned from the first windows.
func NewRule(cfg RuleConfig, baseline RuleSample) *Rule {
	r := &Rule{cfg: cfg.withDefaults(), base: baseline}
	if baseline.P99 > 0 {
		r.prev, r.hasPrev = baseline, true
	}
	return r
}

// Reset unlatches: the machine is steady and keeps its baseline.
func (r *Rule) Reset() {
	r.state, r.hasPend, r.inflects, r.calm = Steady, false, nil, 0
}

// Level reads the next level of a ramp. Its values are medians over the repeats.
// One repeat alone cannot confirm an inflection.
func (r *Rule) Level(l RuleLevel) Reading {
	if len(l.Repeats) == 0 {
		return Reading{State: r.state}
	}
	mid := medianSample(l.Repeats)
	prev := r.base
	if r.hasPrev {
		prev = r.prev
	}
	out, raw := r.read(mid, prev, r.base, r.interval(l.Repeats, prev))
	if raw == Inflection {
		votes := 0
		for _, s := range l.Repeats {
			if _, one := r.read(s, prev, r.base, false); one == Inflection {
				votes++
			}
		}
		if votes < 2 || 3*votes < 2*len(l.Repeats) {
			raw = Alert
			out.Causes = append(out.Causes, "not confirmed by 2 of 3 repeats")
		}
	}
	out.State = r.move(raw)
	r.prev, r.hasPrev = mid, true
	return out
}

// interval reports whether the latency step's t-interval over repeats excludes 1.
func (r *Rule) interval(repeats []RuleSample, prev RuleSample) bool {
	var ps []float64
	for _, s := range repeats {
		ps = append(ps, s.P99)
	}
	v := LogStudentInterval(ps, 0.95)
	return v.N >= 2 && prev.P99 > 0 && v.Lo > prev.P99
}

// read is one evaluation without memory. sure says that the latency step's
// interval excludes 1.
func (r *Rule) read(s, prev, base RuleSample, sure bool) (Reading, State) {
	ratio := func(a, b float64) float64 {
		if a > 0 && b > 0 {
			return a / b
		}
		return 0
	}
	procs := float64(r.cfg.Procs)
	out := Reading{
		LatencyStep: ratio(s.P99, prev.P99),
		LatencyBase: ratio(s.P99, base.P99),
		Goroutines:  ratio(s.Goroutines, prev.Goroutines),
		RunQueue:    s.Runnable / procs,
	}
	cumulative := 0.0
	if s.Excess > 0 {
		out.Excess = s.Excess / math.Max(prev.Excess, procs)
		cumulative = s.Excess / math.Max(base.Excess, procs)
	}
	cause := func(holds bool, format string, args ...any) bool {
		if holds {
			out.Causes = append(out.Causes, fmt.Sprintf(format, args...))
		}
		return holds
	}
	k := r.cfg.Latency
	slow := cause(out.LatencyStep >= k, "P99 %.1f× the level before", out.LatencyStep)
	goro := cause(out.Excess >= r.cfg.Goroutines, "excess goroutines %.1f×", out.Excess)
	if !r.cfg.ConnectionRamp {
		goro = cause(out.Goroutines >= r.cfg.Goroutines, "goroutines %.1f×", out.Goroutines) || goro
	}
	out.Literal = slow && out.Goroutines >= r.cfg.Goroutines
	crept := out.LatencyBase >= k*k && (cumulative >= r.cfg.Goroutines*r.cfg.Goroutines || out.RunQueue >= r.cfg.RunQueueFull)
	crept = cause(crept, "P99 %.1f× the baseline", out.LatencyBase)
	growing := cause(s.Growing, "backlog grows")
	if slow && goro || crept || growing {
		return out, Inflection
	}
	alert := slow || goro
	alert = cause(!slow && sure && out.LatencyStep >= 1.5, "P99 %.1f× the level before", out.LatencyStep) || alert
	alert = cause(out.RunQueue >= r.cfg.RunQueue, "run queue %.1f per processor", out.RunQueue) || alert
	alert = cause(s.SchedP99 >= r.cfg.SchedLatency, "scheduler latency %.1f ms", s.SchedP99*1e3) || alert
	alert = cause(s.Dropped > 0, "%d arrivals dropped", s.Dropped) || alert
	if alert {
		return out, Alert
	}
	return out, Steady
}

// move takes a reading into the state.
func (r *Rule) move(raw State) State {
	switch {
	case r.state == Inflection:
	case raw == Inflection:
		r.state, r.hasPend = Inflection, false
	case raw == r.state:
		r.hasPend = false
	case r.hasPend && r.pending == raw:
		r.state, r.hasPend = raw, false
	default:
		r.pending, r.hasPend = raw, true
	}
	return r.state
}

// medianSample is the median of each value; a backlog grows when it does in more
// than half.
func medianSample(ss []RuleSample) RuleSample {
	pick := func(f func(RuleSample) float64) float64 { return MedianOf(ss, f) }
	growing := 0
	for _, s := range ss {
		if s.Growing {
			growing++
		}
	}
	return RuleSample{
		P99:        pick(func(s RuleSample) float64 { return s.P99 }),
		Goroutines: pick(func(s RuleSample) float64 { return s.Goroutines }),
		Excess:     pick(func(s RuleSample) float64 { return s.Excess }),
		Runnable:   pick(func(s RuleSample) float64 { return s.Runnable }),
		SchedP99:   pick(func(s RuleSample) float64 { return s.SchedP99 }),
		Dropped:    uint64(pick(func(s RuleSample) float64 { return float64(s.Dropped) })),
		Growing:    2*growing > len(ss),
	}
}

// FitGoroutines is how many goroutines an idle server of conns connections has,
// g0 + g1·conns, by Theil–Sen over what was seen at low load. When connections
// were never changed all belong to g0.
func FitGoroutines(conns, goroutines []float64) (g0, g1 float64) {
	l := TheilSen(conns, goroutines, 0.95)
	if l.Slope < 0 {
		return Median(goroutines), 0
	}
	return l.Intercept, l.Slope
}

// ExcessGoroutines are those that g0 + g1·conns does not explain, at least 1.
func ExcessGoroutines(goroutines, g0, g1, conns float64) float64 {
	return math.Max(1, goroutines-(g0+g1*conns))
}

// AlarmUtilization is the utilisation at the level before at which the latency ratio k
// is met by a step of rate by the share s, when sojourn goes as 1/(1−ρ):
// (k−1)/((k−1)+k·s). It shows how the literal rule depends on the ramp.
func AlarmUtilization(k, s float64) float64 { return (k - 1) / ((k - 1) + k*s) }
