package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// TestBenchLeavesItsResultAtAPushGateway runs a bench against a real server and reads
// what a gateway was sent.
func TestBenchLeavesItsResultAtAPushGateway(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	defer target.Close()
	got := map[string]*dto.MetricFamily{}
	path := ""
	gateway := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		path = r.Method + " " + r.URL.Path
		d := expfmt.NewDecoder(r.Body, expfmt.ResponseFormat(r.Header))
		for {
			var f dto.MetricFamily
			if d.Decode(&f) != nil {
				return
			}
			got[f.GetName()] = &f
		}
	}))
	defer gateway.Close()
	cmd := newBench()
	cmd.SetArgs([]string{target.URL, "--rate", "200", "--duration", "500ms", "--warmup", "100ms", "--quiet", "--pushgateway", gateway.URL})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	_ = cmd.ExecuteContext(t.Context()) // a busy machine may make the run invalid; it is pushed all the same
	if !strings.HasPrefix(path, "PUT /metrics/job/weir_bench/target@base64/") {
		t.Fatalf("the gateway was asked for %q", path)
	}
	value := func(name string, labels ...string) float64 {
		t.Helper()
		for _, m := range got[name].GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			fits := true
			for i := 0; i < len(labels); i += 2 {
				fits = fits && have[labels[i]] == labels[i+1]
			}
			if fits {
				return m.GetGauge().GetValue()
			}
		}
		t.Errorf("there is no %s %v", name, labels)
		return 0
	}
	if v := value("weir_bench_arrivals", "fate", "completed"); v < 50 || v > 150 {
		t.Errorf("%v were completed of about 100", v)
	}
	if v := value("weir_bench_latency_seconds", "of", "response", "quantile", "0.5"); v <= 0 || v > 1 {
		t.Errorf("the median is %v s", v)
	}
	if v := value("weir_bench_verdict"); v != 1 {
		t.Errorf("the verdict is %v", v)
	}
}
