package monitor

import (
	"fmt"

	"github.com/weir-gateway/weir/internal/observe/governor"
)

// each names one series per node.
const each = "{{instance}}"

func row(title string) panel { return panel{title: title, kind: "row"} }

// line is a panel of lines over time.
func line(title, unit, about string, queries ...query) panel {
	return panel{title: title, kind: "timeseries", unit: unit, about: about, queries: injected(queries)}
}

func injected(queries []query) []query {
	for i := range queries {
		queries[i].expr = inject(queries[i].expr)
	}
	return queries
}

// within gives the panel the lines past which it warns, and past which it is bad; 0 is none.
func (p panel) within(warn, bad float64) panel {
	p.warn, p.bad = warn, bad
	return p
}

func (p panel) as(kind string, wide int) panel {
	p.kind, p.wide = kind, wide
	return p
}

// A histogram queries one in its classic or its native form.
type histogram struct {
	metric string
	native bool
}

func (h histogram) quantile(q float64) query {
	expr := fmt.Sprintf("histogram_quantile(%v, sum by (instance, le) (rate(%s_bucket{@}[$__rate_interval])))", q, h.metric)
	if h.native {
		expr = fmt.Sprintf("histogram_quantile(%v, sum by (instance) (rate(%s{@}[$__rate_interval])))", q, h.metric)
	}
	return query{expr, fmt.Sprintf("p%v %s", q*100, each)}
}

func (h histogram) heat() query {
	if h.native {
		return query{fmt.Sprintf("sum(increase(%s{@}[$__rate_interval]))", h.metric), ""}
	}
	return query{fmt.Sprintf("sum by (le) (increase(%s_bucket{@}[$__rate_interval]))", h.metric), "{{le}}"}
}

// latency are a histogram's two panels.
func (h histogram) latency(title, about string) []panel {
	heat := line(title+", distribution", "s", about, h.heat()).as("heatmap", 12)
	return []panel{line(title, "s", about, h.quantile(0.5), h.quantile(0.99), h.quantile(0.999)).as("timeseries", 12), heat}
}

func panels(t governor.Thresholds, native bool) []panel {
	var all []panel
	all = append(all, statePanels(&t)...)
	all = append(all, trafficPanels(native)...)
	all = append(all, readerPanels(&t)...)
	all = append(all, runtimePanels(&t, native)...)
	all = append(all, hostPanels(&t)...)
	all = append(all, memoryPanels(&t)...)
	return append(all, outwardPanels(&t, native)...)
}

func statePanels(t *governor.Thresholds) []panel {
	states := line("State", "none", "The state of the last window: steady, alert, inflection.",
		query{`max by (instance) (weir_governor_state{@, state="alert"} + ignoring (state) 2 * weir_governor_state{@, state="inflection"})`, each}).as("state-timeline", 12)
	states.cause = true
	return []panel{
		row("How it fares"),
		states,
		line("Causes", "none", "What speaks against a steady state. The runbooks have these names.",
			query{"max by (instance, cause) (weir_governor_cause{@}) == 1", "{{cause}} " + each}).as("state-timeline", 12),
		line("Headroom to the knee", "percentunit", "What is left to the knee of the last capacity report (admin.capacity_report); empty without one.",
			query{"1 - weir_knee_used_ratio{@} and weir_knee_age_seconds{@} > 0", each}).as("stat", 6).within(0.3, 1-t.Knee),
		line("Headroom, processors", "percentunit", "What is left of the processors of the process.", query{"1 - weir_cpu_ratio{@}", each}).as("stat", 6).within(0.3, 0.1),
		line("Headroom, busiest loop", "percentunit", "What the busiest event loop has left.",
			query{"1 - weir_loop_busy_most_ratio{@}", each}).as("stat", 6).within(1-t.LoopBusy, 1-t.LoopFull),
		line("Inconclusive", "none", "1 when what is measured is the host's doing: stolen or starved processors.", query{"weir_governor_inconclusive{@}", each}).as("stat", 6).within(1, 0),
	}
}

