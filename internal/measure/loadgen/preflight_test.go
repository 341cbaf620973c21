package loadgen

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
)

func TestPreflightNamesWhatIsMissing(t *testing.T) {
	enough := limits{files: 1 << 20, ports: 28232, memory: 64 << 30}
	f := func(target string, change func(*Spec, *limits), resource, fix string) {
		t.Helper()
		s := Spec{Kind: SSE, Target: target, Conns: 15_000}.WithDefaults()
		have := enough
		change(&s, &have)
		at, err := newTarget(context.Background(), target, false)
		if err != nil {
			t.Fatal(err)
		}
		_, err = preflight(&s, at, have)
		e, ok := errors.AsType[*LimitError](err)
		if !ok || e.Resource != resource || e.Need <= e.Have || !strings.Contains(e.Hint(), fix) || !strings.Contains(e.Error(), resource) {
			t.Errorf("%v, want too little of %s and the hint %q", err, resource, fix)
		}
	}
	const far, near = "http://192.0.2.1/", "http://127.0.0.1/"
	f(near, func(_ *Spec, l *limits) { l.files = 1024 }, "descriptors", "ulimit -n 15256")
	f(near, func(s *Spec, l *limits) { s.Stages = []Stage{{Duration: 1, Conns: 40_000}}; l.files = 20_000 }, "descriptors", "ulimit -n 40256")
	f(near, func(_ *Spec, l *limits) { l.memory = 100 << 20 }, "memory", "fewer connections")
	f("https://127.0.0.1/", func(_ *Spec, l *limits) { l.memory = 1 << 30 }, "memory", "fewer connections")
	f(far, func(s *Spec, _ *limits) { s.Conns = 30_000 }, "ports", "ip_local_port_range")
	f(far, func(s *Spec, _ *limits) {
		s.Conns, s.Sources = 60_000, []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.10")}
	}, "ports", "name 3 source addresses")
}

func TestLoopbackTargetsGetSources(t *testing.T) {
	at, err := newTarget(context.Background(), "http://127.0.0.1/", false)
	if err != nil {
		t.Fatal(err)
	}
	f := func(conns, want int) {
		t.Helper()
		s := Spec{Kind: SSE, Conns: conns}.WithDefaults()
		from, err := preflight(&s, at, limits{files: 1 << 24, ports: 28232})
		if err != nil || len(from) != want {
			t.Errorf("%d connections: %v, %v; want %d sources", conns, from, err, want)
		}
		seen := map[netip.Addr]bool{}
		for _, ip := range from {
			if seen[ip] || !ip.IsLoopback() {
				t.Errorf("%v among %v", ip, from)
			}
			seen[ip] = true
		}
	}
	f(20_000, 0)
	f(30_000, 2)
	f(100_000, 4)
	f(5_000_000, 187)
}

// Loads that share the ports to a target get addresses for all of them, though each of them alone needs none.
func TestLoadsTogetherGetSources(t *testing.T) {
	far, near := "http://192.0.2.1/", "ws://127.0.0.1:8000/ws?channel={channel}"
	f := func(target string, conns int, wants bool) {
		t.Helper()
		s, err := Spec{Kind: WebSocket, Target: target, Conns: 1000}.WithSourceAddresses(conns)
		if err != nil || (len(s.Sources) > 1) != wants {
			t.Errorf("%s, %d: %v, %v", target, conns, s.Sources, err)
		}
		parts, err := s.Split(2)
		if err != nil || len(parts[1].Sources) != len(s.Sources) {
			t.Errorf("%+v, %v", parts, err)
		}
	}
	f(near, 5000, false)
	f(near, 200_000, true)
	f(far, 5000, false)
	if _, err := (Spec{Kind: HTTP, Target: far}).WithSourceAddresses(200_000); err == nil || !strings.Contains(err.Error(), "ports") {
		t.Errorf("%v", err)
	}
}

