package governor

import (
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A Level is how soon someone should look.
type Level string

// The levels: wake someone, make it work for the day, know about it.
const (
	Page        Level = "page"
	Ticket      Level = "ticket"
	Information Level = "information"
)

// An Alert is a rule for Prometheus, made of the same thresholds as the states.
type Alert struct {
	Name  string `json:"name"`
	Level Level  `json:"level"`
	// Expr is PromQL over the names of [Snapshot.Series].
	Expr    string       `json:"expr"`
	For     hub.Duration `json:"for"`
	Summary string       `json:"summary"`
	// Runbook is the heading in the runbook, in the form of a link's fragment.
	Runbook string `json:"runbook"`
	// Cause is the state machine's name for the same thing, empty when it has none.
	Cause string `json:"cause,omitempty"`
}

// Alerts are all alerts under thresholds t. A page means that clients suffer or are
// about to; a ticket that something has to be fixed before it does; an information
// that explains others.
func Alerts(t Thresholds) []Alert {
	t = t.WithDefaults()
	above := func(series string, v float64) string { return fmt.Sprintf("%s >= %v", series, v) }
	const shortly, minutes, lasting = hub.Duration(30 * time.Second), hub.Duration(2 * time.Minute), hub.Duration(10 * time.Minute)
	const now = hub.Duration(0)
	list := []Alert{
		{"WeirInflection", Page, `weir_governor_state{state="inflection"} == 1`, now, "load is past the knee: latency runs away", "inflection", ""},
		{"WeirLoopStuck", Page, above("weir_loop_working_most_seconds", t.LoopStuck), now, "an event loop has not finished a tick; its connections receive nothing", "loop-stuck", CauseLoopStuck},
		{"WeirLoopFull", Page, above("weir_loop_busy_most_ratio", t.LoopFull), minutes, "an event loop has no time left", "loop-busy", CauseLoopBusy},
		{"WeirMemoryHard", Page, above("weir_memory_used_ratio", t.Hard), now, "memory is used up; new connections are refused", "memory", CauseMemory},
		{"WeirDescriptorsHard", Page, above("weir_descriptors_used_ratio", t.Hard), now, "file descriptors are used up; new connections are refused", "descriptors", CauseDescriptors},
		{"WeirDiskBlocked", Page, above("weir_broker_oldest_seconds", t.Disk), shortly, "the broker does not answer; publishers wait", "disk", CauseDisk},

		{"WeirAlert", Ticket, `weir_governor_state{state="alert"} == 1 and on(instance) weir_governor_inconclusive == 0`, lasting, "the load is not steady", "alert", ""},
		{"WeirLatency", Ticket, above("weir_governor_latency_ratio", t.LatencyRatio), minutes, "latency from publish to socket has grown", "latency", CauseLatency},
		{"WeirRunQueue", Ticket, above("weir_sched_run_queue_ratio", t.RunQueue), minutes, "goroutines queue for processors", "run-queue", CauseRunQueue},
		{"WeirLoopBusy", Ticket, above("weir_loop_busy_most_ratio", t.LoopBusy), lasting, "an event loop is nearly full", "loop-busy", CauseLoopBusy},
		{"WeirLoopTick", Ticket, above("weir_loop_tick_most_seconds", t.LoopTick), minutes, "an event loop works long at one tick", "loop-tick", CauseLoopTick},
		{"WeirLoopInbox", Ticket, above("weir_loop_inbox_most", float64(t.LoopInbox)), shortly, "work waits for an event loop", "loop-inbox", CauseLoopInbox},
		{"WeirGoroutineLeak", Ticket, `weir_governor_cause{cause="goroutine-leak"} == 1`, minutes, "goroutines of no known role come and stay", "goroutine-leak", CauseGoroutineLeak},
		{"WeirDiskSlow", Ticket, above("weir_broker_store_p99_seconds", t.Disk), minutes, "the broker is slow to store", "disk", CauseDisk},
		{"WeirMemorySoft", Ticket, above("weir_memory_used_ratio", t.Soft), minutes, "memory is short", "memory", CauseMemory},
		{"WeirDescriptorsSoft", Ticket, above("weir_descriptors_used_ratio", t.Soft), minutes, "file descriptors are short", "descriptors", CauseDescriptors},
		{"WeirCollector", Ticket, above("weir_gc_cpu_ratio", t.Collector), lasting, "garbage collection takes much of the processors", "gc", CauseCollector},
		{"WeirCollectorLimited", Ticket, "weir_gc_limiting == 1", minutes, "the collector is throttled near the memory limit", "gc", CauseCollector},
		{"WeirLocks", Ticket, above("rate(weir_lock_wait_seconds_total[1m])", t.LockWait), minutes, "goroutines wait for locks", "lock-wait", CauseLocks},
		{"WeirStarved", Ticket, above("weir_host_steal_ratio", t.Steal), minutes, "the hypervisor takes processor time away", "cpu-starved", CauseStarved},
		{"WeirThrottled", Ticket, above("weir_host_throttled_ratio", t.Throttled), minutes, "the cgroup's quota keeps the process off its processors", "cpu-throttled", CauseThrottled},
		{"WeirEvidenceBlocked", Ticket, "weir_evidence_blocked == 1", lasting, "evidence bundles cannot be written", "evidence", ""},

		{"WeirNearKnee", Information, above("weir_knee_used_ratio", t.Knee), minutes, "the load is near the knee of the last capacity report", "knee", ""},
		{"WeirInconclusive", Information, "weir_governor_inconclusive == 1", now, "what is measured now is the host's doing", "cpu-starved", CauseStarved},
		{"WeirSchedLatency", Information, above("weir_sched_latency_p99_seconds", t.SchedLatency), minutes, "goroutines wait long for a processor", "sched-latency", CauseSchedLatency},
		{"WeirGoroutines", Information, above("weir_governor_goroutines_ratio", t.GoroutineRatio), minutes, "there are goroutines that connections do not explain", "goroutines", CauseGoroutines},
		{"WeirStoppedReaders", Information, above("weir_loop_stalled_ratio", t.Stopped), minutes, "clients do not read", "stopped-readers", CauseStoppedReaders},
		{"WeirRetransmits", Information, above("weir_socket_retransmits_ratio", t.Retransmits), minutes, "the network loses much", "retransmits", CauseRetransmits},
		{"WeirNetpoll", Information, above("weir_netpoll_p99_seconds", t.Netpoll), minutes, "sockets wake their readers late", "netpoll", CauseNetpoll},
		{"WeirCollectorAssist", Information, above("weir_gc_assist_ratio", t.Assist), minutes, "goroutines that allocate do the collector's work", "gc", CauseCollector},
	}
	return list
}
