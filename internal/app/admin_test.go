package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// fetch sends one request to the admin listener; fields are "Name: value".
func (g *gateway) fetch(t *testing.T, path string, fields ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+g.AdminAddr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if name == "Host" {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, body
}

func TestMetricsParseAndAreFew(t *testing.T) {
	for _, loops := range []int{4, 64} {
		metricsParseAndAreFew(t, loops)
	}
}

func metricsParseAndAreFew(t *testing.T, loops int) {
	t.Helper()
	g := start(t, func(c *config.Config) { c.EventLoop.Loops, c.Governor.Enabled = loops, setting.On })
	g.subscribers(t, 2, "")
	g.publish(t, "news", "1")
	trial.Eventually(t, "all have it", func() bool { return g.hub.Stats().Delivered == 4 })
	trial.Eventually(t, "the governor has looked", func() bool { return g.watching.watch.Governor.Snapshot().Seq > 0 })
	res, body := g.fetch(t, "/metrics")
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(string(body)))
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%d, parse: %v", res.StatusCode, err)
	}
	series := 0
	for name, f := range families {
		for _, m := range f.Metric {
			series++
			if f.GetType() == dto.MetricType_HISTOGRAM || f.GetType() == dto.MetricType_SUMMARY { // its sum and count are one each
				series += 1 + len(m.GetHistogram().GetBucket()) + len(m.GetSummary().GetQuantile())
			}
		}
		if strings.HasPrefix(name, "weir_") && (f.GetType() == dto.MetricType_COUNTER) != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %v", name, f.GetType())
		}
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
	}
	if series > 340 {
		t.Errorf("%d series with %d loops, want at most 340", series, loops)
	}
	t.Logf("%d series with %d loops", series, loops)
	f := func(name, label string, want float64) {
		t.Helper()
		for _, m := range families[name].GetMetric() {
			if label == "" && len(m.Label) == 0 || len(m.Label) == 1 && m.Label[0].GetValue() == label {
				if got := m.GetGauge().GetValue() + m.GetCounter().GetValue(); got != want {
					t.Errorf("%s %s: %v, want %v", name, label, got, want)
				}
				return
			}
		}
		t.Errorf("no %s %s", name, label)
	}
	f("weir_connections", "sse", 2)
	f("weir_connections", "websocket", 2)
	f("weir_messages_published_total", "ok", 1)
	f("weir_messages_delivered_total", "", 4)
	f("weir_loops", "", float64(loops))
	f("weir_panics_total", "", 0)
}

type shown struct {
	Total       int
	Sort        string
	Connections []struct {
		Conn      uint64
		Transport string
		Subject   string
		Channels  []string
		Messages  int `json:"lag_messages"`
		Bytes     int `json:"lag_bytes"`
	}
}

func (g *gateway) connectionsOf(t *testing.T, query string) shown {
	t.Helper()
	res, body := g.fetch(t, "/api/connections"+query)
	var v shown
	if err := json.Unmarshal(body, &v); err != nil || res.StatusCode != 200 {
		t.Fatalf("%d %s: %v", res.StatusCode, body, err)
	}
	return v
}

func TestConnectionsAreSortedAndLimited(t *testing.T) {
	g := start(t, func(c *config.Config) {
		small(c)
		withSecret(c)
		c.Namespaces[0].QueueMessages, c.Namespaces[0].QueueBytes = 100_000, 64<<20
	})
	g.subscribers(t, 300, "") // more than a loop looks at in one go
	slow := g.slowDial(t, "GET /sse?channel=bulk&token="+mint(t, auth.MintClaims{Subject: "slow", Subscribe: []string{"**"}})+" HTTP/1.1\nHost: a\n\n")
	slow.Response()
	for n := 0; g.push.Stats().Queued < 200; n++ { // more than its window can still take
		if n > 20_000 {
			t.Fatal("too little is ever held")
		}
		g.put(t, "bulk", `"`+strings.Repeat("x", 3000)+`"`)
	}
	for _, sort := range []string{"lag", "bytes", "age", "messages"} {
		v := g.connectionsOf(t, "?limit=3&sort="+sort)
		if v.Total != 601 || len(v.Connections) != 3 || v.Sort != sort {
			t.Fatalf("%s: %d of %d", sort, len(v.Connections), v.Total)
		}
		c := v.Connections[0]
		if !strings.HasPrefix(c.Subject, "slow") || c.Transport != "sse" || len(c.Channels) != 1 || c.Channels[0] != "bulk" || c.Messages == 0 || c.Bytes == 0 {
			t.Errorf("%s: the first is %+v, want the slow one", sort, c)
		}
	}
	if v := g.connectionsOf(t, ""); len(v.Connections) != 100 || v.Sort != "lag" {
		t.Errorf("by default %d by %s, want 100 by lag", len(v.Connections), v.Sort)
	}
	seen := map[uint64]bool{}
	for _, c := range g.connectionsOf(t, "?limit=10000").Connections {
		seen[c.Conn] = true
	}
	if len(seen) != 601 {
		t.Errorf("%d different connections, want 601", len(seen))
	}
	f := func(query, says string) {
		t.Helper()
		if res, body := g.fetch(t, "/api/connections"+query); res.StatusCode != 400 || !strings.Contains(string(body), says) {
			t.Errorf("%s: %d %s, want 400 about %s", query, res.StatusCode, body, says)
		}
	}
	f("?sort=name", "sort")
	f("?limit=0", "limit")
	f("?limit=10001", "limit")
	f("?limit=x", "limit")
}

