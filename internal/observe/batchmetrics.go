package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/proxy/batch"
)

// newBatchMetrics shows calls that are made of several requests. Series grow with the routes
// that batch.
func newBatchMetrics(a *Node, c *catalog) *group {
	g := c.group("")
	requests := g.metric("weir_batch_requests_total", "Requests of routes with batch, by what became of them: joined with others, sent alone, refused at max_queue.", "route", "how")
	calls := g.metric("weir_batch_calls_total", "Calls that were made of several requests.", "route")
	items := g.histogram("weir_batch_items", "Items of calls that were made of several requests.", "route")
	wait := g.histogram("weir_batch_wait_seconds", "How long requests waited for their call, until it was sent.", "route")
	waiting := g.metric("weir_batch_waiting_requests", "Requests that wait for their call.", "route")
	underWay := g.metric("weir_batch_in_flight_calls", "Calls under way, those of one request included.", "route")
	dropped := g.metric("weir_batch_dropped_total", "Parts of replies that no client got: its client had left, did not read (slow), the backend's reply was malformed or had an index of no request (stray).", "route", "reason")
	g.read(func(to scrape) {
		for _, s := range downstream.Batches(a.Front) {
			putAll(to, requests, map[string]uint64{"joined": s.Joined, "alone": s.Alone, "refused": s.Refused}, s.Route)
			put(to, calls, s.Calls, s.Route)
			putAll(to, dropped, map[string]uint64{"left": s.Left, "slow": s.Slow, "malformed": s.Malformed, "stray": s.Strays}, s.Route)
			put(to, waiting, s.Waiting, s.Route)
			put(to, underWay, s.Running, s.Route)
			buckets, sum := map[float64]uint64{}, uint64(0)
			for i, top := range batch.SizeBounds {
				sum += s.Sizes[i]
				buckets[float64(top)] = sum
			}
			to <- prometheus.MustNewConstHistogram(items, s.Calls, float64(s.Items), buckets, s.Route)
			to <- a.histogram(wait, &s.Waited, latencyBounds, s.Route)
		}
	})
	return g
}
