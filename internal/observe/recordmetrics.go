package observe

import "github.com/prometheus/client_golang/prometheus"

// recordMetrics shows recordings and held connections.
type recordMetrics struct {
	node                                                              *Node
	running, started, attached, ended, refused, passed, events, holds *prometheus.Desc
}

func newRecordMetrics(a *Node, c *catalog) *recordMetrics {
	d := c.desc
	return &recordMetrics{
		node:     a,
		running:  d("weir_recordings", "Replies that are being recorded."),
		started:  d("weir_recordings_begun_total", "Times a backend was asked for a reply to be recorded."),
		attached: d("weir_recordings_attached_total", "Clients that joined a recording, under way or ended."),
		ended:    d("weir_recordings_ended_total", "Recordings by how they ended: whole, or why they are not.", "how"),
		refused:  d("weir_recordings_refused_total", "Requests refused because too many replies were being recorded."),
		passed:   d("weir_recordings_passed_total", "Replies of recorded routes that were no event streams."),
		events:   d("weir_recordings_events_total", "Events stored."),
		holds:    d("weir_holds_total", "Connections that backends turned into subscriptions, and asked to where they may not.", "result"),
	}
}

// Describe implements prometheus.Collector.
func (m *recordMetrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *recordMetrics) Collect(ch chan<- prometheus.Metric) {
	s, f := m.node.Recorder.Stats(), m.node.Front.Stats()
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	ch <- prometheus.MustNewConstMetric(m.running, prometheus.GaugeValue, float64(s.Running))
	count(m.started, s.Started)
	count(m.attached, s.Attached)
	count(m.ended, s.Whole, "whole")
	count(m.ended, s.Lost, "gateway_lost")
	for cause, n := range s.Broken {
		if cause != "gateway_lost" {
			count(m.ended, n, cause)
		}
	}
	count(m.refused, s.Refused)
	count(m.passed, s.Passed)
	count(m.events, s.Events)
	count(m.holds, f.Held, "held")
	count(m.holds, f.HoldsRefused, "refused")
}
