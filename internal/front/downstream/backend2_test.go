package downstream_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// backend2 is a net/http server that speaks HTTP/2 by prior knowledge, and counts its
// connections.
type backend2 struct {
	*httptest.Server
	conns atomic.Int64
}

func newBackend2(t *testing.T, http1 bool, h http.HandlerFunc) *backend2 {
	t.Helper()
	b := &backend2{Server: httptest.NewUnstartedServer(h)}
	b.Config.Protocols = new(http.Protocols)
	b.Config.Protocols.SetUnencryptedHTTP2(true)
	b.Config.Protocols.SetHTTP1(http1)
	b.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 250}
	b.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			b.conns.Add(1)
		}
	}
	b.Start()
	t.Cleanup(b.Close)
	return b
}

func (b *backend2) addr() string { return b.Listener.Addr().String() }

// tlsBackend is one that speaks HTTP/2 over TLS, or HTTP/1.1 alone. ca is its certificate.
func tlsBackend(t *testing.T, http2 bool, h http.HandlerFunc) (b *backend2, ca string) {
	t.Helper()
	b = &backend2{Server: httptest.NewUnstartedServer(h)}
	b.EnableHTTP2 = http2
	b.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			b.conns.Add(1)
		}
	}
	b.StartTLS()
	t.Cleanup(b.Close)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return b, ca
}

// echo2 answers with what it was asked, and trailers.
func echo2(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", "X-Sum")
	w.Header().Set("X-Proto", r.Proto)
	w.Header().Set("X-Te", r.Header.Get("Te"))
	n, err := io.Copy(w, r.Body)
	w.Header().Set("X-Sum", fmt.Sprint(n, err))
}

func TestHTTP2ToBackends(t *testing.T) {
	b := newBackend2(t, false, echo2)
	g := start(t, settings{cluster: upstream.Config{Protocol: "http2"}, loops: oneLoop}, b.addr())
	f := func(method string, body io.Reader, want string) {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), method, g.url("/a?b=c"), body)
		req.Header.Set("TE", "trailers")
		req.Header.Set("Connection", "TE")
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 || res.Header.Get("X-Proto") != "HTTP/2.0" {
			t.Fatalf("%s: %d %v, %v", method, res.StatusCode, res.Header, err)
		}
		if string(got) != want {
			t.Errorf("%s: %d bytes, want %d", method, len(got), len(want))
		}
		if sum := res.Trailer.Get("X-Sum"); res.ContentLength < 0 && method != "HEAD" && sum != fmt.Sprint(len(want), " <nil>") {
			t.Errorf("%s: trailer %q", method, sum)
		}
	}
	big := strings.Repeat("0123456789", 100_000)
	f("GET", nil, "")
	f("HEAD", nil, "")
	f("POST", strings.NewReader("hello"), "hello")
	f("POST", strings.NewReader(big), big)
	f("POST", io.MultiReader(strings.NewReader("he"), strings.NewReader("llo")), "hello")
	f("PUT", io.MultiReader(strings.NewReader(big), strings.NewReader(big)), big+big)
	if n := b.conns.Load(); n != 1 {
		t.Errorf("%d connections to the backend, want 1", n)
	}
	want := h2.CallStats{Sessions: 1, Calls: 6, Open: 1}
	trial.Eventually(t, "what is counted", func() bool { return reflect.DeepEqual(g.proxy.Stats().Clusters["main"].HTTP2, want) })
}

// What becomes of streams to backends is counted by reason.
func TestStreamsToBackendsAreCounted(t *testing.T) {
	b := newBackend2(t, false, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/reset" {
			panic(http.ErrAbortHandler)
		}
		<-r.Context().Done()
	})
	g := start(t, settings{cluster: upstream.Config{Protocol: "http2"}, loops: oneLoop}, b.addr())
	if res, err := http.Post(g.url("/reset"), "text/plain", nil); err != nil { // not tried again
		t.Error(err)
	} else if res.Body.Close(); res.StatusCode != 502 {
		t.Error(res.Status)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, g.url("/hang"), nil)
	ended := make(chan struct{})
	go func() { defer close(ended); _, _ = http.DefaultTransport.RoundTrip(req) }() // it is canceled
	stats := func() h2.CallStats { return g.proxy.Stats().Clusters["main"].HTTP2 }
	trial.Eventually(t, "the second call", func() bool { return stats().Calls == 2 })
	cancel()
	<-ended
	want := h2.CallStats{Sessions: 1, Calls: 2, Resets: 1, Canceled: 1, Open: 1}
	trial.Eventually(t, "what is counted", func() bool { return reflect.DeepEqual(stats(), want) })
	_ = b.Config.Shutdown(t.Context()) // it says GOAWAY
	trial.Eventually(t, "GOAWAY", func() bool { return stats().GoAways == 1 && stats().Open == 0 })
}