func TestSpecsThatCannotWorkAreRefused(t *testing.T) {
	f := func(want string, change func(*Spec)) {
		t.Helper()
		s := Spec{Kind: HTTP, Target: "http://127.0.0.1:1/"}
		change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
	f("kind", func(s *Spec) { s.Kind = "ftp" })
	f("not a URL of a server", func(s *Spec) { s.Target = "127.0.0.1:80" })
	f("not a URL of a server", func(s *Spec) { s.Target = "ftp://127.0.0.1/" })
	f("names no host", func(s *Spec) { s.Target = "http:///x" })
	f("not a URL of a server", func(s *Spec) { s.Target = "http://[::1/" })
	f("user in it", func(s *Spec) { s.Target = "http://a:b@127.0.0.1/" })
	f("adapter", func(s *Spec) { s.Adapter = "soap" })
	f("arrival", func(s *Spec) { s.Arrival = "sometimes" })
	f("HTTP version", func(s *Spec) { s.Version = "3" })
	f("payload", func(s *Spec) { s.Payload = 63 })
	f("header", func(s *Spec) { s.Headers = []string{"no colon"} })
	f("header", func(s *Spec) { s.Headers = []string{"X: a\r\nY: b"} })
	f("rate", func(s *Spec) { s.Rate = -1 })
	f("rate", func(s *Spec) { s.Rate = 1e9 })
	f("where to publish", func(s *Spec) { s.Kind = PubSub })
	f("only holds streams", func(s *Spec) { s.Kind, s.Rate = SSE, 5 })
	f("stage 1", func(s *Spec) { s.Stages = []Stage{{Rate: 1}} })
	f("window", func(s *Spec) { s.Window = time.Millisecond })
	f("channels", func(s *Spec) { s.Channels = 1 << 25 })
	if err := (Spec{Kind: SSE, Target: "wss://[::1]:9/x/{n}?c={channel}"}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestHostFilesAreRead(t *testing.T) {
	root := t.TempDir()
	sample := func(files map[string]string) (s hostSample) {
		t.Helper()
		for name, text := range files {
			name = filepath.Join(root, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		fs, err := procfs.NewFS(root)
		if err != nil {
			t.Fatal(err)
		}
		s.machine(fs)
		return s
	}
	if s := sample(nil); s.total != 0 || s.pressure != 0 || s.schedules {
		t.Errorf("of no files: %+v", s)
	}
	task := "/" + strconv.Itoa(os.Getpid()) + "/task/"
	s := sample(map[string]string{
		"stat": "cpu  10 1 5 100 4 2 3 7 6 1\ncpu0 1 2 3 4 5 6 7 8 9 10\n", "pressure/cpu": "some avg10=1.50 avg60=0.20 avg300=0.00 total=123456\nfull avg10=0 avg60=0 avg300=0 total=9\n",
		task + "7/schedstat": "1 20 3\n", task + "8/schedstat": "1 300 3\n",
	})
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	if !near(s.total, 1.32) || !near(s.idle, 1.04) || !near(s.steal, 0.07) {
		t.Errorf("total %v, idle %v, steal %v; want 1.32, 1.04, 0.07", s.total, s.idle, s.steal)
	}
	if s.pressure != 123456*time.Microsecond || s.wait != 320 || !s.schedules {
		t.Errorf("pressure %v, wait %v, known %v", s.pressure, s.wait, s.schedules)
	}
	if s := sample(map[string]string{"pressure/cpu": "nonsense"}); s.pressure != 0 {
		t.Errorf("pressure of nonsense %v", s.pressure)
	}
}

func TestLagMakesAWindowInvalid(t *testing.T) {
	g := &Generator{shards: make([]*shard, 1)}
	f := func(lag, response int64, cpu float64, concurrency int, want bool) {
		t.Helper()
		w := Window{Times: Times{Lag: newHistogram(fineDigits), Response: newHistogram(fineDigits)}, Load: Load{Concurrency: concurrency}}
		w.Generator.CPU = cpu
		for range 100 {
			_ = w.Lag.RecordValue(lag)
			_ = w.Response.RecordValue(response)
		}
		if w.evaluate(len(g.shards)); w.Generator.Limited != want || want != (w.Generator.Why != "") {
			t.Errorf("lag %d, response %d, cpu %v: limited %v %q", lag, response, cpu, w.Generator.Limited, w.Generator.Why)
		}
	}
	f(900, 100, 0.5, 0, false)
	f(1100, 100, 0.5, 0, true)
	f(1100, 20_000, 0.5, 0, false)
	f(2100, 20_000, 0.5, 0, true)
	f(10, 1000, 0.99, 0, false)
	f(10, 1000, 0.99, 8, true)
	f(10, 1000, 0.5, 8, false)

	late := func(n, of int, want bool) {
		t.Helper()
		w := Window{Times: Times{Lag: newHistogram(fineDigits), Response: newHistogram(fineDigits)}}
		_ = w.Response.RecordValue(100)
		for i := range of {
			if i < n {
				_ = w.Lag.RecordValue(50_000)
			} else {
				_ = w.Lag.RecordValue(50)
			}
		}
		if w.evaluate(len(g.shards)); w.Generator.Limited != want {
			t.Errorf("%d of %d late: limited %v", n, of, w.Generator.Limited)
		}
	}
	late(1, 1, false)
	late(1, 50, false)
	late(2, 50, true)
	late(10, 1000, false)
	late(11, 1000, true)
}

// A generator that other programs kept from the processors does not take the blame.
func TestALateGeneratorNamesABusyMachine(t *testing.T) {
	f := func(busy, cpu float64, want bool) {
		t.Helper()
		s := GeneratorState{CPU: cpu, Limited: true, Why: "its lag is great"}
		s.crowded(Host{Busy: busy}, 2)
		if s.Crowded != want || strings.Contains(s.Why, "other programs") != want || !strings.Contains(s.Why, "its lag is great") {
			t.Errorf("busy %v, own use %v: %v %q", busy, cpu, s.Crowded, s.Why)
		}
	}
	f(1, 0.1, true)
	f(0.95, 0.9, true)
	f(0.95, 1.0, false) // it used more than all others
	f(0.5, 0.1, false)  // there was a processor to be had
	f(1, 1.9, false)
}
