package observe

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/observe/monitor"
	"github.com/weir-gateway/weir/test/judge"
)

// absent are the panels that show nothing on a gateway without backends, TLS and a
// capacity report that is well.
var absent = []string{"Headroom to the knee", "Causes", "Upstream replies", "Upstream failures", "Peers", "TLS handshakes"}

// Every panel of Grafana's shows something when a Prometheus has scraped a gateway under
// load, in both forms of the histograms, and so does what the HPA is given.
func TestEveryPanelHasData(t *testing.T) {
	for name, native := range map[string]bool{"classic": false, "native": true} {
		t.Run(name, func(t *testing.T) {
			config := map[string]any{"governor": governed(nil), "metrics": map[string]any{"native_histograms": native}}
			w := newWatch(t, judge.Options{Build: judge.Plain, Memory: true, Config: config}, native)
			w.audience(10, "a")
			w.publishers(2, "a", 100, 5*time.Millisecond)
			missing := []string{"nothing asked yet"}
			late := time.Now().Add(patience)
			for len(missing) > 0 && time.Now().Before(late) {
				missing = nil
				for title, exprs := range dashboardExpressions(t, native) {
					for _, e := range exprs {
						if n, _ := w.results(standing.Replace(e)); n == 0 && !slices.Contains(absent, title) {
							missing = append(missing, title+": "+e)
						}
					}
				}
				for _, e := range adapterQueries(t) {
					if n, _ := w.results(e); n != 1 {
						missing = append(missing, "the HPA: "+e)
					}
				}
				for _, r := range monitor.Records() {
					if n, _ := w.results(r.Expr); n == 0 && r.Name != "weir:headroom:ratio" {
						missing = append(missing, r.Name)
					}
				}
			}
			if len(missing) > 0 {
				t.Errorf("no data:\n%s", strings.Join(missing, "\n"))
			}
		})
	}
}
