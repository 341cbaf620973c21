package downstream_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMirrorsGoOverTLS(t *testing.T) {
	a := newAuthority(t)
	copies := make(chan string, 10)
	cfg := &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "127.0.0.1")}}
	main := secureBackend(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	})
	other := secureBackend(t, cfg, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		copies <- string(b)
	})
	mirror := quick(upstream.TLSConfig{Enabled: true, CAFiles: []string{a.file}})
	mirror.Name, mirror.Peers = "mirror", []upstream.PeerConfig{{Address: other}}
	g := start(t, settings{cluster: quick(upstream.TLSConfig{CAFiles: []string{a.file}}), more: []upstream.Config{mirror},
		splits: []upstream.SplitConfig{{Name: "s", Arms: []upstream.ArmConfig{{Cluster: "main", Weight: 1}}, Mirror: upstream.MirrorConfig{Cluster: "mirror", Share: 1}}}},
		"https://"+main)
	g.route(routeTo("s"))
	for i := range 3 {
		body := strings.Repeat(fmt.Sprint(i), 50_000)
		res, err := http.Post(g.url("/"), "text/plain", strings.NewReader(body))
		must(t, err)
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if string(b) != body {
			t.Errorf("%d with %d bytes", res.StatusCode, len(b))
		}
		if got := <-copies; got != body {
			t.Errorf("the copy has %d bytes", len(got))
		}
	}
}

// A peer that hangs in its handshake is hedged like one that is slow to answer.
func TestAPeerThatHangsInItsHandshakeIsHedged(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	good := secureBackend(t, &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "127.0.0.1")}},
		func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	var hung atomic.Int64
	hangs := wiretest.Peer(t, func(_ int, c *wiretest.Conn) { hung.Add(1); _, _ = io.Copy(io.Discard, c.R); hung.Add(-1) })
	cluster := quick(upstream.TLSConfig{CAFiles: []string{a.file}})
	cluster.Hedge = upstream.HedgeConfig{After: hub.Duration(1e6), MaxShare: 1}
	g := start(t, settings{loops: eventloop.Config{Loops: 1}, cluster: cluster}, "https://"+good, "https://"+hangs)
	w := g.dial()
	for range 6 {
		w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if res, b := w.Answer("GET"); res.StatusCode != 200 || b != "ok" {
			t.Errorf("%d %q", res.StatusCode, b)
		}
	}
	if g.proxy.Stats().Clusters["main"].Hedges == 0 {
		t.Error("no request was hedged")
	}
	trial.Eventually(t, "those that lost are let go", func() bool { return hung.Load() == 0 })
}

func TestEventStreamsOverTLSAreRecorded(t *testing.T) {
	a := newAuthority(t)
	more := make(chan struct{})
	peer := secureBackend(t, &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "127.0.0.1")}}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 4 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			if i == 1 {
				<-more
			}
		}
	})
	g := start(t, settings{cluster: quick(upstream.TLSConfig{CAFiles: []string{a.file}})}, "https://"+peer)
	g.route(recorded())
	l := g.request("POST", "/", "a question")
	_, _ = l.next()
	_, id := l.next()
	l.cut() // the client is gone, and comes back
	close(more)
	again := g.request("POST", "/", "a question", "Last-Event-ID", id)
	if event, _ := again.next(); event != "message:2" && event != ":2" {
		t.Errorf("%q, want the third", event)
	}
}

func TestChecksGoOverTLS(t *testing.T) {
	a := newAuthority(t)
	file := filepath.Join(t.TempDir(), "me.pem")
	save(t, file, a.leaf(t, nil, "me"))
	f := func(name, check string, client bool, want string) {
		t.Helper()
		cfg := &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, name)}, ClientCAs: a.pool(), ClientAuth: tls.RequireAndVerifyClientCert, MaxVersion: tls.VersionTLS12}
		peer := secureBackend(t, cfg, func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.Host, "127.0.0.1:") {
				w.WriteHeader(http.StatusMisdirectedRequest)
			}
		})
		cluster := quick(upstream.TLSConfig{CAFiles: []string{a.file}})
		if client {
			cluster.TLS.CertFile = file
		}
		cluster.Health = upstream.HealthConfig{Check: check, Path: "/", Interval: hub.Duration(10e6), Timeout: hub.Duration(trial.Patience)}
		g := start(t, settings{cluster: cluster}, "https://"+peer)
		trial.Eventually(t, fmt.Sprintf("%s, %s, client %v: %s", name, check, client, want), func() bool { return g.clusters.Stats()[0].Peers[0].Health == want })
	}
	f("127.0.0.1", "http", true, "up")
	f("127.0.0.1", "tcp", true, "up")
	f("other.example", "http", true, "down")
	f("other.example", "tcp", true, "down")
	f("127.0.0.1", "http", false, "down")
}

