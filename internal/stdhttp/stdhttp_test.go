package stdhttp_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/stdhttp"
	"github.com/weir-gateway/weir/internal/upstream"
	"github.com/weir-gateway/weir/internal/wire"
	"github.com/weir-gateway/weir/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "a-key-for-these-tests"

// writeStall is short, so that a deadline left behind is met.
const writeStall = 200 * time.Millisecond

// site is a Front on real sockets.
type site struct {
	t     *testing.T
	front *stdhttp.Front
	hub   *hub.Hub
	ups   *upstream.Set
	url   string
	c     *http.Client
}

func newSite(t *testing.T, routes []policy.RouteConfig, clusters []upstream.Config, splits []upstream.SplitConfig, start func(*httptest.Server)) *site {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	namespaces := []hub.Namespace{{Name: "default", Anonymous: true}}
	b, err := memory.New(memory.Config{})
	must(err)
	formats, err := wire.NewFormats(namespaces)
	must(err)
	h, err := hub.New(hub.Config{Namespaces: namespaces, Encoders: formats.Encoders()}, b)
	must(err)
	a, err := auth.New(auth.Config{APIKeys: []auth.APIKey{{Name: "me", Key: key}}}, nil)
	must(err)
	ups, err := upstream.New(clusters, splits, upstream.Options{})
	must(err)
	push := pushhttp.New(pushhttp.Config{}, formats, h, nil)
	s := &site{t: t, hub: h, ups: ups}
	s.front = stdhttp.New(stdhttp.Config{WriteStall: writeStall}, stdhttp.Deps{Hub: h, Push: push, Auth: a, Upstreams: ups, Ready: h.Ready})
	if routes != nil {
		set, err := policy.New(routes, policy.Deps{Auth: a})
		must(err)
		s.front.SetRoutes(set)
	}
	ctx, cancel := context.WithCancel(t.Context())
	must(h.Start(ctx))
	ended := make(chan struct{})
	go func() { defer close(ended); push.Run(ctx) }()
	upsEnded := make(chan error, 1)
	go func() { upsEnded <- ups.Run(ctx) }()
	<-ups.Ready()
	ts := httptest.NewUnstartedServer(s.front)
	if start == nil {
		start = (*httptest.Server).Start
	}
	start(ts)
	s.url, s.c = ts.URL, ts.Client()
	s.c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(func() {
		cancel()
		<-ended
		<-upsEnded
		s.c.CloseIdleConnections()
		ts.CloseClientConnections()
		ts.Close()
		_ = s.front.Close(context.Background())
		must(h.Close())
		must(a.Close())
	})
	return s
}

func (s *site) do(method, path, body string, fields ...string) (*http.Response, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Add(fields[i], fields[i+1])
	}
	res, err := s.c.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res, string(b)
}

func TestBuiltInEndpoints(t *testing.T) {
	s := newSite(t, nil, nil, nil, nil)
	f := func(method, path, body string, want int, fields ...string) {
		t.Helper()
		if res, got := s.do(method, path, body, fields...); res.StatusCode != want {
			t.Errorf("%s %s: %d %s, want %d", method, path, res.StatusCode, got, want)
		}
	}
	f("GET", "/healthz", "", 200)
	f("GET", "/readyz", "", 200)
	f("GET", "/nowhere", "", 404)
	f("POST", "/sse", "", 405)
	f("GET", "/sse", "", 400)
	f("GET", "/ws?channel=a", "", 426)
	f("POST", "/api/publish", `{"channel":"a","data":1}`, 401)
	f("POST", "/api/publish", `{"channel":"a","data":1}`, 401, "X-API-Key", "wrong")
	f("POST", "/api/publish", `{"channel":"a","data":1}`, 200, "X-API-Key", key)
	f("POST", "/api/publish", `{"channel":"a","data":`, 400, "X-API-Key", key)
	f("POST", "/api/publish", strings.Repeat("x", wire.MaxBody+1), 413, "X-API-Key", key)
	f("POST", "/api/broadcast", `{"channels":["a","b"],"data":1}`, 200, "X-API-Key", key)
	f("OPTIONS", "/api/publish", "", 204, "Origin", "http://"+strings.TrimPrefix(s.url, "http://"), "Access-Control-Request-Method", "POST")
	f("GET", "/sse?channel=a", "", 403, "Origin", "https://evil.example")
}

// upgrade starts a server's TLS with HTTP/2.
func overHTTP2(ts *httptest.Server) {
	ts.EnableHTTP2 = true
	ts.StartTLS()
}

func TestSSEOverHTTP2(t *testing.T) {
	s := newSite(t, nil, nil, nil, overHTTP2)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/sse?channel=a", nil)
	res, err := s.c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.ProtoMajor != 2 || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s %v", res.Proto, res.Header)
	}
	lines := bufio.NewScanner(res.Body)
	until := func(prefix string) string {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), prefix) {
				return lines.Text()
			}
		}
		t.Fatalf("no %q: %v", prefix, lines.Err())
		return ""
	}
	until("retry: ")
	s.do("POST", "/api/publish", `{"channel":"a","data":{"n":1}}`, "X-API-Key", key)
	if got := until("data: "); got != `data: {"n":1}` {
		t.Errorf("got %q", got)
	}
}

func TestWebSocketOverHTTP11(t *testing.T) {
	s := newSite(t, nil, nil, nil, nil)
	c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(s.url, "http")+"/ws?channel=a&hello=1", websocket.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if _, b, err := c.Read(t.Context()); err != nil || !strings.Contains(string(b), "subscribed") {
		t.Fatalf("%q %v", b, err)
	}
}

