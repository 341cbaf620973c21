package app

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// costs returns how many allocations of the process one answer to request takes, which
// must be of that status.
func (g *gateway) costs(t *testing.T, request string, status int) float64 {
	t.Helper()
	c, err := net.Dial("tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	out, in := []byte(request), make([]byte, 4<<10)
	want, end := fmt.Appendf(nil, "HTTP/1.1 %d ", status), []byte("}}\n")
	trip := func(n int) {
		for range n {
			if _, err := c.Write(out); err != nil {
				t.Fatal(err)
			}
			for have := 0; ; {
				k, err := c.Read(in[have:])
				if have += k; err != nil {
					t.Fatalf("%q: %v", in[:have], err)
				}
				if bytes.HasSuffix(in[:have], end) {
					if !bytes.HasPrefix(in, want) {
						t.Fatalf("%q, want %d", in[:have], status)
					}
					break
				}
			}
		}
	}
	trip(100) // what is made once
	const rounds = 2000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	trip(rounds)
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / rounds
}

func TestRefusalsAllocateNothing(t *testing.T) {
	b := backend(t, "b")
	f := func(what string, change func(*config.Config), request string, status int) {
		t.Helper()
		g := start(t, func(c *config.Config) {
			c.EventLoop.Loops = 1
			c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "late", Anonymous: true, Class: "replay"})
			c.Clusters = []upstream.Config{b}
			c.Routes = []policy.RouteConfig{{Path: "/late", Cluster: "b", Class: "replay"}}
			if change != nil {
				change(c)
			}
		})
		g.push.Guard(1, true) // history rests: what is of that class is refused
		done := make(chan struct{})
		g.loops.Loops()[0].Post(func() { close(done) })
		<-done
		if status == http.StatusTooManyRequests {
			g.publish(t, "a", "1") // what there is room for
		}
		n := g.costs(t, request, status)
		if !raceEnabled && n > 0.02 { // the process does other things too, a few times a second
			t.Errorf("%s allocates %.3f times", what, n)
		}
		if s := g.class(limit.Replay); status == 503 && s.Refused != 2100 {
			t.Errorf("%s: %+v", what, s)
		}
	}
	publish := func(body string) string {
		return fmt.Sprintf("POST /api/publish HTTP/1.1\r\nHost: a\r\nX-API-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", testKey, len(body), body)
	}
	f("a publication that is shed", nil, publish(`{"channel":"late:a","data":{"price":1,"name":"`+strings.Repeat("x", 100)+`"}}`), 503)
	f("a request of a route", nil, "GET /late HTTP/1.1\r\nHost: a\r\n\r\n", 503)
	f("a publication too often", func(c *config.Config) { c.Limits.PerAddress.PublishRate = limit.Rate{PerSecond: 0.001, Burst: 1} }, publish(`{"channel":"a","data":1}`), 429)
}
