package downstream_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/downstream"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/record"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/internal/upstream"
	"github.com/weir-gateway/weir/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testEngine names the engine for all tests; empty means the default.
const testEngine = "WEIR_TEST_ENGINE"

// Every test here must hold with every engine: this one runs them all again, in a
// process of its own.
func TestEverythingHoldsWithEpoll(t *testing.T) {
	if os.Getenv(testEngine) != "" {
		return // this is that process
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, fmt.Sprintf("-test.short=%v", testing.Short()))
	cmd.Env = append(os.Environ(), testEngine+"=epoll")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// patience is for what must happen: long, for a machine under load.
const patience = 20 * time.Second

const (
	testKey    = "test-key-0123456789"
	testSecret = "a secret of the tests, 0123456789 abcdef"
)

// eventually waits for ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// settings of a gateway under test. The zero value forwards everything to peers.
type settings struct {
	front   downstream.Config
	proxy   proxy.Config
	loops   eventloop.Config
	cluster upstream.Config
	more    []upstream.Config
	splits  []upstream.SplitConfig
	routes  []policy.RouteConfig
	accept  func(*gateway) func(*eventloop.Conn) eventloop.Handler
	push    push.Config
	// endpoints are mounted; it may add formats. panics are expected of the loops.
	endpoints func(*wire.Formats) []socket.Endpoint
	panics    uint64
}

// gateway is a front with routes and a proxy, on real sockets.
type gateway struct {
	t        *testing.T
	addr     string
	front    *downstream.Server
	push     *push.Push
	proxy    *proxy.Proxy
	hub      *hub.Hub
	recorder *record.Recorder
	clusters *upstream.Set
	loops    *eventloop.Group
	deps     policy.Deps
}

// start runs a gateway whose cluster "main" has peers.
func start(t *testing.T, s settings, peers ...string) *gateway {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	g := &gateway{t: t}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a, err := auth.New(auth.Config{APIKeys: []auth.APIKey{{Name: "test", Key: testKey, Publish: []string{"**"}, Subscribe: []string{"**"}}}, HMACSecret: testSecret}, log)
	must(err)
	broker, err := memory.New(memory.Config{})
	must(err)
	formats, err := wire.NewFormats(nil)
	must(err)
	var endpoints []socket.Endpoint
	if s.endpoints != nil {
		endpoints = s.endpoints(formats)
	}
	h, err := hub.New(hub.Config{Encoders: formats.Encoders(), Log: log, Namespaces: []hub.Namespace{
		{Name: "default", Anonymous: true}, {Name: "llm", HistorySize: 400}}}, broker)
	must(err)
	if s.loops.Loops == 0 {
		s.loops.Loops = 2
	}
	s.loops.Engine = os.Getenv(testEngine)
	accept := func(c *eventloop.Conn) eventloop.Handler { return g.front.Accept(c) }
	if s.accept != nil {
		accept = func(c *eventloop.Conn) eventloop.Handler { return s.accept(g)(c) }
	}
	g.loops, err = eventloop.New(s.loops, accept, log)
	must(err)
	p, err := push.New(s.push, formats, h, g.loops.Loops(), log)
	must(err)
	g.push = p
	g.front, err = downstream.New(s.front, p, a, len(g.loops.Loops()), log)
	must(err)
	must(g.front.Mount(endpoints))
	g.proxy, err = proxy.New(s.proxy, g.loops.Loops(), log)
	must(err)
	g.front.UseProxy(g.proxy)
	g.hub, g.recorder = h, record.New(record.Options{Hub: h, Alone: true, Log: log})
	g.front.UseRecorder(g.recorder)
	s.cluster.Name = "main"
	for _, addr := range peers {
		s.cluster.Peers = append(s.cluster.Peers, upstream.PeerConfig{Address: addr})
	}
	clusters := s.more
	if len(peers) > 0 {
		clusters = append(clusters, s.cluster)
	}
	g.clusters, err = upstream.New(clusters, s.splits, upstream.Options{Now: proxy.Clock(g.loops.Loops()[0]), Log: log})
	must(err)
	if s.routes == nil {
		s.routes = []policy.RouteConfig{{Cluster: "main"}}
	}
	g.deps = policy.Deps{State: policy.NewState(0), Auth: a, Log: log}
	g.route(s.routes...)
	at, err := g.loops.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	must(err)
	g.addr = at.String()
	g.front.Listening(at)
	ctx, cancel := context.WithCancel(context.Background())
	must(h.Start(ctx))
	ended := make(chan error, 2)
	go func() { ended <- g.loops.Run(ctx) }()
	go func() { ended <- g.clusters.Run(ctx) }()
	<-g.clusters.Ready()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		for range 2 {
			if err := <-ended; err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
		g.front.Close()
		g.recorder.Close()
		_ = h.Close()
		_ = a.Close()
		panics := uint64(0)
		for _, l := range g.loops.Loops() {
			panics += l.Stats().Panics
		}
		if panics != s.panics {
			t.Errorf("%d panics", panics)
		}
	})
	return g
}

// route makes routes the ones in force.
func (g *gateway) route(routes ...policy.RouteConfig) {
	g.t.Helper()
	set, err := policy.New(routes, g.deps)
	if err == nil {
		err = g.front.SetRoutes(set, g.clusters)
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) url(path string) string { return "http://" + g.addr + path }

// backend is a net/http server.
func backend(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// wire is a peer that says exactly what it is told to, on either side.
type raw struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func rawConn(t *testing.T, c net.Conn) *raw {
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return &raw{t, c, bufio.NewReader(c)}
}

func (g *gateway) dial() *raw {
	g.t.Helper()
	c, err := net.Dial("tcp", g.addr)
	if err != nil {
		g.t.Fatal(err)
	}
	return rawConn(g.t, c)
}

// crlf writes heads as one would read them.
func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

func (w *raw) send(s string) {
	w.t.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		w.t.Fatalf("send %.40q: %v", s, err)
	}
}

// answer reads one response; method is what was asked with.
func (w *raw) answer(method string) (*http.Response, string) {
	w.t.Helper()
	res, err := http.ReadResponse(w.r, &http.Request{Method: method})
	if err != nil {
		w.t.Fatalf("read the answer: %v", err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatalf("read the body: %v", err)
	}
	return res, string(body)
}

// head reads up to and with the empty line.
func (w *raw) head() string {
	w.t.Helper()
	var b strings.Builder
	for {
		line, err := w.r.ReadString('\n')
		if err != nil {
			w.t.Fatalf("read a head: %v after %q", err, b.String())
		}
		b.WriteString(line)
		if line == "\r\n" {
			return b.String()
		}
	}
}

// eof wants the end of the stream.
func (w *raw) eof() {
	w.t.Helper()
	if b, err := io.ReadAll(w.r); err != nil || len(b) > 0 {
		w.t.Fatalf("got %q, %v instead of the end", b, err)
	}
}

// script is a peer that runs f on each connection.
func script(t *testing.T, f func(n int, w *raw)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			go func() {
				defer c.Close()
				f(n, &raw{t, c, bufio.NewReader(c)})
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	return l.Addr().String()
}

// request reads one request of a gateway, or reports that there is no more.
func (w *raw) request() (*http.Request, string, bool) {
	req, err := http.ReadRequest(w.r)
	if err != nil {
		return nil, "", false
	}
	body, err := io.ReadAll(req.Body)
	return req, string(body), err == nil
}

// say writes without a test to fail: from a peer's goroutine.
func (w *raw) say(s string) { _, _ = io.WriteString(w, crlf(s)) }
