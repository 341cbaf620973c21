package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/lab/rung"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// TestMain is also the process of a rung, which the job kernel starts from its
// own program.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "serve" {
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			var b [1]byte
			_, _ = os.Stdin.Read(b[:])
			cancel()
		}()
		if err := rung.Serve(ctx, os.Args[2], "127.0.0.1:0", nil, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// do runs a job briefly and returns its values.
func do(t *testing.T, name string, set ...string) Values {
	t.Helper()
	p := Params{Duration: 30 * time.Millisecond, Set: map[string]string{}}
	for i := 0; i+1 < len(set); i += 2 {
		p.Set[set[i]] = set[i+1]
	}
	if d, err := time.ParseDuration(p.Set["for"]); err == nil {
		p.Duration = d
	}
	var out bytes.Buffer
	if err := Run(t.Context(), name, p, &out); err != nil {
		t.Fatalf("%s %v: %v", name, set, err)
	}
	var v Values
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	for k, x := range v {
		if x < 0 {
			t.Errorf("%s %v: %s = %v", name, set, k, x)
		}
	}
	return v
}

func TestKernelGrantsTwiceWhatItTakesOfABuffer(t *testing.T) {
	v := do(t, "buffers", "bytes", "65536")
	if v["asked"] != 65536 || v["SO_SNDBUF"] < 65536 || v["SO_RCVBUF"] < 65536 {
		t.Errorf("requested 64 KiB: %v", v)
	}
	if auto := do(t, "buffers"); auto["unseen"] <= v["unseen"] {
		t.Errorf("a stalled reader's sender gets rid of %v bytes by the kernel's choice, of %v with 64 KiB", auto["unseen"], v["unseen"])
	}
}

func TestFrequentHeartbeatsKeepStreamsAlive(t *testing.T) {
	never, often := do(t, "heartbeat"), do(t, "heartbeat", "interval", "25")
	if often["cuts_per_day"] != 0 || often["life_seconds"] != 86400 {
		t.Errorf("below every box's timeout streams are cut: %v", often)
	}
	if never["cuts_per_day"] < 1 || never["blind_share"] < 0.1 {
		t.Errorf("without heartbeats streams live: %v", never)
	}
	if by := do(t, "heartbeat", "backoff", "0.8"); by["life_seconds"] >= often["life_seconds"] || by["blind_share"] >= never["blind_share"] {
		t.Errorf("by the clients' backoff: %v, neither worse than 25 s nor better than nothing", by)
	}
}

func TestKneeRuleFiresWhereTheFormulaSaysSimulated(t *testing.T) {
	f := func(step string) {
		t.Helper()
		v := do(t, "knee", "step", step, "arrivals", "20000")
		if math.Abs(v["rho_before"]-v["formula"]) > 0.1 || v["ratio"] < 2.5 {
			t.Errorf("step %s: fires from a utilisation of %v, formula %v", step, v["rho_before"], v["formula"])
		}
	}
	f("0.5")
	f("0.25")
	if err := Run(t.Context(), "knee", Params{Set: map[string]string{"step": "0"}}, &bytes.Buffer{}); err == nil {
		t.Error("a step of 0 was taken")
	}
}

func TestOnlyClassesAndBudgetsSaveOrdersInABurst(t *testing.T) {
	none, low := do(t, "burst", "policy", "none"), do(t, "burst", "policy", "bucket", "rate", "0.9")
	high, budget := do(t, "burst", "policy", "bucket", "rate", "1.1"), do(t, "burst", "policy", "budget")
	if none["p95"] < 1 || none["orders_admitted"] != 1 {
		t.Errorf("without a limit: %v", none)
	}
	if low["p95"] > 0.015 || low["orders_admitted"] > 0.7 {
		t.Errorf("a bucket below capacity: %v", low)
	}
	if high["p95"] < 0.1 {
		t.Errorf("a bucket above capacity: %v", high)
	}
	if budget["p95"] > 0.015 || budget["orders_admitted"] != 1 || budget["goodput"] < 9000 {
		t.Errorf("a delay budget: %v", budget)
	}
}

func TestEventsComeForEveryShareOfActiveConnections(t *testing.T) {
	for share, want := range map[string]float64{"0.1": 1 - 0.35*0.9*0.9, "1": 1} {
		if v := do(t, "ready", "conns", "50", "share", share); v["events_per_second"] <= 0 || math.Abs(v["formula"]-want) > 1e-9 {
			t.Errorf("share %s: %v", share, v)
		}
	}
}

func TestTicketsResume(t *testing.T) {
	f := func(want float64, set ...string) {
		t.Helper()
		if v := do(t, "handshake", set...); v["resumed"] != want || v["cpu_seconds"] <= 0 {
			t.Errorf("%v: %v, want %v resumed", set, v, want)
		}
	}
	f(0, "alpn", "3")
	f(1, "resume", "on")
	f(1, "resume", "on", "key", "rsa")
	if v := do(t, "handshake", "alpn", "5"); v["match_seconds"] <= 0 {
		t.Errorf("matching took nothing: %v", v)
	}
}

func TestFullChannelRefusesAfterItsCapacity(t *testing.T) {
	v := do(t, "queue", "capacity", "4", "burst", "20000")
	if v["first_refused"] < 5 || v["lost"] <= 0 || v["lost"] >= 1 {
		t.Errorf("a channel of 4: %v", v)
	}
	if v := do(t, "queue", "capacity", "200", "burst", "100"); v["lost"] != 0 || v["first_refused"] != 0 {
		t.Errorf("a burst that fits: %v", v)
	}
}

func TestPoolIsKeptOnlyIfItOutlivesTheGap(t *testing.T) {
	if v := do(t, "pool", "idle", "30"); v["standing"] != 40 {
		t.Errorf("idle connections that live 30 s: %v", v)
	}
	if v := do(t, "pool", "idle", "0.001"); v["standing"] >= 40 || v["model_60s"] > 1 {
		t.Errorf("idle connections that live 1 ms: %v", v)
	}
}

func TestSmallClientPoolOpensMoreConnections(t *testing.T) {
	small, large := do(t, "clients", "keep", "1", "for", "300ms"), do(t, "clients", "keep", "200", "for", "300ms")
	if large["connections_per_1k"] <= 0 || small["connections_per_1k"] < 2*large["connections_per_1k"] || small["requests_per_second"] <= 0 {
		t.Errorf("100 clients with 1 idle connection kept: %v, with 200: %v", small, large)
	}
}

func TestKindsOfMicroMeasurements(t *testing.T) {
	f := func(name, kind string, allocs bool) {
		t.Helper()
		v := do(t, name, "kind", kind)
		if v["seconds"] <= 0 || (v["allocs"] >= 0.5) != allocs {
			t.Errorf("%s %s: %v", name, kind, v)
		}
	}
	f("context", "fresh", true)
	f("context", "argument", false)
	f("encode", "fresh", true)
	f("encode", "append", false)
	f("counters", "mutex", false)
	f("counters", "atomic", false)
	f("counters", "batched", false)
	for _, name := range []string{"context", "encode", "counters"} {
		if err := Run(t.Context(), name, Params{Set: map[string]string{"kind": "other"}}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), `"other"`) {
			t.Errorf("%s of an unknown kind: %v", name, err)
		}
	}
}

