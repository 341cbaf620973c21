package observe

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// conntrackDir is where the kernel has the table of tracked connections of the network namespace.
const conntrackDir = "/proc/sys/net/netfilter"

// conntrackMetrics are the entries of the kernel's table of tracked connections and their bound,
// read at scrape time. Where nothing is tracked there are none.
type conntrackMetrics struct {
	dir           string
	entries, most *prometheus.Desc
}

func newConntrackMetrics(dir string, c *catalog) *conntrackMetrics {
	was := c.when
	defer func() { c.when = was }()
	c.when = "Where the kernel tracks connections."
	return &conntrackMetrics{
		dir:     dir,
		entries: c.desc("weir_conntrack_entries", "Connections that the kernel tracks in this network namespace (nf_conntrack_count)."),
		most:    c.desc("weir_conntrack_max", "Bound of tracked connections (nf_conntrack_max): when it is reached, packets of new connections are dropped."),
	}
}

// Describe implements prometheus.Collector.
func (m *conntrackMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.entries
	ch <- m.most
}

// Collect implements prometheus.Collector.
func (m *conntrackMetrics) Collect(ch chan<- prometheus.Metric) {
	entries, ok := m.number("nf_conntrack_count")
	most, both := m.number("nf_conntrack_max")
	if !ok || !both || most == 0 {
		return
	}
	ch <- prometheus.MustNewConstMetric(m.entries, prometheus.GaugeValue, entries)
	ch <- prometheus.MustNewConstMetric(m.most, prometheus.GaugeValue, most)
}

func (m *conntrackMetrics) number(name string) (v float64, ok bool) {
	b, err := os.ReadFile(filepath.Join(m.dir, name))
	if err != nil {
		return 0, false // connection tracking is not loaded
	}
	v, err = strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
	return v, err == nil
}
