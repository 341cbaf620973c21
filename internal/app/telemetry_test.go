package app

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	colmetric "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricpb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// collector is a receiver of OTLP over HTTP.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	spans   []*tracepb.Span
	metrics map[string]*metricpb.Metric
	service string
}

func newCollector(t *testing.T) *collector {
	c := &collector{metrics: map[string]*metricpb.Metric{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := c.receive(r); err != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) receive(r *http.Request) error {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return err
		}
		body = z
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r.URL.Path {
	case "/v1/traces":
		var in coltrace.ExportTraceServiceRequest
		if err := proto.Unmarshal(b, &in); err != nil {
			return err
		}
		for _, rs := range in.ResourceSpans {
			c.service = text(rs.Resource.Attributes, "service.name")
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
		return nil
	case "/v1/metrics":
		var in colmetric.ExportMetricsServiceRequest
		if err := proto.Unmarshal(b, &in); err != nil {
			return err
		}
		for _, rm := range in.ResourceMetrics {
			for _, sm := range rm.ScopeMetrics {
				for _, m := range sm.Metrics {
					c.metrics[m.Name] = m
				}
			}
		}
		return nil
	}
	return fmt.Errorf("nothing is sent there")
}

func text(attrs []*commonpb.KeyValue, name string) string {
	for _, a := range attrs {
		if a.Key == name {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// of returns the spans of a trace, by name.
func (c *collector) of(trace string) map[string]*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string]*tracepb.Span{}
	for _, s := range c.spans {
		if hex.EncodeToString(s.TraceId) == trace {
			found[s.Name] = s
		}
	}
	return found
}

const (
	traceID  = "0af7651916cd43dd8448eb211c80319c"
	callerID = "b7ad6b7169203331"
)

// publishTraced publishes with a traceparent.
func (g *gateway) publishTraced(t *testing.T, channel, data, flags string) {
	t.Helper()
	req, _ := http.NewRequest(http.MethodPost, g.url+"/api/publish", strings.NewReader(fmt.Sprintf(`{"channel":%q,"data":%s}`, channel, data)))
	req.Header.Set("X-API-Key", testKey)
	req.Header.Set("traceparent", "00-"+traceID+"-"+callerID+"-"+flags)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); res.StatusCode != 200 {
		t.Fatalf("%d %s", res.StatusCode, b)
	}
}

func TestAPublishIsTraced(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, tag := range []bool{false, true} {
		c := newCollector(t)
		g := start(t, func(cfg *config.Config) {
			cfg.Telemetry.Endpoint, cfg.Telemetry.Metrics, cfg.Telemetry.MessageTag, cfg.Telemetry.Service = c.URL, setting.Off, tag, "edge"
		})
		g.subscribers(t, 4, "")
		s := g.sse(t, "channel=news&envelope=1", "")
		s.block()
		g.publishTraced(t, "news", "1", "00") // whose caller does not sample
		s.block()
		if _, n := g.watching.probe.UnderWay(); n != 0 {
			t.Errorf("%d are looked for", n)
		}
		g.publishTraced(t, "news", "2", "01")
		if b := s.block(); strings.Contains(b, `"traceparent":"00-`+traceID+"-"+callerID+`-01"`) != tag {
			t.Errorf("with message_tag %v the message is %q", tag, b)
		}
		var spans map[string]*tracepb.Span
		trial.Eventually(t, "three spans arrive", func() bool { spans = c.of(traceID); return len(spans) == 3 })
		all, store, fan := spans["publish default"], spans["store"], spans["fan-out"]
		if all == nil || store == nil || fan == nil {
			t.Fatalf("%v", spans)
		}
		if hex.EncodeToString(all.ParentSpanId) != callerID || !bytes.Equal(store.ParentSpanId, all.SpanId) || !bytes.Equal(fan.ParentSpanId, all.SpanId) {
			t.Error("the spans are not each other's children")
		}
		if all.Kind != tracepb.Span_SPAN_KIND_PRODUCER || text(all.Attributes, "messaging.destination.name") != "news" || text(all.Attributes, "messaging.message.id") == "" {
			t.Errorf("%v", all)
		}
		for _, s := range []*tracepb.Span{store, fan} {
			if s.StartTimeUnixNano < all.StartTimeUnixNano || s.EndTimeUnixNano > all.EndTimeUnixNano+uint64(time.Millisecond) || s.EndTimeUnixNano <= s.StartTimeUnixNano {
				t.Errorf("%s: %d to %d in %d to %d", s.Name, s.StartTimeUnixNano, s.EndTimeUnixNano, all.StartTimeUnixNano, all.EndTimeUnixNano)
			}
		}
		if len(fan.Events) == 0 || fan.Events[0].Name != "written" {
			t.Errorf("%v", fan.Events)
		}
		if c.service != "edge" {
			t.Errorf("service %q", c.service)
		}
	}
}

func TestPublishesAreTracedInPart(t *testing.T) {
	c := newCollector(t)
	g := start(t, func(cfg *config.Config) {
		cfg.Telemetry.Endpoint, cfg.Telemetry.Metrics, cfg.Telemetry.Sample = c.URL, setting.Off, 1
	})
	g.publish(t, "news", "1") // no subscriber
	trial.Eventually(t, "it is traced", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.spans) == 2 && len(c.spans[0].TraceId) == 16 && len(c.spans[0].ParentSpanId) == 0
	})
	trial.Eventually(t, "both spans are counted", func() bool { return g.watching.telemetry.Stats().Exported == 2 })
}

