package downstream_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/front/socket/sockettest"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// mounted starts a gateway that serves the suite's protocol.
func mounted(t *testing.T, s settings) *sockettest.Front {
	t.Helper()
	f := &sockettest.Front{Key: testKey, Subject: "test"}
	s.endpoints = func(formats *wire.Formats) []socket.Endpoint {
		f.Protocol = sockettest.New(formats)
		return f.Endpoints()
	}
	if s.routes == nil {
		s.routes = []policy.RouteConfig{{Path: "/routed", Reply: policy.Reply{Status: 200}}}
	}
	g := start(t, s)
	f.Addr, f.Hub, f.Drain = g.Addr, g.Hub, func(over time.Duration) { g.push.Drain(wire.DrainPlan{Over: over}) }
	f.Panics = func() uint64 { return g.push.Stats().Panics }
	f.Counts = func() (sockets, streams int64) {
		for _, p := range g.push.Protocols() {
			if p.Name == sockettest.Name {
				sockets, streams = p.Sockets, p.Streams
			}
		}
		return sockets, streams
	}
	return f
}

func TestProtocolsOnTheLoops(t *testing.T) {
	t.Parallel()
	sockettest.Run(t, func(t *testing.T) *sockettest.Front {
		s := settings{loops: eventloop.Config{MaxQueue: 8 << 20}}
		if strings.HasSuffix(t.Name(), "/Requests") {
			s.panics = 1
		}
		return mounted(t, s)
	})
}

// An idle client of a protocol costs no goroutine.
func TestManyIdleClientsOfAProtocol(t *testing.T) {
	const clients = 2000
	f := mounted(t, settings{loops: eventloop.Config{Loops: 1}})
	before := runtime.NumGoroutine()
	shake := "GET /test/socket HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	var all []net.Conn
	defer func() {
		for _, c := range all {
			c.Close()
		}
	}()
	for range clients {
		c, err := net.Dial("tcp", f.Addr)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
		if _, err := io.WriteString(c, shake); err != nil {
			t.Fatal(err)
		}
	}
	trial.Eventually(t, "all are there", func() bool { n, _ := f.Counts(); return n == clients })
	if n := runtime.NumGoroutine(); n > before+20 {
		t.Errorf("%d goroutines, %d before %d clients", n, before, clients)
	}
}

func TestEndpointsThatCannotBe(t *testing.T) {
	serve := func(socket.Request) {}
	g := start(t, settings{routes: []policy.RouteConfig{{Path: "/route", Reply: policy.Reply{Status: 200}}, {Path: "/under/*", Reply: policy.Reply{Status: 200}}}})
	f := func(want string, e socket.Endpoint) {
		t.Helper()
		e.Protocol = "test"
		if err := g.front.Mount([]socket.Endpoint{e}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", e.Path, err, want)
		}
	}
	f("taken", socket.Endpoint{Path: "/sse", Methods: "GET", Serve: serve})
	f("is below it, and one of Weir's own", socket.Endpoint{Path: "/api/*", Methods: "GET", Serve: serve})
	f("a path is", socket.Endpoint{Path: "a", Methods: "GET", Serve: serve})
	f("a path is", socket.Endpoint{Path: "/a*", Methods: "GET", Serve: serve})
	f("a path is", socket.Endpoint{Path: "/a/*/b", Methods: "GET", Serve: serve})
	f("no method", socket.Endpoint{Path: "/a", Serve: serve})
	f("not within", socket.Endpoint{Path: "/a", Methods: "GET", Serve: serve, MaxBody: -1})
	f(`route`, socket.Endpoint{Path: "/route", Methods: "GET", Serve: serve})
	f(`route`, socket.Endpoint{Path: "/under/*", Methods: "GET", Serve: serve})
	f("taken", socket.Endpoint{Path: "/route", Methods: "GET", Serve: serve})
}

func TestEndpointsOfBuiltinHosts(t *testing.T) {
	f := mounted(t, settings{front: downstream.Config{BuiltinHosts: []string{"a.example"}},
		routes: []policy.RouteConfig{{Path: "/test/ask", Reply: policy.Reply{Status: 200, Body: "of the route"}}}})
	for _, path := range []string{"/test/ask", "/test/below/x"} {
		for host, own := range map[string]bool{"a.example": true, "A.example:80": true, "b.example": false} {
			req, _ := http.NewRequest("GET", "http://"+f.Addr+path, nil)
			req.Host = host
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if got := strings.HasPrefix(string(b), "GET "+path); got != own {
				t.Errorf("%s on %s: %d %q", path, host, res.StatusCode, b)
			}
		}
	}
}

// A client that accepts nothing is not held for longer than write_stall.
func TestStalledClientOfAProtocolIsClosed(t *testing.T) {
	f := mounted(t, settings{loops: eventloop.Config{WriteStall: hub.Duration(300 * time.Millisecond)}})
	c, err := net.Dial("tcp", f.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	fmt.Fprintf(c, "GET /test/lines?channel=one HTTP/1.1\r\nHost: a.example\r\n\r\n")
	trial.Eventually(t, "it is there", func() bool { _, n := f.Counts(); return n == 1 })
	for n := int64(1); n == 1; _, n = f.Counts() {
		f.Publish(t, "one", strings.Repeat("x", 32<<10))
	}
}
