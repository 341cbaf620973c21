package observe

import (
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// newConnectionMetrics shows who is connected, and how connections leave and move.
func newConnectionMetrics(a *Node, c *catalog) *group {
	g := c.group("")
	by(g, "weir_connections", "Open connections by what they do.", "transport", a.byTransport)
	one(g, "weir_connections_max", "Bound on open connections.", func() int { return a.Loops.MaxConns() })
	one(g, "weir_reconnect_rate", "Clients per second that this node takes on from one that drains, as reported to the other nodes: half of its idle processor time by the cost of one.", func() float64 { return a.ReconnectRate() })
	by(g, "weir_reconnect_cost_seconds", "Processor time of a new connection until it is served, measured over the last 2,000 or, before there were 100, assumed.", "source", func() map[string]float64 {
		cost, measured := a.ReconnectCost()
		if measured {
			return map[string]float64{"measured": cost.Seconds()}
		}
		return map[string]float64{"assumed": cost.Seconds()}
	})
	by(g, "weir_drain_streams", "Streams that a drain has still to close, as planned and as they are; 0 without a drain.", "of", func() map[string]int64 {
		d := a.Drain()
		if d == nil {
			d = &admin.Drain{}
		}
		return map[string]int64{"planned": d.Planned, "actual": d.Left}
	})
	by(g, "weir_upgrades_total", "Times that this process started a new one to take over, by outcome.", "outcome", func() map[string]uint64 {
		return map[string]uint64{"done": a.Upgrades.Done.Load(), "failed": a.Upgrades.Failed.Load()}
	})
	by(g, "weir_upgrade_connections_total", "Connections that moved in an upgrade: in, from the old process; out, to the new one; refused by this one.", "direction", func() map[string]uint64 {
		return map[string]uint64{"in": a.Upgrades.Arrived.Load(), "out": a.Upgrades.Moved.Load(), "refused": a.Upgrades.Refused.Load()}
	})
	one(g, "weir_upgrade_pause_seconds", "How long clients waited in the last upgrade, as the process that took over saw it; 0: there was none.", func() float64 { return time.Duration(a.Upgrades.Paused.Load()).Seconds() })
	return g
}

// newMessageMetrics shows what is published and what subscribers get of it.
func newMessageMetrics(a *Watch, c *catalog) *group {
	g := c.group("")
	one(g, "weir_channels", "Channels with subscribers on this node.", func() int64 { return a.Hub.Stats().Channels })
	by(g, "weir_messages_published_total", "Publications, by outcome.", "outcome", func() map[string]uint64 {
		s := a.Push.Stats()
		return map[string]uint64{"ok": s.Published, "error": s.PublishErrors}
	})
	one(g, "weir_messages_delivered_total", "Messages handed to subscribers.", func() uint64 { return a.Hub.Stats().Delivered })
	one(g, "weir_messages_replayed_total", "Of the delivered messages, those from history.", func() uint64 { return a.Hub.Stats().Replayed })
	one(g, "weir_messages_encoded_total", "Times a message was written in a wire format.", func() uint64 { return a.Hub.Stats().Encoded })
	by(g, "weir_messages_dropped_total", "Messages that slow subscribers did not get, by reason.", "reason", func() map[string]uint64 {
		s := a.Push.Stats()
		return map[string]uint64{"overflow": s.Dropped, "conflated": s.Conflated}
	})
	one(g, "weir_wire_cache_bytes", "Bytes of wire forms kept with recent messages.", func() int64 { return a.Hub.Stats().WireBytes })
	by(g, "weir_memory_evicted_messages_total", "Messages dropped from memory at its budget, by owner.", "owner", func() map[string]uint64 {
		evicted := uint64(0)
		if a.Memory != nil {
			_, evicted = a.Memory.Memory()
		}
		return map[string]uint64{"rings": a.Hub.Stats().Evicted, "log_cache": evicted}
	})
	one(g, "weir_gaps_total", "Gaps declared to subscribers.", func() uint64 { return a.Hub.Stats().Gaps + a.Push.Stats().Gaps })
	one(g, "weir_positions_refuted_total", "Positions of clients whose check is not that of the log: it lost messages or was restored from a backup.", func() uint64 { return a.Hub.Stats().Refuted })
	one(g, "weir_hub_queue_messages", "Messages that wait for the loops.", func() int64 { return a.Hub.Stats().QueueDepth })
	one(g, "weir_subscribers_lagging_messages", "Messages that wait for slow subscribers.", func() int64 { return a.Push.Stats().Queued })
	one(g, "weir_subscribers_lagging_bytes", "Payload bytes that wait for slow subscribers.", func() int64 { return a.Push.Stats().QueuedBytes })
	one(g, "weir_subscribers_lagged_total", "Times a subscriber fell behind its socket.", func() uint64 { return a.Push.Stats().Lagged })
	by(g, "weir_subscribers_closed_total", "Subscribers closed by this side, by reason.", "reason", func() map[string]uint64 {
		s := a.Push.Stats()
		return map[string]uint64{
			"too_slow":            s.TooSlow,
			"token_expired":       s.Expired,
			"revoked":             s.Revoked,
			"drain":               s.Drained,
			"drain_refused":       s.RefusedDrain,
			"protocol_error":      s.ClientErrors,
			"panic":               s.Panics,
			"overloaded":          s.Overloaded,
			"subscription_failed": s.Failed,
			"operator":            a.clients.byHand.Load(),
		}
	})
	one(g, "weir_delivery_samples_lost_total", "Publications that were to be followed to the sockets and were not.", func() uint64 { return a.Probe.lost.Load() })
	one(g, "weir_admin_live_listeners", "Who follows the snapshots of the admin listener.", a.Listeners)
	return g
}

// newRequestMetrics shows the requests on the public listener, and their tokens.
func newRequestMetrics(a *Node, c *catalog) *group {
	g := c.group("")
	one(g, "weir_http_requests_total", "Requests understood on the public listener.", func() uint64 { return a.Front.Stats().Requests })
	by(g, "weir_http_refused_total", "Requests refused, by reason.", "reason", func() map[string]uint64 {
		s := a.Front.Stats()
		return map[string]uint64{"malformed": s.Bad, "answered_with_error": s.Refused, "too_slow": s.Timeouts}
	})
	by(g, "weir_tokens_total", "Tokens presented, by outcome.", "outcome", func() map[string]uint64 {
		s := a.Auth.Stats()
		return map[string]uint64{"verified": s.Verified, "known": s.CacheHits, "refused": s.Refused}
	})
	one(g, "weir_origins_refused_total", "Requests refused because of the origin of their web page.", func() uint64 { return a.Auth.Stats().Origins })
	by(g, "weir_jwks_fetches_total", "Fetches of the issuer's keys, by outcome.", "outcome", func() map[string]uint64 {
		s := a.Auth.Stats()
		return map[string]uint64{"ok": s.KeyFetches - s.KeyFetchErrs, "error": s.KeyFetchErrs}
	})
	by(g, "weir_http2_streams_total", "Requests over HTTP/2, by outcome of their beginning.", "outcome", func() map[string]uint64 {
		s := a.HTTP2.Stats()
		return streamOutcomes(s.Streams, s.Refused, s.Malformed)
	})
	one(g, "weir_http2_connections", "Open connections that speak HTTP/2.", func() int64 { return a.HTTP2.Stats().Open })
	one(g, "weir_http2_streams", "Open streams of HTTP/2.", func() int64 { return a.HTTP2.Stats().OpenStreams })
	by(g, "weir_http2_floods_total", "Connections closed for too much of something, and streams for a window that stayed shut, by kind.", "kind", func() map[string]uint64 { return a.HTTP2.Stats().Floods })
	by(g, "weir_http2_goaways_total", "Connections of HTTP/2 that were sent a GOAWAY, by why.", "reason", func() map[string]uint64 { return a.HTTP2.Stats().Ended })
	one(g, "weir_log_dropped_total", "Lines of the log that were not written: more than 1 MiB was waiting, or the write failed.", func() uint64 { return a.LogDropped() })
	one(g, "weir_requests_waiting", "Requests that wait for the broker or for keys.", func() int64 { return a.Front.Waiting() })
	by(g, "weir_spans_total", "Spans of traces, by what became of them.", "outcome", func() map[string]uint64 {
		s := a.Telemetry.Stats()
		return map[string]uint64{"exported": s.Exported, "dropped": s.Dropped}
	})
	return g
}

// streamOutcomes is how the requests of a transport with streams began.
func streamOutcomes(streams, refused, malformed uint64) map[string]uint64 {
	return map[string]uint64{"begun": streams - refused - min(malformed, streams-refused), "refused": refused, "malformed": malformed}
}

// newLoopMetrics shows what the loops count, over all of them: machines have many, and a
// series for each would be most of what is scraped. Only the least and the most
// connections of a loop show whether they are spread well.
func newLoopMetrics(a *Node, c *catalog) *group {
	g := c.group("")
	sum := func(name, help string, v func(eventloop.Stats) uint64) {
		one(g, name, help, func() (n uint64) {
			for _, l := range a.Loops.Loops() {
				n += v(l.Stats())
			}
			return n
		})
	}
	open := func() []uint64 {
		var list []uint64
		for _, l := range a.Loops.Loops() {
			list = append(list, l.Stats().Open)
		}
		return list
	}
	one(g, "weir_loops", "Event loops.", func() int { return len(a.Loops.Loops()) })
	one(g, "weir_loop_connections_least", "Open connections of the loop that has fewest.", func() uint64 { return slices.Min(open()) })
	one(g, "weir_loop_connections_most", "Open connections of the loop that has most.", func() uint64 { return slices.Max(open()) })
	one(g, "weir_loop_busy_seconds_total", "Time that the loops worked, all together.", func() (seconds float64) {
		for _, l := range a.Loops.Loops() {
			seconds += l.Ticks().Busy.Seconds()
		}
		return seconds
	})
	sum("weir_loop_ticks_total", "Ticks of the loops.", func(s eventloop.Stats) uint64 { return s.Ticks })
	sum("weir_accepted_total", "Connections accepted.", func(s eventloop.Stats) uint64 { return s.Accepted })
	sum("weir_accept_refused_total", "Connections closed at accept by max_conns.", func(s eventloop.Stats) uint64 { return s.Refused })
	sum("weir_accept_pauses_total", "Times a listener let new connections wait in the kernel, at most a second, because nearly max_conns were open.", func(s eventloop.Stats) uint64 { return s.AcceptPauses })
	sum("weir_accept_errors_total", "Accepts that failed for want of descriptors or memory.", func(s eventloop.Stats) uint64 { return s.AcceptErrors })
	sum("weir_read_bytes_total", "Bytes received.", func(s eventloop.Stats) uint64 { return s.BytesIn })
	sum("weir_sends_total", "Send system calls.", func(s eventloop.Stats) uint64 { return s.Sends })
	sum("weir_sent_bytes_total", "Bytes sent.", func(s eventloop.Stats) uint64 { return s.BytesOut })
	sum("weir_write_stalls_total", "Times a socket did not accept everything.", func(s eventloop.Stats) uint64 { return s.Stalls })
	sum("weir_write_stall_closes_total", "Connections closed because they took nothing.", func(s eventloop.Stats) uint64 { return s.StallCloses })
	sum("weir_write_queue_full_closes_total", "Connections closed at the bound of their write queue.", func(s eventloop.Stats) uint64 { return s.QueueFull })
	sum("weir_panics_total", "Handlers that panicked.", func(s eventloop.Stats) uint64 { return s.Panics })
	return g
}
