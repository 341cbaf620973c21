package downstream_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestAStaleConnectionIsReplaced(t *testing.T) {
	// Each connection answers once, as if it would live on, and ends when the next
	// request comes.
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		if _, _, ok := w.Request(); ok {
			w.TrySend("HTTP/1.1 200 OK\nContent-Length: 2\n\nok")
			_, _, _ = w.Request()
		}
	})
	g := start(t, settings{loops: eventloop.Config{Loops: 1}, cluster: upstream.Config{Outlier: upstream.OutlierConfig{Enabled: setting.Off}, Breaker: upstream.BreakerConfig{Enabled: setting.Off}}}, peer)
	w := g.dial()
	f := func(method, body string, status int) {
		t.Helper()
		w.Send(fmt.Sprintf("%s / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", method, len(body), body))
		if res, _ := w.Answer(method); res.StatusCode != status {
			t.Errorf("%s: %d, want %d", method, res.StatusCode, status)
		}
	}
	f("GET", "", 200)
	f("GET", "", 200)
	f("PUT", "some body", 200)
	f("DELETE", "", 200)
	f("POST", "some body", 502)                 // it may have been done (RFC 9110 §9.2.2)
	f("POST", "some body", 200)                 // on a new connection
	f("PUT", strings.Repeat("x", 200<<10), 502) // not kept, so not repeated
	if s := g.proxy.Stats().Clusters["main"]; s.Retries != 3 {
		t.Errorf("%d retries", s.Retries)
	}
}

func TestRefusedConnectionsAreRetriedElsewhere(t *testing.T) {
	g := start(t, settings{}, refused(t), echoServer(t), refused(t))
	for i := range 20 {
		w := g.dial()
		w.Send("POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
		if res, _ := w.Answer("POST"); res.StatusCode != 200 || res.Header.Get("X-Body") != "hello" {
			t.Fatalf("request %d: %d", i, res.StatusCode)
		}
		_ = w.Close()
	}
}

func TestStatusesAreRetried(t *testing.T) {
	var n atomic.Int64
	peers := make([]string, 3)
	for i := range peers {
		peers[i] = backend(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if n.Add(1) < 3 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintf(w, "%s", body)
		})
	}
	g := start(t, settings{}, peers...)
	w := g.dial()
	w.Send("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	if res, body := w.Answer("PUT"); res.StatusCode != 200 || body != "hello" {
		t.Errorf("%d %q", res.StatusCode, body)
	}
}

func TestNoPeerIsA503(t *testing.T) {
	g := start(t, settings{cluster: upstream.Config{Peers: []upstream.PeerConfig{{Address: "127.0.0.1:1", Drain: true}}}, more: nil}, refused(t))
	for range 10 { // until the peer is out
		w := g.dial()
		w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		res, body := w.Answer("GET")
		_ = w.Close()
		if res.StatusCode == 503 {
			if res.Header.Get("Retry-After") == "" || !strings.Contains(body, `"code":503`) {
				t.Errorf("%v %q", res.Header, body)
			}
			return
		}
	}
	t.Error("a peer that refuses everything is never given up")
}

// restartable is a backend that can be stopped and started at one address.
type restartable struct {
	t    *testing.T
	addr string
	name string
	srv  *http.Server
	done chan struct{}
}

func (b *restartable) start() {
	l, err := net.Listen("tcp", b.addr)
	if err != nil {
		b.t.Error(err)
		return
	}
	b.addr = l.Addr().String()
	srv, done := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, b.name) })}, make(chan struct{})
	b.srv, b.done = srv, done
	go func() { defer close(done); _ = srv.Serve(l) }()
}

func (b *restartable) stop() {
	_ = b.srv.Close() // hard: connections are cut
	<-b.done
}

func TestRestartingABackendUnderLoadFailsNothing(t *testing.T) {
	t.Parallel()
	backends := []*restartable{{t: t, addr: "127.0.0.1:0", name: "a"}, {t: t, addr: "127.0.0.1:0", name: "b"}}
	var addrs []string
	for _, b := range backends {
		b.start()
		defer func() { b.stop() }()
		addrs = append(addrs, b.addr)
	}
	g := start(t, settings{cluster: upstream.Config{Retry: upstream.RetryConfig{Budget: 1, MinPerSecond: 10000}, Outlier: upstream.OutlierConfig{BaseEjection: 5e7, MaxEjection: 1e8}}}, addrs...)
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var ok, failed atomic.Int64
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for range 8 {
		load.Go(func() {
			for ctx.Err() == nil {
				res, err := client.Get(g.url("/"))
				if err != nil {
					failed.Add(1)
					continue
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode == 200 {
					ok.Add(1)
				} else {
					failed.Add(1)
				}
			}
		})
	}
	progress := func(n int64) {
		t.Helper()
		at := ok.Load()
		trial.Eventually(t, "requests continue", func() bool { return ok.Load() >= at+n })
	}
	for i := range 6 {
		b := backends[i%2]
		progress(200)
		b.stop()
		progress(200)
		b.start()
		// It is used again before the other one goes.
		trial.Eventually(t, "it is queried again", func() bool { return g.requested(b.name) })
	}
	cancel()
	load.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d requests failed of %d: %+v", failed.Load(), ok.Load()+failed.Load(), g.proxy.Stats().Clusters["main"])
	}
}

