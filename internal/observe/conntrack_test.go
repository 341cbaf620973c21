package observe

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestConntrackIsShownWhereConnectionsAreTracked(t *testing.T) {
	dir := t.TempDir()
	registry := prometheus.NewRegistry()
	registry.MustRegister(newConntrackMetrics(dir, &catalog{}))
	f := func(what string, want map[string]float64) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, m := range families {
			got[m.GetName()] = m.GetMetric()[0].GetGauge().GetValue()
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	write := func(count, most string) {
		t.Helper()
		for name, text := range map[string]string{"nf_conntrack_count": count, "nf_conntrack_max": most} {
			if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendln(nil, text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	none := map[string]float64{}
	f("without the files", none)
	write("220000", "262144")
	f("tracked", map[string]float64{"weir_conntrack_entries": 220000, "weir_conntrack_max": 262144})
	write("x", "262144")
	f("no number", none)
	write("1", "0")
	f("no bound", none)
}