func trafficPanels(native bool) []panel {
	list := []panel{
		row("Traffic"),
		line("Messages in", "cps", "Publications, by outcome.", query{"sum by (outcome) (rate(weir_messages_published_total{@}[$__rate_interval]))", "{{outcome}}"}),
		line("Deliveries", "cps", "Messages handed to subscribers, and those of them from history.",
			query{"sum(rate(weir_messages_delivered_total{@}[$__rate_interval]))", "all"}, query{"sum(rate(weir_messages_replayed_total{@}[$__rate_interval]))", "replayed"}),
		line("Connections", "short", "Open connections by protocol.", query{"sum by (transport) (weir_connections{@})", "{{transport}}"}, query{"sum(weir_connections_max{@})", "bound"}),
		line("Bytes", "Bps", "Received and sent.", query{"sum(rate(weir_read_bytes_total{@}[$__rate_interval]))", "in"}, query{"sum(rate(weir_sent_bytes_total{@}[$__rate_interval]))", "out"}),
		line("Requests", "cps", "Requests understood, refused and limited.",
			query{"sum(rate(weir_http_requests_total{@}[$__rate_interval]))", "understood"},
			query{"sum by (reason) (rate(weir_http_refused_total{@}[$__rate_interval]))", "{{reason}}"},
			query{"sum by (scope) (rate(weir_requests_limited_total{@}[$__rate_interval]))", "limited: {{scope}}"}),
		line("TLS handshakes", "cps", "Finished handshakes by protocol and cipher suite. TLCP and the SM4 suites are national cryptography.",
			query{"sum by (protocol, suite) (rate(weir_tls_suites_total{@}[$__rate_interval]))", "{{protocol}} {{suite}}"}),
		line("Fan-out", "short", "Deliveries per message, encodings per message (one is the aim), system calls per delivery.",
			query{`sum(rate(weir_messages_delivered_total{@}[$__rate_interval])) / sum(rate(weir_messages_published_total{@, outcome="ok"}[$__rate_interval]))`, "deliveries per message"},
			query{`sum(rate(weir_messages_encoded_total{@}[$__rate_interval])) / sum(rate(weir_messages_published_total{@, outcome="ok"}[$__rate_interval]))`, "encodings per message"},
			query{"sum(rate(weir_sends_total{@}[$__rate_interval])) / sum(rate(weir_messages_delivered_total{@}[$__rate_interval]))", "sends per delivery"}),
		line("Revocations", "short", "Subjects and tokens that are revoked, and what came of it. The alert WeirRevocations fires while a node does not get those of others.",
			query{"max by (kind) (weir_revocations{@})", "in force: {{kind}}"},
			query{"sum(rate(weir_revocation_refusals_total{@}[$__rate_interval]))", "refused/s"},
			query{"sum(rate(weir_revocation_closed_total{@}[$__rate_interval]))", "closed/s"},
			query{"sum(rate(weir_revocation_dropped_total{@}[$__rate_interval]))", "not in force, too many/s"}),
	}
	return append(list, histogram{"weir_delivery_seconds", native}.latency("Publish to socket", "Of publications that are followed, one every few milliseconds, for each loop that delivered.")...)
}

