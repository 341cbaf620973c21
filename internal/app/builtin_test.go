package app

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/client"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// versions are clients of both versions of HTTP.
func versions(t *testing.T) map[string]*http.Client {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return map[string]*http.Client{"HTTP/1.1": {Transport: tr}, "HTTP/2": overHTTP2(t, nil)}
}

// requested is the answer to a request with the key.
func requested(t *testing.T, c *http.Client, method, url, body string, fields ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", testKey)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

// behindPrefix is a gateway whose own paths are below /a/weir, in front of a backend.
func behindPrefix(t *testing.T, engine string, change func(*config.Config)) *gateway {
	b := backend(t, "b")
	return startWith(t, func(c *config.Config) {
		c.EventLoop.Engine = engine
		c.Downstream.BuiltinPrefix = "/a/weir"
		c.Push.Echo = true
		c.Clusters, c.Routes = []upstream.Config{b}, []policy.RouteConfig{{Path: "/*", Cluster: "b"}}
		if change != nil {
			change(c)
		}
	}, map[string]downstream.Static{"/page": {ContentType: "text/plain", Body: []byte("a page")}})
}

func TestAPrefixMovesWeirsOwnPathsAndNoOthers(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		g := behindPrefix(t, engine, nil)
		for version, c := range versions(t) {
			f := func(method, path, body string, status int, want string) {
				t.Helper()
				if res, got := requested(t, c, method, g.url+path, body); res.StatusCode != status || !strings.Contains(got, want) {
					t.Errorf("%s, %s: %s %s: %d %q, want %d and %q", engine, version, method, path, res.StatusCode, got, status, want)
				}
			}
			const p = "/a/weir"
			f("GET", p+"/healthz", "", 200, "ok\n")
			f("GET", p+"/readyz", "", 200, "ready\n")
			f("GET", p+"/page", "", 200, "a page")
			f("POST", p+"/api/publish", `{"channel":"a","data":1}`, 200, `"offset":`)
			f("POST", p+"/api/broadcast", `{"channels":["a","orders:b"],"data":1}`, 200, `"responses":[{`)
			f("GET", p+"/sse", "", 400, "channel")
			f("GET", p+"/ws?channel=a", "", 426, "")
			f("GET", p+"/api/publish", "", 405, "POST")
			for _, path := range []string{"/healthz", "/readyz", "/sse?channel=a", "/ws?channel=a", "/api/publish", "/api/recording", "/echo", "/page", "/a/weir", "/a/weird/sse"} {
				f("GET", path, "", 200, "b GET "+path)
			}
			f("POST", "/api/publish", "x", 200, "b POST /api/publish x")
		}
	}
}

func TestClientsFindAServerBehindAPrefixByTheirURL(t *testing.T) {
	g := behindPrefix(t, os.Getenv(trial.Engine), nil)
	overHTTP := versions(t)
	f := func(what string, transport client.Transport, c *http.Client) {
		t.Helper()
		cl, err := client.New(client.Config{URL: g.url + "/a/weir", APIKey: testKey, HTTPClient: c, Attempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
		defer cancel()
		at, err := cl.Publish(ctx, client.Publication{Channel: "news", Data: []byte(`"` + what + `"`)})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		s, err := cl.Subscribe(ctx, client.SubscribeOptions{Channels: []string{"news"}, Since: "0", Transport: transport})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer s.Close()
		for {
			ev, err := s.Next(ctx)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if m, ok := ev.(*client.Message); ok && string(m.Data) == `"`+what+`"` {
				if m.Position.Offset != at.Offset {
					t.Errorf("%s: offset %d, published at %d", what, m.Position.Offset, at.Offset)
				}
				return
			}
		}
	}
	f("sse", "sse", overHTTP["HTTP/1.1"])
	f("sse over HTTP/2", "sse", overHTTP["HTTP/2"])
	f("ws", "ws", nil)
}

func TestAPrefixAndCentrifugesAPIDoNotMeet(t *testing.T) {
	g := behindPrefix(t, os.Getenv(trial.Engine), func(c *config.Config) {
		c.Centrifuge.Enabled = true
		c.Centrifuge.APIPrefix = "/api"
		c.Centrifuge.APIKey = "centrifuge-api-key-0123"
		c.Centrifuge = c.Centrifuge.WithDefaults()
	})
	for version, c := range versions(t) {
		if res, got := requested(t, c, "POST", g.url+"/a/weir/api/publish", `{"channel":"a","data":1}`); res.StatusCode != 200 || !strings.Contains(got, `"result":{"epoch":`) {
			t.Errorf("%s: Weir's own: %d %s", version, res.StatusCode, got)
		}
		if res, got := requested(t, c, "POST", g.url+"/api/publish", `{"channel":"a","data":1}`, "X-API-Key", "centrifuge-api-key-0123"); res.StatusCode != 200 || !strings.Contains(got, `"result"`) {
			t.Errorf("%s: Centrifuge's: %d %s", version, res.StatusCode, got)
		}
	}
}

func TestARecordingIsReadAgainBelowThePrefix(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: one\n\ndata: two\n\n")
	}))
	t.Cleanup(ts.Close)
	g := behindPrefix(t, os.Getenv(trial.Engine), func(c *config.Config) {
		c.Clusters = []upstream.Config{{Name: "b", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(ts.URL, "http://")}}}}
		c.Routes[0].Record = policy.Record{Namespace: "private"}.WithDefaults()
	})
	c := versions(t)["HTTP/1.1"]
	res, first := requested(t, c, "GET", g.url+"/llm", "")
	at := res.Header.Get("Weir-Recording")
	if !strings.HasPrefix(at, "/a/weir/api/recording?id=") {
		t.Fatalf("Weir-Recording: %q, answered %q", at, first)
	}
	if res, again := requested(t, c, "GET", g.url+at, "", "Last-Event-ID", "0"); res.StatusCode != 200 || !strings.Contains(again, "data: one") {
		t.Errorf("%s: %d %q", at, res.StatusCode, again)
	}
}

