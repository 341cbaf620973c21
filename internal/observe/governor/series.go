package governor

import (
	"iter"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// A Series is one number of a snapshot for Prometheus and whatever else reads names.
type Series struct {
	Name string
	Help string
	// Counter reports that it only rises (its name ends in _total); else it is a gauge.
	Counter bool
	// Label is the only label's name, empty when there is none; Value its value.
	Label, Value string
	Number       float64
}

// CauseNames are all causes, in the order in which they are listed.
func CauseNames() []string {
	return []string{
		CauseRunQueue, CauseSchedLatency, CauseLatency, CauseGoroutines, CauseGoroutineLeak, CauseLoopBusy, CauseLoopTick,
		CauseLoopInbox, CauseLoopStuck, CauseStoppedReaders, CauseDisk, CauseStarved, CauseThrottled, CauseNetpoll,
		CauseCollector, CauseLocks, CauseMemory, CauseDescriptors, CauseRetransmits,
	}
}

// Series are the numbers of s in a fixed order, those of one name together. Their
// number does not depend on how many loops, connections or roles there are.
func (s *Snapshot) Series() iter.Seq[Series] {
	return func(yield func(Series) bool) {
		e := emitter{yield: yield}
		e.state(&s.State)
		e.scheduler(s)
		e.host(s)
		e.memory(s)
		e.loops(s)
		e.sockets(s)
	}
}

// An emitter stops at the first no.
type emitter struct {
	yield func(Series) bool
	done  bool
}

func (e *emitter) put(s Series) {
	if !e.done && !e.yield(s) {
		e.done = true
	}
}

func (e *emitter) gauge(name, help string, v float64) {
	e.put(Series{Name: name, Help: help, Number: v})
}

func (e *emitter) counter(name, help string, v float64) {
	e.put(Series{Name: name, Help: help, Counter: true, Number: v})
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (e *emitter) state(s *State) {
	for v := stat.Steady; v <= stat.Inflection; v++ {
		e.put(Series{Name: "weir_governor_state", Help: "1 for the state of the last window.", Label: "state", Value: v.String(), Number: flag(s.Now == v)})
	}
	e.gauge("weir_governor_inconclusive", "1 when the last window's trouble was the host's.", flag(s.Inconclusive))
	for _, name := range CauseNames() {
		holds := false
		for _, c := range s.Causes {
			holds = holds || c.Name == name
		}
		e.put(Series{Name: "weir_governor_cause", Help: "1 for what speaks against a steady state.", Label: "cause", Value: name, Number: flag(holds)})
	}
	e.counter("weir_governor_windows_total", "Windows evaluated.", float64(s.Windows))
	e.gauge("weir_governor_latency_ratio", "P99 from publish to socket over its baseline, of the last window; 0 when not known.", s.Reading.LatencyBase)
	e.gauge("weir_governor_goroutines_ratio", "Goroutines beyond what connections explain over their baseline; 0 when not known.", s.Reading.Excess)
}

func (e *emitter) scheduler(s *Snapshot) {
	v := &s.Sched
	e.gauge("weir_sched_run_queue_ratio", "Runnable goroutines per processor, mean of a second.", v.RunQueue)
	e.gauge("weir_sched_latency_p99_seconds", "Scheduler latency, 99th percentile of a second.", v.Latency.P99)
	e.gauge("weir_sched_threads", "Threads of the process.", float64(v.Threads))
	e.gauge("weir_sched_created_per_second", "Goroutines created, of the last second.", v.Created)
	e.gauge("weir_goroutines_other", "Goroutines of no known role.", float64(s.Goroutines.Other))
	for _, c := range []struct {
		name string
		v    float64
	}{{"goroutine", s.Canaries.Goroutine.P99}, {"socket", s.Canaries.Socket.P99}, {"timer", s.Canaries.Timer.P99}} {
		e.put(Series{Name: "weir_canary_p99_seconds", Help: "Delay of a scheduled probe, 99th percentile of ten seconds.", Label: "canary", Value: c.name, Number: c.v})
	}
	e.gauge("weir_netpoll_p99_seconds", "What a socket's reader waits longer than a goroutine, 99th percentile of ten seconds.", s.Canaries.NetpollP99)
	e.counter("weir_lock_wait_seconds_total", "Time that goroutines waited for mutexes.", s.Locks.Total)
}

func (e *emitter) host(s *Snapshot) {
	h := &s.Host
	e.counter("weir_cpu_seconds_total", "Processor time used by the process.", s.CPU.Total)
	e.gauge("weir_cpu_ratio", "Share of its processors that the process uses.", s.CPU.Share)
	e.gauge("weir_host_wait_ratio", "Time that threads waited for a processor, per second and processor.", h.Wait)
	e.gauge("weir_host_busy_ratio", "Share of the machine's processors in use.", h.Busy)
	e.gauge("weir_host_steal_ratio", "Share of processor time that the hypervisor took.", h.Steal)
	e.gauge("weir_host_throttled_ratio", "Share of time that the cgroup's quota kept the process off.", h.Throttled)
	for _, p := range []struct {
		name string
		v    float64
	}{{"cpu", h.Pressure.CPU}, {"memory", h.Pressure.Memory}, {"io", h.Pressure.IO}} {
		e.put(Series{Name: "weir_host_pressure_ratio", Help: "Share of ten seconds in which some task waited for the resource (PSI).", Label: "resource", Value: p.name, Number: p.v})
	}
}

func (e *emitter) memory(s *Snapshot) {
	c, m := &s.Collector, &s.Memory
	e.gauge("weir_gc_cpu_ratio", "Share of processor time for garbage collection in the last cycle.", c.Share)
	e.gauge("weir_gc_assist_ratio", "The part of it that allocating goroutines paid.", c.Assist)
	e.gauge("weir_gc_pause_p99_seconds", "Stop-the-world pauses of the collector, 99th percentile of a minute.", c.Pause.P99)
	e.gauge("weir_gc_percent", "GOGC now; -1 is off.", float64(c.Percent))
	e.gauge("weir_gc_limiting", "1 when the collector was throttled near the memory limit.", flag(c.Limiting))
	e.gauge("weir_memory_used_bytes", "Memory that counts against the limit.", float64(m.Budget.Used))
	e.gauge("weir_memory_limit_bytes", "The memory limit; 0 is none.", float64(m.Budget.Limit))
	e.gauge("weir_memory_used_ratio", "Share of the memory limit in use.", m.Budget.Fraction)
	e.gauge("weir_memory_per_connection_bytes", "Bytes that a connection owns in this process: its struct, its session and what waits in its write queue.", m.PerConnection)
	for _, o := range []struct {
		owner string
		bytes uint64
	}{{"connections", m.Owners.Connections}, {"backlogs", m.Owners.Backlogs}, {"wire_forms", m.Owners.WireForms},
		{"rings", m.Owners.Rings}, {"log_cache", m.Owners.LogCache}, {"other", m.Owners.Other}} {
		e.put(Series{
			Name: "weir_memory_owned_bytes", Help: "Resident memory by what it is used for, as the owners count it; other is the rest.",
			Label: "owner", Value: o.owner, Number: float64(o.bytes),
		})
	}
	e.gauge("weir_descriptors_open", "Open file descriptors.", float64(s.Files.Open))
	e.gauge("weir_descriptors_used_ratio", "Share of the descriptor limit in use.", s.Files.Budget.Fraction)
}

func (e *emitter) loops(s *Snapshot) {
	var busy, tick, working float64
	var inbox, stalled int
	for i := range s.Loops {
		l := &s.Loops[i]
		busy, tick, working = max(busy, l.Busy), max(tick, l.Tick.P99), max(working, l.Working)
		inbox, stalled = max(inbox, l.Inbox), stalled+l.Stalled
	}
	e.gauge("weir_loop_busy_most_ratio", "Share of time that the busiest loop worked.", busy)
	e.gauge("weir_loop_tick_most_seconds", "99th percentile of a tick on the slowest loop, of a second.", tick)
	e.gauge("weir_loop_working_most_seconds", "How long the longest tick that has not ended works.", working)
	e.gauge("weir_loop_inbox_most", "Functions that wait for the loop with most.", float64(inbox))
	e.gauge("weir_loop_stalled", "Connections whose socket accepts no data now.", float64(stalled))
	stalledShare := 0.0
	if n := s.Traffic.Connections; n > 0 {
		stalledShare = float64(stalled) / float64(n)
	}
	e.gauge("weir_loop_stalled_ratio", "Their share of all connections.", stalledShare)
}

func (e *emitter) sockets(s *Snapshot) {
	v := &s.Stalls
	e.gauge("weir_delivery_p99_seconds", "From publish to socket, 99th percentile of a second.", s.Delivery.Second.P99)
	e.gauge("weir_socket_reader_limited_ratio", "Share of sending time that sampled sockets waited for their peer's window.", v.Reader)
	e.gauge("weir_socket_buffer_limited_ratio", "Share of sending time that sampled sockets waited for their send buffer.", v.Buffer)
	e.gauge("weir_socket_retransmits_ratio", "Share of segments that sampled sockets sent again.", v.Retransmits)
	e.gauge("weir_broker_store_p99_seconds", "How long the broker took to store, 99th percentile of ten seconds.", s.Broker.Store.P99)
	e.gauge("weir_broker_waiting", "Publishes that the broker has not answered.", float64(s.Broker.Waiting))
	e.gauge("weir_broker_oldest_seconds", "How long the first of them waits.", s.Broker.Oldest)
	e.gauge("weir_knee_used_ratio", "Load as a share of the last capacity report's knee; 0 without one.", s.Knee.Fraction)
	e.gauge("weir_knee_age_seconds", "Age of the last capacity report.", s.Knee.Age)
	e.gauge("weir_evidence_bundles", "Evidence bundles kept.", float64(len(s.Evidence.Bundles)))
	e.gauge("weir_evidence_blocked", "1 when bundles are configured and cannot be written.", flag(s.Evidence.Problem != "" && s.Evidence.Problem != ErrNoDirectory.Error()))
	e.gauge("weir_governor_cost_ratio", "What watching costs, as a share of one processor.", s.Self.Share)
}
