package observe

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// conntrackDir is where the kernel has the table of tracked connections of the network namespace.
const conntrackDir = "/proc/sys/net/netfilter"

// newConntrackMetrics shows the entries of the kernel's table of tracked connections and their
// bound, read at scrape time. Where nothing is tracked there are none.
func newConntrackMetrics(dir string, c *catalog) *group {
	g := c.group("Where the kernel tracks connections.")
	entries := g.metric("weir_conntrack_entries", "Connections that the kernel tracks in this network namespace (nf_conntrack_count).")
	most := g.metric("weir_conntrack_max", "Bound of tracked connections (nf_conntrack_max): when it is reached, packets of new connections are dropped.")
	g.read(func(to scrape) {
		n, ok := readNumber(filepath.Join(dir, "nf_conntrack_count"))
		bound, both := readNumber(filepath.Join(dir, "nf_conntrack_max"))
		if ok && both && bound != 0 {
			put(to, entries, n)
			put(to, most, bound)
		}
	})
	return g
}

func readNumber(name string) (v float64, ok bool) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, false // connection tracking is not loaded
	}
	v, err = strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
	return v, err == nil
}
