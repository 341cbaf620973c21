package capacity

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/report"
)

func html(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.Page("A queue", "made by a test").HTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPageShowsWhatTheReportHolds(t *testing.T) {
	q := ordinary
	q.exposed = true
	r := find(t, q.seeded(1), Options{Mode: Quick, SLO: 6 * time.Millisecond})
	got := html(t, r)
	for _, want := range []string{"A queue", "λ knee", "λ SLO", "λ max", "Throughput", "Response time", "Goroutines", "Windows", "Scalability", "Do the estimates agree?", "made by a test"} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(got, "NaN") || strings.Contains(got, "+Inf") {
		t.Error("the page holds numbers that are none")
	}
}

// A page can be drawn from the JSON alone.
func TestPageIsDrawnFromJSON(t *testing.T) {
	r := find(t, ordinary.seeded(2), Options{Mode: Quick})
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if html(t, r) != html(t, &back) {
		t.Error("the page of the report that was read back is another")
	}
}

func TestInconclusivePageHasNoHeadlineNumber(t *testing.T) {
	q := ordinary
	q.stallEvery, q.stallFor = 2, 0.15
	r := find(t, q.seeded(1), Options{Mode: Quick})
	for _, f := range r.facts()[:3] {
		if f.Value != "–" {
			t.Errorf("%s = %s though %s", f.Name, f.Value, r.Verdict)
		}
	}
}

func TestPageOfNothingIsAPage(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r, err := Find(ctx, ordinary.seeded(1), Options{FixedWork: evenWork})
	if err != nil {
		t.Fatal(err)
	}
	if got := html(t, r); !strings.Contains(got, "interrupted") {
		t.Error("the page does not say why it is empty")
	}
	_ = html(t, &Report{})
}

// A figure without data is left out, and names are written as in the text.
func TestThePageHasNoEmptyFigures(t *testing.T) {
	q := ordinary.seeded(1)
	r, err := Find(context.Background(), q, Options{Mode: Quick, Now: q.clock, FixedWork: evenWork, MaxRequests: 300})
	if err != nil || len(r.Windows) == 0 || len(r.Levels) > 0 {
		t.Fatalf("%v, %d windows, %d levels", err, len(r.Windows), len(r.Levels))
	}
	got := html(t, r)
	for _, no := range []string{"λ_", "Scalability", "Models", "Do the estimates agree", "Throughput", "Response time"} {
		if strings.Contains(got[:strings.Index(got, "application/json")], no) {
			t.Errorf("the page of a search without levels has %q", no)
		}
	}
	if plot := withData(&report.Plot{Series: []report.Series{{Points: []report.Point{{X: 1}, {X: 2}}}}}); plot != nil {
		t.Error("a plot of zeros is drawn")
	}
}