func TestAPrefixIsInWhatIsSaidOfPaths(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Downstream.BuiltinPrefix = "/weir" })
	for version, c := range versions(t) {
		res, got := requested(t, c, "GET", g.url+"/nowhere", "")
		if res.StatusCode != 404 || !strings.Contains(got, "there are /weir/sse, /weir/ws, /weir/api/publish, /weir/api/broadcast, /weir/healthz and /weir/readyz") {
			t.Errorf("%s: %d %s", version, res.StatusCode, got)
		}
	}
}

// The public listener answers while the broker is waited for.
func TestAPrefixHoldsWhileTheServerStarts(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Downstream.BuiltinPrefix = "/weir" })
	f := func(path string, status int) {
		t.Helper()
		w := httptest.NewRecorder()
		(&waitingRoom{g.App}).answer(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != status {
			t.Errorf("%s: %d, want %d", path, w.Code, status)
		}
	}
	f("/weir/healthz", 200)
	f("/weir/readyz", 503)
	f("/healthz", 503)
}

func TestRoutesAloneAreServedWithoutABroker(t *testing.T) {
	t.Chdir(t.TempDir())
	b := backend(t, "b")
	text := "listen: 0.0.0.0:0\nadmin: {listen: 127.0.0.1:0}\neventloop: {loops: 2}\nshutdown: {drain: 100ms}\n" +
		"clusters: [{name: b, peers: [{address: \"" + b.Peers[0].Address + "\"}]}]\nroutes: [{path: /a/*, cluster: b}, {path: /sse, cluster: b}, {path: /api/*, cluster: b}]\n"
	g := startApp(t, func(c *config.Config) {
		cfg, err := config.Load(config.Sources{File: "weir.yaml", Text: []byte(text)}, Check)
		if err != nil {
			t.Fatal(err)
		}
		*c = cfg
		c.EventLoop.Engine = os.Getenv(trial.Engine)
	}, Options{})
	g.url = strings.Replace(g.url, "0.0.0.0", "127.0.0.1", 1)
	for version, c := range versions(t) {
		f := func(method, path, body string, status int, want string) {
			t.Helper()
			if res, got := requested(t, c, method, g.url+path, body); res.StatusCode != status || !strings.Contains(got, want) {
				t.Errorf("%s: %s %s: %d %q, want %d and %q", version, method, path, res.StatusCode, got, status, want)
			}
		}
		f("GET", "/a/x", "", 200, "b GET /a/x ")
		f("GET", "/sse?channel=a", "", 200, "b GET /sse?channel=a ")
		f("POST", "/api/publish", "{}", 200, "b POST /api/publish {}")
		f("GET", "/api/recording?id=1", "", 200, "b GET /api/recording?id=1 ")
		f("GET", "/healthz", "", 200, "ok\n")
		f("GET", "/readyz", "", 200, "ready\n")
		f("GET", "/ws?channel=a", "", 404, "there are /healthz and /readyz, and 3 configured routes")
	}
	if res, body := g.do(t, http.MethodPost, "/api/publish", `{"channel":"a","data":1}`); res.StatusCode != http.StatusConflict || !strings.Contains(string(body), "only serves routes") {
		t.Errorf("published by hand: %d %s", res.StatusCode, body)
	}
	if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
		t.Errorf("in the working directory: %v %v", left, err)
	}
	if g.nats != nil {
		t.Error("a NATS server runs")
	}
}

// A route that keeps replies needs a broker, which only a restart starts.
func TestAReloadStartsNoBroker(t *testing.T) {
	b := backend(t, "b")
	at := "clusters: [{name: b, peers: [{address: \"" + b.Peers[0].Address + "\"}]}]\n"
	text := "routes: [{path: /*, cluster: b}]\n"
	load := func() (config.Config, error) {
		return config.Load(config.Sources{File: "weir.yaml", Text: []byte("listen: 127.0.0.1:0\n" + at + text)})
	}
	g := startApp(t, func(c *config.Config) {
		var err error
		if *c, err = load(); err != nil {
			t.Fatal(err)
		}
	}, Options{Load: load})
	text = "routes: [{path: /*, cluster: b, hold: {channels: [orders]}}]\n"
	if _, err := g.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "wait for a restart") || !strings.Contains(err.Error(), "hold of") {
		t.Errorf("reloaded: %v", err)
	}
	text = "routes: [{path: /*, cluster: b}, {path: /x, reply: {status: 200, body: x}}]\n"
	if done, err := g.Reload(t.Context()); err != nil || len(done.Waiting) > 0 {
		t.Errorf("%+v %v", done, err)
	}
	if status, body := g.get(t, "/x"); status != 200 || body != "x" {
		t.Errorf("the new route: %d %q", status, body)
	}
}
