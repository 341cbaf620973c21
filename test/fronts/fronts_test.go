// Package fronts plays one corpus of requests at Weir, over HTTP/1.1 and HTTP/2, and at
// nginx, all before the same backend, and compares what the backend saw and what the
// client got.
package fronts

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/test/judge"
)

func TestMain(m *testing.M) { os.Exit(judge.Main(m)) }

// seen is what the backend says of a request, in its answer.
type seen struct {
	Method, Target, Host, Proto string
	Fields                      map[string][]string
	Body                        int
	Hash                        string
	Trailer                     map[string][]string
}

// ownFields are those that proxies add about themselves, and framing.
var ownFields = []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded", "Via", "X-Real-Ip", "Traceparent", "Tracestate",
	"X-Request-Id", "Connection", "Content-Length", "Te", "Expect"}

// backend answers with what it saw.
func backend(t *testing.T) string {
	t.Helper()
	ts := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s := seen{Method: r.Method, Target: r.RequestURI, Host: r.Host, Proto: r.Proto, Fields: map[string][]string{}, Body: len(body), Trailer: r.Trailer}
		if len(body) < 100 {
			s.Hash = string(body)
		}
		for name, values := range r.Header {
			if !slices.Contains(ownFields, name) {
				s.Fields[name] = values
			}
		}
		var status int
		if _, err := fmt.Sscanf(r.URL.Path, "/status/%d", &status); err != nil {
			status = 200
		}
		w.Header().Set("X-Backend", "1")
		w.Header().Add("Set-Cookie", "a=b")
		w.Header().Add("Set-Cookie", "c=d")
		if status == 302 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
		if status != 204 && status != 304 {
			_ = json.NewEncoder(w).Encode(s) // the proxy may be gone
		}
	}))
	ts.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	ts.Start()
	t.Cleanup(ts.Close)
	return strings.TrimPrefix(ts.URL, "http://")
}

func routes(to string) ([]policy.RouteConfig, []upstream.Config) {
	return []policy.RouteConfig{{Name: "all", Path: "/*", Cluster: "b"}},
		[]upstream.Config{{Name: "b", Peers: []upstream.PeerConfig{{Address: to}}}}
}

// loops starts the gateway's own front.
func loops(t *testing.T, to string) string {
	t.Helper()
	return loopsWith(t, func(c *config.Config) { c.Routes, c.Clusters = routes(to) })
}

func loopsWith(t *testing.T, change func(*config.Config)) string {
	t.Helper()
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen = "127.0.0.1:0", "off"
	cfg.Broker = config.Broker{Kind: config.BrokerMemory}
	change(&cfg)
	a, err := app.New(cfg, app.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, ctx, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return a.Addr().String()
}

// nginx starts Debian's.
func nginx(t *testing.T, to string) string {
	t.Helper()
	judge.Need(t, "nginx")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close() // nginx opens it again
	dir := t.TempDir()
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, `
daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/error.log;
events { worker_connections 256; }
http {
  access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  client_header_buffer_size 8k; large_client_header_buffers 4 8k; keepalive_timeout 5s;
  upstream backend { server %[3]s; keepalive 8; }
  server {
    listen %[2]s;
    location / { proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host; }
  }
}`, dir, addr, to), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nginx", "-c", conf, "-p", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "error.log"))
			t.Logf("nginx: %s", log)
		}
	})
	trial.Eventually(t, "nginx accepts", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return addr
}

// reply is what a client got.
type reply struct {
	status  int
	cookies int
	seen    *seen
}

func (r reply) String() string {
	if r.seen == nil {
		return fmt.Sprint(r.status)
	}
	b, _ := json.Marshal(r.seen)
	return fmt.Sprintf("%d (%d cookies), the backend saw %s", r.status, r.cookies, b)
}

// class is what a status says: passed on, or refused.
func (r reply) class() int {
	switch {
	case r.seen != nil:
		return r.status
	case r.status == http.StatusNotImplemented:
		return 4 // a refusal all the same
	}
	return r.status / 100
}

// ask sends q and reads what comes, to the end of the connection or a pause.
func ask(t *testing.T, addr string, q question) (got []reply) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, q.raw); err != nil {
		return nil // refused while it was being sent
	}
	r := bufio.NewReader(c)
	method := q.method
	if method == "" {
		method = "GET"
	}
	for len(got) < strings.Count(q.raw, " HTTP/1.1\r\nHost: site.example")+1 {
		if len(got) > 0 {
			_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		}
		res, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return got
		}
		if res.StatusCode < 200 {
			continue
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return got
		}
		one := reply{status: res.StatusCode}
		if res.Header.Get("X-Backend") != "" {
			one.cookies = len(res.Header.Values("Set-Cookie"))
			one.seen = &seen{}
			if len(body) > 0 && json.Unmarshal(body, one.seen) != nil {
				t.Errorf("%s: the backend's answer came as %q", q.name, body)
			}
		}
		got = append(got, one)
		if res.Close {
			return got
		}
	}
	return got
}

// same reports whether two servers treated a request alike.
func same(a, b []reply) bool {
	return slices.EqualFunc(a, b, func(x, y reply) bool {
		if x.class() != y.class() || x.cookies != y.cookies || (x.seen == nil) != (y.seen == nil) {
			return false
		}
		return x.seen == nil || x.seen.Method == y.seen.Method && x.seen.Target == y.seen.Target && x.seen.Host == y.seen.Host &&
			x.seen.Body == y.seen.Body && x.seen.Hash == y.seen.Hash &&
			maps.EqualFunc(x.seen.Fields, y.seen.Fields, slices.Equal[[]string])
	})
}

func TestOneCorpusAtEveryFront(t *testing.T) {
	to := backend(t)
	ours, theirs := loops(t, to), nginx(t, to)
	var all sync.WaitGroup
	defer all.Wait()
	for _, q := range corpus() {
		all.Go(func() { compare(t, q, ours, theirs) })
	}
}

// compare plays q over both versions and at nginx.
func compare(t *testing.T, q question, ours, theirs string) {
	mine := ask(t, ours, q)
	f := func(who string, other []reply, reason string) {
		t.Helper()
		switch equal := same(mine, other); {
		case !equal && reason == "":
			t.Errorf("%s:\n  HTTP/1.1 %v\n  %s %v", q.name, mine, who, other)
		case equal && reason != "":
			t.Errorf("%s: %s answers like HTTP/1.1, though it is said that %q", q.name, who, reason)
		}
	}
	if other, ok := askHTTP2(t, ours, q); ok {
		f("HTTP/2", other, q.http2)
	}
	f("nginx", ask(t, theirs, q), q.nginx)
}

// TestMalformedRequestsReachNoBackend is about Weir alone.
func TestMalformedRequestsReachNoBackend(t *testing.T) {
	to := backend(t)
	ours := loops(t, to)
	// Of what is called malformed here, these lose what is wrong with them on the way.
	passed := []string{"lower-case method", "underscore in a name", "upgrade to h2c", "double slash", "dot segments", "escaped dot segments"}
	for _, q := range malformed() {
		for _, r := range ask(t, ours, q) {
			if r.seen != nil && !slices.Contains(passed, q.name) {
				t.Errorf("%s reached the backend: %v", q.name, r)
			}
		}
	}
}
