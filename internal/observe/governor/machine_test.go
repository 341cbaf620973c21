package governor

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// calm is a window of a server that does well.
func calm() *window {
	return &window{
		procs: 4, runQueue: 0.2, sched: Quantiles{N: 5000, P99: 100e-6}, goroutines: 60, other: 10, conns: 1000,
		delivery: Quantiles{N: 50000, P99: 0.004}, host: Host{Busy: 0.4}, own: 0.3,
		loops: []loopWindow{
			{id: 0, busy: 0.3, tick: Quantiles{N: 900, P99: 0.001}, conns: 500},
			{id: 1, busy: 0.3, tick: Quantiles{N: 900, P99: 0.001}, conns: 500},
		},
	}
}

// A play feeds a machine.
type play struct {
	*testing.T
	m   *machine
	now time.Time
}

// newPlay is a machine that has seen twelve calm windows.
func newPlay(t *testing.T) *play {
	p := &play{T: t, m: newMachine(DefaultThresholds(), 4), now: time.Unix(1e9, 0)}
	for range 12 {
		p.window(func(*window) {})
	}
	p.want("after calm", stat.Steady)
	return p
}

func (p *play) window(change func(*window)) {
	p.Helper()
	w := calm()
	change(w)
	p.now = p.now.Add(5 * time.Second)
	p.m.evaluate(p.now, w)
}

func (p *play) want(when string, state stat.State, causes ...string) {
	p.Helper()
	got := p.m.state
	if got.Now != state {
		p.Errorf("%s: %v (%v), want %v", when, got.Now, texts(got.Causes), state)
	}
	for _, name := range causes {
		found := false
		for _, c := range got.Causes {
			found = found || c.Name == name
		}
		if !found {
			p.Errorf("%s: causes %v, want %s among them", when, texts(got.Causes), name)
		}
	}
}

// Each cause, reached by what a window of it looks like, in the words of its chip.
func TestEachCauseIsNamed(t *testing.T) {
	f := func(name, text string, state stat.State, change func(*window)) {
		t.Helper()
		p := newPlay(t)
		for range 4 {
			p.window(change)
		}
		p.want(name, state, name)
		for _, c := range p.m.state.Causes {
			if c.Name == name && c.Text != text {
				t.Errorf("%s reads %q, want %q", name, c.Text, text)
			}
		}
		if len(p.m.timeline) == 0 || p.m.timeline[0].To == stat.Steady {
			t.Errorf("%s is not in the timeline: %+v", name, p.m.timeline)
		}
		for range 20 {
			p.window(func(*window) {})
		}
		p.want("after "+name, stat.Steady)
		if len(p.m.state.Causes) != 0 {
			t.Errorf("after %s there still are causes: %v", name, texts(p.m.state.Causes))
		}
	}
	f(CauseRunQueue, "run/P 3.1", stat.Alert, func(w *window) { w.runQueue = 3.1 })
	f(CauseSchedLatency, "sched p99 4.0 ms", stat.Alert, func(w *window) { w.sched.P99 = 0.004 })
	f(CauseLatency, "latency 3.2× baseline (p99 13 ms)", stat.Alert, func(w *window) { w.delivery.P99 = 0.0128 })
	f(CauseLatency, "latency 10.0× baseline (p99 40 ms)", stat.Inflection, func(w *window) { w.delivery.P99, w.runQueue = 0.04, 9 })
	f(CauseLoopBusy, "loop 1 busy 92 %", stat.Alert, func(w *window) { w.loops[1].busy = 0.92 })
	f(CauseLoopBusy, "loop 1 busy 99 %", stat.Inflection, func(w *window) { w.loops[1].busy, w.delivery.P99 = 0.99, 0.02 })
	f(CauseLoopTick, "loop 0 tick p99 50 ms", stat.Alert, func(w *window) { w.loops[0].tick.P99 = 0.05 })
	f(CauseLoopInbox, "loop 0 inbox 20,000", stat.Alert, func(w *window) { w.loops[0].inbox = 20000 })
	f(CauseGoroutines, "goroutines +240 beyond connections", stat.Alert, func(w *window) { w.goroutines = 300 })
	f(CauseStoppedReaders, "readers stopped: 200 of 1,000", stat.Alert, func(w *window) { w.loops[0].stalled = 200 })
	f(CauseStoppedReaders, "readers stopped: 3 of 20 sampled, window shut 40 %", stat.Alert, func(w *window) { w.stalls = Stalls{Sampled: 20, Stopped: 3, Reader: 0.4} })
	f(CauseRetransmits, "network: 12 % sent again", stat.Alert, func(w *window) { w.stalls.Retransmits = 0.12 })
	f(CauseDisk, "disk: broker p99 2.0 s", stat.Alert, func(w *window) { w.broker.Store = Quantiles{N: 5, P99: 2} })
	f(CauseDisk, "disk: broker silent for 3.0 s, 7 waiting", stat.Alert, func(w *window) { w.broker = BrokerView{Waiting: 7, Oldest: 3} })
	f(CauseDisk, "disk: broker silent for 12s, 1,007 waiting", stat.Inflection, func(w *window) { w.broker = BrokerView{Waiting: 1007, Oldest: 12} })
	f(CauseStarved, "CPU starved: steal 30 %", stat.Alert, func(w *window) { w.host.Steal = 0.3 })
	f(CauseStarved, "CPU starved: others run, we wait 0.80 s/s per P and use 40 %", stat.Alert, func(w *window) { w.host.Wait, w.host.Busy, w.own = 0.8, 1, 0.4 })
	f(CauseThrottled, "CPU starved: cgroup quota 40 % of the time", stat.Alert, func(w *window) { w.host.Throttled = 0.4 })
	f(CauseNetpoll, "netpoll p90 11 ms", stat.Alert, func(w *window) { w.netpoll = 0.011 })
	f(CauseCollector, "gc 30 % of cpu", stat.Alert, func(w *window) { w.gc.Share = 0.3 })
	f(CauseCollector, "gc assists 8 % of cpu", stat.Alert, func(w *window) { w.gc.Assist = 0.08 })
	f(CauseCollector, "gc throttled at its limit: memory is short", stat.Alert, func(w *window) { w.gc.Limiting = true })
	f(CauseLocks, "locks 0.50 s/s", stat.Alert, func(w *window) { w.locks = 0.5 })
	f(CauseMemory, "memory 88 % of limit", stat.Alert, func(w *window) { w.memory = Budget{Fraction: 0.88, Level: BudgetSoft} })
	f(CauseMemory, "memory 97 % of limit", stat.Inflection, func(w *window) { w.memory = Budget{Fraction: 0.97, Level: BudgetHard} })
	f(CauseDescriptors, "descriptors 97 % of limit", stat.Inflection, func(w *window) { w.files = Budget{Fraction: 0.97, Level: BudgetHard} })
}

