package app

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/testkit/trial"
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

// A severable way to the server can be cut without notice.
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

// TestAClientThatMovesKeepsItsStream has a client continue from another address, as a phone does
// that leaves the house: its stream stays, and its next request comes from the new one.
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

// TestOtherVersionsAdvertiseHTTP3 has every kind of answer over HTTP/1.1 and HTTP/2 say where
// HTTP/3 is, and none where there is no HTTP/3.
func TestOtherVersionsAdvertiseHTTP3(t *testing.T) {
	b := backend(t, "b")
	routes := func(c *config.Config) {
		c.Clusters, c.Routes = []upstream.Config{b}, []policy.RouteConfig{{Path: "/routed", Cluster: "b"}}
	}
	g, pool := http3Gateway(t, routes)
	want := fmt.Sprintf(`h3=":%d"; ma=86400`, g.Addr().Port())
	h1 := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer h1.CloseIdleConnections()
	for name, c := range map[string]*http.Client{"HTTP/1.1": {Transport: h1}, "HTTP/2": overHTTP2(t, &tls.Config{RootCAs: pool})} {
		for _, path := range []string{"/healthz", "/routed", "/sse?channel=a", "/sse", "/none"} {
			if got := send(t, c, "GET", g.URL()+path, "").Header.Values("Alt-Svc"); len(got) != 1 || got[0] != want {
				t.Errorf("%s %s: %q, want %q", name, path, got, want)
			}
		}
	}
	own, pool := http3Gateway(t, func(c *config.Config) { c.Downstream.AltSvc = `h3=":443"` })
	if got := send(t, overHTTP2(t, &tls.Config{RootCAs: pool}), "GET", own.URL()+"/healthz", "").Header.Get("Alt-Svc"); got != `h3=":443"` {
		t.Errorf("got %q", got)
	}
	plain := start(t, routes)
	if got := send(t, http.DefaultClient, "GET", plain.url+"/healthz", "").Header.Get("Alt-Svc"); got != "" {
		t.Errorf("without HTTP/3: %q", got)
	}
}

// dialHTTP3 is one connection of QUIC to g.
func dialHTTP3(t *testing.T, g *gateway, pool *x509.CertPool) (*quic.Conn, *http3.ClientConn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	defer cancel()
	q, err := quic.DialAddr(ctx, g.Addr().String(), &tls.Config{RootCAs: pool, NextProtos: []string{"h3"}}, nil)
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { _ = q.CloseWithError(0, "") })
	return q, (&http3.Transport{}).NewClientConn(q), nil
}

// TestLimitsCountStreamsOfHTTP3 holds a client to its connections, of which a connection of
// QUIC and its first stream are one.
func TestLimitsCountStreamsOfHTTP3(t *testing.T) {
	g, pool := http3Gateway(t, func(c *config.Config) { c.Limits.PerAddress.Connections = 3 })
	_, h, err := dialHTTP3(t, g, pool)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: h}
	for range 3 {
		send(t, c, "GET", g.URL()+"/sse?channel=a", "")
	}
	req, _ := http.NewRequestWithContext(t.Context(), "GET", g.URL()+"/healthz", nil)
	if res, err := c.Do(req); err == nil {
		res.Body.Close()
		t.Error("a fourth stream is served")
	}
	if _, other, err := dialHTTP3(t, g, pool); err == nil {
		if res, err := other.RoundTrip(req); err == nil {
			res.Body.Close()
			t.Error("another connection is served")
		}
	}
	if s := g.http3.Stats(); s.Refused != 1 || s.Connections != 1 {
		t.Errorf("%+v", s)
	}
	if p := g.push.Stats(); p.SSEOverHTTP3 != 3 || p.SSEOverHTTP2 != 0 || p.SSE != 3 {
		t.Errorf("%+v", p)
	}
}