func (g *gateway) requested(name string) bool {
	res, err := http.Get(g.url("/"))
	if err != nil {
		return false
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return string(b) == name
}

func TestConnectionsAreBoundedAndWaitedFor(t *testing.T) {
	var now, most atomic.Int64
	g := start(t, settings{loops: eventloop.Config{Loops: 1}, cluster: upstream.Config{Pool: upstream.PoolConfig{MaxPerPeer: 2, PendingTimeout: 20e9}}},
		backend(t, func(w http.ResponseWriter, r *http.Request) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			body, _ := io.ReadAll(r.Body)
			_, _ = w.Write(body)
			now.Add(-1)
		}))
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			text := strings.Repeat(fmt.Sprint(i%10), 1000)
			res, err := http.Post(g.url("/"), "text/plain", strings.NewReader(text))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if b, _ := io.ReadAll(res.Body); string(b) != text || res.StatusCode != 200 {
				t.Errorf("request %d: %d with %d bytes %.20q", i, res.StatusCode, len(b), b)
			}
		})
	}
	all.Wait()
	if most.Load() > 2 || g.proxy.Stats().Clusters["main"].Waited == 0 {
		t.Errorf("%d at a time, stats %+v", most.Load(), g.proxy.Stats())
	}
}

func TestWaitingForAConnectionIsBounded(t *testing.T) {
	release := make(chan struct{})
	g := start(t, settings{loops: eventloop.Config{Loops: 1}, cluster: upstream.Config{Pool: upstream.PoolConfig{MaxPerPeer: 1, MaxPending: 1, PendingTimeout: 2e8}}},
		backend(t, func(w http.ResponseWriter, r *http.Request) { <-release }))
	first := g.dial()
	first.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	trial.Eventually(t, "the connection is in use", func() bool { return g.proxy.Stats().Open == 1 })
	second := g.dial()
	second.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	trial.Eventually(t, "the second waits", func() bool { return g.proxy.Stats().Clusters["main"].Waited == 1 })
	third := g.dial()
	third.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if res, _ := third.Answer("GET"); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
		t.Errorf("one too many: %d", res.StatusCode)
	}
	if res, _ := second.Answer("GET"); res.StatusCode != 503 {
		t.Errorf("who waited for too long: %d", res.StatusCode)
	}
	close(release)
	if res, _ := first.Answer("GET"); res.StatusCode != 200 {
		t.Errorf("the first: %d", res.StatusCode)
	}
	failed := g.proxy.Stats().Clusters["main"].Failed
	if failed[proxy.PendingFull.String()] != 1 || failed[proxy.PendingTimeout.String()] != 1 {
		t.Errorf("counted %v", failed)
	}
}

func TestIdleConnectionsAreBoundedInNumberUseAndTime(t *testing.T) {
	t.Parallel()
	peer := backend(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "ok") })
	f := func(pool upstream.PoolConfig, want func(s proxy.Stats) bool) {
		t.Helper()
		g := start(t, settings{loops: eventloop.Config{Loops: 1}, cluster: upstream.Config{Pool: pool}}, peer)
		var all sync.WaitGroup
		for range 12 {
			all.Go(func() {
				w := g.dial()
				for range 20 {
					w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
					w.Answer("GET")
				}
			})
		}
		all.Wait()
		trial.Eventually(t, fmt.Sprintf("%+v is kept to", pool), func() bool { return want(g.proxy.Stats()) })
	}
	f(upstream.PoolConfig{MaxIdle: 2}, func(s proxy.Stats) bool { return s.Idle <= 2 && s.Idle > 0 && s.Open == s.Idle })
	f(upstream.PoolConfig{MaxIdle: -1}, func(s proxy.Stats) bool { return s.Open == 0 && s.Clusters["main"].PoolMiss == 240 })
	f(upstream.PoolConfig{MaxRequests: 5}, func(s proxy.Stats) bool { return s.Clusters["main"].PoolMiss >= 240/5 })
	f(upstream.PoolConfig{IdleTimeout: 2e8}, func(s proxy.Stats) bool { return s.Open == 0 && s.Clusters["main"].PoolMiss < 100 })
}

func TestUnixSocketPeers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "backend.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Host", r.Host)
		_, _ = io.Copy(w, r.Body)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	defer func() { srv.Close(); <-done; os.Remove(path) }()
	g := start(t, settings{routes: []policy.RouteConfig{{Cluster: "main", Rewrite: policy.Rewrite{Host: "$upstream"}}}}, "unix:"+path)
	w := g.dial()
	for range 3 {
		w.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
		if res, body := w.Answer("POST"); res.StatusCode != 200 || body != "hello" || res.Header.Get("X-Host") != "localhost" {
			t.Errorf("%d %q for host %q", res.StatusCode, body, res.Header.Get("X-Host"))
		}
	}
	if s := g.proxy.Stats().Clusters["main"]; s.PoolHits != 2 || s.PoolMiss != 1 {
		t.Errorf("%+v", s)
	}
}

