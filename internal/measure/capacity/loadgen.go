package capacity

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/websocket"
)

// A Generated is a Target that a load generator puts load on.
type Generated struct {
	gen  *loadgen.Generator
	spec loadgen.Spec
}

var _ Target = (*Generated)(nil)

// NewGenerated makes the Target of a generator. spec is the one it was made from:
// its kind must be one whose arrivals are sent (http, echo or pubsub).
func NewGenerated(gen *loadgen.Generator, spec loadgen.Spec) (*Generated, error) {
	switch spec.Kind {
	case loadgen.HTTP, loadgen.Echo, loadgen.PubSub:
		return &Generated{gen, spec}, nil
	}
	return nil, fmt.Errorf("kind %q has no rate to search: want http, echo or pubsub", spec.Kind)
}

// Measure implements Target.
func (g *Generated) Measure(ctx context.Context, load Load, d time.Duration) (Observation, error) {
	if load.Concurrency > 0 && g.spec.Kind == loadgen.PubSub {
		return Observation{}, ErrUnsupported
	}
	w, err := g.gen.Measure(ctx, loadgen.Load{Rate: load.Rate, Concurrency: load.Concurrency, Conns: load.Conns}, d)
	if err != nil {
		return Observation{}, err
	}
	if ctx.Err() != nil {
		return Observation{}, ctx.Err()
	}
	return observed(w, load, g.spec.Kind == loadgen.PubSub), nil
}

// observed is a generator's window as an Observation. With pubsub a response is a
// delivery while what is under way are publishes, and a delivery that was lost is
// an error.
func observed(w *loadgen.Window, load Load, pubsub bool) Observation {
	cpus := runtime.NumCPU()
	o := Observation{
		Start: w.Start, Length: w.Length, Load: load, Conns: w.Conns,
		Offered: w.Offered, Sent: w.Sent, Completed: w.Completed, Dropped: w.Dropped,
		Errors:   map[string]uint64{},
		Response: quantiles(w.Response), Service: quantiles(w.Service),
		InFlight: w.InFlight, BatchLength: time.Second,
		Generator: Generator{
			CPU: w.Generator.CPU, Share: w.Generator.CPU / float64(cpus),
			Limited: w.Generator.Limited, Why: w.Generator.Why,
		},
		Host: Host{Steal: w.Host.Steal, Pressure: w.Host.Pressure, Wait: w.Host.Wait, Busy: w.Host.Busy, CPUs: cpus},
	}
	for reason, n := range w.Errors {
		o.Errors[reason] = n
	}
	if w.Lag != nil {
		o.Generator.LagP99 = float64(w.Lag.ValueAtPercentile(99)) / 1e6
	}
	if pubsub {
		if w.Publish != nil {
			o.Sojourn = w.Publish.Mean() / 1e6
		}
		if d := w.Delivery; d != nil && d.Lost > 0 {
			o.Errors["lost deliveries"] = d.Lost
		}
	}
	for _, b := range w.Batches {
		o.Batches = append(o.Batches, Batch(b))
	}
	return o
}

// quantiles of a histogram in microseconds, in seconds, with the bounds of order
// statistics read from the same histogram.
func quantiles(h *hdrhistogram.Histogram) Quantiles {
	q := Quantiles{P50: stat.Unknown(), P95: stat.Unknown(), P99: stat.Unknown(), P999: stat.Unknown()}
	if h == nil || h.TotalCount() == 0 {
		return q
	}
	n := int(h.TotalCount())
	at := func(rank int) float64 {
		return float64(h.ValueAtPercentile(100*float64(rank)/float64(n))) / 1e6
	}
	one := func(p float64) stat.Interval {
		v := stat.Interval{Point: float64(h.ValueAtPercentile(100*p)) / 1e6, Lo: math.Inf(-1), Hi: math.Inf(1), N: n}
		lo, hi := stat.QuantileRanks(n, p, confidence)
		if lo >= 1 {
			v.Lo = math.Min(at(lo), v.Point)
		}
		if hi <= n {
			v.Hi = math.Max(at(hi), v.Point)
		}
		return v
	}
	q.Mean = h.Mean() / 1e6
	q.P50, q.P95, q.P99, q.P999 = one(0.5), one(0.95), one(0.99), one(0.999)
	return q
}

// GeneratorCeiling measures what the generator of spec makes, per second, against a
// server in this process that does nothing but answer: an Options.Ceiling. Since
// that server uses processors too it is a lower bound. nil, for which Options knows a
// meaning, where there is no such server for the spec (pubsub, TLS, HTTP/2).
func GeneratorCeiling(spec loadgen.Spec, log *slog.Logger) func(ctx context.Context) (float64, error) {
	plain := strings.HasPrefix(spec.Target, "http:") || strings.HasPrefix(spec.Target, "ws:")
	if spec.Kind != loadgen.HTTP && spec.Kind != loadgen.Echo || !plain || spec.Version == "2" {
		return nil
	}
	return func(ctx context.Context) (float64, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, fmt.Errorf("listen for the null server: %w", err)
		}
		server := &http.Server{Handler: http.HandlerFunc(nullHandler), ReadHeaderTimeout: 10 * time.Second}
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(l) // ends with ErrServerClosed
		}()
		defer func() {
			_ = server.Close() // what it serves is given up on
			<-served
		}()
		spec := spec
		scheme, _, _ := strings.Cut(spec.Target, ":")
		spec.Target = scheme + "://" + l.Addr().String() + "/"
		spec.Adapter, spec.Headers, spec.Conns = "", nil, max(spec.Conns, 16)
		gen, err := loadgen.New(spec, log)
		if err != nil {
			return 0, err
		}
		defer func() { _ = gen.Close() }() // what it measured is in hand
		load := loadgen.Load{Concurrency: spec.Conns}
		if _, err := gen.Measure(ctx, load, 300*time.Millisecond); err != nil {
			return 0, err
		}
		w, err := gen.Measure(ctx, load, time.Second)
		if err != nil {
			return 0, err
		}
		return perSecond(w.Completed, w.Length), nil
	}
}

// nullHandler answers a request with nothing, and a WebSocket with what it says.
func nullHandler(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.WriteHeader(http.StatusOK)
		return
	}
	conn, err := websocket.Accept(w, r, websocket.AcceptOptions{})
	if err != nil {
		return // it has answered
	}
	defer conn.CloseNow()
	for {
		op, b, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		if conn.Write(op, b) != nil {
			return
		}
	}
}