func TestTheTwoConditionsTogetherAreAnInflection(t *testing.T) {
	p := newPlay(t)
	both := func(w *window) { w.delivery.P99, w.goroutines = 0.012, 600 }
	p.window(both)
	p.want("after one window", stat.Steady)
	p.window(both)
	p.want("after two", stat.Inflection, CauseLatency, CauseGoroutines)
}

func TestOneWindowIsNoState(t *testing.T) {
	p := newPlay(t)
	for range 5 {
		p.window(func(w *window) { w.runQueue = 5 })
		p.want("one bad window", stat.Steady)
		p.window(func(*window) {})
		p.want("and a good one", stat.Steady)
	}
	if len(p.m.timeline) != 0 {
		t.Errorf("the timeline has %+v", p.m.timeline)
	}
}

func TestAnInflectionLatchesUntilItHasBeenSteady(t *testing.T) {
	p := newPlay(t)
	bad := func(w *window) { w.delivery.P99, w.runQueue = 0.1, 10 }
	p.window(bad)
	p.window(bad)
	p.want("two windows past the knee", stat.Inflection)
	for i := range DefaultThresholds().Unlatch - 1 {
		p.window(func(*window) {})
		p.want("steady for "+string(rune('1'+i)), stat.Inflection)
	}
	p.window(func(*window) {})
	p.want("steady long enough", stat.Steady)
	if n := len(p.m.timeline); n != 2 || p.m.timeline[1].From != stat.Inflection || p.m.timeline[1].To != stat.Steady {
		t.Errorf("timeline %+v", p.m.timeline)
	}
}

func TestTheHostsDoingIsInconclusiveAndNoInflection(t *testing.T) {
	p := newPlay(t)
	for range 5 {
		p.window(func(w *window) { w.delivery.P99, w.runQueue, w.host.Steal = 0.2, 12, 0.4 })
	}
	p.want("overload while stolen from", stat.Alert, CauseStarved, CauseLatency, CauseRunQueue)
	if !p.m.state.Inconclusive {
		t.Error("it is not called inconclusive")
	}
	for range 2 {
		p.window(func(w *window) { w.delivery.P99, w.runQueue = 0.2, 12 })
	}
	p.want("the same without the host", stat.Inflection)
	if p.m.state.Inconclusive {
		t.Error("it is called inconclusive")
	}
	p = newPlay(t)
	for range 3 {
		p.window(func(w *window) { w.host.Steal, w.memory = 0.4, Budget{Fraction: 0.97, Level: BudgetHard} })
	}
	p.want("no processor time would give memory", stat.Inflection, CauseMemory)
}

// Waiting for processors that we use up ourselves is our own overload.
func TestOwnOverloadIsNotTheHosts(t *testing.T) {
	p := newPlay(t)
	for range 3 {
		p.window(func(w *window) { w.host.Wait, w.host.Busy, w.own, w.runQueue = 0.8, 1, 0.95, 3 })
	}
	p.want("own overload", stat.Alert, CauseRunQueue)
	if p.m.state.Inconclusive {
		t.Error("it is called inconclusive")
	}
}

func TestTooFewSamplesAreNotEvaluated(t *testing.T) {
	p := newPlay(t)
	for range 5 {
		p.window(func(w *window) { w.delivery, w.sched = Quantiles{N: 999, P99: 1}, Quantiles{N: 99, P99: 1} })
	}
	p.want("few samples", stat.Steady)
}

