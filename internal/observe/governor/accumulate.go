package governor

import (
	"math"
	"time"
)

// An accumulator gathers what a window is made of beside its totals.
type accumulator struct {
	n                 int
	run               float64
	goroutines, other int
	loops             []loopLeast

	seconds                             int
	wait, steal, throttled, busy, share float64
}

// loopLeast is what a loop had at least throughout: an inbox that was empty once is
// no backlog.
type loopLeast struct{ inbox, stalled int }

func (a *accumulator) reset(t *totals) {
	loops := a.loops[:0]
	for range t.loops {
		loops = append(loops, loopLeast{math.MaxInt, math.MaxInt})
	}
	*a = accumulator{goroutines: math.MaxInt, other: math.MaxInt, loops: loops}
}

func (a *accumulator) loop(i int, l *LoopSample) {
	for i >= len(a.loops) {
		a.loops = append(a.loops, loopLeast{math.MaxInt, math.MaxInt})
	}
	a.loops[i].inbox, a.loops[i].stalled = min(a.loops[i].inbox, l.Inbox), min(a.loops[i].stalled, l.Stalled)
}

func (a *accumulator) second(v *Snapshot) {
	a.seconds++
	a.wait += v.Host.Wait
	a.steal += v.Host.Steal
	a.throttled += v.Host.Throttled
	a.busy += v.Host.Busy
	a.share += v.CPU.Share
}

// window is what the machine judges.
func (a *accumulator) window(s *sampler, now time.Time) *window {
	v := &s.view
	sched, delivery := s.cur.sched.Since(&s.window.sched), s.cur.delivery.Since(&s.window.delivery)
	d := s.cur.at.Sub(s.window.at)
	w := &window{
		procs: v.Sched.Procs, sched: quantiles(&sched), delivery: quantiles(&delivery),
		goroutines: a.goroutines, other: a.other, conns: v.Traffic.Connections,
		stalls: s.stalls.latest(now), broker: v.Broker, gc: v.Collector,
		locks: rate(s.cur.lockWait-s.window.lockWait, d), netpoll: v.Canaries.NetpollP90,
		memory: v.Memory.Budget, files: v.Files.Budget,
	}
	if now.Sub(v.Collector.LastAt) > 2*time.Duration(s.g.cfg.Window) { // what the last cycle took is over
		w.gc.Share, w.gc.Assist, w.gc.Limiting = 0, 0, false
	}
	if a.n > 0 {
		w.runQueue = a.run / float64(a.n)
	}
	if a.other == math.MaxInt { // the window was shorter than a second
		w.other = v.Goroutines.Other
	}
	w.host, w.own = v.Host, v.CPU.Share
	if n := float64(a.seconds); n > 0 {
		w.host.Wait, w.host.Steal, w.host.Throttled, w.host.Busy = a.wait/n, a.steal/n, a.throttled/n, a.busy/n
		w.own = a.share / n
	}
	for i := range s.cur.loops {
		now := &s.cur.loops[i]
		was := before(s.window.loops, i, now)
		tick := now.Tick.Since(&was.Tick)
		l := loopWindow{id: now.ID, busy: busy(now, was, d), tick: quantiles(&tick), conns: now.Conns}
		if i < len(a.loops) {
			l.inbox, l.stalled = a.loops[i].inbox, a.loops[i].stalled
		}
		w.loops = append(w.loops, l)
	}
	s.slope.add(w.conns, v.Memory.RSS+v.Memory.Kernel)
	v.Memory.Slope = s.slope.slope()
	return w
}
