package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/weir-gateway/weir/internal/observe/metrics"
)

// A Telemetry sends spans and metrics to a collector. A nil one does nothing.
type Telemetry struct {
	// Fixed at New.
	cfg      Config
	log      *slog.Logger
	resource *resource.Resource
	gatherer prometheus.Gatherer
	queues   []*metrics.Ring[*Span] // by loop

	// Any goroutine.
	mu      sync.Mutex
	shared  []*Span
	exports atomic.Uint64
	dropped atomic.Uint64 // of shared, and what no collector took
	ready   chan struct{} // holds one: a queue has half of what it may
}

// Process is who sends.
type Process struct {
	Version string
	// Loops is how many event loops make spans.
	Loops int
}

// New returns a Telemetry; nil if cfg sends nothing. Metrics come from g.
func New(cfg Config, p Process, g prometheus.Gatherer, log *slog.Logger) (*Telemetry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if !cfg.On() {
		return nil, nil //nolint:nilnil // a nil Telemetry is the one that does nothing
	}
	host, _ := os.Hostname() // without a name it has none
	t := &Telemetry{cfg: cfg.WithDefaults(), log: log, gatherer: g, ready: make(chan struct{}, 1)}
	t.resource = resource.NewSchemaless(
		attribute.String("service.name", t.cfg.Service), attribute.String("service.version", p.Version),
		attribute.String("service.instance.id", host+"-"+strconv.Itoa(os.Getpid())), attribute.String("host.name", host), attribute.Int("process.pid", os.Getpid()),
	)
	for range p.Loops {
		t.queues = append(t.queues, metrics.NewRing[*Span](t.cfg.Queue))
	}
	return t, nil
}

// Traces reports whether spans are wanted.
func (t *Telemetry) Traces() bool { return t != nil && t.cfg.Traces.On() }

// Put passes on a span of a loop, or drops and counts it. Only that loop's goroutine
// may call it; it does not wait.
func (t *Telemetry) Put(loop int, s *Span) {
	q := t.queues[loop]
	q.Put(s)
	if q.Len() >= t.cfg.Queue/2 {
		t.rouse()
	}
}

// PutAny is Put for every other goroutine.
func (t *Telemetry) PutAny(s *Span) {
	t.mu.Lock()
	n := len(t.shared)
	if n < t.cfg.Queue {
		t.shared = append(t.shared, s)
	}
	t.mu.Unlock()
	switch {
	case n >= t.cfg.Queue:
		t.dropped.Add(1)
	case n >= t.cfg.Queue/2:
		t.rouse()
	}
}

func (t *Telemetry) rouse() {
	select {
	case t.ready <- struct{}{}:
	default:
	}
}

// Drop counts a span that could not be made.
func (t *Telemetry) Drop() { t.dropped.Add(1) }

// Sample is the part of the publishes that are traced though their caller requested
// nothing; 0 for a nil Telemetry.
func (t *Telemetry) Sample() float64 {
	if !t.Traces() {
		return 0
	}
	return t.cfg.Sample
}

// MessageTag reports whether messages are to carry the trace of their publish.
func (t *Telemetry) MessageTag() bool { return t != nil && t.cfg.MessageTag }

// Stats are running totals.
type Stats struct {
	// Exported spans arrived at the collector, Dropped ones found no room, or no
	// collector that took them.
	Exported, Dropped uint64
}

// Stats may be called from any goroutine.
func (t *Telemetry) Stats() Stats {
	if t == nil {
		return Stats{}
	}
	s := Stats{Exported: t.exports.Load(), Dropped: t.dropped.Load()}
	for _, q := range t.queues {
		s.Dropped += q.Dropped()
	}
	return s
}

const (
	// flushEvery is how long a span waits at most, maxBatch how many go at a time.
	flushEvery = time.Second
	maxBatch   = 512
	// sendTime bounds one delivery with all its attempts; lastTime the last one.
	sendTime = 10 * time.Second
	lastTime = 3 * time.Second
)

