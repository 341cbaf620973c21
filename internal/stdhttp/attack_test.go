package stdhttp_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/setting"
	"github.com/weir-gateway/weir/internal/upstream"
)

// scripted is a backend on raw sockets: play is given each connection after the head
// of every request on it, and says whether to go on. It ends with the test.
func scripted(t *testing.T, play func(c net.Conn, r *http.Request) bool) (cluster upstream.Config) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				for r := bufio.NewReader(c); ; {
					req, err := http.ReadRequest(r)
					if err != nil || !play(c, req) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); all.Wait() })
	return upstream.Config{Name: "b", Peers: []upstream.PeerConfig{{Address: ln.Addr().String()}}}
}

func toB(path string) []policy.RouteConfig { return []policy.RouteConfig{{Path: path, Cluster: "b"}} }

// What came behind a reply was taken for the reply to the next request.
func TestWhatIsBehindAReplyIsNobodysAnswer(t *testing.T) {
	const evil = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
	good := func(req *http.Request) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(req.URL.Path), req.URL.Path)
	}
	cluster := scripted(t, func(c net.Conn, req *http.Request) bool {
		text := good(req)
		switch {
		case strings.HasPrefix(req.URL.Path, "/chunked"):
			text = fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(req.URL.Path), req.URL.Path)
		case strings.HasPrefix(req.URL.Path, "/empty"):
			text = "HTTP/1.1 204 No Content\r\n\r\n"
		}
		_, err := io.WriteString(c, text+evil)
		return err == nil
	})
	s := newSite(t, toB("/*"), []upstream.Config{cluster}, nil, overHTTP2)
	for n := range 30 {
		for _, kind := range []string{"length", "chunked"} {
			path := fmt.Sprintf("/%s/%d", kind, n)
			if res, body := s.do("GET", path, ""); res.StatusCode == 200 && body != path {
				t.Fatalf("%s got %q", path, body)
			}
		}
		if res, body := s.do("GET", "/empty", ""); res.StatusCode == 200 {
			t.Fatalf("204 became %q", body)
		}
	}
}

func TestRepliesThatReadInTwoWaysAreRefused(t *testing.T) {
	f := func(reply string) {
		t.Helper()
		s := newSite(t, toB("/*"), []upstream.Config{scripted(t, func(c net.Conn, _ *http.Request) bool {
			_, _ = io.WriteString(c, reply)
			return false
		})}, nil, overHTTP2)
		if res, body := s.do("POST", "/", ""); res.StatusCode != 502 {
			t.Errorf("%q: %d %q", reply, res.StatusCode, body)
		}
	}
	f("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	f("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello")
	f("HTTP/1.1 200 OK\r\nX: a\r\n Content-Length: 0\r\nContent-Length: 5\r\n\r\nhello")
	f("HTTP/1.1 200 OK\nContent-Length: 5\n\nhello")
	f("HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello")
	f("HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello")
	f("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
}

// A reply that was cut left its request counted as under way for ever.
func TestRequestOfACutReplyIsCountedOut(t *testing.T) {
	cluster := scripted(t, func(c net.Conn, _ *http.Request) bool {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")
		return false
	})
	cluster.Pool.MaxInFlight = 1
	cluster.Outlier.Enabled, cluster.Breaker.Enabled = setting.Off, setting.Off
	s := newSite(t, toB("/*"), []upstream.Config{cluster}, nil, overHTTP2)
	for n := range 5 {
		res, err := s.c.Get(s.url) //nolint:noctx // it ends
		if err != nil {
			continue // reset before its head was seen
		}
		if _, err := io.ReadAll(res.Body); err == nil || res.StatusCode != 200 {
			t.Errorf("request %d: %d, %v; want the beginning of a reply", n, res.StatusCode, err)
		}
		_ = res.Body.Close()
	}
}

// Interim replies come on a goroutine of the transport's: one that came while the
// request was given up wrote into the answer's header beside its handler.
func TestInterimRepliesEndWithTheAttempt(t *testing.T) {
	cluster := scripted(t, func(c net.Conn, _ *http.Request) bool {
		for {
			if _, err := io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: X-Hop\r\nX-Hop: y\r\n\r\n"); err != nil {
				return false
			}
		}
	})
	cluster.Retry.Attempts = 1
	routes := toB("/*")
	routes[0].Timeouts.FirstByte = hub.Duration(2 * time.Millisecond)
	s := newSite(t, routes, []upstream.Config{cluster}, nil, overHTTP2)
	for range 20 {
		if res, _ := s.do("GET", "/", ""); res.StatusCode < 500 {
			t.Errorf("%d", res.StatusCode)
		}
	}
}

// A quiet stream was reset when the deadline of its last write had passed.
func TestQuietStreamOfARouteIsNotEnded(t *testing.T) {
	said := make(chan struct{})
	cluster := scripted(t, func(c net.Conn, _ *http.Request) bool {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
		<-said
		_, _ = io.WriteString(c, "data: 2\n\n")
		return false
	})
	s := newSite(t, toB("/*"), []upstream.Config{cluster}, nil, overHTTP2)
	res, err := s.c.Get(s.url) //nolint:noctx // it ends
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	first := make([]byte, 9)
	if _, err := io.ReadFull(res.Body, first); err != nil {
		t.Fatal(err)
	}
	<-time.After(3 * writeStall) // real time is what is judged
	close(said)
	if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "data: 2\n\n" {
		t.Errorf("%q, %v", rest, err)
	}
}

// framed is a connection of HTTP/2 of which every frame can be chosen.
type framed struct {
	*http2.Framer
	t   *testing.T
	c   net.Conn
	enc *hpack.Encoder
	buf bytes.Buffer
}

// unencrypted starts a Front's own server, without TLS.
func unencrypted(ts *httptest.Server) {
	ts.Config.Protocols = new(http.Protocols)
	ts.Config.Protocols.SetHTTP1(true)
	ts.Config.Protocols.SetUnencryptedHTTP2(true)
	ts.Start()
}

func dialFramed(t *testing.T, url string) *framed {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f := &framed{Framer: http2.NewFramer(c, c), t: t, c: c}
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.enc = hpack.NewEncoder(&f.buf)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return f
}

// ask sends a request without a body and returns the status of its answer; 0 if the
// stream or the connection is ended instead.
func (f *framed) ask(stream uint32, fields ...string) (status string) {
	f.t.Helper()
	f.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = f.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.buf.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		return "0"
	}
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			return "0"
		}
		switch fr := fr.(type) {
		case *http2.SettingsFrame:
			if !fr.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			if fr.StreamID == stream {
				return fr.PseudoValue("status")
			}
		case *http2.RSTStreamFrame:
			if fr.StreamID == stream {
				return "0"
			}
		case *http2.GoAwayFrame:
			return "0"
		}
	}
}

