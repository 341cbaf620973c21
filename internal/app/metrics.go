package app

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/eventloop"
)

// metrics reads every part's own counters at scrape time; nothing is counted twice.
type metrics struct {
	app  *App
	list []metric
}

// metric is one series or family: its description and how to read it.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(emit func(v float64, labels ...string))
}

func newMetrics(a *App) *metrics {
	m := &metrics{app: a}
	one := func(name, help string, kind prometheus.ValueType, v func() float64) {
		m.list = append(m.list, metric{prometheus.NewDesc(name, help, nil, nil), kind, func(emit func(float64, ...string)) { emit(v()) }})
	}
	family := func(name, help, label string, kind prometheus.ValueType, read func(emit func(float64, ...string))) {
		m.list = append(m.list, metric{prometheus.NewDesc(name, help, []string{label}, nil), kind, read})
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	family("weir_connections", "Open connections by what they do.", "transport", gauge, func(emit func(float64, ...string)) {
		p := a.push.Stats()
		emit(float64(p.SSE), "sse")
		emit(float64(p.WebSocket), "websocket")
		emit(float64(max(int64(a.loops.Open())-p.SSE-p.WebSocket, 0)), "http")
	})
	one("weir_connections_max", "Bound on open connections.", gauge, func() float64 { return float64(a.loops.MaxConns()) })
	one("weir_channels", "Channels with subscribers on this node.", gauge, func() float64 { return float64(a.hub.Stats().Channels) })
	one("weir_http_requests_total", "Requests understood on the public listener.", counter, func() float64 { return float64(a.front.Stats().Requests) })
	family("weir_http_refused_total", "Requests refused, by reason.", "reason", counter, func(emit func(float64, ...string)) {
		s := a.front.Stats()
		emit(float64(s.Bad), "malformed")
		emit(float64(s.Refused), "answered_with_error")
		emit(float64(s.Timeouts), "too_slow")
	})
	family("weir_messages_published_total", "Publications, by outcome.", "outcome", counter, func(emit func(float64, ...string)) {
		s := a.push.Stats()
		emit(float64(s.Published), "ok")
		emit(float64(s.PublishErrors), "error")
	})
	one("weir_messages_delivered_total", "Messages handed to subscribers.", counter, func() float64 { return float64(a.hub.Stats().Delivered) })
	one("weir_messages_replayed_total", "Of the delivered messages, those from history.", counter, func() float64 { return float64(a.hub.Stats().Replayed) })
	one("weir_messages_encoded_total", "Times a message was written in a wire format.", counter, func() float64 { return float64(a.hub.Stats().Encoded) })
	one("weir_gaps_total", "Gaps declared to subscribers.", counter, func() float64 { return float64(a.hub.Stats().Gaps) })
	one("weir_hub_queue_messages", "Messages that wait for the loops.", gauge, func() float64 { return float64(a.hub.Stats().QueueDepth) })
	one("weir_subscribers_lagging_messages", "Messages that wait for slow subscribers.", gauge, func() float64 { return float64(a.push.Stats().Held) })
	one("weir_subscribers_lagging_bytes", "Payload bytes that wait for slow subscribers.", gauge, func() float64 { return float64(a.push.Stats().HeldBytes) })
	one("weir_subscribers_lagged_total", "Times a subscriber fell behind its socket.", counter, func() float64 { return float64(a.push.Stats().Lagged) })
	family("weir_subscribers_closed_total", "Subscribers closed by this side, by reason.", "reason", counter, func(emit func(float64, ...string)) {
		s := a.push.Stats()
		emit(float64(s.TooSlow), "too_slow")
		emit(float64(s.Expired), "token_expired")
		emit(float64(s.SentAway), "drain")
		emit(float64(s.ClientErrors), "protocol_error")
	})
	m.loops(family)
	return m
}

// loops adds the families that have one series per loop.
func (m *metrics) loops(family func(name, help, label string, kind prometheus.ValueType, read func(emit func(float64, ...string)))) {
	perLoop := func(name, help string, kind prometheus.ValueType, v func(eventloop.Stats) uint64) {
		family(name, help, "loop", kind, func(emit func(float64, ...string)) {
			for _, l := range m.app.loops.Loops() {
				emit(float64(v(l.Stats())), strconv.Itoa(l.ID()))
			}
		})
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	perLoop("weir_loop_connections", "Open connections.", gauge, func(s eventloop.Stats) uint64 { return s.Open })
	perLoop("weir_loop_ticks_total", "Ticks of the loop.", counter, func(s eventloop.Stats) uint64 { return s.Ticks })
	perLoop("weir_loop_accepted_total", "Connections accepted.", counter, func(s eventloop.Stats) uint64 { return s.Accepted })
	perLoop("weir_loop_refused_total", "Connections closed at accept by max_conns.", counter, func(s eventloop.Stats) uint64 { return s.Refused })
	perLoop("weir_loop_accept_errors_total", "Accepts that failed for want of descriptors or memory.", counter, func(s eventloop.Stats) uint64 { return s.AcceptErrors })
	perLoop("weir_loop_read_bytes_total", "Bytes received.", counter, func(s eventloop.Stats) uint64 { return s.BytesIn })
	perLoop("weir_loop_sends_total", "Send system calls.", counter, func(s eventloop.Stats) uint64 { return s.Sends })
	perLoop("weir_loop_sent_bytes_total", "Bytes sent.", counter, func(s eventloop.Stats) uint64 { return s.BytesOut })
	perLoop("weir_loop_stalls_total", "Times a socket did not take everything.", counter, func(s eventloop.Stats) uint64 { return s.Stalls })
	perLoop("weir_loop_stall_closes_total", "Connections closed because they took nothing.", counter, func(s eventloop.Stats) uint64 { return s.StallCloses })
	perLoop("weir_loop_queue_full_closes_total", "Connections closed at the bound of their write queue.", counter, func(s eventloop.Stats) uint64 { return s.QueueFull })
	perLoop("weir_loop_panics_total", "Handlers that panicked.", counter, func(s eventloop.Stats) uint64 { return s.Panics })
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, x := range m.list {
		ch <- x.desc
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, x := range m.list {
		x.read(func(v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(x.desc, x.kind, v, labels...)
		})
	}
}
