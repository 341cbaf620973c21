package loadgen_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/loadgen"
)

// serve starts a server of the handler and returns its URL.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// generator makes a generator and closes it with the test.
func generator(t *testing.T, spec loadgen.Spec) *loadgen.Generator {
	t.Helper()
	if spec.Warmup == 0 {
		spec.Warmup = time.Millisecond
	}
	g, err := loadgen.New(spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// measure makes one window.
func measure(t *testing.T, spec loadgen.Spec, load loadgen.Load, d time.Duration) *loadgen.Window {
	t.Helper()
	w, err := generator(t, spec).Measure(context.Background(), load, d)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func failures(w *loadgen.Window) (n uint64) {
	for _, k := range w.Errors {
		n += k
	}
	return n
}

// addsUp checks that every arrival is accounted for.
func addsUp(t *testing.T, w *loadgen.Window) {
	t.Helper()
	if w.Offered != w.Sent+w.Dropped {
		t.Errorf("offered %d, but sent %d and dropped %d", w.Offered, w.Sent, w.Dropped)
	}
	if w.Sent != w.Completed+w.Drained+failures(w) {
		t.Errorf("sent %d, but completed %d, drained %d and errors %v", w.Sent, w.Completed, w.Drained, w.Errors)
	}
}

func TestEveryArrivalIsAccountedFor(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url, Conns: 4, Arrival: loadgen.Uniform}, loadgen.Load{Rate: 500}, time.Second)
	addsUp(t, w)
	if w.Offered != 500 || len(w.Errors) > 0 || w.Dropped > 0 {
		t.Errorf("offered %d, errors %v, dropped %d; want 500 and nothing", w.Offered, w.Errors, w.Dropped)
	}
	if n := w.Response.TotalCount(); n != 500 {
		t.Errorf("%d response times, want 500", n)
	}
	t.Logf("completed %d drained %d waited %d lag p99 %d resp p50 %d p99 %d svc p99 %d cpu %.2f inflight %.3f batches %v host %+v",
		w.Completed, w.Drained, w.Waited, w.Lag.ValueAtPercentile(99), w.Response.ValueAtPercentile(50), w.Response.ValueAtPercentile(99), w.Service.ValueAtPercentile(99), w.Generator.CPU, w.InFlight, w.Batches, w.Host)
}
