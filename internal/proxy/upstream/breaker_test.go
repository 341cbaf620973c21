package upstream

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// model is the breaker said plainly: what the packed one is compared with.
type model struct {
	state  BreakerState
	since  int64
	never  bool // no change of state yet
	probes int
	passed int
	total  int
	failed int
}

func (m *model) enter(now int64, pol *breakerPolicy) bool {
	over := now-m.since >= pol.openTime
	switch {
	case m.state == BreakerClosed:
		return true
	case m.state == BreakerOpen && !over:
		return false
	case m.state == BreakerHalfOpen && m.probes < int(pol.probes):
		m.probes++
		return true
	case m.state == BreakerHalfOpen && !over:
		return false
	}
	*m = model{state: BreakerHalfOpen, since: now, probes: 1}
	return true
}

func (m *model) record(v verdict, start, now int64, pol *breakerPolicy) {
	if !m.never && start < m.since {
		return
	}
	switch m.state {
	case BreakerClosed:
		if v == neutral {
			return
		}
		m.total++
		if v == good {
			return
		}
		m.failed++
		if m.total >= pol.min && float64(m.failed) >= pol.ratio*float64(m.total) {
			*m = model{state: BreakerOpen, since: now}
		}
	case BreakerHalfOpen:
		m.probes = max(m.probes-1, 0)
		switch v {
		case bad:
			*m = model{state: BreakerOpen, since: now}
		case good:
			if m.passed++; m.passed >= int(pol.probes) {
				*m = model{state: BreakerClosed, since: now}
			}
		}
	}
}

// A world of one breaker: it, its model, and the requests under way.
type breakerWorld struct {
	b        breaker
	w        window
	m        model
	now      int64
	underWay []int64
}

const breakerEvents = "egbnot" // enter, good, bad, neutral, open time passes, a little time passes

// step applies one event to both and says where they differ.
func (x *breakerWorld) step(event byte, pol *breakerPolicy) error {
	x.now += sec
	switch event {
	case 'e':
		lets := x.b.lets(x.now, pol)
		got, _ := x.b.enter(x.now, pol)
		if want := x.m.enter(x.now, pol); got != want || lets != want {
			return fmt.Errorf("enter %v, lets %v, want %v", got, lets, want)
		}
		if got {
			x.underWay = append(x.underWay, x.now)
		}
	case 'g', 'b', 'n':
		if len(x.underWay) == 0 {
			return nil
		}
		start := x.underWay[0]
		x.underWay = x.underWay[1:]
		v := map[byte]verdict{'g': good, 'b': bad, 'n': neutral}[event]
		// What a cluster does: old requests are not counted.
		if x.m.never || start >= x.m.since {
			if v != neutral && x.m.state == BreakerClosed {
				x.w.add(x.now, v == bad)
			}
		}
		x.b.record(v, start, x.now, pol, &x.w)
		x.m.record(v, start, x.now, pol)
	case 'o':
		x.now += pol.openTime
	case 't':
		x.now += pol.openTime / 3
	}
	w := x.b.word.Load()
	if got := stateOf(w); got != x.m.state {
		return fmt.Errorf("%s, want %s", got, x.m.state)
	}
	if x.m.state == BreakerHalfOpen {
		if probes, passed := int(w>>probeShift&sevenBits), int(w>>passedShift&sevenBits); probes != x.m.probes || passed != x.m.passed {
			return fmt.Errorf("%d probes and %d passed, want %d and %d", probes, passed, x.m.probes, x.m.passed)
		}
	}
	return nil
}

// Every sequence of events up to a length is played at the breaker and at its
// model, from each of the three states.
func TestBreakerIsItsModelInEverySequence(t *testing.T) {
	// All fits into one window, and events are a second apart, so that the window
	// after a change of state has every request since.
	pol := &breakerPolicy{openTime: 3 * sec / 2, window: 30 * sec, min: 2, ratio: 0.5, probes: 2}
	transitions := map[string]int{}
	play := func(prefix string, length int, from BreakerState) {
		n := 1
		for range length {
			n *= len(breakerEvents)
		}
		events := append([]byte(prefix), make([]byte, length)...)
		for ; n > 0; n-- {
			for i, k := len(prefix), n; i < len(events); i, k = i+1, k/len(breakerEvents) {
				events[i] = breakerEvents[k%len(breakerEvents)]
			}
			x := breakerWorld{now: 100 * sec, m: model{never: true}}
			for i, e := range events {
				was := x.m.state
				if i == len(prefix) && was != from {
					t.Fatalf("%q leads to %s, want %s", prefix, was, from)
				}
				if err := x.step(e, pol); err != nil {
					t.Fatalf("%s after %q: %v", prefix, events[:i+1], err)
				}
				if was != x.m.state {
					transitions[was.String()+" to "+x.m.state.String()]++
				}
			}
		}
	}
	play("", 7, BreakerClosed)
	play("eebb", 6, BreakerOpen)
	play("eebboe", 5, BreakerHalfOpen)
	play("eebboegeg", 6, BreakerClosed)
	for _, s := range []string{"closed to open", "open to half-open", "half-open to open", "half-open to closed"} {
		if transitions[s] == 0 {
			t.Errorf("no sequence went from %s", s)
		}
	}
	if len(transitions) != 4 {
		t.Errorf("transitions: %v", transitions)
	}
	t.Log(transitions)
}

