package upstreams

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// theater is a backend with streams that do not end and sockets that echo.
func theater(t *testing.T) string {
	t.Helper()
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Peer", "theater")
		switch r.URL.Path {
		case "/stream":
			w.Header().Set("Content-Type", "text/event-stream")
			for i := 0; r.Context().Err() == nil; i++ {
				fmt.Fprintf(w, "data: %d\n\n", i)
				_ = http.NewResponseController(w).Flush()
				<-time.After(10 * time.Millisecond)
			}
		case "/socket":
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
			_, _ = io.Copy(c, rw)
		default:
			_, _ = io.WriteString(w, whole)
		}
	}))
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	return strings.TrimPrefix(ts.URL, "http://")
}

// An audience is connections of every kind that must not be closed.
type audience struct {
	t     *testing.T
	conns []net.Conn
	wg    sync.WaitGroup
	done  atomic.Bool

	events, echoes atomic.Int64
	failed         atomic.Pointer[string]
}

func (a *audience) fail(format string, args ...any) {
	if !a.done.Load() {
		text := fmt.Sprintf(format, args...)
		a.failed.CompareAndSwap(nil, &text)
	}
}

func (a *audience) dial(addr, request string) (net.Conn, *bufio.Reader) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		a.t.Fatal(err)
	}
	a.conns = append(a.conns, c)
	if _, err := io.WriteString(c, request); err != nil {
		a.t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// seat opens, of each kind, n connections: idle ones, streams and sockets of a
// backend, and subscribers of Weir's own.
func seat(t *testing.T, g *judge.Server, n int) *audience {
	t.Helper()
	a := &audience{t: t}
	t.Cleanup(a.leave)
	for range n {
		_, idle := a.dial(g.Public, "GET /idle HTTP/1.1\r\nHost: a\r\n\r\n")
		if res, err := http.ReadResponse(idle, nil); err != nil || res.StatusCode != 200 {
			t.Fatalf("idle: %v %v", res, err)
		} else if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
		a.wg.Go(func() {
			b, err := idle.ReadByte() // nothing may come, nor the end
			a.fail("an idle connection read %q %v", b, err)
		})
		_, stream := a.dial(g.Public, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
		a.wg.Go(func() { a.follow(stream) })
		c, socket := a.dial(g.Public, "GET /socket HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		a.wg.Go(func() { a.echo(c, socket) })
		_, own := a.dial(g.Public, "GET /sse?channel=a HTTP/1.1\r\nHost: a\r\n\r\n")
		a.wg.Go(func() {
			_, err := io.Copy(io.Discard, own)
			a.fail("a subscriber was closed: %v", err)
		})
	}
	return a
}

// follow wants numbered events without a hole.
func (a *audience) follow(r *bufio.Reader) {
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		a.fail("stream: %v", err)
		return
	}
	lines := bufio.NewScanner(res.Body)
	for i := 0; lines.Scan(); {
		if lines.Text() == "" {
			continue
		}
		if want := fmt.Sprintf("data: %d", i); lines.Text() != want {
			a.fail("a stream has %q, want %q", lines.Text(), want)
			return
		}
		i++
		a.events.Add(1)
	}
	a.fail("a stream ended: %v", lines.Err())
}

func (a *audience) echo(c net.Conn, r *bufio.Reader) {
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		a.fail("socket: %v %v", res, err)
		return
	}
	for i := 0; ; i++ {
		want := fmt.Sprintf("%08d", i)
		if _, err := io.WriteString(c, want); err != nil {
			a.fail("a socket was closed: %v", err)
			return
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
			a.fail("a socket answered %q %v, want %q", got, err, want)
			return
		}
		a.echoes.Add(1)
		<-time.After(10 * time.Millisecond)
	}
}

func (a *audience) leave() {
	a.done.Store(true)
	for _, c := range a.conns {
		_ = c.Close()
	}
	a.wg.Wait()
}

func (a *audience) check() {
	a.t.Helper()
	if f := a.failed.Load(); f != nil {
		a.t.Errorf("connections were not to be touched: %s", *f)
	}
}

// follower counts how often something is in a log that grows.
type follower struct {
	file *os.File
	what string
	rest string
	n    int
}

func (f *follower) count(t *testing.T) int {
	b, err := io.ReadAll(f.file)
	if err != nil {
		t.Fatal(err)
	}
	text := f.rest + string(b)
	last := strings.LastIndexByte(text, '\n') + 1
	f.n += strings.Count(text[:last], f.what)
	f.rest = text[last:]
	return f.n
}

// changing is a configuration whose first route stays and whose second is new each
// time, as are the peers of a cluster without requests.
func changing(address string, i int) map[string]any {
	return map[string]any{
		"routes": []any{
			map[string]any{"name": "kept", "path": "/*", "cluster": "kept"},
			map[string]any{"name": "new", "path": "/new", "reply": map[string]any{"status": 200, "body": fmt.Sprint(i)}},
		},
		"clusters": []any{
			map[string]any{"name": "kept", "peers": []any{map[string]any{"address": address}}},
			map[string]any{"name": "other", "peers": []any{map[string]any{"address": fmt.Sprintf("127.0.0.1:%d", 2+i%9)}}},
		},
	}
}

func TestHundredsOfReloadsBySignalCloseNothing(t *testing.T) {
	reloads(t, 300, "-1s", func(g *judge.Server) { g.Signal(syscall.SIGHUP) })
}

func TestReloadsByFileChangeCloseNothing(t *testing.T) {
	t.Parallel()
	reloads(t, 20, "100ms", func(*judge.Server) {})
}

// reloads changes the configuration n times under load and waits each time until it
// is in force.
func reloads(t *testing.T, n int, watch string, report func(*judge.Server)) {
	address := theater(t)
	config := func(i int) map[string]any {
		c := changing(address, i)
		c["reload"] = map[string]any{"watch": watch}
		c["downstream"] = map[string]any{"keep_alive": "10m"} // idle connections are to outlast the test
		return c
	}
	g := judge.New(t, judge.Options{Memory: true, Config: config(-1)})
	a := seat(t, g, 5)
	l := startLoad(t, g.Public, "/x", 4, 5*time.Millisecond)
	l.enter("reloading")
	file, err := os.Open(g.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	applied := &follower{file: file, what: "configuration reloaded"}
	began := time.Now()
	for i := range n {
		g.Configure(config(i))
		report(g)
		judge.Eventually(t, 30*time.Second, fmt.Sprintf("reload %d", i), func() bool { return applied.count(t) >= i+1 })
	}
	took := time.Since(began)
	if _, body := g.Get("/new"); string(body) != fmt.Sprint(n-1) {
		t.Errorf("after %d reloads /new answers %q", n, body)
	}
	events, echoes := a.events.Load(), a.echoes.Load()
	judge.Eventually(t, 10*time.Second, "streams and sockets continue", func() bool {
		return a.events.Load() > events+20 && a.echoes.Load() > echoes+20 || a.failed.Load() != nil
	})
	a.check()
	l.stop()
	if len(l.failed) > 0 || l.count() == 0 {
		t.Errorf("%d requests served, and failed: %q", l.count(), l.failed)
	}
	if got := g.Series("weir_reloads_total"); int(got) != n {
		t.Errorf("weir_reloads_total is %v after %d", got, n)
	}
	t.Logf("%d reloads in %.1fs: %d requests, %d events, %d echoes", n, took.Seconds(), l.count(), a.events.Load(), a.echoes.Load())
}

// TestABrokenFileChangesNothing writes what cannot be applied in several ways, each
// of which the answer must name.
func TestABrokenFileChangesNothing(t *testing.T) {
	t.Parallel()
	address := theater(t)
	c := changing(address, 1)
	c["reload"] = map[string]any{"watch": "-1s"}
	g := judge.New(t, judge.Options{Memory: true, Config: c})
	whole := func(change func(c map[string]any)) {
		c := changing(address, 2)
		c["reload"] = map[string]any{"watch": "-1s"}
		change(c)
		g.Configure(c)
	}
	routes := func(c map[string]any) []any { return c["routes"].([]any) }
	f := func(what string, write func(), says string) {
		t.Helper()
		write()
		if status, body := g.Reload(); status != http.StatusUnprocessableEntity || !strings.Contains(body, says) {
			t.Errorf("%s: %d %s, want 422 with %q", what, status, body, says)
		}
		if _, body := g.Get("/new"); string(body) != "1" {
			t.Errorf("%s: the routes have changed: %q", what, body)
		}
	}
	f("no YAML", func() {
		if err := os.WriteFile(g.ConfigFile(), []byte("routes: [{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}, "yaml")
	f("an unknown key", func() { whole(func(c map[string]any) { c["ruotes"] = 1 }) }, "ruotes")
	f("a cluster that is not there", func() { whole(func(c map[string]any) { routes(c)[0].(map[string]any)["cluster"] = "gone" }) }, "gone")
	f("a bad path", func() { whole(func(c map[string]any) { routes(c)[1].(map[string]any)["path"] = "new" }) }, "new")
	f("a document that is not there", func() {
		whole(func(c map[string]any) {
			routes(c)[0].(map[string]any)["openapi"] = map[string]any{"file": "/nonexistent.yaml"}
		})
	}, "nonexistent")
	f("two routes alike", func() {
		whole(func(c map[string]any) {
			c["routes"] = append(routes(c), map[string]any{"name": "twin", "path": "/*", "cluster": "kept"})
		})
	}, "twin")
	whole(func(map[string]any) {})
	if status, body := g.Reload(); status != 200 {
		t.Errorf("a good file: %d %s", status, body)
	}
	if _, body := g.Get("/new"); string(body) != "2" {
		t.Errorf("a good file is not in force: %q", body)
	}
}
