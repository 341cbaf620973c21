package observe

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/observe/governor"
)

// catalog is what metrics there are: docs/reference/metrics.md is made of it.
type catalog struct {
	list []metricDoc
	// when is put to those that follow: on what they depend.
	when string
}

type metricDoc struct {
	name, help, kind, when string
	labels                 []string
}

// desc notes a counter, which by its name ends in _total, or a gauge.
func (c *catalog) desc(name, help string, labels ...string) *prometheus.Desc {
	kind := "gauge"
	if strings.HasSuffix(name, "_total") {
		kind = "counter"
	}
	return c.note(kind, name, help, labels...)
}

// histogram notes one.
func (c *catalog) histogram(name, help string, labels ...string) *prometheus.Desc {
	return c.note("histogram", name, help, labels...)
}

func (c *catalog) note(kind, name, help string, labels ...string) *prometheus.Desc {
	c.list = append(c.list, metricDoc{name: name, help: help, kind: kind, when: c.when, labels: labels})
	return prometheus.NewDesc(name, help, labels, nil)
}

// governorMetrics are the numbers of the governor's snapshot.
type governorMetrics struct {
	governor *governor.Governor
	descs    map[string]*prometheus.Desc
}

func newGovernorMetrics(c *catalog, g *governor.Governor) *governorMetrics {
	m := &governorMetrics{governor: g, descs: map[string]*prometheus.Desc{}}
	c.when = "With the governor on."
	for s := range (&governor.Snapshot{}).Series() {
		if m.descs[s.Name] != nil {
			continue
		}
		var labels []string
		if s.Label != "" {
			labels = []string{s.Label}
		}
		m.descs[s.Name] = c.desc(s.Name, s.Help, labels...)
	}
	c.when = ""
	return m
}

// Describe implements prometheus.Collector.
func (m *governorMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *governorMetrics) Collect(ch chan<- prometheus.Metric) {
	snapshot := m.governor.Snapshot()
	if !snapshot.Enabled {
		return
	}
	for s := range snapshot.Series() {
		d, kind := m.descs[s.Name], prometheus.GaugeValue
		if d == nil {
			continue // a series that an empty snapshot has not
		}
		if s.Counter {
			kind = prometheus.CounterValue
		}
		if s.Label != "" {
			ch <- prometheus.MustNewConstMetric(d, kind, s.Number, s.Value)
		} else {
			ch <- prometheus.MustNewConstMetric(d, kind, s.Number)
		}
	}
}
