package stdhttp_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/internal/socket/sockettest"
	"github.com/weir-gateway/weir/internal/stdhttp"
	"github.com/weir-gateway/weir/internal/wire"
	"github.com/weir-gateway/weir/websocket"
)

// mounted starts a front that serves the suite's protocol.
func mounted(t *testing.T) *sockettest.Front {
	return mountedWith(t, stdhttp.Config{})
}

func mountedWith(t *testing.T, cfg stdhttp.Config) *sockettest.Front {
	f, _ := mountedOn(t, cfg, (*httptest.Server).Start)
	return f
}

func mountedOn(t *testing.T, cfg stdhttp.Config, start func(*httptest.Server)) (*sockettest.Front, *httptest.Server) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := memory.New(memory.Config{})
	must(err)
	formats, err := wire.NewFormats(nil)
	must(err)
	p := sockettest.New(formats)
	h, err := hub.New(hub.Config{Namespaces: []hub.Namespace{{Name: "default", Anonymous: true}}, Encoders: formats.Encoders()}, b)
	must(err)
	a, err := auth.New(auth.Config{APIKeys: []auth.APIKey{{Name: "me", Key: key, Subscribe: []string{"**"}}}}, nil)
	must(err)
	push := pushhttp.New(pushhttp.Config{}, formats, h, nil)
	front := stdhttp.New(cfg, stdhttp.Deps{Hub: h, Push: push, Auth: a, Ready: h.Ready})
	must(front.Mount(p.Endpoints()))
	ctx, cancel := context.WithCancel(context.Background())
	must(h.Start(ctx))
	ended := make(chan struct{})
	go func() { defer close(ended); push.Run(ctx) }()
	ts := httptest.NewUnstartedServer(front)
	start(ts)
	t.Cleanup(func() {
		cancel()
		ts.CloseClientConnections()
		<-ended
		ts.Close()
		_ = front.Close(context.Background())
		must(h.Close())
		must(a.Close())
	})
	return &sockettest.Front{
		Protocol: p, Addr: ts.Listener.Addr().String(), Hub: h, Key: key, Subject: "me", Drain: func(over time.Duration) { push.Drain(wire.DrainPlan{Over: over}) },
		Panics: func() uint64 { return push.Stats().Panics },
		Counts: func() (sockets, streams int64) {
			for _, x := range push.Protocols() {
				if x.Name == sockettest.Name {
					sockets, streams = x.Sockets, x.Streams
				}
			}
			return sockets, streams
		},
	}, ts
}

// TestProtocolsOverHTTP2 runs itself again, as TestWebSocketOverHTTP2 does.
func TestProtocolsOverHTTP2(t *testing.T) {
	if !strings.Contains(os.Getenv("GODEBUG"), "http2xconnect=1") {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestProtocolsOverHTTP2$", "-test.v")
		cmd.Env = append(os.Environ(), "GODEBUG=http2xconnect=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	f, ts := mountedOn(t, stdhttp.Config{}, overHTTP2)
	// net/http's own client refuses the pseudo-header, and has nothing in its place.
	tr := &http2.Transport{TLSClientConfig: ts.Client().Transport.(*http.Transport).TLSClientConfig.Clone()} //nolint:forcetypeassert,staticcheck // httptest's; above
	tr.TLSClientConfig.NextProtos = []string{"h2"}                                                           //nolint:staticcheck // above
	defer tr.CloseIdleConnections()                                                                          //nolint:staticcheck // above
	ask := func(method, path string, body io.Reader, fields ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, ts.URL+path, body)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(fields); i += 2 {
			req.Header.Set(fields[i], fields[i+1])
		}
		res, err := tr.RoundTrip(req) //nolint:staticcheck // above
		if err != nil || res.StatusCode != 200 || res.ProtoMajor != 2 {
			t.Fatalf("%s %s: %v, %v", method, path, res, err)
		}
		return res
	}
	res := ask("POST", "/test/ask?do", strings.NewReader("the body"))
	if b, err := io.ReadAll(res.Body); err != nil || !strings.HasSuffix(string(b), "secure=true local=true body=the body") {
		t.Errorf("got %q, %v", b, err)
	}
	lines := ask("GET", "/test/lines?channel=one", nil)
	r := bufio.NewReader(lines.Body)
	line := func(want string) {
		t.Helper()
		if s, err := r.ReadString('\n'); err != nil || s != want+"\n" {
			t.Fatalf("got %q, %v, want %q", s, err, want)
		}
	}
	line("subscribed one")
	fromClient, toServer := io.Pipe()
	res = ask(http.MethodConnect, "/test/socket", fromClient, ":protocol", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Protocol", "test.v1")
	if p := res.Header.Get("Sec-WebSocket-Protocol"); p != "test.v1" {
		t.Errorf("subprotocol %q", p)
	}
	c := websocket.NewConn(&stream{res.Body, toServer}, websocket.ConnOptions{Client: true})
	defer c.CloseNow()
	say := func(text string, want ...string) {
		t.Helper()
		if err := c.Write(websocket.OpText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if _, b, err := c.Read(t.Context()); err != nil || string(b) != w {
				t.Fatalf("got %q, %v, want %q", b, err, w)
			}
		}
	}
	say("hello", "hello")
	say("who", `127.0.0.1 "test.v1" true`)
	say("sub two", "subscribed two")
	f.Publish(t, "two", "hello two")
	say("ping", "hello two", "pong")
	f.Publish(t, "one", "hello one")
	line("hello one")
	f.Drain(0)
	line("bye")
	if _, b, err := c.Read(t.Context()); err != nil || string(b) != "bye" {
		t.Errorf("got %q, %v", b, err)
	}
	_, _, err := c.Read(t.Context())
	if e, ok := errors.AsType[*websocket.CloseError](err); !ok || e.Code != 1012 {
		t.Errorf("got %v", err)
	}
	f.Gone(t)
}

func TestProtocolsOnNetHTTP(t *testing.T) { sockettest.Run(t, mounted) }

func TestEndpointsThatCannotBe(t *testing.T) {
	serve := func(socket.Request) {}
	s := newSite(t, []policy.RouteConfig{{Path: "/route", Reply: policy.Reply{Status: 200}}, {Path: "/under/*", Reply: policy.Reply{Status: 200}}}, nil, nil, nil)
	f := func(want string, e socket.Endpoint) {
		t.Helper()
		e.Protocol = "test"
		if err := s.front.Mount([]socket.Endpoint{e}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", e.Path, err, want)
		}
	}
	f("taken", socket.Endpoint{Path: "/sse", Methods: "GET", Serve: serve})
	f("is below it, and one of Weir's own", socket.Endpoint{Path: "/api/*", Methods: "GET", Serve: serve})
	f("a path is", socket.Endpoint{Path: "a", Methods: "GET", Serve: serve})
	f("no method", socket.Endpoint{Path: "/a", Serve: serve})
	f(`route "`, socket.Endpoint{Path: "/route", Methods: "GET", Serve: serve})
	f(`route "`, socket.Endpoint{Path: "/under/*", Methods: "GET", Serve: serve})
}

func TestBuiltinHosts(t *testing.T) {
	f := mountedWith(t, stdhttp.Config{BuiltinHosts: []string{"a.example"}})
	ask := func(host, path string, want int) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+f.Addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s on %s: %d, want %d", path, host, res.StatusCode, want)
		}
	}
	for _, path := range []string{"/healthz", "/test/ask", "/test/below/x"} {
		ask("a.example", path, 200)
		ask("A.Example:8000", path, 200)
		ask("b.example", path, 404)
	}
}
