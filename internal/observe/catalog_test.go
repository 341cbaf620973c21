package observe

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/observe/governor"
)

var update = flag.Bool("update", false, "write the generated files instead of comparing them")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not current (%v); run: go test ./internal/observe -run %s -update", name, err, t.Name())
	}
}

// The names are checked where the reference is made, so that one without a sample is too.
func TestMetricsReferenceIsCurrent(t *testing.T) {
	g, err := governor.New(governor.Config{Enabled: setting.Off}, governor.Sources{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var c catalog
	n := &Node{Governor: g}
	(&Watch{Node: n, clients: &clients{Node: n}}).collectors(&c, true)
	seen := map[string]bool{}
	for _, m := range c.list {
		if seen[m.name] {
			t.Errorf("%s is listed twice", m.name)
		}
		seen[m.name] = true
		if !strings.HasPrefix(m.name, "weir_") || !strings.HasSuffix(m.help, ".") || strings.ContainsAny(m.help, "|\n") {
			t.Errorf("%s: %q", m.name, m.help)
		}
		for _, word := range []string{"_milliseconds", "_ms", "_kb", "_count", "_percentage"} {
			if strings.HasSuffix(strings.TrimSuffix(m.name, "_total"), word) {
				t.Errorf("%s: units are seconds, bytes and ratios", m.name)
			}
		}
	}
	var b bytes.Buffer
	c.write(&b)
	golden(t, "../../docs/reference/metrics.md", b.Bytes())
}

// write writes the reference.
func (c *catalog) write(w io.Writer) {
	list := slices.SortedFunc(slices.Values(c.list), func(a, b metricDoc) int { return strings.Compare(a.name, b.name) })
	fmt.Fprint(w, "# Metrics\n\n<!-- Generated from the code: go test ./internal/observe -run TestMetricsReferenceIsCurrent -update -->\n\n"+
		"`GET /metrics` on the admin listener, for Prometheus. Counters of loops are summed when they are read, so that there are few\n"+
		"series however many loops there are: at most 340 on a plain configuration with 4 loops. Series with the label `cluster` or\n"+
		"`peer` grow with the clusters that are configured.\n\n"+
		"Histograms are classic; with `metrics.native_histograms` they are native, which a Prometheus takes that scrapes protobuf.\n"+
		"Besides these there are Go's own collectors, `go_*` and `process_*`.\n\n"+
		"| name | type | labels | what it says |\n|---|---|---|---|\n")
	for _, m := range list {
		labels := "`" + strings.Join(m.labels, "`, `") + "`"
		if len(m.labels) == 0 {
			labels = ""
		}
		help := m.help
		if m.when != "" {
			help += " " + m.when
		}
		fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", m.name, m.kind, labels, help)
	}
}