// A PROXY header goes before the handshake; Unix sockets are spoken to over TLS too.
func TestTLSBehindAProxyHeaderAndOnUnixSockets(t *testing.T) {
	a := newAuthority(t)
	cfg := &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "app.example")}}
	heads := make(chan string, 1)
	peer := wiretest.Peer(t, func(n int, c *wiretest.Conn) {
		line, _ := c.R.ReadString('\n')
		heads <- line
		securely(cfg, answerOK)(n, c)
	})
	cluster := quick(upstream.TLSConfig{CAFiles: []string{a.file}, ServerName: "app.example"})
	cluster.ProxyProtocol = 1
	g := start(t, settings{cluster: cluster}, "https://"+peer)
	w := g.dial()
	w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if res, b := w.Answer("GET"); res.StatusCode != 200 || b != "ok" {
		t.Errorf("%d %q", res.StatusCode, b)
	}
	if head := <-heads; !strings.HasPrefix(head, "PROXY TCP4 127.0.0.1 ") {
		t.Errorf("%q", head)
	}
	dir, err := os.MkdirTemp("", "weir") // a short path
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := tls.Listen("unix", path, cfg)
	must(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "unix") })}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	g = start(t, settings{cluster: quick(upstream.TLSConfig{Enabled: true, CAFiles: []string{a.file}, ServerName: "app.example"})}, "unix:"+path)
	w = g.dial()
	w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if res, b := w.Answer("GET"); res.StatusCode != 200 || b != "unix" {
		t.Errorf("%d %q", res.StatusCode, b)
	}
}

func routeTo(cluster string) policy.RouteConfig { return policy.RouteConfig{Cluster: cluster} }

// answerOK answers every request of a connection.
func answerOK(c *tls.Conn, r *bufio.Reader) {
	for {
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
}

// What a request over TLS costs is sealing and opening: it allocates no more than one in
// plaintext, once the connection is open. Both ends are in this process.
func TestRequestsOverTLSAllocateNothing(t *testing.T) {
	const reply = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!"
	a := newAuthority(t)
	for name, version := range versions {
		cfg := &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "127.0.0.1")}, MaxVersion: version}
		peer := wiretest.Peer(t, securely(cfg, func(c *tls.Conn, _ *bufio.Reader) {
			buf, out := make([]byte, 64<<10), []byte(reply)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				if bytes.HasSuffix(buf[:n], []byte("\r\n\r\n")) {
					if _, err := c.Write(out); err != nil {
						return
					}
				}
			}
		}))
		f := func(addr string) (allocs float64, took time.Duration) {
			g := start(t, settings{loops: eventloop.Config{Loops: 1}, cluster: quick(upstream.TLSConfig{})}, addr)
			if strings.HasPrefix(addr, "https") {
				g = start(t, settings{loops: eventloop.Config{Loops: 1}, cluster: quick(upstream.TLSConfig{CAFiles: []string{a.file}})}, addr)
			}
			const request = "GET /proxied HTTP/1.1\r\nHost: a.example\r\n\r\n"
			n := g.replyLength(request) + 13
			begin := time.Now()
			allocs = allocations(t, g.Addr, request, n, 2000)
			return allocs, time.Since(begin) / 2200
		}
		allocs, took := f("https://" + peer)
		plain, tookPlain := f(fixedPeer(t, reply))
		t.Logf("TLS %s: %.3f allocations and %v per request, in plaintext %.3f and %v", name, allocs, took, plain, tookPlain)
		const theirs = 1 // the backend's: a reader that crypto/tls makes for each record
		if !raceEnabled && allocs > plain+theirs+0.05 {
			t.Errorf("TLS %s: %.3f allocations per request, in plaintext %.3f", name, allocs, plain)
		}
	}
}
