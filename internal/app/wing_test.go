package app

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// backend answers with its name, what it was asked for, and the body.
func backend(t *testing.T, name string) upstream.Config {
	t.Helper()
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s", name, r.Method, r.RequestURI, b)
	}))
	t.Cleanup(ts.Close)
	return upstream.Config{Name: name, Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(ts.URL, "http://")}}}
}

func (g *gateway) get(t *testing.T, path string) (int, string) {
	t.Helper()
	res, err := http.Get(g.url + path) //nolint:noctx // the gateway ends before the test
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestRoutesBesideTheBuiltInPaths(t *testing.T) {
	b := backend(t, "b")
	g := start(t, func(c *config.Config) {
		c.Clusters = []upstream.Config{b}
		c.Routes = []policy.RouteConfig{{Path: "/*", Cluster: "b"}, {Path: "/fixed", Reply: policy.Reply{Status: 200, Body: "fixed"}}}
	})
	f := func(path, want string) {
		t.Helper()
		if status, got := g.get(t, path); status != 200 || got != want {
			t.Errorf("%s: %d %q, want %q", path, status, got, want)
		}
	}
	f("/a/b?c=d", "b GET /a/b?c=d ")
	f("/fixed", "fixed")
	f("/healthz", "ok\n")
	if status, body := g.post(t, "/x", "hello"); status != 200 || string(body) != "b POST /x hello" {
		t.Errorf("POST: %d %q", status, body)
	}
	g.publish(t, "a", "1") // still Weir's own
}

// source is a configuration that tests change.
type source struct {
	mu  sync.Mutex
	cfg config.Config
	err error
}

func (s *source) load() (config.Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg, s.err
}

func (s *source) set(change func(*config.Config)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Routes = slices.Clone(s.cfg.Routes)
	s.cfg.Clusters = slices.Clone(s.cfg.Clusters)
	change(&s.cfg)
}

func startReloadable(t *testing.T, routes []policy.RouteConfig, clusters ...upstream.Config) (*gateway, *source) {
	t.Helper()
	src := &source{}
	g := startApp(t, func(c *config.Config) {
		c.Routes, c.Clusters = routes, clusters
		src.cfg = *c
	}, Options{Load: src.load})
	return g, src
}

func TestReloadAppliesRoutesAndKeepsWhatIsWrongOut(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	g, src := startReloadable(t, []policy.RouteConfig{{Name: "r", Path: "/*", Cluster: "a"}}, a)
	want := func(name string) {
		t.Helper()
		if _, got := g.get(t, "/x"); !strings.HasPrefix(got, name+" ") {
			t.Errorf("answered by %q, want %s", got, name)
		}
	}
	want("a")
	src.set(func(c *config.Config) { c.Clusters, c.Routes[0].Cluster = []upstream.Config{b}, "b" })
	done, err := g.Reload(t.Context())
	if err != nil || !slices.Equal(done.Applied, []string{"routes[r].cluster", "clusters[a]", "clusters[b]"}) || len(done.Waiting) != 0 {
		t.Errorf("%+v %v", done, err)
	}
	want("b")

	bad := func(what string, change func(*config.Config), msg string) {
		t.Helper()
		before, _ := src.load()
		src.set(change)
		if _, err := g.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), msg) {
			t.Errorf("%s: %v", what, err)
		}
		want("b")
		src.set(func(c *config.Config) { *c = before })
	}
	bad("a route to nowhere", func(c *config.Config) { c.Routes[0].Cluster = "missing" }, "missing")
	bad("a bad path", func(c *config.Config) { c.Routes[0].Path = "no-slash" }, "no-slash")
	bad("a cluster without peers", func(c *config.Config) { c.Clusters[0].Peers = nil }, "peers")
	src.err = errors.New("line 7: mapping values are not allowed here")
	if _, err := g.Reload(t.Context()); !errors.Is(err, src.err) {
		t.Errorf("a broken file: %v", err)
	}
	src.err = nil
	want("b")

	src.set(func(c *config.Config) { c.Log.Format = "json" })
	if done, err := g.Reload(t.Context()); err != nil || len(done.Applied) != 0 || !slices.Equal(done.Waiting, []string{"log.format"}) {
		t.Errorf("%+v %v, want log to wait for a restart", done, err)
	}
}

