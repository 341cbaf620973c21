package app

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/weir-gateway/weir/internal/config"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/tlsterm"
	"github.com/weir-gateway/weir/internal/trial"
	"github.com/weir-gateway/weir/internal/upstream"
)

// overHTTP3 is a client that speaks HTTP/3 alone.
func overHTTP3(t *testing.T, pool *x509.CertPool) *http.Client {
	t.Helper()
	tr := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	t.Cleanup(func() { _ = tr.Close() })
	return &http.Client{Transport: tr, Timeout: trial.Patience}
}

// http3Gateway is a gateway that serves HTTP/3, and who trusts it.
func http3Gateway(t *testing.T, change func(*config.Config)) (*gateway, *x509.CertPool) {
	t.Helper()
	f, pool := selfSigned(t, t.TempDir(), 1)
	return start(t, func(c *config.Config) {
		c.TLS.Certificates = []tlsterm.Certificate{f}
		c.Downstream.HTTP3 = true
		if change != nil {
			change(c)
		}
	}), pool
}

// send makes a request and returns its answer, whose body is closed with the test.
func send(t *testing.T, c *http.Client, method, url, body string, fields ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", testKey)
	for i := 0; i+1 < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

func TestHTTP3IsServed(t *testing.T) {
	b := backend(t, "b")
	g, pool := http3Gateway(t, func(c *config.Config) {
		c.Clusters, c.Routes = []upstream.Config{b}, []policy.RouteConfig{{Path: "/*", Cluster: "b"}}
	})
	c := overHTTP3(t, pool)
	sse := send(t, c, "GET", g.URL()+"/sse?channel=a", "")
	if sse.ProtoMajor != 3 || sse.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s %v", sse.Proto, sse.Header)
	}
	s := &stream{t, sse, bufio.NewReader(sse.Body)}
	s.block()
	for i := range 3 {
		if res := send(t, c, "POST", g.URL()+"/api/publish", fmt.Sprintf(`{"channel":"a","data":{"n":%d}}`, i)); res.StatusCode != 200 {
			t.Fatalf("publish: %d", res.StatusCode)
		}
		if got := s.block(); !strings.Contains(got, fmt.Sprintf(`data: {"n":%d}`, i)) {
			t.Errorf("%q", got)
		}
	}
	if st := g.http3.Stats(); st.Open != 1 || st.OpenStreams != 1 || st.Streams != 4 || st.Connections != 1 {
		t.Errorf("%+v", st)
	}
	large := strings.Repeat("0123456789abcdef", 64<<10) // 1 MB
	res := send(t, c, "POST", g.URL()+"/up", large)
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Errorf("%d %v %.100s", res.StatusCode, err, body)
	}
}

// A severable way to the server can be cut, which nobody is told.
type severable struct {
	net.PacketConn
	cut atomic.Bool
}

func (s *severable) WriteTo(b []byte, to net.Addr) (int, error) {
	if s.cut.Load() {
		return len(b), nil
	}
	return s.PacketConn.WriteTo(b, to)
}

func (s *severable) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := s.PacketConn.ReadFrom(b)
		if err != nil || !s.cut.Load() {
			return n, from, err
		}
	}
}

// TestAClientThatMovesKeepsItsStream has a client go on from another address, as a phone does
// that leaves the house: its stream stays, and what it asks for next comes from the new one.
func TestAClientThatMovesKeepsItsStream(t *testing.T) {
	g, pool := http3Gateway(t, nil)
	var first, second quic.Transport
	var way severable
	for _, tr := range []*quic.Transport{&first, &second} {
		udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		if tr.Conn = udp; tr == &first {
			way.PacketConn = udp
			tr.Conn = &way
		}
		defer udp.Close()
		defer tr.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	defer cancel()
	q, err := first.Dial(ctx, net.UDPAddrFromAddrPort(g.Addr()), &tls.Config{RootCAs: pool, NextProtos: []string{"h3"}, ServerName: "127.0.0.1"}, &quic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: (&http3.Transport{}).NewClientConn(q)}
	sse := send(t, c, "GET", g.URL()+"/sse?channel=a", "")
	s := &stream{t, sse, bufio.NewReader(sse.Body)}
	s.block()
	path, err := q.AddPath(&second)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.Probe(ctx); err != nil {
		t.Fatal(err)
	}
	if err := path.Switch(); err != nil {
		t.Fatal(err)
	}
	way.cut.Store(true)
	for i := range 3 {
		if res := send(t, c, "POST", g.URL()+"/api/publish", fmt.Sprintf(`{"channel":"a","data":{"n":%d}}`, i)); res.StatusCode != 200 {
			t.Fatalf("publish: %d", res.StatusCode)
		}
		if got := s.block(); !strings.Contains(got, fmt.Sprintf(`data: {"n":%d}`, i)) {
			t.Errorf("%q", got)
		}
	}
	if st := g.http3.Stats(); st.Moved != 1 || st.Connections != 1 {
		t.Errorf("%+v", st)
	}
}