func TestHandWrittenEncoderWritesTheSameJSON(t *testing.T) {
	q := quote{"market \"a\"", 1, "W", 0.5, 1e6, "note"}
	want, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := errors.Join(json.Unmarshal(want, &a), json.Unmarshal(appendQuote(nil, &q), &b)); err != nil || fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("%s, want %s (%v)", appendQuote(nil, &q), want, err)
	}
}

func TestCollectorAndPreemptionAreObserved(t *testing.T) {
	if v := do(t, "collector", "headroom", "128"); v["peak"] < 30<<20 || v["p50"] <= 0 || v["cpu_seconds"] <= 0 {
		t.Errorf("collector: %v", v)
	}
	if v := do(t, "preempt"); v["late_max"] < v["late_p50"] {
		t.Errorf("preempt: %v", v)
	}
}

func TestShortConnectionsAreServedAndCounted(t *testing.T) {
	for _, server := range []string{"c/stock", "c/reuseport"} {
		v := do(t, "kernel", "server", server, "crowd", "50")
		if v["connections_per_second"] <= 0 || v["errors"] != 0 || v["crowd_failed"] != 0 || v["cpu_seconds"] <= 0 {
			t.Errorf("%s: %v", server, v)
		}
	}
	err := Run(t.Context(), "kernel", Params{Set: map[string]string{"server": "c/nosuch"}}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "c/nosuch") {
		t.Errorf("a server that there is not: %v", err)
	}
}

func TestStoppedJobSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range []string{"knee", "burst", "heartbeat", "context", "pool"} {
		p := Params{Duration: time.Second, Set: map[string]string{"kind": "fresh", "policy": "none"}}
		if err := Run(ctx, name, p, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s ended with %v", name, err)
		}
	}
	if err := Run(ctx, "nosuch", Params{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "knee") {
		t.Errorf("an unknown job: %v", err)
	}
}

func TestEveryWayToSendByRingIsMeasured(t *testing.T) {
	for _, kind := range []string{"sendto", "send", "fixed", "zerocopy", "zerocopy-fixed", "sqpoll"} {
		if kind != "sendto" {
			ring, err := sys.OpenRing(8, 16)
			if err != nil {
				t.Skip(err) // this system has no io_uring
			}
			ring.Close()
		}
		if v := do(t, "uring", "kind", kind, "conns", "100"); v["cpu"] <= 0 || v["seconds"] <= 0 {
			t.Errorf("%s: %v", kind, v)
		}
	}
	if err := Run(t.Context(), "uring", Params{Set: map[string]string{"kind": "other", "conns": "1"}}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("an unknown kind: %v", err)
	}
}

func TestLinkTakesItsTimeAndDropsWhatDoesNotFit(t *testing.T) {
	now := time.Now()
	l := &link{rate: 1000, delay: time.Second, queue: 250}
	free := now
	for i, want := range []time.Duration{1100, 1200, 1300, -1} { // 100 bytes are 100 ms; three wait, the fourth finds 300 bytes
		due, after, arrives := l.enter(now, free, 100, 0.5)
		free = after
		if arrives != (want > 0) || arrives && due.Sub(now).Round(time.Millisecond) != want*time.Millisecond {
			t.Errorf("packet %d arrives %v after %v, want %v ms", i, arrives, due.Sub(now), int(want))
		}
	}
	if _, _, arrives := (&link{loss: 0.1}).enter(now, now, 100, 0.09); arrives {
		t.Error("a packet with dice below the loss arrives")
	}
	if due, _, arrives := (&link{loss: 0.1}).enter(now, now, 100, 0.11); !arrives || due != now {
		t.Errorf("a packet with dice above it: %v, %v", arrives, due)
	}
}