func readerPanels(t *governor.Thresholds) []panel {
	lag := func(title, unit, metric string) panel {
		return line(title, unit, "Subscribers by what waits for them now. Those in the lowest line keep up.", query{"sum by (le) (" + metric + "_bucket{@})", "≤ {{le}}"})
	}
	return []panel{
		row("Readers"),
		line("Stopped readers", "percentunit", "Connections whose socket accepts no data now, as a share of all.", query{"weir_loop_stalled_ratio{@}", each}).within(t.Stopped, 0),
		line("Held for slow subscribers", "bytes", "Payload that waits for them in this process.", query{"weir_subscribers_lagging_bytes{@}", each}),
		line("Closed, dropped, gaps", "cps", "Subscribers closed by this side, messages that slow ones did not get, gaps declared.",
			query{"sum by (reason) (rate(weir_subscribers_closed_total{@}[$__rate_interval]))", "closed: {{reason}}"},
			query{"sum by (reason) (rate(weir_messages_dropped_total{@}[$__rate_interval]))", "dropped: {{reason}}"},
			query{"sum(rate(weir_gaps_total{@}[$__rate_interval]))", "gaps"}),
		lag("Lag, messages", "short", "weir_subscriber_lag_messages"), lag("Lag, bytes", "short", "weir_subscriber_lag_bytes"), lag("Lag, age", "short", "weir_subscriber_lag_seconds"),
		line("Whose write stalls?", "percentunit", "Share of sending time that sampled sockets waited for their reader, or for our buffer.",
			query{"weir_socket_reader_limited_ratio{@}", "reader " + each}, query{"weir_socket_buffer_limited_ratio{@}", "our buffer " + each}),
		line("Retransmits", "percentunit", "Share of segments that sampled sockets sent again: the network's loss.", query{"weir_socket_retransmits_ratio{@}", each}).within(t.Retransmits, 0),
		line("Write stalls", "cps", "Times a socket did not accept everything, and connections closed for it.",
			query{"sum(rate(weir_write_stalls_total{@}[$__rate_interval]))", "stalls"}, query{"sum(rate(weir_write_stall_closes_total{@}[$__rate_interval]))", "closed"}),
	}
}

func runtimePanels(t *governor.Thresholds, native bool) []panel {
	list := []panel{
		row("Loops and scheduler"),
		line("Loop busy", "percentunit", "Share of time that the busiest loop worked.", query{"weir_loop_busy_most_ratio{@}", each}).within(t.LoopBusy, t.LoopFull),
		line("Loop stuck", "s", "How long the longest tick works that has not ended.", query{"weir_loop_working_most_seconds{@}", each}).within(0, t.LoopStuck),
		line("Loop inbox", "short", "Functions that wait for the loop with most; messages that wait for the loops.",
			query{"weir_loop_inbox_most{@}", "inbox " + each}, query{"weir_hub_queue_messages{@}", "messages " + each}).within(float64(t.LoopInbox), 0),
		line("Loop balance", "short", "Connections of the loop that has most, and of the one that has fewest.",
			query{"weir_loop_connections_most{@}", "most " + each}, query{"weir_loop_connections_least{@}", "fewest " + each}),
		line("Run queue", "short", "Runnable goroutines per processor.", query{"weir_sched_run_queue_ratio{@}", each}).within(t.RunQueue, t.RunQueueFull),
		line("Scheduler latency", "s", "From runnable to running, 99th percentile of a second.", query{"weir_sched_latency_p99_seconds{@}", each}).within(t.SchedLatency, 0),
		line("Goroutines", "short", "All of the process, and those of no known role: if they only grow, they leak.",
			query{"go_goroutines{@}", "all " + each}, query{"weir_goroutines_other{@}", "other " + each}),
		line("Canaries", "s", "How late small errands are done: a goroutine, a socket, a timer; and what the netpoller adds.",
			query{"max by (canary) (weir_canary_p99_seconds{@})", "{{canary}}"}, query{"max(weir_netpoll_p99_seconds{@})", "netpoll"}).within(t.Netpoll, 0),
		line("Lock wait", "s", "Seconds per second that goroutines waited for mutexes.", query{"rate(weir_lock_wait_seconds_total{@}[$__rate_interval])", each}).within(t.LockWait, 0),
	}
	return append(list, histogram{"weir_loop_tick_seconds", native}.latency("Loop tick", "How long loops worked at a time.")...)
}