func TestARequestIsTracedThroughTheProxy(t *testing.T) {
	t.Parallel() // it mostly waits
	got := make(chan http.Header, 8)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer backend.Close()
	c := newCollector(t)
	g := start(t, func(cfg *config.Config) {
		cfg.Telemetry.Endpoint, cfg.Telemetry.Metrics = c.URL, setting.Off
		cfg.Clusters = []upstream.Config{{Name: "b", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(backend.URL, "http://")}}}}
		cfg.Routes = []policy.RouteConfig{{Name: "shop", Path: "/*", Cluster: "b", TraceSample: -1}}
	})
	ask := func(path, traceparent string) http.Header {
		t.Helper()
		req, _ := http.NewRequest(http.MethodPost, g.url+path, strings.NewReader("body"))
		if traceparent != "" {
			req.Header.Set("traceparent", traceparent)
			req.Header.Set("tracestate", "vendor=x")
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return <-got
	}
	h := ask("/cart/7", "00-"+traceID+"-"+callerID+"-01")
	var span *tracepb.Span
	trial.Eventually(t, "its span arrives", func() bool { span = c.of(traceID)["POST shop"]; return span != nil })
	if want := "00-" + traceID + "-" + hex.EncodeToString(span.SpanId) + "-01"; h.Get("traceparent") != want || h.Get("tracestate") != "vendor=x" {
		t.Errorf("the backend gets %q and %q, want %q", h.Get("traceparent"), h.Get("tracestate"), want)
	}
	if hex.EncodeToString(span.ParentSpanId) != callerID || span.Kind != tracepb.Span_SPAN_KIND_SERVER || text(span.Attributes, "http.request.method") != "POST" ||
		text(span.Attributes, "url.path") != "/cart/7" || text(span.Attributes, "weir.upstream") != strings.TrimPrefix(backend.URL, "http://") ||
		span.EndTimeUnixNano <= span.StartTimeUnixNano || span.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR {
		t.Errorf("%v", span)
	}
	other := strings.Repeat("1", 32)
	ask("/bad", "00-"+other+"-"+callerID+"-01")
	trial.Eventually(t, "one that fails says so", func() bool {
		return c.of(other)["POST shop"].GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR
	})
	ask("/a", "00-"+strings.Repeat("2", 32)+"-"+callerID+"-00")
	if h := ask("/a", ""); !strings.HasSuffix(h.Get("traceparent"), "-02") && !strings.HasSuffix(h.Get("traceparent"), "-00") {
		t.Errorf("one that began here is marked as sampled: %q", h.Get("traceparent"))
	}
	trial.Eventually(t, "all is sent", func() bool { return g.watching.telemetry.Stats().Exported == 2 })
}

func TestMetricsAreSentToACollector(t *testing.T) {
	c := newCollector(t)
	g := start(t, func(cfg *config.Config) {
		cfg.Telemetry.Endpoint, cfg.Telemetry.Traces, cfg.Telemetry.Interval = c.URL, setting.Off, hub.Duration(time.Second)
	})
	g.subscribers(t, 2, "")
	g.publish(t, "news", "1")
	trial.Eventually(t, "they say what happened", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		m := c.metrics["weir_messages_delivered_total"].GetSum()
		return m != nil && m.IsMonotonic && len(m.DataPoints) == 1 && m.DataPoints[0].GetAsDouble() == 4
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.metrics["weir_connections"].GetGauge() == nil || c.metrics["weir_loop_tick_seconds"].GetHistogram() == nil || len(c.spans) != 0 {
		t.Errorf("%d metrics, %d spans", len(c.metrics), len(c.spans))
	}
}

func TestMetricsArePushedAtTheEnd(t *testing.T) {
	got := make(chan string, 64)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if bytes.Contains(b, []byte("weir_messages_delivered_total")) {
			got <- r.Method + " " + r.URL.Path
		}
	}))
	defer s.Close()
	g := start(t, func(cfg *config.Config) {
		cfg.Metrics.Pushgateway.URL, cfg.Metrics.Pushgateway.Interval = s.URL, -1
	})
	g.stop()
	err := <-g.done
	g.done <- err
	select {
	case what := <-got:
		if what != "PUT /metrics/job/weir" {
			t.Errorf("pushed by %s", what)
		}
	default:
		t.Error("nothing was pushed")
	}
}
