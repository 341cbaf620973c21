package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// With a capacity report the page and the terminal say how far the knee is.
func TestDashboardShowsTheDistanceToTheKnee(t *testing.T) {
	t.Parallel()
	report := capacity.Report{Version: 1, Started: time.Now().Add(-time.Hour), Knee: capacity.Limit{
		Known: true, Confidence: "high", Rate: stat.Interval{Point: 1e6, Lo: 9e5, Hi: 1.1e6},
	}}
	b, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "knee.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s, address := watched(t, map[string]any{"admin": map[string]any{"capacity_report": file}})
	p := newTab(t)
	p.do(t, "open", map[string]any{"url": address}, nil)
	p.has(t, "#knee-label", "Distance to the knee")
	p.has(t, "#knee-big", "% left")
	p.has(t, "#knee-text", "of 1.00M deliveries/s")
	p.has(t, "#knee-text", "high")
	p.clean(t)

	x := newTerminal(t, s.Admin)
	x.eventually("of the knee")
}
