package observe

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// coreMetrics reads every part's own counters at scrape time; nothing is counted twice.
type coreMetrics struct {
	node *Node
	list []metric
}

// metric is one series or family: its description and how to read it.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(emit func(v float64, labels ...string))
}

func newMetrics(a *Watch, c *catalog, withTLS bool) *coreMetrics {
	m := &coreMetrics{node: a.Node}
	one := func(name, help string, kind prometheus.ValueType, v func() float64) {
		m.list = append(m.list, metric{c.desc(name, help), kind, func(emit func(float64, ...string)) { emit(v()) }})
	}
	// labels are the names, separated by commas.
	family := func(name, help, labels string, kind prometheus.ValueType, read func(emit func(float64, ...string))) {
		m.list = append(m.list, metric{c.desc(name, help, strings.Split(labels, ",")...), kind, read})
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	family("weir_connections", "Open connections by what they do.", "transport", gauge, func(emit func(float64, ...string)) {
		for name, n := range a.byTransport() {
			emit(float64(n), name)
		}
	})
	one("weir_connections_max", "Bound on open connections.", gauge, func() float64 { return float64(a.Loops.MaxConns()) })
	one("weir_reconnect_rate", "Clients per second that this node takes on from one that drains, as reported to the other nodes: half of its idle processor time by the cost of one.", gauge, func() float64 { return a.ReconnectRate() })
	family("weir_reconnect_cost_seconds", "Processor time of a new connection until it is served, measured over the last 2,000 or, before there were 100, assumed.", "source", gauge, func(emit func(float64, ...string)) {
		cost, measured := a.ReconnectCost()
		if measured {
			emit(cost.Seconds(), "measured")
		} else {
			emit(cost.Seconds(), "assumed")
		}
	})
	family("weir_drain_streams", "Streams that a drain has still to close, as planned and as they are; 0 without a drain.", "of", gauge, func(emit func(float64, ...string)) {
		d := a.Drain()
		if d == nil {
			d = &admin.Drain{}
		}
		emit(float64(d.Planned), "planned")
		emit(float64(d.Left), "actual")
	})
	family("weir_upgrades_total", "Times that this process started a new one to take over, by outcome.", "outcome", counter, func(emit func(float64, ...string)) {
		emit(float64(a.Upgrades.Done.Load()), "done")
		emit(float64(a.Upgrades.Failed.Load()), "failed")
	})
	family("weir_upgrade_connections_total", "Connections that moved in an upgrade: in, from the old process; out, to the new one; refused by this one.", "direction", counter, func(emit func(float64, ...string)) {
		emit(float64(a.Upgrades.Arrived.Load()), "in")
		emit(float64(a.Upgrades.Moved.Load()), "out")
		emit(float64(a.Upgrades.Refused.Load()), "refused")
	})
	one("weir_upgrade_pause_seconds", "How long clients waited in the last upgrade, as the process that took over saw it; 0: there was none.", gauge, func() float64 { return time.Duration(a.Upgrades.Paused.Load()).Seconds() })
	one("weir_channels", "Channels with subscribers on this node.", gauge, func() float64 { return float64(a.Hub.Stats().Channels) })
	one("weir_http_requests_total", "Requests understood on the public listener.", counter, func() float64 { return float64(a.Front.Stats().Requests) })
	family("weir_http_refused_total", "Requests refused, by reason.", "reason", counter, func(emit func(float64, ...string)) {
		s := a.Front.Stats()
		emit(float64(s.Bad), "malformed")
		emit(float64(s.Refused), "answered_with_error")
		emit(float64(s.Timeouts), "too_slow")
	})
	family("weir_messages_published_total", "Publications, by outcome.", "outcome", counter, func(emit func(float64, ...string)) {
		s := a.Push.Stats()
		emit(float64(s.Published), "ok")
		emit(float64(s.PublishErrors), "error")
	})
	one("weir_messages_delivered_total", "Messages handed to subscribers.", counter, func() float64 { return float64(a.Hub.Stats().Delivered) })
	one("weir_messages_replayed_total", "Of the delivered messages, those from history.", counter, func() float64 { return float64(a.Hub.Stats().Replayed) })
	one("weir_messages_encoded_total", "Times a message was written in a wire format.", counter, func() float64 { return float64(a.Hub.Stats().Encoded) })
	family("weir_messages_dropped_total", "Messages that slow subscribers did not get, by reason.", "reason", counter, func(emit func(float64, ...string)) {
		s := a.Push.Stats()
		emit(float64(s.Dropped), "overflow")
		emit(float64(s.Conflated), "conflated")
	})
	one("weir_wire_cache_bytes", "Bytes of wire forms kept with recent messages.", gauge, func() float64 { return float64(a.Hub.Stats().WireBytes) })
	family("weir_memory_evicted_messages_total", "Messages dropped from memory at its budget, by owner.", "owner", counter, func(emit func(float64, ...string)) {
		emit(float64(a.Hub.Stats().Evicted), "rings")
		evicted := uint64(0)
		if a.Memory != nil {
			_, evicted = a.Memory.Memory()
		}
		emit(float64(evicted), "log_cache")
	})
	one("weir_gaps_total", "Gaps declared to subscribers.", counter, func() float64 { return float64(a.Hub.Stats().Gaps + a.Push.Stats().Gaps) })
	one("weir_positions_refuted_total", "Positions of clients whose check is not that of the log: it lost messages or was restored from a backup.", counter, func() float64 { return float64(a.Hub.Stats().Refuted) })
	one("weir_hub_queue_messages", "Messages that wait for the loops.", gauge, func() float64 { return float64(a.Hub.Stats().QueueDepth) })
	one("weir_subscribers_lagging_messages", "Messages that wait for slow subscribers.", gauge, func() float64 { return float64(a.Push.Stats().Queued) })
	one("weir_subscribers_lagging_bytes", "Payload bytes that wait for slow subscribers.", gauge, func() float64 { return float64(a.Push.Stats().QueuedBytes) })
	one("weir_subscribers_lagged_total", "Times a subscriber fell behind its socket.", counter, func() float64 { return float64(a.Push.Stats().Lagged) })
	family("weir_subscribers_closed_total", "Subscribers closed by this side, by reason.", "reason", counter, func(emit func(float64, ...string)) {
		s := a.Push.Stats()
		emit(float64(s.TooSlow), "too_slow")
		emit(float64(s.Expired), "token_expired")
		emit(float64(s.Revoked), "revoked")
		emit(float64(s.Drained), "drain")
		emit(float64(s.RefusedDrain), "drain_refused")
		emit(float64(s.ClientErrors), "protocol_error")
		emit(float64(s.Panics), "panic")
		emit(float64(s.Overloaded), "overloaded")
		emit(float64(s.Failed), "subscription_failed")
		emit(float64(a.clients.byHand.Load()), "operator")
	})
	family("weir_tokens_total", "Tokens presented, by outcome.", "outcome", counter, func(emit func(float64, ...string)) {
		s := a.Auth.Stats()
		emit(float64(s.Verified), "verified")
		emit(float64(s.CacheHits), "known")
		emit(float64(s.Refused), "refused")
	})
	one("weir_origins_refused_total", "Requests refused because of the origin of their web page.", counter, func() float64 { return float64(a.Auth.Stats().Origins) })
	family("weir_jwks_fetches_total", "Fetches of the issuer's keys, by outcome.", "outcome", counter, func(emit func(float64, ...string)) {
		s := a.Auth.Stats()
		emit(float64(s.KeyFetches-s.KeyFetchErrs), "ok")
		emit(float64(s.KeyFetchErrs), "error")
	})
	family("weir_http2_streams_total", "Requests over HTTP/2, by outcome of their beginning.", "outcome", counter, func(emit func(float64, ...string)) {
		s := a.HTTP2.Stats()
		emit(float64(s.Streams-s.Refused-min(s.Malformed, s.Streams-s.Refused)), "begun")
		emit(float64(s.Refused), "refused")
		emit(float64(s.Malformed), "malformed")
	})
	one("weir_http2_connections", "Open connections that speak HTTP/2.", gauge, func() float64 { return float64(a.HTTP2.Stats().Open) })
	one("weir_http2_streams", "Open streams of HTTP/2.", gauge, func() float64 { return float64(a.HTTP2.Stats().OpenStreams) })
	family("weir_http2_floods_total", "Connections closed for too much of something, and streams for a window that stayed shut, by kind.", "kind", counter, func(emit func(float64, ...string)) {
		for kind, n := range a.HTTP2.Stats().Floods {
			emit(float64(n), kind)
		}
	})
	family("weir_http2_goaways_total", "Connections of HTTP/2 that were sent a GOAWAY, by why.", "reason", counter, func(emit func(float64, ...string)) {
		for why, n := range a.HTTP2.Stats().Ended {
			emit(float64(n), why)
		}
	})
	one("weir_log_dropped_total", "Lines of the log that were not written: more than 1 MiB was waiting, or the write failed.", counter, func() float64 { return float64(a.LogDropped()) })
	one("weir_requests_waiting", "Requests that wait for the broker or for keys.", gauge, func() float64 { return float64(a.Front.Waiting()) })
	m.sums(one)
	one("weir_delivery_samples_lost_total", "Publications that were to be followed to the sockets and were not.", counter, func() float64 { return float64(a.Probe.lost.Load()) })
	one("weir_admin_live_listeners", "Who follows the snapshots of the admin listener.", gauge, func() float64 { return float64(a.Listeners()) })
	family("weir_spans_total", "Spans of traces, by what became of them.", "outcome", counter, func(emit func(float64, ...string)) {
		s := a.Telemetry.Stats()
		emit(float64(s.Exported), "exported")
		emit(float64(s.Dropped), "dropped")
	})
	if withTLS {
		c.when = "With TLS."
		m.tls(one, family)
		m.certificates(c, family)
		m.http3(c, one, family)
		c.when = ""
	}
	return m
}

// sums adds what the loops count, over all of them: machines have many, and a
// series for each would be most of what is scraped. Only the least and the most
// connections of a loop show whether they are spread well.
func (m *coreMetrics) sums(one func(name, help string, kind prometheus.ValueType, v func() float64)) {
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	sum := func(name, help string, kind prometheus.ValueType, v func(eventloop.Stats) uint64) {
		one(name, help, kind, func() (n float64) {
			for _, l := range m.node.Loops.Loops() {
				n += float64(v(l.Stats()))
			}
			return n
		})
	}
	open := func() []uint64 {
		var list []uint64
		for _, l := range m.node.Loops.Loops() {
			list = append(list, l.Stats().Open)
		}
		return list
	}
	one("weir_loops", "Event loops.", gauge, func() float64 { return float64(len(m.node.Loops.Loops())) })
	one("weir_loop_connections_least", "Open connections of the loop that has fewest.", gauge, func() float64 { return float64(slices.Min(open())) })
	one("weir_loop_connections_most", "Open connections of the loop that has most.", gauge, func() float64 { return float64(slices.Max(open())) })
	one("weir_loop_busy_seconds_total", "Time that the loops worked, all together.", counter, func() (seconds float64) {
		for _, l := range m.node.Loops.Loops() {
			seconds += l.Ticks().Busy.Seconds()
		}
		return seconds
	})
	sum("weir_loop_ticks_total", "Ticks of the loops.", counter, func(s eventloop.Stats) uint64 { return s.Ticks })
	sum("weir_accepted_total", "Connections accepted.", counter, func(s eventloop.Stats) uint64 { return s.Accepted })
	sum("weir_accept_refused_total", "Connections closed at accept by max_conns.", counter, func(s eventloop.Stats) uint64 { return s.Refused })
	sum("weir_accept_pauses_total", "Times a listener let new connections wait in the kernel, at most a second, because nearly max_conns were open.", counter, func(s eventloop.Stats) uint64 { return s.AcceptPauses })
	sum("weir_accept_errors_total", "Accepts that failed for want of descriptors or memory.", counter, func(s eventloop.Stats) uint64 { return s.AcceptErrors })
	sum("weir_read_bytes_total", "Bytes received.", counter, func(s eventloop.Stats) uint64 { return s.BytesIn })
	sum("weir_sends_total", "Send system calls.", counter, func(s eventloop.Stats) uint64 { return s.Sends })
	sum("weir_sent_bytes_total", "Bytes sent.", counter, func(s eventloop.Stats) uint64 { return s.BytesOut })
	sum("weir_write_stalls_total", "Times a socket did not accept everything.", counter, func(s eventloop.Stats) uint64 { return s.Stalls })
	sum("weir_write_stall_closes_total", "Connections closed because they took nothing.", counter, func(s eventloop.Stats) uint64 { return s.StallCloses })
	sum("weir_write_queue_full_closes_total", "Connections closed at the bound of their write queue.", counter, func(s eventloop.Stats) uint64 { return s.QueueFull })
	sum("weir_panics_total", "Handlers that panicked.", counter, func(s eventloop.Stats) uint64 { return s.Panics })
}

// tls adds what the end of TLS counts.
func (m *coreMetrics) tls(
	one func(name, help string, kind prometheus.ValueType, v func() float64),
	family func(name, help, label string, kind prometheus.ValueType, read func(emit func(float64, ...string))),
) {
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	stats := m.node.TLS.Stats
	family("weir_tls_handshakes_total", "TLS handshakes, by outcome.", "outcome", counter, func(emit func(float64, ...string)) {
		s := stats()
		emit(float64(s.Full), "full")
		emit(float64(s.Resumed), "resumed")
		emit(float64(s.Failed), "failed")
		emit(float64(s.Revoked), "revoked")
		emit(float64(s.Timeouts), "too_slow")
		emit(float64(s.Shed), "shed")
		emit(float64(s.NotTLS), "not_tls")
		emit(float64(s.Validated), "validated")
	})
	family("weir_tls_suites_total", "TLS handshakes finished, by protocol and cipher suite.", "protocol,suite", counter, func(emit func(float64, ...string)) {
		for _, c := range stats().Suites {
			emit(float64(c.Count), c.Protocol, c.Suite)
		}
	})
	family("weir_tls_key_exchanges_total", "TLS handshakes finished with a key exchange, by its group.", "group", counter, func(emit func(float64, ...string)) {
		for _, c := range stats().Groups {
			emit(float64(c.Count), c.Group)
		}
	})
	one("weir_tls_handshakes_running", "TLS handshakes under way.", gauge, func() float64 { return float64(stats().Running) })
	one("weir_tls_handshakes_waiting", "Connections that wait for their TLS handshake.", gauge, func() float64 { return float64(stats().Waiting) })
	family("weir_tls_reloads_total", "Times certificates were read again, by outcome.", "outcome", counter, func(emit func(float64, ...string)) {
		s := stats()
		emit(float64(s.Reloads), "ok")
		emit(float64(s.ReloadFailures), "error")
	})
	family("weir_tls_ocsp_fetches_total", "OCSP answers requested, by outcome.", "outcome", counter, func(emit func(float64, ...string)) {
		s := stats()
		emit(float64(s.OCSPFetches), "ok")
		emit(float64(s.OCSPFailures), "error")
	})
	one("weir_tls_revoked_closes_total", "Established connections closed because a reloaded list revokes their client's certificate.", counter, func() float64 { return float64(stats().RevokedOpen) })
	one("weir_tls_unstapled_total", "Handshakes with a must-staple certificate and no staple.", counter, func() float64 { return float64(stats().Unstapled) })
}

// Describe implements prometheus.Collector.
func (m *coreMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, x := range m.list {
		ch <- x.desc
	}
}

// Collect implements prometheus.Collector.
func (m *coreMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, x := range m.list {
		x.read(func(v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(x.desc, x.kind, v, labels...)
		})
	}
}
