package websocket

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// echo answers each message with itself.
func echo(ctx context.Context, c *Conn) error {
	for {
		op, b, err := c.Read(ctx)
		if err != nil {
			return err
		}
		if err := c.Write(op, b); err != nil {
			return err
		}
	}
}

// serve starts a server and returns its ws URL.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	return "ws" + strings.TrimPrefix(s.URL, "http")
}

func dial(t *testing.T, url string, o DialOptions) *Conn {
	t.Helper()
	c, _, err := Dial(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseNow)
	return c
}

func wantEcho(t *testing.T, c *Conn, text string) {
	t.Helper()
	if err := c.Write(OpText, []byte(text)); err != nil {
		t.Fatal(err)
	}
	if op, b, err := c.Read(t.Context()); err != nil || op != OpText || string(b) != text {
		t.Errorf("echo of %.20q is %v %.20q, %v", text, op, b, err)
	}
}

func TestEchoOverRealConnections(t *testing.T) {
	long := strings.Repeat("long enough to be compressed ", 100)
	for _, deflate := range []bool{false, true} {
		for _, offer := range []bool{false, true} {
			url := serve(t, Handler(AcceptOptions{Config: Config{Deflate: deflate}}, echo))
			c := dial(t, url, DialOptions{Config: Config{Deflate: offer}})
			if c.Compresses() != (deflate && offer) {
				t.Errorf("server %v, client %v: agreed %v", deflate, offer, c.Compresses())
			}
			wantEcho(t, c, "Hello")
			wantEcho(t, c, long)
			if err := c.Close(CloseNormal, ""); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestEchoOverTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(Handler(AcceptOptions{}, echo))
	s.EnableHTTP2 = true // the client must request HTTP/1.1
	s.StartTLS()
	defer s.Close()
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	c := dial(t, "wss"+strings.TrimPrefix(s.URL, "https"), DialOptions{TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	wantEcho(t, c, "Hello")
	if err := c.Close(CloseNormal, ""); err != nil {
		t.Error(err)
	}
	if c, _, err := Dial(t.Context(), "wss"+strings.TrimPrefix(s.URL, "https"), DialOptions{}); err == nil {
		c.CloseNow()
		t.Error("a certificate of an unknown CA was trusted")
	}
}

func TestSubprotocolAndHeaders(t *testing.T) {
	seen := make(chan *http.Request, 1)
	h := Handler(AcceptOptions{Subprotocols: []string{"v1.weir", "v2.weir"}}, echo)
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Clone(context.Background())
		h.ServeHTTP(w, r)
	}))
	header := http.Header{"Authorization": {"Bearer x"}, "Upgrade": {"spoiled"}, "Sec-Websocket-Protocol": {"spoiled"}}
	c := dial(t, url+"/a%2Fb?q=1#part", DialOptions{Header: header, Subprotocols: []string{"v3.weir", "v2.weir"}})
	if c.Subprotocol() != "v2.weir" {
		t.Errorf("agreed on %q", c.Subprotocol())
	}
	r := <-seen
	if r.RequestURI != "/a%2Fb?q=1" || r.Header.Get("Authorization") != "Bearer x" || header.Get("Upgrade") != "spoiled" {
		t.Errorf("asked for %s with %v", r.RequestURI, r.Header)
	}
}

func TestAcceptRefusals(t *testing.T) {
	url := "http" + strings.TrimPrefix(serve(t, Handler(AcceptOptions{}, echo)), "ws")
	good := map[string]string{
		"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	}
	f := func(method, name, value string, status int, answer ...string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range good {
			req.Header.Set(k, v)
		}
		if name != "" {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("%s with %s: %q: status %d, want %d", method, name, value, resp.StatusCode, status)
		}
		for i := 0; i < len(answer); i += 2 {
			if got := resp.Header.Get(answer[i]); got != answer[i+1] {
				t.Errorf("%s with %s: %q: %s is %q, want %q", method, name, value, answer[i], got, answer[i+1])
			}
		}
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	f("GET", "", "", 101, "Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
	f("GET", "Sec-WebSocket-Version", "7", 426, "Sec-WebSocket-Version", "13", "Upgrade", "websocket")
	f("GET", "Upgrade", "h2c", 426, "Upgrade", "websocket")
	f("GET", "Sec-WebSocket-Key", "short", 400)
	f("POST", "", "", 405, "Allow", "GET")
	f("GET", "Origin", "https://elsewhere.test", 403)
	f("GET", "Origin", url, 101)
}

func TestOriginPolicyCanBeChosen(t *testing.T) {
	url := serve(t, Handler(AcceptOptions{CheckOrigin: func(r *http.Request) bool {
		return slices.Contains(r.Header["Origin"], "https://app.test")
	}}, echo))
	c := dial(t, url, DialOptions{Header: http.Header{"Origin": {"https://app.test"}}})
	wantEcho(t, c, "Hello")
	_, resp, err := Dial(t.Context(), url, DialOptions{Header: http.Header{"Origin": {"https://other.test"}}})
	if err == nil || resp == nil || resp.StatusCode != http.StatusForbidden {
		t.Fatalf("other origin: %v, %v", resp, err)
	}
	if body, _ := io.ReadAll(resp.Body); string(body) != "origin not allowed\n" {
		t.Errorf("body %q", body)
	}
}

// answerWith answers the first connection with fixed bytes.
func answerWith(t *testing.T, answer func(key string) string) (url string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	background(t, func() error {
		nc, err := ln.Accept()
		if err != nil {
			return err
		}
		defer func() { _ = nc.Close() }()
		req := make([]byte, 4096)
		n, err := nc.Read(req)
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(string(req[:n]), "Sec-Websocket-Key: ")
		key, _, _ := strings.Cut(rest, "\r\n")
		_, err = nc.Write([]byte(answer(key)))
		_, _ = io.Copy(io.Discard, nc)
		return err
	})
	return "ws://" + ln.Addr().String()
}

func TestDialValidatesTheAnswer(t *testing.T) {
	f := func(o DialOptions, want string, answer func(key string) string) {
		t.Helper()
		c, _, err := Dial(t.Context(), answerWith(t, answer), o)
		if err == nil {
			c.CloseNow()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Dial gave %v, want %q", err, want)
		}
	}
	ok := func(extensions, subprotocol string) func(string) string {
		return func(key string) string {
			return string(AppendHandshakeResponse(nil, []byte(key), extensions, subprotocol))
		}
	}
	offer := DialOptions{Config: Config{Deflate: true}, Subprotocols: []string{"a"}}
	f(DialOptions{}, "", ok("", ""))
	f(offer, "", ok(ext, "a"))
	f(DialOptions{}, "extensions", ok(ext, ""))
	f(offer, "extensions", ok("permessage-deflate", ""))
	f(DialOptions{}, "subprotocol", ok("", "a"))
	f(offer, "subprotocol", ok("", "b"))
	f(DialOptions{}, "not an answer", func(string) string { return ok("", "")("dGhlIHNhbXBsZSBub25jZQ==") })
	f(DialOptions{}, "not an answer", func(string) string { return "HTTP/1.1 101 Switching Protocols\r\n\r\n" })
	f(DialOptions{}, "302 Found", func(string) string { return "HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n" })
	f(DialOptions{}, "too long", func(string) string { return "HTTP/1.1 101 OK\r\nX: " + strings.Repeat("x", 1<<17) })
	f(DialOptions{}, "malformed", func(string) string { return "hello there\r\n\r\n" })
}

func TestDialValidatesTheURL(t *testing.T) {
	for _, url := range []string{"http://127.0.0.1:1", "ws://", "ws://%zz", "127.0.0.1:1"} {
		if _, _, err := Dial(t.Context(), url, DialOptions{}); err == nil {
			t.Errorf("Dial(%q) went through", url)
		}
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	url := answerWith(t, func(string) string { cancel(); return "" })
	if _, _, err := Dial(ctx, url, DialOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial gave %v", err)
	}
}

// Frames right behind the handshake, in the same packet, are not lost on either side.
func TestEarlyFrames(t *testing.T) {
	url := answerWith(t, func(key string) string {
		return string(AppendFrame(AppendHandshakeResponse(nil, []byte(key), "", ""), OpText, []byte("early")))
	})
	c := dial(t, url, DialOptions{})
	if _, b, err := c.Read(t.Context()); err != nil || string(b) != "early" {
		t.Errorf("client read %q, %v", b, err)
	}
	c.CloseNow()

	server := serve(t, Handler(AcceptOptions{}, echo))
	nc, err := net.Dial("tcp", strings.TrimPrefix(server, "ws://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	request := "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	if _, err := nc.Write(AppendMaskedFrame([]byte(request), OpText, []byte("early"), testKey)); err != nil {
		t.Fatal(err)
	}
	want := AppendFrame(AppendHandshakeResponse(nil, []byte("dGhlIHNhbXBsZSBub25jZQ=="), "", ""), OpText, []byte("early"))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(nc, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("server answered %q, %v", got, err)
	}
}

func TestPanicEndsOnlyItsOwnConnection(t *testing.T) {
	url := serve(t, Handler(AcceptOptions{}, func(ctx context.Context, c *Conn) error {
		_, b, err := c.Read(ctx)
		if err == nil && string(b) == "panic" {
			panic("as asked")
		}
		if err != nil {
			return err
		}
		if err := c.Write(OpText, b); err != nil {
			return err
		}
		return echo(ctx, c)
	}))
	one, other := dial(t, url, DialOptions{}), dial(t, url, DialOptions{})
	if err := one.Write(OpText, []byte("panic")); err != nil {
		t.Fatal(err)
	}
	_, _, err := one.Read(t.Context())
	wantClose(t, err, CloseInternal, "")
	wantEcho(t, other, "still here")
}

func TestHandlerClosesAfterwards(t *testing.T) {
	f := func(result error, code uint16) {
		t.Helper()
		c := dial(t, serve(t, Handler(AcceptOptions{}, func(context.Context, *Conn) error { return result })), DialOptions{})
		_, _, err := c.Read(t.Context())
		wantClose(t, err, code, "")
	}
	f(nil, CloseNormal)
	f(errors.New("no more"), CloseInternal)
}