func TestManyRequestsShareOneConnection(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		arrived := make(chan struct{}, 100)
		release := make(chan struct{})
		b := newBackend2(t, false, func(w http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			<-release
			_, _ = io.WriteString(w, "done")
		})
		g := start(t, settings{cluster: upstream.Config{Protocol: "http2"}, loops: eventloop.Config{Loops: 1, Engine: engine}}, b.addr())
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if got := fetch(t, g.url("/")); got != "200 done" {
					t.Error(got)
				}
			})
		}
		for range 100 {
			<-arrived
		}
		close(release)
		all.Wait()
		if n := b.conns.Load(); n != 1 {
			t.Errorf("%s: %d connections to the backend, want 1", engine, n)
		}
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Sprint(res.StatusCode, " ", err)
	}
	return fmt.Sprint(res.StatusCode, " ", string(b))
}

func TestALPNDecides(t *testing.T) {
	for _, http2 := range []bool{true, false} {
		b, ca := tlsBackend(t, http2, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			fmt.Fprint(w, r.Proto, len(body))
		})
		cluster := upstream.Config{Protocol: "auto", TLS: upstream.TLSConfig{CAFiles: []string{ca}, ServerName: "example.com"}}
		g := start(t, settings{cluster: cluster, loops: oneLoop}, "https://"+b.addr())
		want := map[bool]string{true: "200 HTTP/2.0", false: "200 HTTP/1.1"}[http2]
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				size := i * 10_000
				res, err := http.Post(g.url("/"), "text/plain", strings.NewReader(strings.Repeat("x", size)))
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				got, _ := io.ReadAll(res.Body)
				if s := fmt.Sprint(res.StatusCode, " ", string(got)); s != want+fmt.Sprint(size) {
					t.Errorf("%v: %s, want %s%d", http2, s, want, size)
				}
			})
		}
		all.Wait()
		if n := b.conns.Load(); http2 && n != 1 {
			t.Errorf("%d connections", n)
		}
	}
}

func TestHTTP2MustBeAgreedOn(t *testing.T) {
	b, ca := tlsBackend(t, false, echo2)
	cluster := upstream.Config{Protocol: "http2", TLS: upstream.TLSConfig{CAFiles: []string{ca}, ServerName: "example.com"}}
	g := start(t, settings{cluster: cluster, loops: oneLoop}, "https://"+b.addr())
	if got := fetch(t, g.url("/")); !strings.HasPrefix(got, "502") {
		t.Error(got)
	}
	plain := backend(t, echo2) // HTTP/1.1 in plaintext
	g = start(t, settings{cluster: upstream.Config{Protocol: "http2"}}, plain)
	if got := fetch(t, g.url("/")); !strings.HasPrefix(got, "502") {
		t.Error(got)
	}
}

// The reply starts before the request has ended, and both continue.
func TestBothDirectionsAtOnce(t *testing.T) {
	b := newBackend2(t, false, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		buf := make([]byte, 1000)
		for {
			n, err := r.Body.Read(buf)
			_, _ = w.Write(bytes.ToUpper(buf[:n]))
			_ = http.NewResponseController(w).Flush()
			if err != nil {
				return
			}
		}
	})
	g := start(t, settings{cluster: upstream.Config{Protocol: "http2"}, loops: oneLoop}, b.addr())
	c := g.dial()
	c.Send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
	c.Head()
	expect := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c.R, got); err != nil || string(got) != want {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
	}
	for _, word := range []string{"one", "two", "three"} {
		c.Send(fmt.Sprintf("%x\r\n%s\r\n", len(word), word))
		expect(fmt.Sprintf("%x\r\n%s\r\n", len(word), strings.ToUpper(word)))
	}
	c.Send("0\r\n\r\n")
	expect("0\r\n\r\n")
}

func TestStreamsOverTheBoundUseAnotherConnection(t *testing.T) {
	arrived, release := make(chan struct{}, 100), make(chan struct{})
	b := &backend2{Server: httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
	}))}
	b.Config.Protocols = new(http.Protocols)
	b.Config.Protocols.SetUnencryptedHTTP2(true)
	b.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 3}
	b.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			b.conns.Add(1)
		}
	}
	b.Start()
	t.Cleanup(b.Close)
	g := start(t, settings{cluster: upstream.Config{Protocol: "http2", Pool: upstream.PoolConfig{MaxPerPeer: 2, PendingTimeout: hub.Duration(20 * time.Second)}}, loops: oneLoop}, b.addr())
	var all sync.WaitGroup
	for range 9 {
		all.Go(func() {
			if got := fetch(t, g.url("/")); got != "200 " {
				t.Error(got)
			}
		})
	}
	for range 6 {
		<-arrived
	}
	if n := b.conns.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
	close(release)
	all.Wait()
}

var oneLoop = eventloop.Config{Loops: 1}