// Run sends until ctx is done, and then what is left.
func (t *Telemetry) Run(ctx context.Context) error {
	if t == nil {
		return nil
	}
	var parts sync.WaitGroup
	if t.cfg.Traces.On() {
		e, err := otlptracehttp.New(context.WithoutCancel(ctx), otlptracehttp.WithEndpointURL(t.url("/v1/traces")), otlptracehttp.WithHeaders(t.headers()), otlptracehttp.WithTimeout(sendTime))
		if err != nil {
			return fmt.Errorf("telemetry: %w", err)
		}
		parts.Go(func() { t.sendSpans(ctx, e) })
	}
	if t.cfg.Metrics.On() {
		e, err := otlpmetrichttp.New(context.WithoutCancel(ctx), otlpmetrichttp.WithEndpointURL(t.url("/v1/metrics")), otlpmetrichttp.WithHeaders(t.headers()), otlpmetrichttp.WithTimeout(sendTime))
		if err != nil {
			return fmt.Errorf("telemetry: %w", err)
		}
		parts.Go(func() { t.sendMetrics(ctx, e) })
	}
	parts.Wait()
	return nil
}

func (t *Telemetry) url(path string) string { return strings.TrimSuffix(t.cfg.Endpoint, "/") + path }

func (t *Telemetry) headers() map[string]string {
	h := make(map[string]string, len(t.cfg.Headers))
	for k, v := range t.cfg.Headers {
		h[k] = string(v)
	}
	return h
}

// sendSpans sends what the queues hold, until ctx is done.
func (t *Telemetry) sendSpans(ctx context.Context, e sdktrace.SpanExporter) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for more := true; more; {
		select {
		case <-ctx.Done():
			more = false
		case <-tick.C:
		case <-t.ready:
		}
		t.flush(ctx, e)
	}
	last, cancel := within(ctx)
	defer cancel()
	_ = e.Shutdown(last)
}

// within bounds one delivery: to sendTime, and when ctx is done to lastTime from then on.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	send, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTime)
	stop := context.AfterFunc(ctx, func() {
		late := time.NewTimer(lastTime)
		defer late.Stop()
		select {
		case <-late.C:
			cancel()
		case <-send.Done():
		}
	})
	return send, func() { stop(); cancel() }
}

// flush sends everything that waits.
func (t *Telemetry) flush(ctx context.Context, e sdktrace.SpanExporter) {
	var all []*Span
	for _, q := range t.queues {
		q.Drain(func(s *Span) { all = append(all, s) })
	}
	t.mu.Lock()
	all = append(all, t.shared...)
	clear(t.shared)
	t.shared = t.shared[:0]
	t.mu.Unlock()
	for len(all) > 0 {
		n := min(len(all), maxBatch)
		send, cancel := within(ctx)
		err := e.ExportSpans(send, t.snapshots(all[:n]))
		cancel()
		if err != nil {
			t.dropped.Add(uint64(n))
			t.log.Warn("spans are not taken", "endpoint", t.cfg.Endpoint, "spans", n, "err", err)
		} else {
			t.exports.Add(uint64(n))
		}
		all = all[n:]
	}
}

// sendMetrics sends what is gathered at intervals and once at the end.
func (t *Telemetry) sendMetrics(ctx context.Context, e sdkmetric.Exporter) {
	reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(t.gatherer))))
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(t.resource))
	tick := time.NewTicker(time.Duration(t.cfg.Interval))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
			defer cancel()
			t.sendOnce(last, reader, e)
			_ = errors.Join(e.Shutdown(last), provider.Shutdown(last)) // the process ends
			return
		case <-tick.C:
			send, cancel := context.WithTimeout(ctx, sendTime)
			t.sendOnce(send, reader, e)
			cancel()
		}
	}
}

// sendOnce sends the metrics of now.
func (t *Telemetry) sendOnce(ctx context.Context, reader *sdkmetric.ManualReader, e sdkmetric.Exporter) {
	var m metricdata.ResourceMetrics
	err := reader.Collect(ctx, &m)
	if err == nil {
		err = e.Export(ctx, &m)
	}
	if err != nil {
		t.log.Warn("metrics are not taken", "endpoint", t.cfg.Endpoint, "err", err)
	}
}