func TestReloadOverTheAdminListener(t *testing.T) {
	a := backend(t, "a")
	g, src := startReloadable(t, []policy.RouteConfig{{Path: "/*", Cluster: "a"}}, a)
	post := func() (int, string) {
		t.Helper()
		res, err := http.Post("http://"+g.AdminAddr().String()+"/api/reload", "", nil) //nolint:noctx // the gateway ends before the test
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	src.set(func(c *config.Config) { c.Routes[0].Path = "/only/*" })
	status, body := post()
	var done Reloaded
	if err := json.Unmarshal([]byte(body), &done); status != 200 || err != nil || !slices.Equal(done.Applied, []string{"routes"}) {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := g.get(t, "/x"); status != 404 {
		t.Errorf("the old route answers: %d", status)
	}
	src.set(func(c *config.Config) { c.Routes[0].Cluster = "gone" })
	if status, body := post(); status != 422 || !strings.Contains(body, "gone") {
		t.Errorf("%d %s", status, body)
	}
}

func TestAChangedFileIsApplied(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	write := func(body string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("routes: [{path: /x, reply: {status: 200, body: one}}]\n")
	var refused atomic.Int64
	load := func() (config.Config, error) {
		c, err := config.Load(config.Sources{File: file})
		c.Listen = "127.0.0.1:0"
		if err != nil {
			refused.Add(1)
		}
		return c, err
	}
	g := startApp(t, func(c *config.Config) {
		first, err := load()
		if err != nil {
			t.Fatal(err)
		}
		c.Routes, c.Reload.Watch = first.Routes, 20e6
	}, Options{Load: load, File: file})
	if _, got := g.get(t, "/x"); got != "one" {
		t.Fatalf("got %q", got)
	}
	write("routes: [{path: /x, reply: {status: 200, body: broken")
	trial.Eventually(t, "the broken file is looked at", func() bool { return refused.Load() > 0 })
	g.reload.Lock() // had when that reload is over
	_, got := g.get(t, "/x")
	g.reload.Unlock()
	if got != "one" {
		t.Errorf("a broken file changed the answer to %q", got)
	}
	write("routes: [{path: /x, reply: {status: 200, body: another}}]\n")
	trial.Eventually(t, "the new answer", func() bool { _, got := g.get(t, "/x"); return got == "another" })
}

// A file that changes while the process starts is looked at as well: what counts is what it was at New.
func TestAFileThatChangesDuringTheStartIsLookedAt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	write := func(body string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("routes: []\n")
	cfg := config.Default()
	cfg.Listen, cfg.Broker = "127.0.0.1:0", config.Broker{Kind: config.BrokerMemory}
	cfg.EventLoop.Loops, cfg.Reload.Watch = 1, 20e6
	var looks atomic.Int64
	load := func() (config.Config, error) {
		looks.Add(1)
		return config.Config{}, errors.New("it is not for this test to apply it")
	}
	a, err := New(cfg, Options{File: file, Log: trial.Log(t), Load: load})
	if err != nil {
		t.Fatal(err)
	}
	write("routes: [] # changed\n")
	a.startTook.Store(1) // as at the end of the start, when the watch starts
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.reload.watch(ctx) }()
	trial.Eventually(t, "the changed file is looked at", func() bool { return looks.Load() > 0 })
	cancel()
	if err := errors.Join(<-done, a.close()); err != nil {
		t.Error(err)
	}
	a.loops.Release()
}

// TestReloadsCloseNothing holds connections of every kind through 200
// reloads under load: idle ones, requests, a stream of Weir's own, a stream and a
// WebSocket of a backend.
func TestReloadsCloseNothing(t *testing.T) {
	stop := make(chan struct{})
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/stream" {
			fmt.Fprint(w, "here")
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; ; i++ {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-stop:
				return
			case <-r.Context().Done():
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}))
	defer ts.Close()
	a := upstream.Config{Name: "a", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(ts.URL, "http://")}}}
	g, src := startReloadable(t, []policy.RouteConfig{{Name: "kept", Path: "/*", Cluster: "a"}}, a)

	var failed, served atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() { keepAsking(ctx, g.Addr().String(), &served, &failed) })
	}
	own := g.sse(t, "channel=a", "")
	res, err := http.Get(g.url + "/stream") //nolint:noctx // ended by the backend
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	numbers := make(chan error, 1)
	go func() { numbers <- consecutive(res.Body) }()

	reloads := 200
	if testing.Short() {
		reloads = 50
	}
	for i := range reloads {
		src.set(func(c *config.Config) {
			c.Routes = append(c.Routes[:1:1], policy.RouteConfig{Path: fmt.Sprintf("/r%d", i), Reply: policy.Reply{Status: 204}})
		})
		if _, err := g.Reload(ctx); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	load.Wait()
	if failed.Load() != 0 || served.Load() == 0 {
		t.Errorf("%d requests failed, %d served", failed.Load(), served.Load())
	}
	g.publish(t, "a", "1")
	own.block()
	close(stop)
	if err := <-numbers; err != nil {
		t.Errorf("the backend's stream: %v", err)
	}
}

