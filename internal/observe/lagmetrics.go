package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/push"
)

// lagMetrics shows, at each scrape, how the subscribers' lag is distributed now.
// It is a snapshot in the form of a histogram: counts fall when readers catch up.
type lagMetrics struct {
	node                     *Node
	messages, bytes, seconds *prometheus.Desc
}

func newLagMetrics(a *Node, c *catalog) *lagMetrics {
	return &lagMetrics{
		node:     a,
		messages: c.histogram("weir_subscriber_lag_messages", "Subscribers by messages that wait for them now."),
		bytes:    c.histogram("weir_subscriber_lag_bytes", "Subscribers by bytes that wait for them in this process now."),
		seconds:  c.histogram("weir_subscriber_lag_seconds", "Subscribers by the age of the oldest message that waits for them now."),
	}
}

// Describe implements prometheus.Collector.
func (m *lagMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.messages
	ch <- m.bytes
	ch <- m.seconds
}

// lagPatience is how long a scrape waits for the loops; one that does not answer
// is missing from the counts.
const lagPatience = time.Second

// Collect implements prometheus.Collector.
func (m *lagMetrics) Collect(ch chan<- prometheus.Metric) {
	all := m.node.lagHistograms()
	emit := func(d *prometheus.Desc, bounds [6]float64, h push.Histogram) {
		buckets, total := make(map[float64]uint64, len(bounds)), uint64(0)
		for i, b := range bounds {
			total += h.Counts[i]
			buckets[b] = total
		}
		ch <- prometheus.MustNewConstHistogram(d, total+h.Counts[len(bounds)], h.Sum, buckets)
	}
	emit(m.messages, push.LagMessageBounds, all.Messages)
	emit(m.bytes, push.LagByteBounds, all.Bytes)
	emit(m.seconds, push.LagSecondBounds, all.Seconds)
}
