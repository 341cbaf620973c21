package governor

import (
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// certain reports whether a cause is independent of CPU contention.
func certain(name string) bool {
	switch name {
	case CauseMemory, CauseDescriptors, CauseGoroutineLeak, CauseDisk, CauseStoppedReaders:
		return true
	}
	return false
}

func cause(name string, state stat.State, value, limit float64, format string, args ...any) Cause {
	return Cause{Name: name, State: state, Value: value, Limit: limit, Loop: -1, Text: fmt.Sprintf(format, args...)}
}

// seconds writes a duration with the precision that a chip needs.
func seconds(s float64) string {
	d := time.Duration(s * 1e9)
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", s)
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", s*1e3)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1f ms", s*1e3)
	}
	return fmt.Sprintf("%.0f µs", s*1e6)
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// count writes a number with its thousands apart.
func count(n int) string {
	if n < 0 {
		return "−" + count(-n)
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", count(n/1000), n%1000)
}

// byRule names what the two-condition rule saw.
func (m *machine) byRule(w *window, r *stat.Reading) (out []Cause) {
	t := &m.t
	if r.LatencyBase >= t.LatencyRatio {
		state := stat.Alert
		if r.LatencyBase >= t.LatencyRatio*t.LatencyRatio && r.RunQueue >= t.RunQueueFull {
			state = stat.Inflection
		}
		out = append(out, cause(CauseLatency, state, r.LatencyBase, t.LatencyRatio, "latency %.1f× baseline (p99 %s)", r.LatencyBase, seconds(w.delivery.P99)))
	}
	if r.RunQueue >= t.RunQueue {
		out = append(out, cause(CauseRunQueue, stat.Alert, r.RunQueue, t.RunQueue, "run/P %.1f", r.RunQueue))
	}
	if w.sched.N*10 >= uint64(t.MinSamples) && w.sched.P99 >= t.SchedLatency {
		out = append(out, cause(CauseSchedLatency, stat.Alert, w.sched.P99, t.SchedLatency, "sched p99 %s", seconds(w.sched.P99)))
	}
	return out
}

// byLoops names what single loops suffer from. The rule's goroutines say nothing of
// them, for a loop serves thousands of connections with one; a full loop while the
// latency has grown is their inflection.
func (m *machine) byLoops(w *window, r *stat.Reading) (out []Cause) {
	t := &m.t
	slow := r.LatencyBase >= t.LatencyRatio
	add := func(l loopWindow, name string, state stat.State, value, limit float64, format string, args ...any) {
		c := cause(name, state, value, limit, format, args...)
		c.Loop = l.id
		out = append(out, c)
	}
	for _, l := range w.loops {
		if l.busy >= t.LoopBusy {
			state := stat.Alert
			if slow && l.busy >= t.LoopFull {
				state = stat.Inflection
			}
			add(l, CauseLoopBusy, state, l.busy, t.LoopBusy, "loop %d busy %s", l.id, percent(l.busy))
		}
		if l.tick.N >= 100 && l.tick.P99 >= t.LoopTick {
			add(l, CauseLoopTick, stat.Alert, l.tick.P99, t.LoopTick, "loop %d tick p99 %s", l.id, seconds(l.tick.P99))
		}
		if l.inbox >= t.LoopInbox {
			state := stat.Alert
			if before := m.inbox[l.id]; l.inbox >= 2*before && before >= t.LoopInbox/4 {
				state = stat.Inflection
			}
			add(l, CauseLoopInbox, state, float64(l.inbox), float64(t.LoopInbox), "loop %d inbox %s", l.id, count(l.inbox))
		}
	}
	return out
}

func (m *machine) byGoroutines(w *window, r *stat.Reading) (out []Cause) {
	t := &m.t
	if grown, stays := m.leak.observe(w.other, w.conns); stays && grown >= t.Leak {
		out = append(out, cause(CauseGoroutineLeak, stat.Alert, float64(grown), float64(t.Leak), "goroutines leak +%s", count(grown)))
	} else if r.Excess >= t.GoroutineRatio {
		excess := stat.ExcessGoroutines(float64(w.goroutines), m.g0, m.g1, float64(w.conns))
		out = append(out, cause(CauseGoroutines, stat.Alert, excess, t.GoroutineRatio, "goroutines +%s beyond connections", count(int(excess))))
	}
	return out
}

// byResources names what runs out or blocks, whatever the latency is.
func (m *machine) byResources(w *window) (out []Cause) {
	t := &m.t
	add := func(holds bool, name string, state stat.State, value, limit float64, format string, args ...any) {
		if holds {
			out = append(out, cause(name, state, value, limit, format, args...))
		}
	}
	out = append(out, m.byReaders(w)...)
	add(w.stalls.Retransmits >= t.Retransmits, CauseRetransmits, stat.Alert, w.stalls.Retransmits, t.Retransmits, "network: %s sent again", percent(w.stalls.Retransmits))
	state := stat.Alert
	if w.broker.Oldest >= 10*t.Disk {
		state = stat.Inflection
	}
	switch b := w.broker; {
	case b.Oldest >= t.Disk:
		add(true, CauseDisk, state, b.Oldest, t.Disk, "disk: broker silent for %s, %s waiting", seconds(b.Oldest), count(b.Waiting))
	case b.Store.N > 0 && b.Store.P99 >= t.Disk:
		add(true, CauseDisk, state, b.Store.P99, t.Disk, "disk: broker p99 %s", seconds(b.Store.P99))
	}
	add(w.gc.Limiting, CauseCollector, stat.Alert, 1, 0, "gc throttled at its limit: memory is short")
	add(w.gc.Share >= t.Collector, CauseCollector, stat.Alert, w.gc.Share, t.Collector, "gc %s of cpu", percent(w.gc.Share))
	add(w.gc.Assist >= t.Assist, CauseCollector, stat.Alert, w.gc.Assist, t.Assist, "gc assists %s of cpu", percent(w.gc.Assist))
	add(w.locks >= t.LockWait, CauseLocks, stat.Alert, w.locks, t.LockWait, "locks %.2f s/s", w.locks)
	add(w.netpoll >= t.Netpoll, CauseNetpoll, stat.Alert, w.netpoll, t.Netpoll, "netpoll p90 %s", seconds(w.netpoll))
	for _, one := range []struct {
		name string
		Budget
	}{{CauseMemory, w.memory}, {CauseDescriptors, w.files}} {
		name, b := one.name, one.Budget
		if b.Level == BudgetOK {
			continue
		}
		state, limit := stat.Alert, t.Soft
		if b.Level == BudgetHard {
			state, limit = stat.Inflection, t.Hard
		}
		add(true, name, state, b.Fraction, limit, "%s %s of limit", name, percent(b.Fraction))
	}
	return out
}

// byReaders names readers that have stopped: by what the loops count of all
// connections, or by the kernel's word on those sampled.
func (m *machine) byReaders(w *window) []Cause {
	stalled, conns := 0, 0
	for _, l := range w.loops {
		stalled, conns = stalled+l.stalled, conns+l.conns
	}
	if conns > 0 && stalled > 0 && float64(stalled) >= m.t.Stopped*float64(conns) {
		return []Cause{cause(CauseStoppedReaders, stat.Alert, float64(stalled)/float64(conns), m.t.Stopped,
			"readers stopped: %s of %s", count(stalled), count(conns))}
	}
	if s := w.stalls; !s.Stale && s.Stopped >= 2 && float64(s.Stopped) >= m.t.Stopped*float64(s.Sampled) {
		return []Cause{cause(CauseStoppedReaders, stat.Alert, float64(s.Stopped)/float64(s.Sampled), m.t.Stopped,
			"readers stopped: %d of %d sampled, window shut %s", s.Stopped, s.Sampled, percent(s.Reader))}
	}
	return nil
}

// byHost names what the host does to us: then a window is inconclusive.
func (m *machine) byHost(w *window) (out []Cause) {
	t, h := &m.t, &w.host
	if h.Steal >= t.Steal {
		out = append(out, cause(CauseStarved, stat.Alert, h.Steal, t.Steal, "CPU starved: steal %s", percent(h.Steal)))
	}
	if h.Throttled >= t.Throttled {
		out = append(out, cause(CauseThrottled, stat.Alert, h.Throttled, t.Throttled, "CPU starved: cgroup quota %s of the time", percent(h.Throttled)))
	}
	if h.Wait >= t.HostWait && w.own < t.OwnShare && h.Busy >= t.OwnShare && h.Throttled < t.Throttled {
		out = append(out, cause(CauseStarved, stat.Alert, h.Wait, t.HostWait, "CPU starved: others run, we wait %.2f s/s per P and use %s", h.Wait, percent(w.own)))
	}
	return out
}
