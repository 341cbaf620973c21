package capacity

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

func TestHistogramBecomesQuantilesWithBounds(t *testing.T) {
	h := hdrhistogram.New(1, 60_000_000, 3)
	for i := range 1000 {
		h.RecordValue(int64(i+1) * 1000) // 1 ms … 1 s
	}
	q := quantiles(h)
	f := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got/want-1) > 0.003 {
			t.Errorf("%s = %v, want %v", what, got, want)
		}
	}
	f("mean", q.Mean, 0.5005)
	f("P50", q.P50.Point, 0.500)
	f("P99", q.P99.Point, 0.990)
	f("P99 lo", q.P99.Lo, 0.983)
	f("P99 hi", q.P99.Hi, 0.998)
	if q.P99.N != 1000 || !math.IsInf(q.P999.Hi, 1) {
		t.Errorf("%+v", q)
	}
	if q := quantiles(nil); !math.IsNaN(q.P99.Point) || q.P99.N != 0 {
		t.Errorf("of nothing: %+v", q)
	}
}

func TestWindowBecomesAnObservation(t *testing.T) {
	lag, pub := hdrhistogram.New(1, 1e6, 3), hdrhistogram.New(1, 1e6, 3)
	lag.RecordValue(700)
	pub.RecordValue(3000)
	w := &loadgen.Window{
		Length: 2 * time.Second, InFlight: 4, Times: loadgen.Times{Lag: lag, Publish: pub},
		Counts: loadgen.Counts{Offered: 100, Sent: 98, Completed: 90, Dropped: 2, Errors: map[string]uint64{"timeout": 3}}, Batches: []loadgen.Batch{{MeanResponse: 0.01, Completed: 45, InFlight: 4}},
		Delivery: &loadgen.Delivery{Lost: 5}, Generator: loadgen.GeneratorState{Limited: true, Why: "late"},
		Host: loadgen.Host{Steal: 0.02, Busy: 0.5},
	}
	o := observed(w, Load{Rate: 50}, true)
	if o.Offered != 100 || o.Dropped != 2 || o.errors() != 8 || math.Abs(o.Generator.LagP99-0.0007) > 1e-6 || !o.Generator.Limited ||
		o.Host.Steal != 0.02 || len(o.Batches) != 1 || math.Abs(o.Sojourn-0.003) > 1e-5 || o.Load.Rate != 50 {
		t.Errorf("%+v", o)
	}
}

func TestStreamsHaveNoRate(t *testing.T) {
	if _, err := NewGenerated(nil, loadgen.Spec{Kind: loadgen.SSE}); err == nil {
		t.Error("a stream's rate is searched")
	}
}

// A small queue on a real socket: two at a time, two milliseconds each, so at most
// a thousand per second. On a busy machine the numbers are what they are; the
// wiring must hold: load arrives, books add up, a report comes out.
func TestSearchOnRealSockets(t *testing.T) {
	slots := make(chan struct{}, 2)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		slots <- struct{}{}
		time.Sleep(2 * time.Millisecond) // the service itself
		<-slots
		w.WriteHeader(http.StatusNoContent)
	}))
	defer srv.Close()
	spec := loadgen.Spec{Kind: loadgen.HTTP, Target: srv.URL + "/", Conns: 32, Seed: 1}
	gen, err := loadgen.New(spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer gen.Close()
	target, err := NewGenerated(gen, spec)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Find(context.Background(), WithRuntime(target, Process(os.Getpid())), Options{
		Mode: Quick, Start: 40, MaxRate: 4000, MaxDuration: 15 * time.Second, shrink: 5, FixedWork: evenWork, // or a busy machine ends it
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", line(r, 700))
	if len(r.Windows) < 2 || r.Requests < 5 || r.Verdict == "" {
		t.Errorf("%d windows, %d requests, verdict %q: %v", len(r.Windows), r.Requests, r.Verdict, r.Reasons)
	}
	completed, exposed := uint64(0), 0
	for _, w := range r.Windows {
		completed += w.Obs.Completed
		if w.Obs.Runtime != nil && w.Obs.Runtime.Threads > 0 {
			exposed++
		}
	}
	if completed < 5 || exposed == 0 {
		t.Errorf("%d completed, %d windows with a runtime", completed, exposed)
	}
	if r.Knee.Known && (r.Knee.Rate.Point < 10 || r.Knee.Rate.Point > 1100) {
		t.Errorf("a knee at %v/s of a server that cannot do more than 1000/s", r.Knee.Rate.Point)
	}
	if r.Max.Known && r.Max.Rate.Point > 1100 {
		t.Errorf("completes %v/s", r.Max.Rate.Point)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestCeilingOfTheGeneratorIsMeasured(t *testing.T) {
	f := func(spec loadgen.Spec) {
		t.Helper()
		ceiling := GeneratorCeiling(spec, nil)
		if ceiling == nil {
			t.Fatal("no null server")
		}
		if g, err := ceiling(context.Background()); err != nil || g < 100 {
			t.Errorf("%s: %v/s, %v", spec.Kind, g, err)
		}
	}
	f(loadgen.Spec{Kind: loadgen.HTTP, Target: "http://127.0.0.1:1/", Conns: 4})
	f(loadgen.Spec{Kind: loadgen.Echo, Target: "ws://127.0.0.1:1/", Conns: 4})
	if GeneratorCeiling(loadgen.Spec{Kind: loadgen.PubSub, Target: "http://127.0.0.1:1/"}, nil) != nil {
		t.Error("pubsub has no null server")
	}
}
