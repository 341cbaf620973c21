package telemetry

import (
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collector is a receiver of OTLP over HTTP.
type collector struct {
	*httptest.Server
	mu     sync.Mutex
	spans  []*tracepb.Span
	header http.Header
	status int
}

func newCollector(t *testing.T) *collector {
	c := &collector{status: 200}
	c.Server = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) serve(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(r.Body)
	}
	b, _ := io.ReadAll(body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.header = r.Header
	if c.status != 200 {
		w.WriteHeader(c.status)
		return
	}
	if r.URL.Path == "/v1/traces" {
		var in coltrace.ExportTraceServiceRequest
		if err := proto.Unmarshal(b, &in); err != nil {
			w.WriteHeader(400)
			return
		}
		for _, rs := range in.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (c *collector) got() []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans
}

func run(t *testing.T, t2 interface{ Run(context.Context) error }) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- t2.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestSpansArriveAsTheyWereMade(t *testing.T) {
	c := newCollector(t)
	x, err := New(Config{Endpoint: c.URL + "/", Headers: map[string]auth.Secret{"X-Key": "k"}, Metrics: setting.Off}, Process{Version: "1", Loops: 2}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, x)
	defer stop()
	start := time.Unix(1_700_000_000, 123)
	x.Put(1, &Span{
		Trace: [16]byte{1}, ID: [8]byte{2}, Parent: [8]byte{3}, Flags: 1, Remote: true, Kind: Server, Name: "GET a", Start: start, Length: time.Second, Failed: "why",
		Attrs: []Attr{{Name: "s", Text: "t"}, {Name: "n", N: 7}}, Events: []Event{{Name: "e", At: start.Add(time.Millisecond)}},
	})
	x.PutAny(&Span{Trace: [16]byte{1}, ID: [8]byte{4}, Kind: Producer, Name: "publish", Start: start})
	trial.Eventually(t, "both are there", func() bool { return len(c.got()) == 2 })
	s := c.got()[0]
	if s.Name != "GET a" || s.TraceId[0] != 1 || s.SpanId[0] != 2 || s.ParentSpanId[0] != 3 || s.Kind != tracepb.Span_SPAN_KIND_SERVER ||
		s.StartTimeUnixNano != uint64(start.UnixNano()) || s.EndTimeUnixNano-s.StartTimeUnixNano != 1e9 ||
		s.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || s.Status.GetMessage() != "why" || len(s.Events) != 1 ||
		len(s.Attributes) != 2 || s.Attributes[0].Value.GetStringValue() != "t" || s.Attributes[1].Value.GetIntValue() != 7 {
		t.Errorf("%v", s)
	}
	if c.header.Get("X-Key") != "k" {
		t.Errorf("headers %v", c.header)
	}
	if len(c.got()[1].ParentSpanId) != 0 {
		t.Errorf("%v has a parent", c.got()[1])
	}
	trial.Eventually(t, "both are counted", func() bool { return x.Stats() == Stats{Exported: 2} })
}

func TestWhatIsLeftIsSentAtTheEnd(t *testing.T) {
	c := newCollector(t)
	x, _ := New(Config{Endpoint: c.URL, Metrics: setting.Off}, Process{Loops: 1}, nil, slog.New(slog.DiscardHandler))
	stop := run(t, x)
	for range 1000 {
		x.PutAny(&Span{Trace: [16]byte{1}, ID: [8]byte{1}, Name: "a", Start: time.Now()})
	}
	stop()
	if n := len(c.got()); n != 1000 {
		t.Errorf("%d of 1,000 arrived", n)
	}
}

func TestQueuesAreBoundedAndCountDrops(t *testing.T) {
	c := newCollector(t)
	x, _ := New(Config{Endpoint: c.URL, Metrics: setting.Off, Queue: 16}, Process{Loops: 1}, nil, slog.New(slog.DiscardHandler))
	for range 100 { // no sender
		x.Put(0, &Span{})
		x.PutAny(&Span{})
	}
	if st := x.Stats(); st.Dropped != 2*84 {
		t.Errorf("dropped %d, want %d", st.Dropped, 2*84)
	}
	c.mu.Lock()
	c.status = 400 // final: it is not tried again
	c.mu.Unlock()
	stop := run(t, x)
	trial.Eventually(t, "what the collector refuses is dropped too", func() bool { return x.Stats().Dropped == 200 })
	stop()
	if st := x.Stats(); st.Exported != 0 {
		t.Errorf("%+v", st)
	}
}

func TestOffIsNothing(t *testing.T) {
	for _, cfg := range []Config{{}, {Endpoint: "http://127.0.0.1:1", Metrics: setting.Off, Traces: setting.Off}} {
		x, err := New(cfg, Process{}, nil, nil)
		if err != nil || x != nil {
			t.Errorf("%+v: %v, %v", cfg, x, err)
		}
	}
	var x *Telemetry
	if x.Traces() || x.MessageTag() || x.Sample() != 0 || x.Stats() != (Stats{}) || x.Run(t.Context()) != nil {
		t.Error("a nil one does something")
	}
	if p, err := NewPusher(PushConfig{}, nil, nil); p != nil || err != nil || p.Run(t.Context()) != nil {
		t.Errorf("a pusher without an address: %v, %v", p, err)
	}
}

func TestConfigIsValidated(t *testing.T) {
	f := func(c interface{ Validate() error }, says string) {
		t.Helper()
		err := c.Validate()
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%+v: %v, want %q", c, err, says)
		}
	}
	f(Config{}, "")
	f(Config{Endpoint: "https://collector.example:4318"}, "")
	f(Config{Endpoint: "127.0.0.1:4318"}, "endpoint")
	f(Config{Endpoint: "ftp://a"}, "endpoint")
	f(Config{Sample: 1.1}, "sample")
	f(Config{Sample: -0.1}, "sample")
	f(Config{Interval: hub.Duration(time.Millisecond)}, "interval")
	f(Config{Queue: -1}, "queue")
	f(PushConfig{}, "")
	f(PushConfig{URL: "gateway:9091"}, "url")
}

func TestPushesToAGateway(t *testing.T) {
	type pushed struct {
		method, path, user string
		families           map[string]*dto.MetricFamily
	}
	got := make(chan pushed, 64)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		p := pushed{method: r.Method, path: r.URL.Path, families: map[string]*dto.MetricFamily{}}
		p.user, _, _ = r.BasicAuth()
		dec := expfmt.NewDecoder(r.Body, expfmt.ResponseFormat(r.Header))
		for {
			var m dto.MetricFamily
			if dec.Decode(&m) != nil {
				break
			}
			p.families[m.GetName()] = &m
		}
		got <- p
	}))
	defer s.Close()
	reg := prometheus.NewRegistry()
	n := prometheus.NewCounter(prometheus.CounterOpts{Name: "a_total", Help: "A."})
	reg.MustRegister(n)
	p, err := NewPusher(PushConfig{URL: s.URL, Job: "run", Grouping: map[string]string{"instance": "a/b"}, User: "u", Password: "p", Interval: hub.Duration(10 * time.Millisecond)}, reg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, p)
	first := <-got
	if first.method != http.MethodPut || !strings.HasPrefix(first.path, "/metrics/job/run/instance") || first.user != "u" || first.families["a_total"] == nil {
		t.Errorf("%+v", first)
	}
	n.Add(5)
	stop()
	var last pushed
	for more := true; more; {
		select {
		case last = <-got:
		default:
			more = false
		}
	}
	if v := last.families["a_total"].GetMetric(); len(v) != 1 || v[0].GetCounter().GetValue() != 5 {
		t.Errorf("at the end %v, want 5", v)
	}
}
