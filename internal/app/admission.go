package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/observe"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/push"
)

// admission lets connections in, as far as the budgets and the limits per address allow.
type admission struct {
	// Fixed at newAdmission.
	front *limit.Front
	loops []*eventloop.Loop
	// counted are the connections that front counts, by loop; each is its loop's.
	counted []map[uint64]struct{}

	// Any goroutine.
	full     atomic.Pointer[governor.Governor] // a budget of it is used up: new clients are rejected; nil: there is room
	refusals observe.Refusals
}

func newAdmission(cfg limit.FrontConfig, trust *limit.Trust, loops []*eventloop.Loop) (*admission, error) {
	d := &admission{loops: loops, counted: make([]map[uint64]struct{}, len(loops))}
	d.refusals.Scale.Store(1000)
	var err error
	if d.front, err = limit.NewFront(cfg, trust); err != nil {
		return nil, fmt.Errorf("limits: %w", err)
	}
	for i, l := range loops {
		d.counted[i] = map[uint64]struct{}{}
		l.OnRelease(func(c *eventloop.Conn) {
			if _, ok := d.counted[i][c.ID()]; ok {
				delete(d.counted[i], c.ID())
				d.front.Disconnect(c.Peer().Addr())
			}
		})
	}
	return d, nil
}

// reserved is how many of n connections are kept from subscribers: a sixteenth, 8 to
// 1,024, but no more than a half.
func reserved(n int) int { return min(max(n/16, 8), 1024, n/2) }

// fenced is an accept function that lets in whom the budgets and the limits per address
// allow, and counts them out when they go.
func (d *admission) fenced(next func(*eventloop.Conn) eventloop.Handler) func(*eventloop.Conn) eventloop.Handler {
	return func(c *eventloop.Conn) eventloop.Handler {
		if d.refuses() {
			return nil
		}
		in, ok := d.front.Connect(c.Peer().Addr(), c.Loop().Now())
		if !ok {
			return nil
		}
		if in {
			d.counted[c.Loop().ID()][c.ID()] = struct{}{}
		}
		return next(c)
	}
}

// joined is an accept function for streams of HTTP/2: what a connection has besides its
// first stream counts as connections of its client's address. The rate of connections is
// not theirs.
func (d *admission) joined(next func(*eventloop.Conn) eventloop.Handler) func(*eventloop.Conn) eventloop.Handler {
	return func(c *eventloop.Conn) eventloop.Handler {
		if firstStream(c) {
			return next(c)
		}
		in, ok := d.front.Join(c.Peer().Addr())
		if !ok {
			return nil
		}
		if in {
			d.counted[c.Loop().ID()][c.ID()] = struct{}{}
		}
		return next(c)
	}
}

// firstStream reports whether c is the only stream of its connection, with which it counts as one.
func firstStream(c *eventloop.Conn) bool {
	s, ok := c.CarriedBy().(interface{ Alone() bool })
	return ok && s.Alone()
}

// arrived counts in a connection, or stream, of another process. The bounds are not applied.
func (d *admission) arrived(c *eventloop.Conn) {
	if !firstStream(c) && d.front.Connected(c.Peer().Addr()) {
		d.counted[c.Loop().ID()][c.ID()] = struct{}{}
	}
}

// countOpen counts the connections in that were let in while nothing was counted.
func (d *admission) countOpen() {
	for i, l := range d.loops {
		l.Post(func() {
			l.Conns(func(c *eventloop.Conn) bool {
				if _, ok := d.counted[i][c.ID()]; !ok && c.Listener() >= 0 && c.Socket() == c && d.front.Connected(c.Peer().Addr()) {
					d.counted[i][c.ID()] = struct{}{}
				}
				return true
			})
		})
	}
}

// refuses reports whether connections are refused for want of a budget, and counts one
// that is.
func (d *admission) refuses() bool {
	g := d.full.Load()
	switch {
	case g == nil:
		return false
	case g.MemoryBudget().Level == governor.BudgetHard:
		d.refusals.Memory.Add(1)
	default:
		d.refusals.Files.Add(1)
	}
	return true
}

// A warden watches the processors and the budgets, and takes from the least important
// what there is too little of.
type warden struct {
	governor  *governor.Governor
	push      *push.Push
	tls       *tlsterm.Terminator // nil: plaintext
	admission *admission
	classed   func() bool // something has a class: otherwise it is not known who can wait
	guard     guard
	log       *slog.Logger
}

// run watches at the governor's pace until ctx is done.
func (w *warden) run(ctx context.Context) error {
	if !w.governor.Config().On() {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(time.Duration(w.governor.Config().Interval))
	defer tick.Stop()
	level := governor.BudgetOK
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		p99 := w.governor.SchedP99()
		if !w.classed() {
			p99 = 0
		}
		if g := &w.guard; g.look(p99) {
			w.admission.refusals.Scale.Store(int64(1000 * g.scale))
			w.push.Guard(g.scale, g.rest)
			if w.tls != nil {
				w.tls.Throttle(g.rest)
			}
		}
		if now := max(w.governor.MemoryBudget().Level, w.governor.DescriptorBudget().Level); now != level {
			w.budget(level, now)
			level = now
		}
	}
}

// budget applies the level of the budgets: new subscriptions are rejected
// from soft on, new connections from hard on. Anyone who is there stays.
func (w *warden) budget(was, now governor.BudgetLevel) {
	w.push.Refuse(now >= governor.BudgetSoft)
	if now >= governor.BudgetHard {
		w.admission.full.Store(w.governor)
	} else {
		w.admission.full.Store(nil)
	}
	m, f := w.governor.MemoryBudget(), w.governor.DescriptorBudget()
	log := w.log.Warn
	if now == governor.BudgetOK {
		log = w.log.Info
	}
	log("budget", "was", was.String(), "now", now.String(), "memory", m.Fraction, "descriptors", f.Fraction)
}

// guard turns the scheduler's latency into what is left to those who can wait.
type guard struct {
	bound time.Duration
	scale float64
	rest  bool
	long  int // samples since rest began
}

// On a machine that is always short of processors those who rest would wait for ever:
// of maxPause + someWork samples they work in the last.
const maxPause, someWork = 20, 5

// look takes one sample, and reports whether something has changed. What was taken away
// with one sample comes back by tenths.
func (g *guard) look(p99 time.Duration) bool {
	was := *g
	if g.bound >= 0 && p99 > g.bound {
		g.scale, g.rest = max(g.scale/2, 0.05), true
	} else {
		g.scale = min(g.scale+0.1, 1)
		g.rest = g.scale < 0.5
	}
	switch {
	case !g.rest:
		g.long = 0
	case g.long == maxPause+someWork:
		g.long = 1
	default:
		g.long++
		g.rest = g.long <= maxPause
	}
	return g.scale != was.scale || g.rest != was.rest
}

// classed reports whether anything in cfg has a class: otherwise there is nothing to show.
func classed(cfg *config.Config) bool {
	for _, ns := range cfg.Namespaces {
		if ns.Class != "" {
			return true
		}
	}
	for _, r := range cfg.Routes {
		if r.Class != "" {
			return true
		}
	}
	return false
}
