package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/push"
)

// lagPatience is how long a scrape waits for the loops; one that does not answer
// is missing from the counts.
const lagPatience = time.Second

// newLagMetrics shows, at each scrape, how the subscribers' lag is distributed now.
// It is a snapshot in the form of a histogram: counts fall when readers catch up.
func newLagMetrics(a *Node, c *catalog) *group {
	g := c.group("")
	messages := g.histogram("weir_subscriber_lag_messages", "Subscribers by messages that wait for them now.")
	bytes := g.histogram("weir_subscriber_lag_bytes", "Subscribers by bytes that wait for them in this process now.")
	seconds := g.histogram("weir_subscriber_lag_seconds", "Subscribers by the age of the oldest message that waits for them now.")
	g.read(func(to scrape) {
		all := a.lagHistograms()
		put := func(d *prometheus.Desc, bounds [6]float64, h push.Histogram) {
			buckets, total := make(map[float64]uint64, len(bounds)), uint64(0)
			for i, b := range bounds {
				total += h.Counts[i]
				buckets[b] = total
			}
			to <- prometheus.MustNewConstHistogram(d, total+h.Counts[len(bounds)], h.Sum, buckets)
		}
		put(messages, push.LagMessageBounds, all.Messages)
		put(bytes, push.LagByteBounds, all.Bytes)
		put(seconds, push.LagSecondBounds, all.Seconds)
	})
	return g
}
