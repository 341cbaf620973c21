package capacity

import (
	"context"
	"expvar"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const page = `# HELP go_goroutines Number of goroutines that currently exist.
# TYPE go_goroutines gauge
go_goroutines 42
go_threads 9
go_sched_gomaxprocs_threads 4
go_sched_goroutines_runnable_goroutines 7
process_cpu_seconds_total 12.5
process_resident_memory_bytes 1.048576e+08
go_cpu_classes_gc_total_cpu_seconds_total 1
go_cpu_classes_total_cpu_seconds_total 100
go_sched_latencies_seconds_bucket{le="1e-06"} 100
go_sched_latencies_seconds_bucket{le="0.001"} 190
go_sched_latencies_seconds_bucket{le="+Inf"} 200
weir_connections{transport="ws",note="a } b"} 3
go_goroutines{broken
go_threads NaN
nonsense
`

func TestMetricsPageIsRead(t *testing.T) {
	s := parseMetrics([]byte(page))
	if s.Goroutines != 42 || s.Threads != 9 || s.GOMAXPROCS != 4 || s.Runnable != 7 || s.CPU != 12.5 || s.RSS != 100<<20 ||
		s.GC != 1 || s.GCOf != 100 || len(s.Sched) != 3 || s.Sched[0.001] != 190 {
		t.Errorf("%+v", s)
	}
	last := s
	last.CPU, last.GC, last.GCOf = 14.5, 2, 105
	last.Sched = map[float64]float64{1e-6: 150, 0.001: 289, math.Inf(1): 300}
	r := between(s, last, []Sample{{Goroutines: 10}, {Goroutines: 30}, {Goroutines: 20}})
	if r.CPUSeconds != 2 || r.Goroutines != 20 || r.GCFraction != 0.2 || r.SchedP99 != 0.001 {
		t.Errorf("%+v", r)
	}
}

// The real client's page, of this process.
func TestPrometheusClientIsRead(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsScheduler)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	srv := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	defer srv.Close()
	s, err := Scraped{URL: srv.URL}.Sample(context.Background())
	if err != nil || s.Goroutines < 2 || s.Threads < 1 || s.GOMAXPROCS != runtime.GOMAXPROCS(0) || s.RSS == 0 || len(s.Sched) == 0 || s.Remote {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestExpvarIsRead(t *testing.T) {
	if expvar.Get("goroutines") == nil { // -count above 1 runs this again
		expvar.Publish("goroutines", expvar.Func(func() any { return 17 }))
	}
	srv := httptest.NewServer(expvar.Handler())
	defer srv.Close()
	if s, err := (Scraped{URL: srv.URL + "/debug/vars"}).Sample(context.Background()); err != nil || s.Goroutines != 17 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestProcessIsRead(t *testing.T) {
	s, err := Process(os.Getpid()).Sample(context.Background())
	if err != nil || s.CPU <= 0 || s.Threads < 1 || s.RSS < 1<<20 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := Process(1<<22 + 1).Sample(context.Background()); err == nil || !strings.Contains(err.Error(), "process 4194305") {
		t.Errorf("no process: %v", err)
	}
	threads, rss := parseProcStat("7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 9 18 19 20 25 22 23")
	if threads != 9 || rss != 25*uint64(os.Getpagesize()) {
		t.Errorf("a name with parentheses: %v threads, %v bytes", threads, rss)
	}
}

func TestSourcesFillEachOther(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) }))
	defer srv.Close()
	none := httptest.NewServer(http.NotFoundHandler())
	defer none.Close()
	s, err := Sources{Process(os.Getpid()), Scraped{URL: none.URL}, Scraped{URL: srv.URL}}.Sample(context.Background())
	if err != nil || s.Goroutines != 42 || s.CPU == 12.5 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := (Sources{Scraped{URL: none.URL}}).Sample(context.Background()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("none answers: %v", err)
	}
}

func TestRemoteIsDistinguishedFromLocal(t *testing.T) {
	f := func(address string, want bool) {
		t.Helper()
		if remote(address) != want {
			t.Errorf("remote(%q) = %v", address, !want)
		}
	}
	f("http://127.0.0.1:8001/metrics", false)
	f("http://localhost:8001/metrics", false)
	f("http://[::1]:1/", false)
	f("http://10.1.2.3:9100/metrics", true)
	f("http://example.com/metrics", true)
}

func TestRuntimeIsAddedToObservations(t *testing.T) {
	q := ordinary.seeded(1)
	target := WithRuntime(q, Process(os.Getpid()))
	o, err := target.Measure(context.Background(), Load{Rate: 1000}, time.Second)
	if err != nil || o.Runtime == nil || o.Runtime.Threads < 1 || o.Completed < 500 {
		t.Errorf("%+v, %v", o.Runtime, err)
	}
	o, err = WithRuntime(q, Process(1<<22+1)).Measure(context.Background(), Load{Rate: 1000}, time.Second)
	if err != nil || o.Runtime != nil {
		t.Errorf("a source that does not answer: %+v, %v", o.Runtime, err)
	}
}

func FuzzMetricsPage(f *testing.F) {
	f.Add([]byte(page))
	f.Add([]byte(`go_sched_latencies_seconds_bucket{le="x"} 1` + "\n" + `go_threads{} 1e999`))
	f.Add([]byte(`{"memstats":{"GCCPUFraction":0.5},"goroutines":3}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := parseMetrics(b)
		for _, v := range []float64{s.Goroutines, s.Runnable, s.Threads, s.CPU, s.GC, s.GCOf, s.GCFraction} {
			if !(v >= 0) || math.IsInf(v, 1) {
				t.Errorf("%q gives %+v", b, s)
			}
		}
		_ = between(s, s, nil)
		_, _ = parseExpvar(b)
		parseProcStat(string(b))
	})
}
