package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/front/h2"
)

// http2Descs are the metrics of HTTP/2 towards backends.
type http2Descs struct{ open, openStreams, connections, streams, resets, goaways, floods *prometheus.Desc }

func newHTTP2Descs(d func(name, help string, labels ...string) *prometheus.Desc) http2Descs {
	return http2Descs{
		open:        d("weir_upstream_http2_connections", "Open connections to peers that speak HTTP/2.", "cluster"),
		openStreams: d("weir_upstream_http2_streams", "Open streams on connections to peers.", "cluster"),
		connections: d("weir_upstream_http2_connections_total", "Connections to peers over HTTP/2.", "cluster"),
		streams:     d("weir_upstream_http2_streams_total", "Requests sent to peers over HTTP/2.", "cluster"),
		resets: d("weir_upstream_http2_resets_total", "Streams to peers that did not end in order, by reason: reset by the peer, said to be unprocessed (REFUSED_STREAM, GOAWAY), "+
			"canceled by Weir, or malformed replies.", "cluster", "reason"),
		goaways: d("weir_upstream_http2_goaways_total", "Connections that peers announced to end (GOAWAY).", "cluster"),
		floods:  d("weir_upstream_http2_floods_total", "Connections closed because the peer sent too much of something, by kind.", "cluster", "kind"),
	}
}

func (m *http2Descs) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.open, m.openStreams, m.connections, m.streams, m.resets, m.goaways, m.floods} {
		ch <- d
	}
}

// collect shows a cluster that has spoken HTTP/2.
func (m *http2Descs) collect(emit func(*prometheus.Desc, prometheus.ValueType, float64, ...string), cluster string, s *h2.CallStats) {
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	if s.Sessions == 0 {
		return
	}
	emit(m.open, gauge, float64(s.Open), cluster)
	emit(m.openStreams, gauge, float64(s.OpenCalls), cluster)
	emit(m.connections, counter, float64(s.Sessions), cluster)
	emit(m.streams, counter, float64(s.Calls), cluster)
	for reason, n := range map[string]uint64{"reset": s.Resets, "unprocessed": s.Unprocessed, "canceled": s.Canceled, "malformed": s.Malformed} {
		emit(m.resets, counter, float64(n), cluster, reason)
	}
	emit(m.goaways, counter, float64(s.GoAways), cluster)
	for kind, n := range s.Floods {
		emit(m.floods, counter, float64(n), cluster, kind)
	}
}
