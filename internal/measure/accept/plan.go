package accept

import (
	"fmt"
	"time"
)

// A plan is how much of each indicator a run measures.
type plan struct {
	name string
	// attempts is how often an indicator that the machine disturbed is measured at most.
	attempts int

	knee     time.Duration // the search of the knee at most
	hold     time.Duration // sustained load
	settle   time.Duration // of a burst: base load before and after
	bursts   []time.Duration
	searched time.Duration // one step of the search of a capacity
	// conns connections of three kinds for connsFor, made by so many processes; rate is
	// publications and requests per second on them.
	conns     int
	connsFor  time.Duration
	connsRate float64
	processes int
	few, many int // connections of flatness
	// tracked clients follow shipments for trackedFor.
	tracked    int
	trackedFor time.Duration
	piece      time.Duration
	pairs      int // of pieces that are compared with each other
	trials     int
	sites      time.Duration // load before and after a switch-over of two sites
	// kills of the audit log's node, actions before each.
	kills, actions int
	handshakes     int
	// heldLess is why the sustained load is shorter than the target says, less why the mixed connections are
	// fewer or shorter, trackedLess the clients of shipments; empty: they are not.
	heldLess, less, trackedLess string
}

// set sets how many the mixed connections and the clients of shipments are, and how long they and the
// sustained load are held; 0 leaves either.
func (p *plan) set(conns int, length time.Duration) error {
	if conns < 0 || conns > 0 && conns < 30 || length < 0 || length > 0 && length < time.Second {
		return fmt.Errorf("%d mixed connections for %v: want 30 or more for a second or longer", conns, length)
	}
	was := *p
	if conns > 0 {
		p.conns, p.tracked = conns, conns
	}
	if length > 0 {
		p.hold, p.connsFor, p.trackedFor = length, length, length
	}
	less := func(conns int, length time.Duration, ofConns int, ofLength time.Duration) string {
		if conns >= ofConns && length >= ofLength {
			return ""
		}
		return fmt.Sprintf("%d connections for %v, not %d for %v", conns, length, ofConns, ofLength)
	}
	if p.hold < was.hold {
		p.heldLess = fmt.Sprintf("for %v, not %v", p.hold, was.hold)
	}
	p.less = less(p.conns, p.connsFor, was.conns, was.connsFor)
	p.trackedLess = less(p.tracked, p.trackedFor, was.tracked, was.trackedFor)
	return nil
}

// again sets how often an indicator is measured at most; 0 leaves it.
func (p *plan) again(attempts int) error {
	if attempts < 0 || attempts > 100 {
		return fmt.Errorf("%d attempts: want 1 to 100", attempts)
	}
	if attempts > 0 {
		p.attempts = attempts
	}
	return nil
}

// quick takes about ten minutes, full somewhat more than four hours, most of that for the
// mixed connections.
func quickPlan() plan {
	return plan{
		name: "quick", attempts: 1,
		knee: 110 * time.Second, hold: 45 * time.Second, settle: 8 * time.Second, bursts: []time.Duration{10 * time.Second}, searched: time.Second,
		conns: 10_000, connsFor: 5 * time.Minute, connsRate: 300, processes: 1, few: 1_000, many: 10_000, tracked: 10_000, trackedFor: 30 * time.Second,
		piece: 1500 * time.Millisecond, pairs: 4, trials: 3, sites: 3 * time.Second, kills: 5, actions: 100, handshakes: 500,
	}
}

func fullPlan() plan {
	p := quickPlan()
	p.name, p.attempts = "full", 3
	p.knee, p.hold, p.settle = 12*time.Minute, time.Hour, 20*time.Second
	p.bursts, p.searched = []time.Duration{10 * time.Second, time.Minute, 10 * time.Second, time.Minute, 10 * time.Second, time.Minute}, 2*time.Second
	p.conns, p.connsFor, p.connsRate, p.processes, p.few, p.many = 80_000, 2*time.Hour, 1000, 4, 10_000, 100_000
	p.tracked, p.trackedFor = 80_000, 10*time.Minute
	p.piece, p.pairs, p.trials, p.sites, p.kills, p.actions, p.handshakes = 4*time.Second, 12, 10, 15*time.Second, 30, 200, 3000
	return p
}

// planOf is the plan of a name: quick or full.
func planOf(name string) (plan, error) {
	switch name {
	case "quick":
		return quickPlan(), nil
	case "full":
		return fullPlan(), nil
	}
	return plan{}, fmt.Errorf("plan %q: want quick or full", name)
}
