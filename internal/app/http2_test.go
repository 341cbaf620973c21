package app

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// overHTTP2 is a client that speaks nothing else: with TLS if pool is there.
func overHTTP2(t *testing.T, cfg *tls.Config) *http.Client {
	t.Helper()
	var p http.Protocols
	p.SetHTTP2(cfg != nil)
	p.SetUnencryptedHTTP2(cfg == nil)
	tr := &http.Transport{Protocols: &p, TLSClientConfig: cfg}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: trial.Patience}
}

func TestHTTP2WithAndWithoutTLS(t *testing.T) {
	b := backend(t, "b")
	cert, pool := selfSigned(t, t.TempDir(), 1)
	f := func(what string, change func(*config.Config), client *http.Client) {
		t.Helper()
		g := start(t, func(c *config.Config) {
			c.Clusters, c.Routes = []upstream.Config{b}, []policy.RouteConfig{{Path: "/*", Cluster: "b"}}
			change(c)
		})
		do := func(method, path, body string) *http.Response {
			t.Helper()
			req, _ := http.NewRequestWithContext(t.Context(), method, g.URL()+path, strings.NewReader(body))
			req.Header.Set("X-API-Key", testKey)
			res, err := client.Do(req)
			if err != nil {
				t.Fatalf("%s: %s %s: %v", what, method, path, err)
			}
			if res.ProtoMajor != 2 {
				t.Errorf("%s: %s answered in %s", what, path, res.Proto)
			}
			t.Cleanup(func() { res.Body.Close() })
			return res
		}
		sse := do(http.MethodGet, "/sse?channel=a", "")
		s := &stream{t, sse, bufio.NewReader(sse.Body)}
		s.block()
		if res := do(http.MethodPost, "/api/publish", `{"channel":"a","data":{"n":1}}`); res.StatusCode != 200 {
			t.Errorf("%s: publish: %d", what, res.StatusCode)
		}
		if got := s.block(); !strings.Contains(got, `data: {"n":1}`) {
			t.Errorf("%s: %q", what, got)
		}
		body, _ := io.ReadAll(do(http.MethodPost, "/x?y", "hello").Body)
		if string(body) != "b POST /x?y hello" {
			t.Errorf("%s: the backend's answer is %q", what, body)
		}
		g.stop()
		if got := s.block(); !strings.Contains(got, "event: end") {
			t.Errorf("%s: drained with %q", what, got)
		}
	}
	f("h2", func(c *config.Config) { c.TLS.Certificates = []tlsterm.Certificate{cert} }, overHTTP2(t, &tls.Config{RootCAs: pool}))
	f("h2c", func(*config.Config) {}, overHTTP2(t, nil))
}

func TestHTTP2CanBeSwitchedOff(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Downstream.HTTP2 = setting.Off })
	w := g.dial(t)
	w.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if res, _ := w.Answer("GET"); res.StatusCode < 400 || !w.Closed() {
		t.Errorf("the preface is answered %d", res.StatusCode)
	}
}

// TestWhatALPNAgreedOnIsSpoken: an intermediary that has seen the agreement reads on by it.
func TestWhatALPNAgreedOnIsSpoken(t *testing.T) {
	b := backend(t, "b")
	cert, pool := selfSigned(t, t.TempDir(), 1)
	g := start(t, func(c *config.Config) {
		c.Clusters, c.Routes = []upstream.Config{b}, []policy.RouteConfig{{Path: "/*", Cluster: "b"}}
		c.TLS.Certificates = []tlsterm.Certificate{cert}
	})
	const preface, request = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
	f := func(sent, want string, protocols ...string) {
		t.Helper()
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			c, err := tls.Dial("tcp", g.Addr().String(), &tls.Config{RootCAs: pool, NextProtos: protocols, MinVersion: version, MaxVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(trial.Patience))
			if _, err := io.WriteString(c, sent); err != nil {
				t.Fatal(err)
			}
			head := make([]byte, 12)
			n, _ := io.ReadFull(c, head)
			if got := string(head[:n]); got != want && !(want == "SETTINGS" && n == 12 && head[3] == 4) {
				t.Errorf("after %q, to %.20q: %q, want %q", protocols, sent, got, want)
			}
		}
	}
	f(preface, "SETTINGS", "h2")
	f(preface, "SETTINGS", "h2", "http/1.1")
	f(preface, "HTTP/1.1 505", "http/1.1")
	f(preface, "HTTP/1.1 505") // RFC 9113 §3.3: TLS without ALPN is HTTP/1.1
	f(request, "HTTP/1.1 200", "http/1.1")
	f(request, "HTTP/1.1 200")
	f(request, "HTTP/1.1 400", "h2")
}

func TestAPrefaceInPieces(t *testing.T) {
	g := start(t, nil)
	c, err := net.Dial("tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" // and empty SETTINGS
	for i := range len(preface) {
		if _, err := c.Write([]byte{preface[i]}); err != nil {
			t.Fatalf("byte %d: %v", i, err)
		}
		time.Sleep(time.Millisecond) // so that the pieces come apart
	}
	_ = c.SetReadDeadline(time.Now().Add(trial.Patience))
	head := make([]byte, 9)
	if _, err := io.ReadFull(c, head); err != nil || head[3] != 4 {
		t.Errorf("the first frame is %x, %v; want SETTINGS", head, err)
	}
}

func TestProxyProtocolNamesTheClient(t *testing.T) {
	b := backend(t, "b")
	start := func(proxies ...string) *gateway {
		return start(t, func(c *config.Config) {
			c.ProxyProtocol, c.Trusted.Proxies = true, proxies
			c.Clusters = []upstream.Config{b}
			c.Routes = []policy.RouteConfig{{Path: "/*", Cluster: "b"}, {Path: "/denied", Cluster: "b"}}
			c.Routes[1].Addresses.Deny = []string{"192.0.2.7"}
		})
	}
	g := start("127.0.0.1")
	f := func(header, path string, want int) {
		t.Helper()
		w := g.dial(t)
		w.Send(header + "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
		if res, _ := w.Answer("GET"); res.StatusCode != want {
			t.Errorf("%q %s: %d, want %d", header, path, res.StatusCode, want)
		}
	}
	line := func(client string) string { return fmt.Sprintf("PROXY TCP4 %s 198.51.100.1 1234 80\r\n", client) }
	f(line("192.0.2.7"), "/denied", 403)
	f(line("192.0.2.8"), "/denied", 200)
	f("PROXY UNKNOWN\r\n", "/denied", 200)
	w := g.dial(t)
	w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if !w.Closed() {
		t.Error("a connection without the header was served")
	}
	g = start("192.0.2.99")
	if w := g.dial(t); !w.Closed() {
		t.Error("a peer that is not trusted was served")
	}
}