// A method that HTTP/1 cannot say counted as the peer's fault, so that anybody could
// have peers taken out.
func TestBadMethodIsTheClientsFault(t *testing.T) {
	cluster := backend(t, "b")
	cluster.Retry.Attempts = 1
	s := newSite(t, toB("/*"), []upstream.Config{cluster}, nil, unencrypted)
	f := dialFramed(t, s.url)
	for n := range 30 {
		method := []string{"GET /x HTTP/1.1", "A B", "GET\t", "G(T", strings.Repeat("M", 33)}[n%5]
		if got := f.ask(uint32(2*n+1), ":method", method, ":scheme", "http", ":path", "/y", ":authority", "a"); got != "400" && got != "0" {
			t.Errorf("%q: %s", method, got)
		}
	}
	if got := f.ask(1001, ":method", "GET", ":scheme", "http", ":path", "/y", ":authority", "a"); got != "200" {
		t.Errorf("afterwards: %s", got)
	}
}

// A cluster whose peers want a PROXY header got requests without one from clients of
// HTTP/2: peers that hang up on these are taken out.
func TestPeersAreToldTheClientOfHTTP2(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 4)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				r := bufio.NewReader(c)
				line, _ := r.ReadString('\n')
				said <- line
				for {
					if _, err := http.ReadRequest(r); err != nil {
						return
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); all.Wait() })
	s := newSite(t, toB("/*"), []upstream.Config{{Name: "b", ProxyProtocol: 1, Peers: []upstream.PeerConfig{{Address: ln.Addr().String()}}}}, nil, overHTTP2)
	for range 2 {
		if res, body := s.do("GET", "/", ""); res.StatusCode != 200 || body != "ok" {
			t.Errorf("%d %q", res.StatusCode, body)
		}
	}
	if got := <-said; !strings.HasPrefix(got, "PROXY TCP4 127.0.0.1 127.0.0.1 ") || !strings.HasSuffix(got, s.url[strings.LastIndexByte(s.url, ':')+1:]+"\r\n") {
		t.Errorf("%q", got)
	}
	if len(said) > 0 {
		t.Error("the second request had a connection of its own")
	}
}

// Connections were kept as a cluster had been configured when it was asked first, and
// those to clusters that were gone until they timed out.
func TestReloadedClustersHaveTheirOwnConnections(t *testing.T) {
	ended := make(chan struct{}, 10)
	cluster := scripted(t, func(c net.Conn, _ *http.Request) bool {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		_, _ = c.Read(make([]byte, 1)) // nothing comes but the end
		ended <- struct{}{}
		return false
	})
	s := newSite(t, toB("/*"), []upstream.Config{cluster}, nil, overHTTP2)
	ask := func() {
		t.Helper()
		if res, _ := s.do("GET", "/", ""); res.StatusCode != 200 {
			t.Errorf("%d", res.StatusCode)
		}
	}
	ask()
	cluster.Timeouts.FirstByte = hub.Duration(7 * time.Second)
	if err := s.ups.Replace(t.Context(), []upstream.Config{cluster}, nil); err != nil {
		t.Fatal(err)
	}
	ask()
	<-ended
	if err := s.ups.Replace(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	s.front.SetRoutes(nil)
	<-ended
}