// keepAsking sends requests on one connection until ctx ends; the connection may
// not be closed.
func keepAsking(ctx context.Context, addr string, served, failed *atomic.Int64) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		failed.Add(1)
		return
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for ctx.Err() == nil {
		if _, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			failed.Add(1)
			return
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			failed.Add(1)
			return
		}
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 || string(b) != "here" || res.Close {
			failed.Add(1)
			return
		}
		served.Add(1)
	}
}

// consecutive reads numbered events and wants them without a hole, to the end.
func consecutive(r io.Reader) error {
	lines := bufio.NewScanner(r)
	for i := 0; lines.Scan(); {
		if lines.Text() == "" {
			continue
		}
		if want := fmt.Sprintf("data: %d", i); lines.Text() != want {
			return fmt.Errorf("got %q, want %q", lines.Text(), want)
		}
		i++
	}
	return lines.Err()
}

func TestMetricsAndViewOfUpstreams(t *testing.T) {
	b := backend(t, "b")
	g := start(t, func(c *config.Config) {
		c.Clusters = []upstream.Config{b}
		c.Splits = []upstream.SplitConfig{{Name: "s", Arms: []upstream.ArmConfig{{Cluster: "b", Weight: 1}}}}
		c.Routes = []policy.RouteConfig{{Path: "/*", Cluster: "s"}}
	})
	for range 3 {
		g.get(t, "/x")
	}
	admin := func(method, path string) (int, string) {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), method, "http://"+g.AdminAddr().String()+path, nil)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(body)
	}
	// The loops publish what they count once a tick.
	trial.Eventually(t, "three replies in the metrics", func() bool {
		_, body := admin(http.MethodGet, "/metrics")
		return strings.Contains(body, `weir_upstream_requests_total{cluster="b",code="2xx"} 3`) &&
			strings.Contains(body, `weir_split_chosen_total{cluster="b",split="s"} 3`) && strings.Contains(body, `weir_upstream_peers{cluster="b",state="up"} 1`)
	})
	if status, body := admin(http.MethodGet, "/api/upstreams"); status != 200 || !strings.Contains(body, b.Peers[0].Address) {
		t.Errorf("%d %s", status, body)
	}
	for path, want := range map[string]int{"/api/canary/none/restart": 404, "/api/canary/s/restart": 404, "/api/canary/s/sideways": 404} {
		if status, body := admin(http.MethodPost, path); status != want || !strings.Contains(body, "message") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}
