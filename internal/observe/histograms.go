package observe

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/observe/metrics"
)

// histogram is c as a metric: classic buckets, or a native histogram.
func (a *Node) histogram(d *prometheus.Desc, c *metrics.Counts, bounds []float64, labels ...string) prometheus.Metric {
	if a.NativeHistograms {
		if m, err := nativeHistogram(d, c, a.Started, labels...); err == nil {
			return m
		}
	}
	buckets := make(map[float64]uint64, len(bounds))
	for i, n := range c.Cumulative(bounds) {
		buckets[bounds[i]] = n
	}
	return prometheus.MustNewConstHistogram(d, c.Total(), c.Sum.Seconds(), buckets, labels...)
}

// nativeSchema is the resolution of native histograms: four buckets to a doubling, as in
// our own, whose bounds are not the same though. What fell into one of ours is counted
// where its middle is.
const nativeSchema = 2

func nativeHistogram(d *prometheus.Desc, c *metrics.Counts, since time.Time, labels ...string) (prometheus.Metric, error) {
	positive := map[int]int64{}
	var zero uint64
	for i, n := range c.N {
		if n == 0 {
			continue
		}
		lo, hi := metrics.Bounds(i)
		if lo == 0 {
			zero += n
			continue
		}
		positive[int(math.Ceil(math.Log2((lo+hi)/2)*(1<<nativeSchema)))] += int64(n)
	}
	zeroBelow, _ := metrics.Bounds(1)
	return prometheus.NewConstNativeHistogram(d, c.Total(), c.Sum.Seconds(), positive, nil, zero, nativeSchema, zeroBelow, since, labels...)
}

// Bounds of the classic buckets, in seconds.
var (
	latencyBounds = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5}
	tickBounds    = []float64{0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 1}
)

// newHistograms shows how long things took.
func newHistograms(a *Node, c *catalog) *group {
	g := c.group("")
	delivery := g.histogram("weir_delivery_seconds", "From a publish until a loop had handed it to the sockets of its subscribers. Of publications that were followed, one for each loop that delivered.")
	store := g.histogram("weir_broker_store_seconds", "From a publish to the broker's answer. Of publications that were followed.")
	tick := g.histogram("weir_loop_tick_seconds", "How long loops worked at a time.")
	g.read(func(to scrape) {
		deliveries, stores, ticks := a.Probe.Deliveries(), a.Probe.Stores(), a.ticksOf()
		to <- a.histogram(delivery, &deliveries, latencyBounds)
		to <- a.histogram(store, &stores, latencyBounds)
		to <- a.histogram(tick, &ticks, tickBounds)
	})
	return g
}