// backend echoes what it was asked.
func backend(t *testing.T, name string) upstream.Config {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Backend", name)
		switch r.URL.Path {
		case "/stream":
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				_ = http.NewResponseController(w).Flush()
			}
		case "/trailer":
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("X-Sum", "42")
		case "/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "short")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/socket":
			c, err := websocket.Accept(w, r, websocket.AcceptOptions{})
			if err != nil {
				return
			}
			defer c.CloseNow()
			if op, b, err := c.Read(r.Context()); err == nil {
				_ = c.Write(op, b)
			}
		default:
			fmt.Fprintf(w, "%s %s %s|%s|%s", r.Method, r.Host, r.RequestURI, r.Header.Get("X-Forwarded-For"), b)
		}
	}))
	t.Cleanup(ts.Close)
	return upstream.Config{Name: name, Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(ts.URL, "http://")}}}
}

func TestRoutesReachBackends(t *testing.T) {
	for _, start := range []func(*httptest.Server){nil, overHTTP2} {
		s := newSite(t, []policy.RouteConfig{
			{Name: "all", Path: "/*", Cluster: "b", Limits: policy.Limits{MaxBody: 1000}},
			{Name: "moved", Path: "/old/*", Redirect: policy.Redirect{To: "/new/{*}$query"}},
			{Name: "fixed", Path: "/fixed", Reply: policy.Reply{Status: 418, Body: "short and stout"}},
		}, []upstream.Config{backend(t, "b")}, nil, start)
		if res, body := s.do("POST", "/x/y?q=1", "hello"); res.StatusCode != 200 || !strings.HasPrefix(body, "POST ") ||
			!strings.Contains(body, " /x/y?q=1|127.0.0.1|hello") || res.Header.Get("X-Backend") != "b" {
			t.Errorf("%d %q", res.StatusCode, body)
		}
		if res, _ := s.do("POST", "/x", strings.Repeat("x", 1001)); res.StatusCode != 413 {
			t.Errorf("a long body: %d", res.StatusCode)
		}
		if res, _ := s.do("GET", "/old/a/b?c=d", ""); res.StatusCode != 308 || res.Header.Get("Location") != "/new/a/b?c=d" {
			t.Errorf("redirect: %d %v", res.StatusCode, res.Header)
		}
		if res, body := s.do("GET", "/fixed", ""); res.StatusCode != 418 || body != "short and stout" {
			t.Errorf("reply: %d %q", res.StatusCode, body)
		}
		if res, body := s.do("GET", "/stream", ""); body != "data: 0\n\ndata: 1\n\ndata: 2\n\n" || res.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("stream: %q", body)
		}
		if res, _ := s.do("HEAD", "/x", ""); res.StatusCode != 200 || res.Header.Get("X-Backend") != "b" {
			t.Errorf("HEAD: %d", res.StatusCode)
		}
		if res, _ := s.do("GET", "/../secret", ""); res.StatusCode != 400 {
			t.Errorf("dot segments: %d", res.StatusCode)
		}
	}
}

func TestACutReplyIsNotTakenForWhole(t *testing.T) {
	s := newSite(t, []policy.RouteConfig{{Path: "/*", Cluster: "b"}}, []upstream.Config{backend(t, "b")}, nil, nil)
	res, err := s.c.Get(s.url + "/cut")
	if err == nil {
		_, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
	}
	if err == nil {
		t.Error("the client saw a whole reply")
	}
}

func TestWebSocketPassesThrough(t *testing.T) {
	s := newSite(t, []policy.RouteConfig{{Path: "/*", Cluster: "b"}}, []upstream.Config{backend(t, "b")}, nil, nil)
	c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(s.url, "http")+"/socket", websocket.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if err := c.Write(websocket.OpText, []byte("there and back")); err != nil {
		t.Fatal(err)
	}
	if _, b, err := c.Read(t.Context()); err != nil || string(b) != "there and back" {
		t.Errorf("%q %v", b, err)
	}
}

func TestADeadPeerIsPassedOver(t *testing.T) {
	b := backend(t, "b")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	_ = l.Close()
	b.Peers = append(b.Peers, upstream.PeerConfig{Address: dead})
	s := newSite(t, []policy.RouteConfig{{Path: "/*", Cluster: "b"}}, []upstream.Config{b}, nil, nil)
	for range 20 {
		if res, body := s.do("GET", "/x", ""); res.StatusCode != 200 {
			t.Fatalf("%d %s", res.StatusCode, body)
		}
	}
}

func TestHandedOverConnections(t *testing.T) {
	s := newSite(t, nil, nil, nil, nil)
	served := make(chan error, 1)
	go func() { served <- s.front.ServeTaken() }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.front.Take(c)
		}
	}()
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p, TLSClientConfig: &tls.Config{}}
	c := &http.Client{Transport: tr, Timeout: 10 * time.Second}
	res, err := c.Get("http://" + l.Addr().String() + "/healthz") //nolint:noctx // bounded by the client
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.ProtoMajor != 2 || res.StatusCode != 200 {
		t.Errorf("%s %d", res.Proto, res.StatusCode)
	}
	tr.CloseIdleConnections()
	_ = l.Close()
	if err := s.front.Close(t.Context()); err != nil {
		t.Error(err)
	}
	<-served
}
