package observe

import (
	"github.com/prometheus/client_golang/prometheus"
)

// extensionMetrics shows the extensions. Series grow with those that are configured.
type extensionMetrics struct {
	node                                      *Node
	events, pending, queued, dropped, seconds *prometheus.Desc
}

func newExtensionMetrics(a *Node, c *catalog) *extensionMetrics {
	return &extensionMetrics{
		node: a,
		events: c.desc("weir_extension_events_total", "Events on which an extension was to decide, by outcome: allowed or refused by a call or from the cache, failed, timeout, overloaded at max_pending, "+
			"canceled because the client left.", "extension", "event", "outcome"),
		pending: c.desc("weir_extension_pending_calls", "Calls of an extension under way.", "extension"),
		queued:  c.desc("weir_extension_queued_events", "Disconnect events that wait for their call.", "extension"),
		dropped: c.desc("weir_extension_events_dropped_total", "Disconnect events dropped because as many waited as queue allows.", "extension"),
		seconds: c.histogram("weir_extension_call_seconds", "How long the calls of an extension took.", "extension"),
	}
}

// Describe implements prometheus.Collector.
func (m *extensionMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.events, m.pending, m.queued, m.dropped, m.seconds} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *extensionMetrics) Collect(ch chan<- prometheus.Metric) {
	emit := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	for name, s := range m.node.Extensions.Stats() {
		for event, outcomes := range s.Events {
			for outcome, n := range outcomes {
				emit(m.events, prometheus.CounterValue, float64(n), name, event, outcome)
			}
		}
		emit(m.pending, prometheus.GaugeValue, float64(s.Pending), name)
		emit(m.queued, prometheus.GaugeValue, float64(s.Queued), name)
		emit(m.dropped, prometheus.CounterValue, float64(s.Dropped), name)
		ch <- constHistogram(m.seconds, &s.Seconds, latencyBounds, m.node.NativeHistograms, m.node.Started, name)
	}
}
