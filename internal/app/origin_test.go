package app

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A logged is what a gateway has logged, as text. Any goroutine.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// paged makes requests as a browser does for a page.
type paged struct {
	*gateway
	client *http.Client
}

func (p paged) request(t *testing.T, method, path, body, host, origin string, fields ...string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Origin", origin)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	if host != "" {
		req.Host = host
	}
	res, err := p.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	cancel() // only the head counts
	_ = res.Body.Close()
	return res
}

func TestPagesOnLoopbackMayConnectToEveryProtocol(t *testing.T) {
	for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(version, func(t *testing.T) {
			var log logged
			g := startApp(t, func(c *config.Config) {
				c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "mercure", Anonymous: true}, hub.Namespace{Name: "shop"})
				c.Mercure.Enabled, c.Mercure.Anonymous = true, true
				c.Centrifuge.Enabled, c.Centrifuge.Insecure = true, true
				c.Pusher.Enabled = true
				c.Pusher.Apps = []pusher.App{{ID: "1", Key: "app-key", Secret: "app-secret-0123456789", Namespace: "shop", AllowedOrigins: []string{"shop.example"}}}
				c.Clusters = []upstream.Config{backend(t, "b")}
				c.Routes = []policy.RouteConfig{{Name: "books", Path: "/books", Cluster: "b", CORS: policy.CORS{AllowedOrigins: []string{"https://shop.example"}}}}
			}, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			p := paged{g, &http.Client{Transport: &http.Transport{}, Timeout: trial.Patience}}
			socket := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
			requests := []struct {
				method, path, body string
				fields             []string
			}{
				{"GET", "/sse?channel=a", "", nil}, {"POST", "/api/publish", `{"channel":"a","data":1}`, []string{"X-API-Key", testKey}},
				{"OPTIONS", "/sse", "", []string{"Access-Control-Request-Method", "GET"}},
				{"GET", "/.well-known/mercure?topic=a", "", nil},
				{"GET", `/connection/sse?cf_connect={"id":1,"connect":{}}`, "", nil}, {"GET", `/connection/uni_sse?cf_connect={}`, "", nil},
				{"POST", "/connection/http_stream", `{"id":1,"connect":{}}`, nil}, {"POST", "/connection/uni_http_stream", `{}`, nil},
				{"GET", "/ws?channel=a", "", socket}, {"GET", "/connection/websocket", "", socket}, {"GET", "/connection/uni_websocket", "", socket},
			}
			if version == "HTTP/2" {
				p.client = overHTTP2(t, nil)
				requests = requests[:len(requests)-3] // Go's server offers WebSocket over HTTP/2 with a GODEBUG only
			}
			refused := strings.Count
			const line = `origin=http://localhost:3000 `
			for _, a := range requests {
				for _, origin := range []string{"http://localhost:3000", "http://127.0.0.1:5173", "https://[::1]"} {
					res := p.request(t, a.method, a.path, a.body, "", origin, a.fields...)
					h := res.Header
					if res.StatusCode >= 300 || res.StatusCode != 101 && h.Get("Access-Control-Allow-Origin") != origin || h.Get("Access-Control-Allow-Credentials") != "" {
						t.Errorf("%s %s from %s: %d %v", a.method, a.path, origin, res.StatusCode, h)
					}
				}
				if n := refused(log.String(), "origin refused"); n != 0 {
					t.Fatalf("%s: %s", a.path, log.String())
				}
			}
			for _, a := range requests {
				for _, host := range []string{"rebound.example:8000", ""} {
					origin := "http://localhost:3000"
					if host == "" {
						origin = "null"
					}
					res := p.request(t, a.method, a.path, a.body, host, origin, a.fields...)
					if res.StatusCode != 403 || res.Header.Get("Access-Control-Allow-Origin") != "" {
						t.Errorf("%s %s from %s to %q: %d %v, want 403", a.method, a.path, origin, host, res.StatusCode, res.Header)
					}
				}
				if res := p.request(t, a.method, a.path, a.body, "", "http://localhost:3000", append([]string{"X-Forwarded-For", "192.0.2.1"}, a.fields...)...); res.StatusCode != 403 {
					t.Errorf("%s %s through a proxy: %d, want 403", a.method, a.path, res.StatusCode)
				}
			}
			if text := log.String(); refused(text, "origin refused") != 2 || refused(text, line) != 1 ||
				!strings.Contains(text, `hint="auth: {allowed_origins: ['http://localhost:3000']}"`) || !strings.Contains(text, "allowed_origins: ['null']") {
				t.Errorf("logged %s", text)
			}
			// Rules of a route's and of an app's own.
			p.request(t, "GET", "/books", "", "", "https://other.example")
			if text := log.String(); !strings.Contains(text, "origin=https://other.example") || !strings.Contains(text, `cors.allowed_origins of the route`) {
				t.Errorf("logged %s", text)
			}
			if version == "HTTP/1.1" {
				p.request(t, "GET", "/app/app-key?protocol=7", "", "", "https://third.example", socket...)
				if text := log.String(); !strings.Contains(text, "origin=https://third.example") || !strings.Contains(text, "pusher.apps") {
					t.Errorf("logged %s", text)
				}
			}
			if n := g.auth.Stats().Origins; n < uint64(3*len(requests)) {
				t.Errorf("%d refusals counted", n)
			}
		})
	}
}