func TestBreakerTimes(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(1)})
	p := peerAt(t, c, "10.0.0.1:80")
	now := 100 * sec
	for range 20 {
		request(t, c, now, ms, 500)
	}
	if p.breaker.state() != BreakerOpen {
		t.Fatal("closed after 20 failures")
	}
	opened := now
	for ; now < opened+5*sec; now += 100 * ms {
		if _, err := c.Pick(now, 0, nil); err == nil {
			t.Fatalf("asked %s after it opened", time.Duration(now-opened))
		}
	}
	now += ms
	var probes []*Peer
	for range 3 {
		probes = append(probes, mustPick(t, c, now, 0, nil))
	}
	if _, err := c.Pick(now, 0, nil); err == nil {
		t.Fatal("a fourth probe at a time")
	}
	// One is cancelled: its place is free again.
	c.Done(probes[0], failed(Canceled, now))
	probes[0] = mustPick(t, c, now, 0, nil)
	for i, q := range probes {
		if p.breaker.state() != BreakerHalfOpen {
			t.Fatalf("%s after %d probes", p.breaker.state(), i)
		}
		c.Done(q, ok(now, now+ms))
	}
	if p.breaker.state() != BreakerClosed {
		t.Error("not closed after three good probes")
	}
	// A failure of the time before changes nothing now.
	mustPick(t, c, now+2*ms, 0, nil)
	c.Done(p, Outcome{Kind: Timeout, Start: opened - sec, End: now + 2*ms})
	if total, _ := p.traffic.sum(now+2*sec, 30*sec, p.since.Load()); total != 0 {
		t.Errorf("an old failure counts: %d", total)
	}
}

func TestBreakerForgetsProbesWithoutVerdict(t *testing.T) {
	var b breaker
	pol := &breakerPolicy{openTime: 5 * sec, window: 10 * sec, min: 1, ratio: 0.5, probes: 1}
	b.word.Store(breakerWord(BreakerOpen, 0, 0, sec))
	if ok, began := b.enter(7*sec, pol); !ok || !began {
		t.Fatal("no probe after the open time")
	}
	if ok, _ := b.enter(8*sec, pol); ok {
		t.Fatal("a second probe at once")
	}
	if ok, _ := b.enter(12*sec, pol); !ok {
		t.Fatal("no probe although the first has had no verdict for 5 s")
	}
	var w window
	b.record(good, 7*sec, 12*sec, pol, &w)
	if b.state() != BreakerHalfOpen {
		t.Error("the forgotten probe closed the breaker")
	}
	b.record(good, 12*sec, 13*sec, pol, &w)
	if b.state() != BreakerClosed {
		t.Error("the new probe did not close it")
	}
}

func TestBreakerAgeIsRightWhateverTheClock(t *testing.T) {
	year := int64(365 * 24 * time.Hour)
	for _, base := range []int64{2000, 5 * year, 8*year + year/2, 9 * year, 56 * year, math.MaxInt64 - 3*year} {
		w := breakerWord(BreakerOpen, 3, 4, base)
		for _, d := range []int64{0, 1e6, 3600 * sec, 2 * year} {
			if got := age(w, base+d); got/1000 != d/1000 && got/1000 != d/1000+1 {
				t.Errorf("at %d after %d: %d", base, d, got)
			}
			if got := age(w, base-d); d > 0 && base > d && got >= 0 {
				t.Errorf("at %d before %d: %d", base, d, got)
			}
		}
	}
}

func TestWindowCountsTheLastSeconds(t *testing.T) {
	var w window
	for s := range int64(60) {
		for range s + 1 {
			w.add(s*sec, s%2 == 0)
		}
	}
	f := func(now, d, since int64, total, failed int) {
		t.Helper()
		if a, b := w.sum(now*sec, d*sec, since*sec); a != total || b != failed {
			t.Errorf("sum(%d, %d, %d) = %d, %d, want %d, %d", now, d, since, a, b, total, failed)
		}
	}
	f(59, 1, 0, 60, 0)
	f(59, 2, 0, 119, 59)
	f(59, 10, 0, 555, 275)
	f(59, 10, 57, 119, 59)
	f(59, 10, 59, 0, 0)
	f(69, 10, 0, 0, 0)
	f(68, 10, 0, 60, 0)
}

func TestWindowStopsAtAMillionASecond(t *testing.T) {
	var w window
	for range countMax + 10 {
		w.add(sec, true)
	}
	if total, failed := w.sum(sec, sec, 0); total != countMax || failed != countMax {
		t.Errorf("%d, %d", total, failed)
	}
}
