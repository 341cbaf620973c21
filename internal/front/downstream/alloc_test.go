package downstream_test

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
)

// fixedPeer answers every read that ends a request with reply, and allocates nothing.
func fixedPeer(t *testing.T, reply string) string {
	t.Helper()
	return wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		buf, out := make([]byte, 64<<10), []byte(reply)
		for {
			n, err := w.Conn.Read(buf)
			if err != nil {
				return
			}
			if bytes.HasSuffix(buf[:n], []byte("\r\n\r\n")) || bytes.HasSuffix(buf[:n], []byte("body")) {
				if _, err := w.Conn.Write(out); err != nil {
					return
				}
			}
		}
	})
}

// allocations returns how many one round trip of request costs the process.
func allocations(t *testing.T, addr, request string, replyBytes, rounds int) float64 {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	out, in := []byte(request), make([]byte, replyBytes)
	trip := func(n int) {
		for range n {
			if _, err := c.Write(out); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, in); err != nil {
				t.Fatal(err)
			}
		}
	}
	trip(200) // what is made once
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	trip(rounds)
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(rounds)
}

// replyLength sends a request, and returns how long the reply is.
func (g *gateway) replyLength(request string) int {
	w := g.dial()
	defer w.Close()
	w.Send(request)
	n := len(w.Head())
	_ = w.Close()
	return n
}

func TestRequestsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates: only the path is walked")
	}
	peer := fixedPeer(t, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!")
	g := start(t, settings{loops: eventloop.Config{Loops: 1}, routes: []policy.RouteConfig{
		{Path: "/static", Reply: policy.Reply{Status: 200, Body: "Hello, World!"}},
		{Cluster: "main"},
	}}, peer)
	f := func(request string, limit float64) {
		t.Helper()
		n := g.replyLength(request) + 13
		if bytes.Contains([]byte(request), []byte("healthz")) {
			n = n - 13 + len("ok\n")
		}
		got := allocations(t, g.Addr, request, n, 2000)
		if !raceEnabled && got > limit {
			t.Errorf("%.40q allocates %.3f times", request, got)
		}
	}
	const fields = "Host: a.example\r\nUser-Agent: test\r\nAccept: */*\r\n"
	// The process does other things too, a few times a second.
	f("GET /static HTTP/1.1\r\n"+fields+"\r\n", 0.05)
	f("GET /healthz HTTP/1.1\r\n"+fields+"\r\n", 0.05)
	f("GET /proxied?a=b HTTP/1.1\r\n"+fields+"\r\n", 0.05)
	f("POST /proxied HTTP/1.1\r\n"+fields+"Content-Length: 4\r\n\r\nbody", 0.05)
}
