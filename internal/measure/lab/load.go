package lab

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// A Load is what internal/measure/loadgen puts on a server; tests put something else in
// its place.
type Load interface {
	Connect(ctx context.Context) error
	Measure(ctx context.Context, l loadgen.Load, d time.Duration) (*loadgen.Window, error)
	Close() error
}

var _ Load = (*loadgen.Generator)(nil)

func newLoad(s loadgen.Spec) (Load, error) { return loadgen.New(s, slog.New(slog.DiscardHandler)) }

// loaded measures an arm's server under a load: the Spec's paths are relative to
// the server, its URLs are filled in here.
func loaded(spec func(b *Bench) loadgen.Spec) Measure {
	return func(ctx context.Context, b *Bench, a Arm) (Values, error) {
		s, err := b.Start(ctx, a)
		if err != nil {
			return nil, err
		}
		defer s.Stop()
		return b.load(ctx, s, spec(b), nil)
	}
}

// load puts the load on the server, warms it up and measures. beside, if not nil,
// happens while it is measured; it ends with its context.
func (b *Bench) load(ctx context.Context, s *Server, spec loadgen.Spec, beside func(context.Context)) (Values, error) {
	scheme := "http://"
	if spec.Kind == loadgen.Echo || spec.Kind == loadgen.WebSocket || spec.Transport == "ws" {
		scheme = "ws://"
	}
	if s.TLS {
		scheme = strings.Replace(scheme, "://", "s://", 1)
		spec.Insecure = true
	}
	spec.Target = scheme + s.Addr + spec.Target
	spec.Adapter = "weir" // every rung speaks as much of that as is needed
	if spec.Kind == loadgen.HTTP || spec.Kind == loadgen.Echo {
		spec.Adapter = "plain"
	}
	spec.Loops = max(runtime.NumCPU()-b.serverCPUs, 1)
	spec.Headers = append(spec.Headers, "X-API-Key: "+apiKey)
	g, err := b.opt.NewLoad(spec)
	if err != nil {
		return nil, err
	}
	defer func() { _ = g.Close() }() // its connections end either way
	if err := g.Connect(ctx); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	l := loadgen.Load{Rate: spec.Rate}
	if spec.Closed {
		l = loadgen.Load{Concurrency: max(spec.Concurrency, spec.Conns)}
	}
	if _, err := g.Measure(ctx, l, b.opt.Duration/4); err != nil {
		return nil, fmt.Errorf("warm up: %w", err)
	}
	if err := s.Mark(ctx); err != nil {
		return nil, err
	}
	used, err := s.CPU()
	if err != nil {
		return nil, err
	}
	w, err := during(ctx, beside, func() (*loadgen.Window, error) { return g.Measure(ctx, l, b.opt.Duration) })
	if err != nil {
		return nil, err
	}
	after, err := s.CPU()
	if err != nil {
		return nil, err
	}
	v := windowValues(w, (after - used).Seconds())
	if err := s.addStats(ctx, v); err != nil {
		return nil, err
	}
	return v, ctx.Err()
}

// during runs measure, and beside with it until it is done.
func during(ctx context.Context, beside func(context.Context), measure func() (*loadgen.Window, error)) (*loadgen.Window, error) {
	if beside != nil {
		within, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() { beside(within) })
		defer running.Wait()
		defer cancel()
	}
	return measure()
}

// windowValues are a window's numbers per unit: per delivery where there are any,
// else per exchange.
func windowValues(w *loadgen.Window, cpu float64) Values {
	v := Values{}
	n := float64(w.Completed)
	if d := w.Delivery; d != nil {
		n = float64(d.Received)
		if d.Expected > 0 {
			v["lost"] = 1 - min(n/float64(d.Expected), 1)
		}
	}
	v["n"] = n
	if n == 0 {
		return v
	}
	v["cpu"] = cpu / n
	v["cores"] = cpu / w.Length.Seconds()
	v["rate"] = n / w.Length.Seconds()
	if cpu > 0 {
		v["per_core"] = n / cpu
	}
	var errs uint64
	for _, k := range w.Errors {
		errs += k
	}
	v["errors"] = float64(errs) / (n + float64(errs))
	addLatency(v, w)
	return v
}

// addLatency adds the window's latencies. What the generator was late
// itself is removed from the mean and can be removed from nothing else, so where it was
// the limit there is no P99; and in a closed loop that had no time left, neither
// rate nor latency is the server's.
func addLatency(v Values, w *loadgen.Window) {
	limited := w.Generator.Limited
	if limited {
		v["limited"] = 1
	}
	if limited && w.Load.Concurrency > 0 {
		delete(v, "rate")
		return
	}
	if w.Response == nil || w.Response.TotalCount() == 0 {
		return
	}
	v["mean"] = w.Response.Mean() / 1e6
	if w.Lag != nil {
		v["mean"] = max(w.Response.Mean()-w.Lag.Mean(), 1) / 1e6
	}
	v["p50"] = float64(w.Response.ValueAtQuantile(50)) / 1e6
	for name, q := range map[string]float64{"p99": 0.99, "p9999": 0.9999} {
		if !limited && stat.EnoughSamples(int(w.Response.TotalCount()), q) {
			v[name] = float64(w.Response.ValueAtQuantile(100*q)) / 1e6
		}
	}
}

// addStats adds what the server says of itself, per unit where it counts.
func (s *Server) addStats(ctx context.Context, v Values) error {
	st, err := s.Stats(ctx)
	if err != nil {
		return err
	}
	rss, err := s.RSS()
	if err != nil {
		return err
	}
	v["rss"], v["goroutines"] = rss, st.Goroutines
	if n := v["n"]; n > 0 {
		v["alloc_bytes"], v["allocs"] = st.AllocBytes/n, st.AllocObjects/n
	}
	if st.GCCycles > 0 {
		v["gc_pause"] = st.GCPauseMean
	}
	v["gc_cycles"] = st.GCCycles
	if !s.weir {
		v["sched_p99"] = st.SchedP99
	}
	for k, x := range st.Extra {
		v[k] = x
	}
	return nil
}

// jobbed measures an arm that is a job.
func jobbed(ctx context.Context, b *Bench, a Arm) (Values, error) { return b.Job(ctx, a, false) }

// eventText is the text of an event of ordinary size.
var eventText = strings.Repeat("x", 96)

// publishBody is a publish request of ordinary size.
var publishBody = `{"channel":"lab","data":{"text":"` + eventText + `"}}`

// httpLoad is a closed loop of publish requests to a channel without subscribers.
func httpLoad(conns, pipeline int) func(*Bench) loadgen.Spec {
	return func(b *Bench) loadgen.Spec {
		return loadgen.Spec{
			Kind: loadgen.HTTP, Target: "/api/publish", Method: http.MethodPost, Body: publishBody, Headers: []string{"Content-Type: application/json"},
			Conns: b.scaled(conns), Closed: true, Concurrency: b.scaled(conns) * pipeline, Pipeline: pipeline,
		}
	}
}

// fanOut publishes at a rate to subscribers of one channel.
func fanOut(transport string, subscribers int, rate float64) func(*Bench) loadgen.Spec {
	target := "/sse?channel=lab"
	if transport == "ws" {
		target = "/ws?channel=lab"
	}
	return func(b *Bench) loadgen.Spec {
		return loadgen.Spec{Kind: loadgen.PubSub, Target: target, Transport: transport, Conns: b.scaled(subscribers), Rate: rate, Publishers: 2}
	}
}