func TestPeersReceiveTheClientInAProxyHeader(t *testing.T) {
	for version, want := range map[int]string{1: "PROXY TCP4 127.0.0.1 127.0.0.1 ", 2: "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x7f\x00\x00\x01\x7f\x00\x00\x01"} {
		starts := make(chan string, 10)
		peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
			b, err := w.R.Peek(len(want))
			if err != nil {
				return
			}
			starts <- string(b)
			if version == 1 {
				_, _ = w.R.ReadString('\n')
			} else {
				_, _ = w.R.Discard(28)
			}
			for {
				if _, _, ok := w.Request(); !ok {
					return
				}
				w.TrySend("HTTP/1.1 200 OK\nContent-Length: 0\n\n")
			}
		})
		g := start(t, settings{loops: eventloop.Config{Loops: 1}, cluster: upstream.Config{ProxyProtocol: version}}, peer)
		for range 2 { // two clients share nothing, two requests of one do
			w := g.dial()
			for range 2 {
				w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
				w.Answer("GET")
			}
			if got := <-starts; got != want {
				t.Errorf("version %d: %q, want %q", version, got, want)
			}
			_ = w.Close()
		}
		trial.Eventually(t, "connections for clients that left are closed", func() bool { return g.proxy.Stats().Open == 0 })
		if s := g.proxy.Stats().Clusters["main"]; s.PoolMiss != 2 || s.PoolHits != 2 {
			t.Errorf("version %d: %+v", version, s)
		}
	}
}

func TestMirrorsGetCopies(t *testing.T) {
	copies := make(chan string, 10)
	shadow := backend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		copies <- r.Method + " " + r.URL.Path + " " + string(body)
		w.WriteHeader(http.StatusInternalServerError)
	})
	g := start(t, settings{
		more:   []upstream.Config{{Name: "shadow", Peers: []upstream.PeerConfig{{Address: shadow}}}},
		splits: []upstream.SplitConfig{{Name: "both", Arms: []upstream.ArmConfig{{Cluster: "main", Weight: 1}}, Mirror: upstream.MirrorConfig{Cluster: "shadow"}}},
		routes: []policy.RouteConfig{{Cluster: "both"}},
	}, echoServer(t))
	w := g.dial()
	w.Send("POST /length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	if res, _ := w.Answer("POST"); res.StatusCode != 200 {
		t.Errorf("%d", res.StatusCode)
	}
	if got := <-copies; got != "POST /length hello" {
		t.Errorf("the copy is %q", got)
	}
	w.Send("GET /length HTTP/1.1\r\nHost: a\r\n\r\n")
	w.Answer("GET")
	if got := <-copies; got != "GET /length " {
		t.Errorf("the copy is %q", got)
	}
}

// A client that left in the middle of a body left its copy behind: a connection to the
// mirror that waited for the rest for ever.
func TestUnfinishedMirrorsEndWithTheirRequest(t *testing.T) {
	ended := make(chan struct{}, 10)
	shadow := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		_, _ = io.Copy(io.Discard, w.R)
		ended <- struct{}{}
	})
	g := start(t, settings{
		more:   []upstream.Config{{Name: "shadow", Peers: []upstream.PeerConfig{{Address: shadow}}}},
		splits: []upstream.SplitConfig{{Name: "both", Arms: []upstream.ArmConfig{{Cluster: "main", Weight: 1}}, Mirror: upstream.MirrorConfig{Cluster: "shadow"}}},
		routes: []policy.RouteConfig{{Cluster: "both"}},
	}, echoServer(t))
	for _, rest := range []string{"", "zz\r\n"} { // the client leaves, or breaks HTTP
		w := g.dial()
		w.Send("POST /length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		trial.Eventually(t, "the copy is on its way", func() bool { return g.proxy.Stats().Open == 2 })
		w.Send(rest)
		_ = w.Close()
		<-ended
		trial.Eventually(t, "nothing is left", func() bool { return g.proxy.Stats().Open == 0 })
	}
}

func TestReloadsChangeNothingUnderWay(t *testing.T) {
	requested, release := make(chan struct{}), make(chan struct{})
	g := start(t, settings{}, backend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(requested)
			<-release
		}
		_, _ = io.WriteString(w, "backend")
	}))
	w := g.dial()
	w.Send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
	<-requested
	for i := range 1000 {
		g.route(policy.RouteConfig{Reply: policy.Reply{Status: 200, Body: fmt.Sprint(i)}})
	}
	close(release)
	if _, body := w.Answer("GET"); body != "backend" {
		t.Errorf("the request under way: %q", body)
	}
	w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, body := w.Answer("GET"); body != "999" {
		t.Errorf("the next on its connection: %q", body)
	}
}
