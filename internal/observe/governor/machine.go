package governor

import (
	"math"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// A window is what is evaluated at once: a few seconds, summed up.
type window struct {
	procs int
	// Means over the samples, except where a percentile or a least is named.
	runQueue          float64
	sched             Quantiles
	goroutines, other int // the least: a burst is not a leak
	conns             int
	delivery          Quantiles
	loops             []loopWindow
	host              Host
	own               float64 // share of the processors that this process used
	stalls            Stalls
	broker            BrokerView
	gc                Collector
	locks             float64
	netpoll           float64
	memory, files     Budget
}

// A loopWindow is an event loop over a window.
type loopWindow struct {
	id      int
	busy    float64
	tick    Quantiles
	inbox   int // the least
	stalled int // the least
	conns   int
}

// keepTransitions bounds the timeline.
const keepTransitions = 64

// fitWindows is how many windows goroutines are fitted over: ten minutes.
const fitWindows = 120

// relearn is after how many windows goroutines that are alone in speaking against a
// steady state are the new normal.
const relearn = 24

// A machine is the two-condition rule online, and what else speaks for a state. It has
// no clock: one goroutine feeds it windows and what is found at once.
type machine struct {
	t    Thresholds
	rule *stat.Rule

	state    State
	timeline []Transition // never changed in place: snapshots share it

	// The goroutines' line over connections, from steady windows.
	conns, goroutines []float64
	g0, g1            float64
	odd               int // windows in a row in which only goroutines spoke

	leak   leakWatch
	inbox  map[int]int // by loop, the least of the last window
	urgent []Cause     // found at once, until cleared
}

func newMachine(t Thresholds, procs int) *machine {
	return &machine{
		t: t, inbox: map[int]int{}, state: State{Causes: []Cause{}}, timeline: []Transition{},
		rule: stat.NewRule(stat.RuleConfig{
			Latency: t.LatencyRatio, Goroutines: t.GoroutineRatio, Procs: procs, ConnectionRamp: true, Window: t.Baseline,
			Unlatch: t.Unlatch, RunQueue: t.RunQueue, RunQueueFull: t.RunQueueFull, SchedLatency: t.SchedLatency,
		}, stat.RuleSample{}),
	}
}

// evaluate takes the next window in and reports whether the state changed.
func (m *machine) evaluate(now time.Time, w *window) bool {
	sample := m.sample(w)
	reading, raw := m.rule.Evaluate(sample)
	causes := append(m.byRule(w, &reading), m.byLoops(w, &reading)...)
	causes = append(causes, m.byGoroutines(w, &reading)...)
	causes = append(causes, m.byResources(w)...)
	for _, c := range causes {
		raw = max(raw, c.State)
	}
	host := m.byHost(w)
	if len(host) > 0 {
		// What waits because the host lets it wait says nothing about us, except for what
		// no processor time would fix.
		raw = stat.Alert
		for _, c := range causes {
			if certain(c.Name) {
				raw = max(raw, c.State)
			}
		}
		causes = append(causes, host...)
	}
	for _, c := range m.urgent {
		raw = max(raw, c.State)
	}
	state, _ := m.rule.Confirm(raw, sample)
	m.learn(w, raw, causes)
	m.state.Inconclusive = len(host) > 0
	reading.State = raw
	m.state.Reading = reading
	m.state.Windows++
	m.state.Steady = m.rule.SteadyWindows()
	base := m.rule.Baseline()
	m.state.Baseline = Baseline{DeliveryP99: base.P99, Goroutines: base.Goroutines, G0: m.g0, G1: m.g1}
	return m.enter(now, state, append(slices.Clone(m.urgent), causes...))
}

// found takes in what was found between two windows and needs no confirmation; nil
// when it is over. It reports whether the state changed.
func (m *machine) found(now time.Time, urgent []Cause) bool {
	var rest []Cause
	for _, c := range m.state.Causes {
		if !slices.ContainsFunc(m.urgent, func(u Cause) bool { return u.Name == c.Name && u.Loop == c.Loop }) {
			rest = append(rest, c)
		}
	}
	m.urgent = urgent
	state := m.state.Now
	for _, c := range urgent {
		if c.State == stat.Inflection {
			m.rule.LatchInflection()
			state = stat.Inflection
		}
	}
	return m.enter(now, state, append(slices.Clone(urgent), rest...))
}

func (m *machine) enter(now time.Time, to stat.State, causes []Cause) bool {
	slices.SortStableFunc(causes, func(a, b Cause) int { return int(b.State) - int(a.State) })
	m.state.Causes = append([]Cause{}, causes...) // never nil: it is a list in JSON
	from := m.state.Now
	if m.state.Since.IsZero() {
		m.state.Since = now
	}
	if from == to {
		return false
	}
	m.state.Now, m.state.Since = to, now
	first := max(len(m.timeline)+1-keepTransitions, 0)
	m.timeline = append(slices.Clone(m.timeline[first:]), Transition{
		Time: now, From: from, To: to, Causes: causes, Inconclusive: m.state.Inconclusive,
	})
	return true
}

// witness writes the bundle's id into the last transition.
func (m *machine) witness(id string) {
	if n := len(m.timeline); n > 0 {
		m.timeline = slices.Clone(m.timeline)
		m.timeline[n-1].Evidence = id
	}
}

// enoughForMedian is how many samples a median may rest on.
const enoughForMedian = 20

// sample is the window in the rule's terms. A percentile of too few samples is
// unknown; a latency below the floor is the floor. But the worse the overload the fewer
// publications come through to be counted, so a median that has itself grown past the
// limit replaces the percentile, which cannot be less.
func (m *machine) sample(w *window) stat.RuleSample {
	s := stat.RuleSample{Goroutines: float64(w.goroutines), Runnable: w.runQueue * float64(w.procs)}
	if w.delivery.N >= uint64(m.t.MinSamples) {
		s.P99 = max(w.delivery.P99, m.t.LatencyFloor)
	} else if base := m.rule.Baseline().P99; base > 0 && w.delivery.N >= enoughForMedian && w.delivery.P50 >= m.t.LatencyRatio*base {
		s.P99 = w.delivery.P50
	}
	if w.sched.N*10 >= uint64(m.t.MinSamples) { // the runtime samples one transition in eight
		s.SchedP99 = w.sched.P99
	}
	// A handful of goroutines more is life. The rule counts in processors, so what is to
	// be ignored is scaled to one.
	if m.g0 > 0 {
		explained := m.g0 + m.g1*float64(w.conns)
		excess := stat.ExcessGoroutines(s.Goroutines, m.g0, m.g1, float64(w.conns))
		s.Excess = excess / m.ignored(w.procs, explained) * float64(w.procs)
	}
	for _, l := range w.loops {
		if l.inbox >= m.t.LoopInbox && l.inbox >= 2*m.inbox[l.id] && m.inbox[l.id] >= m.t.LoopInbox/4 {
			s.Growing = true
		}
	}
	return s
}

func (m *machine) ignored(procs int, explained float64) float64 {
	return max(float64(procs), 32, explained/10)
}

// learn keeps what the window teaches of the normal state.
func (m *machine) learn(w *window, raw stat.State, causes []Cause) {
	for _, l := range w.loops {
		m.inbox[l.id] = l.inbox
	}
	only := len(causes) > 0 && !slices.ContainsFunc(causes, func(c Cause) bool { return c.Name != CauseGoroutines })
	if only {
		m.odd++
	} else {
		m.odd = 0
	}
	if m.odd >= relearn {
		m.conns, m.goroutines, m.odd = nil, nil, 0
	} else if raw != stat.Steady {
		return
	}
	m.conns = append(m.conns, float64(w.conns))
	m.goroutines = append(m.goroutines, float64(w.goroutines))
	if len(m.conns) > fitWindows {
		m.conns, m.goroutines = m.conns[1:], m.goroutines[1:]
	}
	m.g0, m.g1 = stat.Median(m.goroutines), 0
	if slices.Max(m.conns) != slices.Min(m.conns) {
		m.g0, m.g1 = stat.FitGoroutines(m.conns, m.goroutines)
	}
	if !(m.g0 > 0) || math.IsNaN(m.g1) {
		m.g0 = max(m.g0, 1)
	}
}

// leakWatch sees goroutines that come and stay. It remembers the least number of the
// last fitWindows and requires three windows in a row that fell nowhere.
type leakWatch struct {
	other, conns []int
	rising       int
}

// observe returns by how much goroutines of no known role have grown, and whether they
// stayed. A connection may bring two of its own.
func (l *leakWatch) observe(other, conns int) (grown int, stays bool) {
	if n := len(l.other); n > 0 && other >= l.other[n-1]-l.other[n-1]/20 {
		l.rising++
	} else {
		l.rising = 0
	}
	l.other, l.conns = append(l.other, other), append(l.conns, conns)
	if len(l.other) > fitWindows {
		l.other, l.conns = l.other[1:], l.conns[1:]
	}
	least := 0
	for i, v := range l.other {
		if v < l.other[least] {
			least = i
		}
	}
	grown = other - l.other[least] - 2*max(conns-l.conns[least], 0)
	return grown, l.rising >= 2 && least < len(l.other)-2
}