func hostPanels(t *governor.Thresholds) []panel {
	return []panel{
		row("Whose queue? The host"),
		line("Processors", "percentunit", "What the process uses of its own, and how busy the machine is.", query{"weir_cpu_ratio{@}", "we " + each}, query{"weir_host_busy_ratio{@}", "machine " + each}),
		line("Kept off the processors", "percentunit", "Stolen by the hypervisor, throttled by the cgroup's quota, waiting in the kernel's queue.",
			query{"weir_host_steal_ratio{@}", "stolen " + each}, query{"weir_host_throttled_ratio{@}", "throttled " + each}, query{"weir_host_wait_ratio{@}", "waiting " + each}).within(min(t.Steal, t.Throttled), t.HostWait),
		line("Pressure", "percentunit", "Share of ten seconds in which some task waited for the resource.", query{"weir_host_pressure_ratio{@}", "{{resource}} " + each}),
	}
}

func memoryPanels(t *governor.Thresholds) []panel {
	return []panel{
		row("Memory and the collector"),
		line("Memory", "percentunit", "Share of the memory limit in use.", query{"weir_memory_used_ratio{@}", each}).within(t.Soft, t.Hard),
		line("Memory per connection", "bytes", "What a connection owns: struct, session, write queue.", query{"weir_memory_per_connection_bytes{@}", each}),
		line("Descriptors", "percentunit", "Share of the descriptor limit in use.", query{"weir_descriptors_used_ratio{@}", each}).within(t.Soft, t.Hard),
		line("Collector", "percentunit", "Share of processor time in the last cycle, and the part that allocating goroutines paid.",
			query{"weir_gc_cpu_ratio{@}", "collector " + each}, query{"weir_gc_assist_ratio{@}", "assists " + each}).within(t.Assist, t.Collector),
		line("Collector's pauses", "s", "Stop-the-world pauses, 99th percentile of a minute.", query{"weir_gc_pause_p99_seconds{@}", each}),
		line("GOGC", "short", "What paces the collector now; -1 is off. 1 for limiting: it is throttled near the limit.",
			query{"weir_gc_percent{@}", "GOGC " + each}, query{"weir_gc_limiting{@}", "limiting " + each}),
	}
}

func outwardPanels(t *governor.Thresholds, native bool) []panel {
	list := []panel{
		row("Broker and upstreams"),
		line("Broker waits", "s", "How long the first unanswered publish waits, and the 99th percentile of storing.",
			query{"weir_broker_oldest_seconds{@}", "oldest " + each}, query{"weir_broker_store_p99_seconds{@}", "p99 " + each}).within(0, t.Disk),
		line("Publishes without an answer", "short", "How many wait for the broker; requests that wait for anything.", query{"weir_broker_waiting{@}", "broker " + each}, query{"weir_requests_waiting{@}", "requests " + each}),
		line("Upstream replies", "cps", "Replies of clusters to clients, by class of status.", query{"sum by (cluster, code) (rate(weir_upstream_requests_total{@}[$__rate_interval]))", "{{cluster}} {{code}}"}),
		line("Upstream failures", "cps", "Exchanges without a whole reply, by cause; attempts after the first.",
			query{"sum by (cluster, cause) (rate(weir_upstream_failed_total{@}[$__rate_interval]))", "{{cluster}} {{cause}}"},
			query{"sum by (cluster) (rate(weir_upstream_retries_total{@}[$__rate_interval]))", "{{cluster}} retries"}),
		line("Drain", "short", "Streams that a node which drains has still to close: the plan, and what is left.", query{"weir_drain_streams{@}", "{{of}} " + each}),
		line("Peers", "short", "Peers by state.", query{"sum by (cluster, state) (weir_upstream_peers{@})", "{{cluster}} {{state}}"}),
		line("What watching costs", "percentunit", "Share of one processor; evidence bundles kept.", query{"weir_governor_cost_ratio{@}", each}),
	}
	return append(list, histogram{"weir_broker_store_seconds", native}.latency("Store", "From a publish to the broker's answer.")...)
}