// In the worst overload few publications come through: their median is evaluated, if it has
// grown past the limit itself.
func TestAMedianOfFewSamplesReplacesTheirPercentile(t *testing.T) {
	f := func(n uint64, p50 float64, want stat.State) {
		t.Helper()
		p := newPlay(t)
		for range 3 {
			p.window(func(w *window) {
				w.delivery = Quantiles{N: n, P50: p50, P99: 20 * p50}
				w.loops[0].busy = 0.99
			})
		}
		p.want("with a full loop", want)
	}
	f(150, 0.4, stat.Inflection)
	f(150, 0.009, stat.Alert) // 2.25 times
	f(10, 0.4, stat.Alert)
}

func TestALatencyBelowTheFloorDoesNotCount(t *testing.T) {
	p := &play{T: t, m: newMachine(DefaultThresholds(), 4), now: time.Unix(1e9, 0)}
	for range 12 {
		p.window(func(w *window) { w.delivery.P99 = 20e-6 })
	}
	for range 5 {
		p.window(func(w *window) { w.delivery.P99 = 900e-6 })
	}
	p.want("45 times of hardly anything", stat.Steady)
	for range 5 {
		p.window(func(w *window) { w.delivery.P99 = 0.0026 })
	}
	p.want("2.6 ms", stat.Alert, CauseLatency)
}

func TestGoroutinesThatComeAndStayAreALeak(t *testing.T) {
	p := newPlay(t)
	n := 10
	for range 4 {
		n += 400
		p.window(func(w *window) { w.other, w.goroutines = n, n+50 })
	}
	p.want("+1,600", stat.Alert, CauseGoroutineLeak)
	if text := p.m.state.Causes[0].Text; !strings.HasPrefix(text, "goroutines leak +1,") {
		t.Errorf("the chip reads %q", text)
	}
	p = newPlay(t)
	for i := range 8 { // bursts that go away are none
		p.window(func(w *window) { w.other = 10 + 2000*(i%2) })
	}
	for _, c := range p.m.state.Causes {
		if c.Name == CauseGoroutineLeak {
			t.Errorf("bursts are called a leak: %s", c.Text)
		}
	}
	p = newPlay(t)
	for i := range 8 { // and two for each connection are its own
		p.window(func(w *window) { w.conns = 1000 + 1000*i; w.other = 10 + 2000*i; w.goroutines = w.other + 50 })
	}
	for _, c := range p.m.state.Causes {
		if c.Name == CauseGoroutineLeak {
			t.Errorf("connections are called a leak: %s", c.Text)
		}
	}
}

// A server that has more goroutines for good, and nothing else to say, gets used to it.
func TestANewNormalIsLearned(t *testing.T) {
	p := newPlay(t)
	for range relearn - 2 {
		p.window(func(w *window) { w.goroutines = 400 })
	}
	p.want("first", stat.Alert, CauseGoroutines)
	for range 6 {
		p.window(func(w *window) { w.goroutines = 400 })
	}
	p.want("at last", stat.Steady)
}

// An inbox that doubles from window to window is a backlog without end.
func TestAGrowingInboxIsAnInflection(t *testing.T) {
	p := newPlay(t)
	n := 4000
	for range 4 {
		n *= 3
		p.window(func(w *window) { w.loops[1].inbox = n })
	}
	p.want("a growing inbox", stat.Inflection, CauseLoopInbox)
}

func TestAStuckLoopNeedsNoConfirmation(t *testing.T) {
	p := newPlay(t)
	stuck := []Cause{{Name: CauseLoopStuck, State: stat.Inflection, Loop: 2, Text: "loop 2 stuck for 1.1 s"}}
	if !p.m.found(p.now, stuck) {
		t.Error("the state did not change at once")
	}
	p.want("at once", stat.Inflection, CauseLoopStuck)
	for range 10 {
		p.window(func(*window) {})
	}
	p.want("while it is stuck", stat.Inflection, CauseLoopStuck)
	p.m.found(p.now, nil)
	p.want("when it is free", stat.Inflection)
	if len(p.m.state.Causes) != 0 {
		t.Errorf("when it is free there still are %v", texts(p.m.state.Causes))
	}
	for range 6 {
		p.window(func(*window) {})
	}
	p.want("and steady", stat.Steady)
}

func TestTheTimelineIsBoundedAndNeverChangedInPlace(t *testing.T) {
	p := newPlay(t)
	var kept []Transition
	for i := range 2 * keepTransitions {
		for range 2 {
			p.window(func(w *window) {
				if i%2 == 0 {
					w.runQueue = 4
				}
			})
		}
		if i == 3 {
			kept = p.m.timeline
		}
		p.m.witness("x")
	}
	if len(p.m.timeline) != keepTransitions {
		t.Errorf("the timeline has %d entries, want %d", len(p.m.timeline), keepTransitions)
	}
	if len(kept) != 4 || kept[3].Evidence != "" || kept[0].To != stat.Alert {
		t.Errorf("a kept timeline changed: %+v", kept)
	}
}