func TestMaxConnsCountsStreamsOfHTTP3(t *testing.T) {
	g, pool := http3Gateway(t, func(c *config.Config) { c.EventLoop.MaxConns = 4 })
	_, h, err := dialHTTP3(t, g, pool)
	if err != nil {
		t.Fatal(err)
	}
	served := 0
	for range 8 {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", g.URL()+"/sse?channel=a", nil)
		res, err := h.RoundTrip(req)
		if err != nil {
			break
		}
		defer res.Body.Close()
		if res.Header.Get("Content-Type") == "text/event-stream" {
			served++
		}
	}
	if open := g.loops.Open(); open > 4 || served == 0 {
		t.Errorf("%d connections and streams are open, %d served; 4 may be", open, served)
	}
}

func TestWebSocketOverHTTP3(t *testing.T) {
	g, pool := http3Gateway(t, nil)
	_, h, err := dialHTTP3(t, g, pool)
	if err != nil {
		t.Fatal(err)
	}
	s, err := h.OpenRequestStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodConnect, g.URL()+"/ws?channel=a&hello=1", nil)
	req.Proto = "websocket"
	req.Header.Set("Sec-WebSocket-Version", "13")
	if err := s.SendRequestHeader(req); err != nil {
		t.Fatal(err)
	}
	res, err := s.ReadResponse()
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", res, err)
	}
	buf, got := make([]byte, 4<<10), ""
	until := func(part string) {
		t.Helper()
		for !strings.Contains(got, part) {
			n, err := s.Read(buf)
			if got += string(buf[:n]); err != nil {
				t.Fatalf("after %q: %v", got, err)
			}
		}
	}
	until("subscribed")
	if res := send(t, &http.Client{Transport: h}, "POST", g.URL()+"/api/publish", `{"channel":"a","data":{"n":7}}`); res.StatusCode != http.StatusOK {
		t.Fatalf("publish: %d", res.StatusCode)
	}
	until(`"data":{"n":7}`)
	if p := g.push.Stats(); p.WebSocketOverHTTP3 != 1 {
		t.Errorf("%+v", p)
	}
}

func TestHTTP3ShowsTheNewCertificate(t *testing.T) {
	dir := t.TempDir()
	f, _ := selfSigned(t, dir, 1)
	g := start(t, func(c *config.Config) {
		c.TLS.Certificates, c.Downstream.HTTP3 = []tlsterm.Certificate{f}, true
	})
	serial := func() int64 {
		t.Helper()
		q, err := quic.DialAddr(t.Context(), g.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h3"}}, nil) //nolint:gosec // only its number is read
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = q.CloseWithError(0, "") }()
		return q.ConnectionState().TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	if n := serial(); n != 1 {
		t.Errorf("serial %d", n)
	}
	selfSigned(t, dir, 2)
	if _, err := g.Reload(t.Context()); err != nil || serial() != 2 {
		t.Errorf("%v, serial %d", err, serial())
	}
}

// TestADrainEndsHTTP3InOrder has a subscriber get its last words and its connection end.
func TestADrainEndsHTTP3InOrder(t *testing.T) {
	g, pool := http3Gateway(t, nil)
	q, h, err := dialHTTP3(t, g, pool)
	if err != nil {
		t.Fatal(err)
	}
	sse := send(t, &http.Client{Transport: h}, "GET", g.URL()+"/sse?channel=a", "")
	s := &stream{t, sse, bufio.NewReader(sse.Body)}
	s.block()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&departure{App: g.App, limit: time.Duration(g.cfg.Shutdown.Drain)}).run(context.Background())
	}()
	rest, err := io.ReadAll(s.r)
	if err != nil || !strings.Contains(string(rest), "retry: ") || !strings.Contains(string(rest), "draining") {
		t.Errorf("%q %v", rest, err)
	}
	<-ended
	<-q.Context().Done()
	if e, ok := errors.AsType[*quic.ApplicationError](context.Cause(q.Context())); !ok || e.ErrorCode != 0x100 {
		t.Errorf("ended with %v", context.Cause(q.Context()))
	}
	if n := g.http3.Stats().Open; n != 0 {
		t.Errorf("%d connections are open", n)
	}
}

