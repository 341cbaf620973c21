package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A fakeGateway is what a push gateway is to a client: it keeps what was PUT. answer
// is called with the number of each push, from 1, before it is kept.
type fakeGateway struct {
	*httptest.Server
	mu     sync.Mutex
	paths  []string
	pushes []map[string]*dto.MetricFamily
}

func newFakeGateway(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request) (keep bool)) *fakeGateway {
	t.Helper()
	g := &fakeGateway{}
	n := 0
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := map[string]*dto.MetricFamily{}
		for d := expfmt.NewDecoder(r.Body, expfmt.ResponseFormat(r.Header)); ; {
			var f dto.MetricFamily
			if d.Decode(&f) != nil {
				break
			}
			got[f.GetName()] = &f
		}
		g.mu.Lock()
		n++
		g.paths = append(g.paths, r.Method+" "+r.URL.Path)
		which := n
		g.mu.Unlock()
		if !answer(which, w, r) {
			return
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.pushes = append(g.pushes, got)
	}))
	t.Cleanup(g.Close)
	return g
}

// value is a gauge of one push; not ok when it is not there.
func value(push map[string]*dto.MetricFamily, name string, labels ...string) (v float64, ok bool) {
	for _, m := range push[name].GetMetric() {
		have := map[string]string{}
		for _, l := range m.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		fits := true
		for i := 0; i < len(labels); i += 2 {
			fits = fits && have[labels[i]] == labels[i+1]
		}
		if fits {
			return m.GetGauge().GetValue(), true
		}
	}
	return 0, false
}

// pushedBench runs a bench against a real server, with a gateway.
func pushedBench(t *testing.T, gateway string, more ...string) (stdout, stderr string, err error) {
	t.Helper()
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	defer target.Close()
	var out, errs bytes.Buffer
	cmd := newBench()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{target.URL, "--duration", "3s", "--warmup", "1s", "--quiet", "--pushgateway", gateway}, more...))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(t.Context()) // a busy machine may make the run invalid
	return out.String(), errs.String(), err
}

// A gateway has a snapshot every second while the run continues, and the result after it.
func TestBenchKeepsAPushGatewayInformed(t *testing.T) {
	trial.Long(t)
	for _, args := range [][]string{{"--rate", "200"}, {"--closed", "--conns", "1"}} {
		g := newFakeGateway(t, func(int, http.ResponseWriter, *http.Request) bool { return true })
		_, stderr, _ := pushedBench(t, g.URL, args...)
		if stderr != "" {
			t.Errorf("%v: %s", args, stderr)
		}
		if !strings.HasPrefix(g.paths[0], "PUT /metrics/job/weir_bench/target@base64/") {
			t.Fatalf("the gateway was asked for %q", g.paths[0])
		}
		last := len(g.pushes) - 1
		if last < 2 {
			t.Fatalf("%d pushes in 4 s", last+1)
		}
		for i, push := range g.pushes {
			running, ok := value(push, "weir_bench_running")
			if want := i < last; !ok || (running == 1) != want {
				t.Errorf("push %d of %d: running %v, %v", i, last, running, ok)
			}
			if n, _ := value(push, "weir_bench_pushes", "outcome", "ok"); int(n) != i {
				t.Errorf("push %d says that %v went before", i, n)
			}
		}
		if v, _ := value(g.pushes[last-1], "weir_bench_rate", "of", "completed"); v < 10 {
			t.Errorf("while it ran: %v completed per second", v)
		}
		result := g.pushes[last]
		if v, _ := value(result, "weir_bench_arrivals", "fate", "completed"); v < 50 {
			t.Errorf("%v were completed", v)
		}
		if v, _ := value(result, "weir_bench_latency_seconds", "of", "response", "quantile", "0.5"); v <= 0 || v > 1 {
			t.Errorf("the median is %v s", v)
		}
		if v, _ := value(result, "weir_bench_verdict"); v != 1 {
			t.Errorf("the verdict is %v", v)
		}
	}
}

// What is wrong with a gateway changes neither the run nor its verdict: it is counted,
// and reported in one line.
func TestAGatewayThatFailsLeavesTheRunAlone(t *testing.T) {
	t.Parallel()
	f := func(name, want string, answer func(n int, w http.ResponseWriter, r *http.Request) bool, more ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newFakeGateway(t, answer)
			stdout, stderr, err := pushedBench(t, g.URL, append(more, "--rate", "50", "--threshold", "errors==0")...)
			// A busy machine makes a run invalid, by the generator; what was asked of it holds.
			invalid := strings.Contains(stdout, "\nINVALID\n") && strings.Contains(stdout, "PASS  errors==0")
			if (err != nil || !strings.Contains(stdout, "\nPASS\n")) && !invalid {
				t.Errorf("%v: %s", err, stdout)
			}
			if strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, want) {
				t.Errorf("%q, want one line with %q", stderr, want)
			}
		})
	}
	ok := func(int, http.ResponseWriter, *http.Request) bool { return true }
	f("refusing", "the result was not pushed: ", func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "full", http.StatusInsufficientStorage)
		return false
	})
	f("refusing at first", "1 failed, 0 were left out", func(n int, w http.ResponseWriter, r *http.Request) bool {
		if n > 1 {
			return ok(n, w, r)
		}
		http.Error(w, "not yet", http.StatusServiceUnavailable)
		return false
	})
	f("stalled", "1 failed, 1 were left out", func(n int, w http.ResponseWriter, r *http.Request) bool {
		if n > 1 {
			return ok(n, w, r)
		}
		<-r.Context().Done() // the client gives up
		return false
	}, "--duration", "6s")
	if _, _, err := pushedBench(t, "gateway:9091"); err == nil || !strings.Contains(err.Error(), "--pushgateway: not a URL") {
		t.Errorf("a gateway without a scheme: %v", err)
	}
}
