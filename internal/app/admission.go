package app

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/admin"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/governor"
	"github.com/weir-gateway/weir/internal/limit"
)

// admission is what the process does about more load than it can carry.
type admission struct {
	front *limit.Front
	// counted are the connections that front counts, by loop; each is its loop's.
	counted []map[uint64]struct{}

	// Any goroutine.
	full    atomic.Bool // a budget is used up: nobody new is let in
	scale   atomic.Int64
	refused struct{ memory, files atomic.Uint64 }
}

// buildAdmission holds clients to limits.
func (a *App) buildAdmission() (err error) {
	if a.wing.trust, err = limit.NewTrust(a.cfg.Trusted); err != nil {
		return fmt.Errorf("trusted: %w", err)
	}
	d := &a.admission
	d.scale.Store(1000)
	if d.front, err = limit.NewFront(a.cfg.Limits, a.wing.trust); err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	d.counted = make([]map[uint64]struct{}, len(a.loops.Loops()))
	for i, l := range a.loops.Loops() {
		d.counted[i] = map[uint64]struct{}{}
		l.OnRelease(func(c *eventloop.Conn) {
			if _, ok := d.counted[i][c.ID()]; ok {
				delete(d.counted[i], c.ID())
				d.front.Disconnect(c.Peer().Addr())
			}
		})
	}
	return nil
}

// reserved is how many of n connections are kept from subscribers: a sixteenth, 8 to
// 1,024, but no more than a half.
func reserved(n int) int { return min(max(n/16, 8), 1024, n/2) }