// TestTheNextProcessResetsUnknownConnections kills nothing, but has another
// gateway get the packets of a client: with the same ticket secret it answers with a
// stateless reset, and the client does not wait for its own timeout.
func TestTheNextProcessResetsUnknownConnections(t *testing.T) {
	t.Parallel() // it mostly waits
	secret := func(c *config.Config) { c.TLS.TicketSecret = "0123456789abcdef0123456789abcdef" }
	first, pool := http3Gateway(t, secret)
	second, _ := http3Gateway(t, secret)
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	turn := &turning{UDPConn: udp, from: net.UDPAddrFromAddrPort(first.Addr()), to: net.UDPAddrFromAddrPort(second.Addr())}
	tr := &quic.Transport{Conn: turn}
	defer udp.Close()
	defer tr.Close()
	q, err := tr.Dial(t.Context(), turn.from, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", NextProtos: []string{"h3"}}, &quic.Config{KeepAlivePeriod: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	sse := send(t, &http.Client{Transport: (&http3.Transport{}).NewClientConn(q)}, "GET", first.URL()+"/sse?channel=a", "")
	(&stream{t, sse, bufio.NewReader(sse.Body)}).block()
	turn.turned.Store(true)
	select {
	case <-q.Context().Done():
		if err, ok := errors.AsType[*quic.StatelessResetError](context.Cause(q.Context())); !ok {
			t.Errorf("%v, want a stateless reset", err)
		}
	case <-time.After(trial.Patience):
		t.Error("the client was not notified")
	}
}

// A turning socket sends what is for one address to another one, and says that the answers
// came from the first.
type turning struct {
	*net.UDPConn
	from, to *net.UDPAddr
	turned   atomic.Bool
}

func (s *turning) WriteTo(b []byte, to net.Addr) (int, error) {
	if s.turned.Load() {
		to = s.to
	}
	return s.UDPConn.WriteTo(b, to)
}

func (s *turning) ReadFrom(b []byte) (int, net.Addr, error) {
	n, _, err := s.UDPConn.ReadFrom(b)
	return n, s.from, err
}

// These would go past WriteTo and ReadFrom.
func (s *turning) WriteMsgUDP() {}
func (s *turning) ReadMsgUDP()  {}

// A rebinding socket gets another address without its user knowing, as behind a NAT.
type rebinding struct {
	net.PacketConn // the first
	now            atomic.Pointer[net.UDPConn]
}

func (s *rebinding) WriteTo(b []byte, to net.Addr) (int, error) { return s.now.Load().WriteTo(b, to) }

func (s *rebinding) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		c := s.now.Load()
		n, from, err := c.ReadFrom(b)
		if err == nil || c == s.now.Load() {
			return n, from, err
		}
	}
}

func (s *rebinding) SetReadDeadline(t time.Time) error { return s.now.Load().SetReadDeadline(t) }

// bind makes the socket a new one; the old one is closed.
func (s *rebinding) bind(t *testing.T) {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if old := s.now.Swap(c); old != nil {
		old.Close()
	} else {
		s.PacketConn = c
	}
}

// TestAClientWhoseNATForgotItKeepsItsStream has a client's address change without a word.
func TestAClientWhoseNATForgotItKeepsItsStream(t *testing.T) {
	g, pool := http3Gateway(t, nil)
	way := &rebinding{}
	way.bind(t)
	tr := &quic.Transport{Conn: way}
	defer func() { tr.Close(); way.now.Load().Close() }()
	q, err := tr.Dial(t.Context(), net.UDPAddrFromAddrPort(g.Addr()), &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", NextProtos: []string{"h3"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: (&http3.Transport{}).NewClientConn(q)}
	sse := send(t, c, "GET", g.URL()+"/sse?channel=a", "")
	s := &stream{t, sse, bufio.NewReader(sse.Body)}
	s.block()
	way.bind(t)
	for i := range 3 {
		if res := send(t, c, "POST", g.URL()+"/api/publish", fmt.Sprintf(`{"channel":"a","data":{"n":%d}}`, i)); res.StatusCode != 200 {
			t.Fatalf("publish: %d", res.StatusCode)
		}
		if got := s.block(); !strings.Contains(got, fmt.Sprintf(`data: {"n":%d}`, i)) {
			t.Errorf("%q", got)
		}
	}
	if st := g.http3.Stats(); st.Moved == 0 || st.Connections != 1 {
		t.Errorf("%+v", st)
	}
}
