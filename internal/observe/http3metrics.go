package observe

import "github.com/prometheus/client_golang/prometheus"

// http3 are the metrics of HTTP/3, where it is served.
func (m *coreMetrics) http3(c *catalog, one func(name, help string, kind prometheus.ValueType, v func() float64),
	family func(name, help, label string, kind prometheus.ValueType, read func(emit func(float64, ...string)))) {
	a := m.node
	if a.HTTP3 == nil && a.Hub != nil {
		return
	}
	c.when = "With HTTP/3."
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	family("weir_http3_streams_total", "Requests over HTTP/3, by outcome of their beginning.", "outcome", counter, func(emit func(float64, ...string)) {
		s := a.HTTP3.Stats()
		emit(float64(s.Streams-s.Refused-min(s.Malformed, s.Streams-s.Refused)), "begun")
		emit(float64(s.Refused), "refused")
		emit(float64(s.Malformed), "malformed")
	})
	family("weir_http3_connections_total", "Connections of QUIC, by what became of them: established, refused before the handshake, failed in it.", "outcome", counter, func(emit func(float64, ...string)) {
		s := a.HTTP3.Stats()
		emit(float64(s.Connections), "established")
		emit(float64(s.Shed), "refused")
		emit(float64(s.Failed), "failed")
	})
	one("weir_http3_retries_total", "Clients of QUIC that had to prove their address before the handshake.", counter, func() float64 { return float64(a.HTTP3.Stats().Retries) })
	one("weir_http3_moves_total", "Changes of address of clients of QUIC, noticed at their next request or at their end.", counter, func() float64 { return float64(a.HTTP3.Stats().Moved) })
	one("weir_http3_connections", "Open connections that speak HTTP/3.", gauge, func() float64 { return float64(a.HTTP3.Stats().Open) })
	one("weir_http3_streams", "Open streams of HTTP/3.", gauge, func() float64 { return float64(a.HTTP3.Stats().OpenStreams) })
	family("weir_http3_floods_total", "Connections closed for too much of something, and streams for taking too little, by kind.", "kind", counter, func(emit func(float64, ...string)) {
		s := a.HTTP3.Stats()
		for kind, n := range s.Floods {
			emit(float64(n), kind)
		}
		emit(float64(s.Stalled), "stalled")
	})
}
