package observe

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/observe/governor"
)

// catalog is what metrics there are: docs/reference/metrics.md is made of it.
type catalog struct {
	list []metricDoc
}

type metricDoc struct {
	name, help, kind, when string
	labels                 []string
}

// A group is metrics that are read together: each part's own counters, at scrape time;
// nothing is counted twice.
type group struct {
	catalog *catalog
	// when is put to those that follow: on what they depend.
	when  string
	descs []*prometheus.Desc
	reads []func(scrape)
}

// A scrape is where the values go.
type scrape chan<- prometheus.Metric

// A metric is a series, or a family of them.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// group returns an empty group.
func (c *catalog) group(when string) *group { return &group{catalog: c, when: when} }

// metric adds a counter, which by its name ends in _total, or a gauge.
func (g *group) metric(name, help string, labels ...string) metric {
	if strings.HasSuffix(name, "_total") {
		return metric{g.desc("counter", name, help, labels), prometheus.CounterValue}
	}
	return metric{g.desc("gauge", name, help, labels), prometheus.GaugeValue}
}

// histogram adds one.
func (g *group) histogram(name, help string, labels ...string) *prometheus.Desc {
	return g.desc("histogram", name, help, labels)
}

func (g *group) desc(kind, name, help string, labels []string) *prometheus.Desc {
	g.catalog.list = append(g.catalog.list, metricDoc{name: name, help: help, kind: kind, when: g.when, labels: labels})
	d := prometheus.NewDesc(name, help, labels, nil)
	g.descs = append(g.descs, d)
	return d
}

// read adds what puts the values of metrics.
func (g *group) read(f func(scrape)) { g.reads = append(g.reads, f) }

// number is what values are kept in.
type number interface {
	int | int64 | uint64 | float64
}

// put sends the value of a series.
func put[N number](s scrape, m metric, v N, labels ...string) {
	s <- prometheus.MustNewConstMetric(m.desc, m.kind, float64(v), labels...)
}

// one adds a metric of one series.
func one[N number](g *group, name, help string, v func() N) {
	m := g.metric(name, help)
	g.read(func(s scrape) { put(s, m, v()) })
}

// by adds a metric with a series for each value of a label.
func by[N number](g *group, name, help, label string, values func() map[string]N) {
	m := g.metric(name, help, label)
	g.read(func(s scrape) { putAll(s, m, values()) })
}

// putAll sends the series of m that differ in the last label only.
func putAll[N number](s scrape, m metric, values map[string]N, labels ...string) {
	for last, v := range values {
		put(s, m, v, append(labels[:len(labels):len(labels)], last)...)
	}
}

// truth is 1 if is, otherwise 0.
func truth(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (g *group) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range g.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g *group) Collect(ch chan<- prometheus.Metric) {
	for _, f := range g.reads {
		f(ch)
	}
}

// newGovernorMetrics shows the numbers of the governor's snapshot.
func newGovernorMetrics(c *catalog, from *governor.Governor) *group {
	g := c.group("With the governor on.")
	metrics := map[string]metric{}
	for s := range (&governor.Snapshot{}).Series() {
		var labels []string
		if s.Label != "" {
			labels = []string{s.Label}
		}
		if _, ok := metrics[s.Name]; !ok {
			metrics[s.Name] = g.metric(s.Name, s.Help, labels...)
		}
	}
	g.read(func(to scrape) {
		snapshot := from.Snapshot()
		if !snapshot.Enabled {
			return
		}
		for s := range snapshot.Series() {
			switch m, ok := metrics[s.Name]; {
			case !ok: // a series that an empty snapshot has not
			case s.Label != "":
				put(to, m, s.Number, s.Value)
			default:
				put(to, m, s.Number)
			}
		}
	})
	return g
}