func TestAdminShowsWhatRuns(t *testing.T) {
	g := start(t, nil)
	f := func(path, says string) {
		t.Helper()
		if res, body := g.fetch(t, path); res.StatusCode != 200 || !strings.Contains(string(body), says) {
			t.Errorf("%s: %d %.200s, want %q in it", path, res.StatusCode, body, says)
		}
	}
	f("/", "<!doctype html>")
	f("/api/info", `"version": "test"`)
	f("/api/info", `"ready": "yes"`)
	f("/api/info", fmt.Sprintf(`"listen": %q`, g.Addr()))
	f("/api/tune", `"profile": "gateway"`)
	f("/api/tune?profile=bench", `"knob": "net.core.somaxconn"`)
	if res, body := g.fetch(t, "/api/tune?profile=fast"); res.StatusCode != 400 || !strings.Contains(string(body), "low-latency") {
		t.Errorf("/api/tune?profile=fast: %d %s, want 400 with the profiles", res.StatusCode, body)
	}
	if res, body := g.do(t, "POST", "/api/observe?seconds=31", ""); res.StatusCode != 400 || !strings.Contains(string(body), "1..30") {
		t.Errorf("/api/observe?seconds=31: %d %s", res.StatusCode, body)
	}
	// One request at a time; the others are refused.
	answers := make(chan string)
	for range 4 {
		go func() {
			res, body := g.do(t, "POST", "/api/observe?seconds=1", "")
			answers <- fmt.Sprintf("%d %s", res.StatusCode, body)
		}()
	}
	served, refused := 0, 0
	for range 4 {
		switch got := <-answers; {
		case strings.HasPrefix(got, "200 ") && strings.Contains(got, fmt.Sprintf(`"pid": %d`, os.Getpid())):
			served++
		case strings.HasPrefix(got, "429 ") && strings.Contains(got, "another request"):
			refused++
		default:
			t.Errorf("/api/observe: %.300s", got)
		}
	}
	if served == 0 || refused == 0 {
		t.Errorf("of four requests at once %d were served and %d refused", served, refused)
	}
	f("/debug/pprof/", "goroutine")
	f("/debug/pprof/goroutine?debug=1", "goroutine profile")
	if _, body := g.fetch(t, "/api/info"); strings.Contains(string(body), testKey) {
		t.Error("/api/info shows a key")
	}
}

func TestAdminIsNotForWebPages(t *testing.T) {
	g := start(t, nil)
	f := func(status int, fields ...string) {
		t.Helper()
		for _, path := range []string{"/metrics", "/api/info", "/debug/pprof/"} {
			res, _ := g.fetch(t, path, fields...)
			if res.StatusCode != status {
				t.Errorf("%s %v: %d, want %d", path, fields, res.StatusCode, status)
			}
			if res.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s %v: a page may read it", path, fields)
			}
		}
	}
	f(403, "Origin: http://evil.example")
	f(403, "Origin: null")
	f(403, "Sec-Fetch-Site: cross-site")
	f(403, "Sec-Fetch-Site: same-site")
	f(403, "Host: rebound.example:8001")
	f(200, "Sec-Fetch-Site: none")
	f(200, "Sec-Fetch-Site: same-origin")
	f(200, "Host: localhost:8001")
	f(200, "Host: [::1]:8001")
}