// fenced is an accept function that lets in whom the budgets and the limits per address
// allow, and counts them out when they go.
func (a *App) fenced(next func(*eventloop.Conn) eventloop.Handler) func(*eventloop.Conn) eventloop.Handler {
	d := &a.admission
	return func(c *eventloop.Conn) eventloop.Handler {
		if d.full.Load() && a.refuses() {
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

// counted is an accept function for streams of HTTP/2: what a connection has besides its
// first stream counts as connections of its client's address. The rate of connections is
// not theirs.
func (a *App) counted(next func(*eventloop.Conn) eventloop.Handler) func(*eventloop.Conn) eventloop.Handler {
	d := &a.admission
	return func(c *eventloop.Conn) eventloop.Handler {
		if s, ok := c.CarriedBy().(interface{ Alone() bool }); ok && s.Alone() {
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

// countOpen counts the connections in that were let in while nothing was counted.
func (a *App) countOpen() {
	d := &a.admission
	for i, l := range a.loops.Loops() {
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

// refuses counts a connection that is refused for want of a budget.
func (a *App) refuses() bool {
	if a.governor.MemoryBudget().Level == governor.BudgetHard {
		a.admission.refused.memory.Add(1)
	} else {
		a.admission.refused.files.Add(1)
	}
	return true
}

// guard watches the processors and the budgets, at the governor's pace, until ctx is done.
func (a *App) guard(ctx context.Context) error {
	if !a.governor.Config().On() {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(time.Duration(a.governor.Config().Interval))
	defer tick.Stop()
	g := guard{bound: time.Duration(a.cfg.Admission.WithDefaults().Guard), scale: 1}
	level := governor.BudgetOK
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		p99 := a.governor.SchedP99()
		if !a.classed() {
			p99 = 0 // nobody said who can wait
		}
		if g.look(p99) {
			a.admission.scale.Store(int64(1000 * g.scale))
			a.push.Guard(g.scale, g.rest)
			if a.tls != nil {
				a.tls.Throttle(g.rest)
			}
		}
		if now := max(a.governor.MemoryBudget().Level, a.governor.DescriptorBudget().Level); now != level {
			a.budget(level, now)
			level = now
		}
	}
}

// budget does what the level of the budgets asks for: new subscriptions are sent away
// from soft on, new connections from hard on. Who is there stays.
func (a *App) budget(was, now governor.BudgetLevel) {
	a.push.Refuse(now >= governor.BudgetSoft)
	a.admission.full.Store(now >= governor.BudgetHard)
	m, f := a.governor.MemoryBudget(), a.governor.DescriptorBudget()
	log := a.log.Warn
	if now == governor.BudgetOK {
		log = a.log.Info
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
// of mostRest + someWork samples they work in the last.
const mostRest, someWork = 20, 5

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
	case g.long == mostRest+someWork:
		g.long = 1
	default:
		g.long++
		g.rest = g.long <= mostRest
	}
	return g.scale != was.scale || g.rest != was.rest
}

// classed reports whether anything has a class: otherwise there is nothing to show.
func (a *App) classed() bool {
	for _, ns := range a.inForce().Namespaces {
		if ns.Class != "" {
			return true
		}
	}
	for _, r := range a.inForce().Routes {
		if r.Class != "" {
			return true
		}
	}
	return false
}

// admissionStats are those of every class, nil if there are none. Both fronts' requests
// wait in the loops' queues.
func (a *App) admissionStats() []limit.ClassStats {
	if !a.classed() {
		return nil
	}
	return a.push.AdmissionStats()
}

// admissionMetrics are the classes and the limits, at scrape time.
type admissionMetrics struct {
	app                              *App
	requests, queued, wait           *prometheus.Desc
	scale, connections, rates, level *prometheus.Desc
}

func newAdmissionMetrics(a *App, c *catalog) *admissionMetrics {
	m := &admissionMetrics{app: a}
	c.when = "With classes."
	m.requests = c.desc("weir_admission_requests_total",
		"Requests of a class, by what became of them: admitted, refused, expired, conflated, abandoned. Offered are all of them and those that wait.", "class", "outcome")
	m.queued = c.desc("weir_admission_queued_requests", "Requests of a class that wait for their turn.", "class")
	m.wait = c.histogram("weir_admission_wait_seconds", "How long the admitted requests of a class waited.", "class")
	m.scale = c.desc("weir_admission_scale_ratio", "What is left of the budgets of market and replay while the process is short of processors.")
	c.when = ""
	m.connections = c.desc("weir_connections_refused_total", "Connections refused at accept, by what there was too much of.", "reason")
	c.when = "With limits."
	m.rates = c.desc("weir_limits_refused_total", "Requests refused by the limits of Weir's own endpoints.", "request")
	c.when = ""
	m.level = c.desc("weir_budget_level", "0 while there is enough, 1 when new subscriptions are sent away, 2 when new connections are refused.", "budget")
	return m
}

// Describe implements prometheus.Collector.
func (m *admissionMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.requests, m.queued, m.wait, m.scale, m.connections, m.rates, m.level} {
		ch <- d
	}
}

// waitSteps are the bounds of the histogram that are shown: every other one.
const waitSteps = 2

// Collect implements prometheus.Collector.
func (m *admissionMetrics) Collect(ch chan<- prometheus.Metric) {
	a := m.app
	emit := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	f := a.admission.front.Stats()
	for _, r := range []struct {
		reason string
		n      uint64
	}{
		{"memory", a.admission.refused.memory.Load()}, {"descriptors", a.admission.refused.files.Load()},
		{"rate", f.ConnectRate}, {"per_address", f.Connections},
	} {
		emit(m.connections, prometheus.CounterValue, float64(r.n), r.reason)
	}
	emit(m.level, prometheus.GaugeValue, float64(a.governor.MemoryBudget().Level), "memory")
	emit(m.level, prometheus.GaugeValue, float64(a.governor.DescriptorBudget().Level), "descriptors")
	if a.admission.front.Limits() {
		emit(m.rates, prometheus.CounterValue, float64(f.Publish), "publish")
		emit(m.rates, prometheus.CounterValue, float64(f.Subscribe), "subscribe")
	}
	all := a.admissionStats()
	if all == nil {
		return
	}
	emit(m.scale, prometheus.GaugeValue, float64(a.admission.scale.Load())/1000)
	bounds := limit.WaitBounds()
	for i := range all {
		s := &all[i]
		class := s.Class.String()
		for _, o := range []struct {
			outcome string
			n       uint64
		}{{"admitted", s.Admitted}, {"refused", s.Refused}, {"expired", s.Expired}, {"conflated", s.Conflated}, {"abandoned", s.Abandoned}} {
			emit(m.requests, prometheus.CounterValue, float64(o.n), class, o.outcome)
		}
		emit(m.queued, prometheus.GaugeValue, float64(s.Queued), class)
		buckets, sum := map[float64]uint64{}, uint64(0)
		for k, n := range s.Waits {
			if sum += n; k < len(bounds) && k%waitSteps == 1 {
				buckets[bounds[k]] = sum
			}
		}
		ch <- prometheus.MustNewConstHistogram(m.wait, sum, s.Waited.Seconds(), buckets, class)
	}
}

// admissionView is what the snapshot says of the classes. was is the last reading.
func (a *App) admissionView(now, was []limit.ClassStats, seconds float64) []admin.Admission {
	views := []admin.Admission{}
	for i := range now {
		s := &now[i]
		v := admin.Admission{Class: s.Class.String(), Offered: s.Offered, Admitted: s.Admitted, Rejected: s.Refused + s.Expired}
		waits := s.Waits
		if i < len(was) && seconds > 0 {
			w := &was[i]
			v.OfferedRate = float64(s.Offered-w.Offered) / seconds
			v.AdmittedRate = float64(s.Admitted-w.Admitted) / seconds
			v.RejectedRate = float64(s.Refused+s.Expired-w.Refused-w.Expired) / seconds
			waits = make([]uint64, len(s.Waits))
			for k := range waits {
				waits[k] = s.Waits[k] - w.Waits[k]
			}
		}
		v.DelayP50, v.DelayP95, v.DelayP99 = waited(waits, 0.5), waited(waits, 0.95), waited(waits, 0.99)
		views = append(views, v)
	}
	return views
}

// waited is a quantile of a histogram of waits, in seconds: the bound below which it is.
func waited(counts []uint64, q float64) float64 {
	total := uint64(0)
	for _, n := range counts {
		total += n
	}
	if total == 0 {
		return 0
	}
	bounds, sum := limit.WaitBounds(), uint64(0)
	for i, n := range counts {
		if sum += n; float64(sum) >= q*float64(total) {
			switch {
			case i == 0 && counts[0] > 0:
				return bounds[0] * q * float64(total) / float64(counts[0])
			case i < len(bounds):
				return bounds[i]
			}
			break
		}
	}
	return bounds[len(bounds)-1]
}
