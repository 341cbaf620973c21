package lab

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// bench works with the test's own program as the rungs'.
func bench(t *testing.T) *Bench {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Quick: true, Duration: 100 * time.Millisecond}.withDefaults()
	return &Bench{opt: o, self: process.Program{exe, os.Args[0]}, serverCPUs: 1, stderr: io.Discard}
}

func TestRungsProcessServesAndEnds(t *testing.T) {
	ctx, b := t.Context(), bench(t)
	s, err := b.Start(ctx, Arm{Server: "b/stock"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Mark(ctx); err != nil {
		t.Error(err)
	}
	for range 20 {
		if err := post(ctx, http.DefaultClient, s.URL(), publishBody); err != nil {
			t.Fatal(err)
		}
	}
	st, err := s.Stats(ctx)
	if err != nil || st.AllocBytes <= 0 || st.Goroutines < 2 {
		t.Errorf("stats %+v, %v", st, err)
	}
	if rss, err := s.RSS(); err != nil || rss < 1<<20 {
		t.Errorf("RSS %v, %v", rss, err)
	}
	if cpu, err := s.CPU(); err != nil || cpu <= 0 {
		t.Errorf("CPU %v, %v", cpu, err)
	}
	pid := s.PID()
	s.Stop()
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("process %d is still there", pid)
	}
	if _, err := b.Start(ctx, Arm{Server: "b/nosuch"}); err == nil || !strings.Contains(err.Error(), "b/nosuch") {
		t.Errorf("a rung that there is not: %v", err)
	}
}

func TestStartOfSomethingElseThanWeirIsAnError(t *testing.T) {
	b := bench(t)
	b.opt.Weir = process.Program{"/bin/echo", "echo"}
	if _, err := b.Start(t.Context(), Arm{Server: "weir"}); err == nil || !strings.Contains(err.Error(), "serve --config") {
		t.Errorf("echo was treated as Weir: %v", err)
	}
}

// Each way of measuring, with real processes and a tiny load: that it gives what
// its experiments show, not how much.
func TestEveryWayOfMeasuringGivesItsValues(t *testing.T) {
	trial.Long(t)
	f := func(m Measure, a Arm, keys ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		v, err := m(ctx, bench(t), a)
		if err != nil {
			t.Errorf("%+v: %v", a, err)
			return
		}
		for _, k := range keys {
			if _, ok := v[k]; !ok {
				t.Errorf("%+v gives no %s: %v", a, k, v)
			}
		}
		if v["errors"] > 0 || v["lost"] > 0 {
			t.Errorf("%+v loses or fails: %v", a, v)
		}
	}
	f(loaded(fanOut("sse", 8, 100)), Arm{Server: "a/shared"}, "cpu", "p50", "mean", "alloc_bytes", "goroutines", "rss")
	f(loaded(fanOut("ws", 8, 100)), Arm{Server: "d/writer"}, "cpu", "p50")
	f(loaded(httpLoad(8, 2)), Arm{Server: "b/batched"}, "cpu", "per_core")
	f(loaded(func(*Bench) loadgen.Spec {
		return loadgen.Spec{Kind: loadgen.Echo, Target: "/echo", Conns: 2, Closed: true, Concurrency: 2}
	}), Arm{Server: "d/loops"}, "cpu")
	f(held(40, 0), Arm{Server: "e1/pool"}, "rss_per_conn", "goroutines", "connect")
	f(held(40, 2), Arm{Server: "a/onewrite", Processes: 2}, "egress", "connect_p95", "rss_per_conn", "processes")
	// b/timeouts, which its experiment has, ends clients that a busy machine delays by a second.
	f(kept, Arm{Name: "x-fresh", Server: "b/pooled"}, "cpu", "p95", "rate", "time_wait")
	f(stalled, Arm{Server: "d/writer"}, "cpu", "p50")
	f(versions, Arm{Name: "one", Server: "b/h2c"}, "cpu", "p95", "connections", "time_wait")
	f(versions, Arm{Name: "pool", Server: "b/h2c"}, "connections")
	f(hunted, Arm{Server: "e6/leaky"}, "goroutines")
	f(jobbed, Arm{Job: "encode", Set: map[string]string{"kind": "append"}}, "seconds")
}

func TestSlowClientsAreLeftByTimeouts(t *testing.T) {
	b := bench(t)
	without, err := slowClients(40)(t.Context(), b, Arm{Server: "b/pooled"})
	if err != nil || without["open"] != 10 || without["goroutines"] < 10 {
		t.Errorf("without timeouts: %v, %v", without, err)
	}
	with, err := slowClients(40)(t.Context(), b, Arm{Server: "b/timeouts"})
	if err != nil || with["open"] != 0 || with["goroutines"] >= without["goroutines"] {
		t.Errorf("with timeouts: %v, %v", with, err)
	}
}

func TestNoRateIsTakenFromALoadThatWasTheLimit(t *testing.T) {
	w := func(closed, limited bool) Values {
		out := &loadgen.Window{Length: time.Second, Counts: loadgen.Counts{Completed: 100}}
		if closed {
			out.Load.Concurrency = 1
		}
		out.Generator.Limited = limited
		return windowValues(out, 0.5)
	}
	has := func(v Values, k string) bool { _, ok := v[k]; return ok }
	if v := w(true, true); has(v, "rate") || !has(v, "cpu") || v["limited"] != 1 {
		t.Errorf("closed and limited: %v", v)
	}
	if v := w(true, false); v["rate"] != 100 || v["cpu"] != 0.005 || v["per_core"] != 200 {
		t.Errorf("closed: %v", v)
	}
	if v := w(false, true); !has(v, "rate") || has(v, "p99") {
		t.Errorf("open and limited: %v", v)
	}
}
