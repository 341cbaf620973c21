package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/proxy/batch"
)

// batchMetrics shows calls that are made of several requests. Series grow with the routes
// that batch.
type batchMetrics struct {
	node                                                     *Node
	requests, calls, items, wait, waiting, underWay, dropped *prometheus.Desc
	native                                                   bool
}

func newBatchMetrics(a *Node, c *catalog, native bool) *batchMetrics {
	d := c.desc
	return &batchMetrics{
		node: a, native: native,
		requests: d("weir_batch_requests_total", "Requests of routes with batch, by what became of them: joined with others, sent alone, refused at max_queue.", "route", "how"),
		calls:    d("weir_batch_calls_total", "Calls that were made of several requests.", "route"),
		items:    c.histogram("weir_batch_items", "Items of calls that were made of several requests.", "route"),
		wait:     c.histogram("weir_batch_wait_seconds", "How long requests waited for their call, until it was sent.", "route"),
		waiting:  d("weir_batch_waiting_requests", "Requests that wait for their call.", "route"),
		underWay: d("weir_batch_in_flight_calls", "Calls under way, those of one request included.", "route"),
		dropped:  d("weir_batch_dropped_total", "Parts of replies that no client got: its client had left, did not read (slow), the backend's reply was malformed or had an index of no request (stray).", "route", "reason"),
	}
}

// Describe implements prometheus.Collector.
func (m *batchMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.requests, m.calls, m.items, m.wait, m.waiting, m.underWay, m.dropped} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *batchMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, s := range downstream.Batches(m.node.Front) {
		count := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{s.Route}, labels...)...)
		}
		count(m.requests, s.Joined, "joined")
		count(m.requests, s.Alone, "alone")
		count(m.requests, s.Refused, "refused")
		count(m.calls, s.Calls)
		count(m.dropped, s.Left, "left")
		count(m.dropped, s.Slow, "slow")
		count(m.dropped, s.Malformed, "malformed")
		count(m.dropped, s.Strays, "stray")
		ch <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(s.Waiting), s.Route)
		ch <- prometheus.MustNewConstMetric(m.underWay, prometheus.GaugeValue, float64(s.Running), s.Route)
		buckets, sum := map[float64]uint64{}, uint64(0)
		for i, top := range batch.SizeBounds {
			sum += s.Sizes[i]
			buckets[float64(top)] = sum
		}
		ch <- prometheus.MustNewConstHistogram(m.items, s.Calls, float64(s.Items), buckets, s.Route)
		ch <- constHistogram(m.wait, &s.Waited, latencyBounds, m.native, m.node.Started, s.Route)
	}
}
