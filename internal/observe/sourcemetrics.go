package observe

import "github.com/prometheus/client_golang/prometheus"

// sourceMetrics shows the sources that are configured.
type sourceMetrics struct {
	node                                                        *Node
	lag, seconds, messages, gaps, missing, retries, errs, phase *prometheus.Desc
}

func newSourceMetrics(a *Node, c *catalog) *sourceMetrics {
	d := c.desc
	c.when = "With sources."
	defer func() { c.when = "" }()
	return &sourceMetrics{
		node:     a,
		phase:    d("weir_source_phase", "1 for what the source does on this node: connecting, reading, standby, paused or blocked.", "source", "phase"),
		lag:      d("weir_source_lag_messages", "Messages that wait in the source; absent where that is not known.", "source"),
		seconds:  d("weir_source_lag_seconds", "Age of the oldest message that was read and not published, or of the last published one while others wait.", "source"),
		messages: d("weir_source_messages_total", "Messages of the source, by outcome: read, published, dead_lettered, dropped at a full queue or as malformed, conflated.", "source", "outcome"),
		gaps:     d("weir_source_gaps_total", "Gaps in the source's sequence numbers.", "source"),
		missing:  d("weir_source_missing_messages_total", "Messages in those gaps.", "source"),
		retries:  d("weir_source_retries_total", "Publications repeated because the broker was unavailable, overloaded or full.", "source"),
		errs:     d("weir_source_errors_total", "Failures of the connection to the source.", "source"),
	}
}

// Describe implements prometheus.Collector.
func (m *sourceMetrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *sourceMetrics) Collect(ch chan<- prometheus.Metric) {
	if m.node.Ingest == nil {
		return
	}
	emit := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	for _, s := range m.node.Ingest() {
		emit(m.phase, gauge, 1, s.Name, s.Phase)
		if s.Lag >= 0 {
			emit(m.lag, gauge, float64(s.Lag), s.Name)
		}
		emit(m.seconds, gauge, s.LagSeconds, s.Name)
		emit(m.messages, counter, float64(s.Read), s.Name, "read")
		emit(m.messages, counter, float64(s.Published), s.Name, "published")
		emit(m.messages, counter, float64(s.DeadLettered), s.Name, "dead_lettered")
		emit(m.messages, counter, float64(s.Dropped), s.Name, "dropped")
		emit(m.messages, counter, float64(s.Conflated), s.Name, "conflated")
		emit(m.gaps, counter, float64(s.Gaps), s.Name)
		emit(m.missing, counter, float64(s.Missing), s.Name)
		emit(m.retries, counter, float64(s.Retries), s.Name)
		emit(m.errs, counter, float64(s.Errors), s.Name)
	}
}
