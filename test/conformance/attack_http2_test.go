package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/test/judge"
)

// h2 is a connection of HTTP/2 of which every frame can be chosen.
type h2 struct {
	*http2.Framer
	t   testing.TB
	c   net.Conn
	enc *hpack.Encoder
	buf bytes.Buffer
}

func dialH2(t testing.TB, addr string, settings ...http2.Setting) *h2 {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	h := &h2{Framer: http2.NewFramer(c, c), t: t, c: c}
	h.enc = hpack.NewEncoder(&h.buf)
	h.AllowIllegalWrites = true
	h.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return h
}

// request starts a stream; bad writes are left to anyone who reads.
func (h *h2) request(stream uint32, endStream bool, fields ...string) error {
	return h.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: h.block(fields...), EndStream: endStream, EndHeaders: true})
}

func (h *h2) block(fields ...string) []byte {
	h.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = h.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return h.buf.Bytes()
}

var getP = []string{":method", "GET", ":scheme", "http", ":path", "/p", ":authority", "a"}

// status reads on to the answer on a stream; "" if the stream or the connection ends
// without one.
func (h *h2) status(stream uint32) string {
	for {
		f, err := h.ReadFrame()
		if err != nil {
			return ""
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = h.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID == stream {
				return f.PseudoValue("status")
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return ""
			}
		case *http2.GoAwayFrame:
			return ""
		}
	}
}

// TestHTTP2IsNotReadAsAnotherRequest sends requests that become others when they are
// written in HTTP/1.1. Each is refused, or reaches the backend in one reading, and
// counts against no peer.
func TestHTTP2IsNotReadAsAnotherRequest(t *testing.T) {
	rec := newRecorder(t, nil)
	s := judge.New(t, judge.Options{Memory: true, Config: map[string]any{
		"routes":   []any{map[string]any{"path": "/*", "cluster": "b"}},
		"clusters": []any{map[string]any{"name": "b", "peers": []any{map[string]any{"address": rec.addr}}}}, // with its breaker
	}})
	f := func(name string, fields ...string) {
		t.Helper()
		h := dialH2(t, s.Public)
		defer h.c.Close()
		_ = h.c.SetDeadline(time.Now().Add(2 * time.Second))
		if err := h.request(1, true, fields...); err != nil {
			t.Fatal(err)
		}
		status := h.status(1)
		heads, odd := rec.drained()
		for _, head := range append(heads, odd...) {
			if len(odd) > 0 || strings.Contains(head, "/hidden") || strings.Contains(strings.ToLower(head), "transfer-encoding") || !strings.HasPrefix(head, "GET /p") && !strings.HasPrefix(head, "GET /b/p ") {
				t.Errorf("%s: the backend got %q", name, head)
			}
		}
		if status != "" && status[0] != '4' && status[0] != '2' && status[0] != '1' && status != "501" {
			t.Errorf("%s: %s", name, status)
		}
	}
	with := func(more ...string) []string { return append(append([]string(nil), getP...), more...) }
	but := func(name, value string) []string {
		fields := append([]string(nil), getP...)
		for i := 0; i < len(fields); i += 2 {
			if fields[i] == name {
				fields[i+1] = value
			}
		}
		return fields
	}
	const hidden = "\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, v := range []string{"GET /hidden HTTP/1.1\r\nX: y", "GET /hidden", "GET /hidden HTTP/1.1", "G T", "", "GET\x00", "CONNECT", "get/hidden"} {
		f(fmt.Sprintf("method %q", v), but(":method", v)...)
	}
	for _, v := range []string{"/p HTTP/1.1" + hidden, "/p hidden", "/p#hidden", "p", "", "*", "/p\nhidden", "/p\x00", "http://b/p", "//b/p", "/p?a b", "/p?\x7f", "/p?\xff"} {
		f(fmt.Sprintf("path %q", v), but(":path", v)...)
	}
	for _, v := range []string{"a" + hidden, "a b", "a@b", "a/hidden", "", "a,b", "a:b", "[::1"} {
		f(fmt.Sprintf("authority %q", v), but(":authority", v)...)
	}
	for _, v := range [][2]string{
		{"transfer-encoding", "chunked"}, {"content-length", "40"}, {"content-length", "-1"}, {"content-length", "0"}, {"connection", "close"}, {"connection", "x-weir-user"},
		{"upgrade", "websocket"}, {"keep-alive", "1"}, {"proxy-connection", "keep-alive"}, {"te", "chunked"}, {"te", "trailers"}, {"host", "b"}, {"x", "y" + hidden},
		{"x\r\nhidden", "y"}, {"x: hidden", "y"}, {"x:", "hidden"}, {"X", "upper"}, {"", "empty"}, {"x y", "z"}, {"x\x00", "y"}, {":path", "/hidden"}, {":hidden", "y"},
		{":protocol", "websocket"}, {"expect", "100-continue"}, {"trailer", "transfer-encoding"}, {"x_forwarded_for", "hidden"}, {"content_length", "5"},
	} {
		f(fmt.Sprintf("%q: %q", v[0], v[1]), with(v[0], v[1])...)
		f(fmt.Sprintf("%q: %q first", v[0], v[1]), append([]string{v[0], v[1]}, getP...)...)
	}
	f("twice a length", with("content-length", "0", "content-length", "5")...)
	if h := dialH2(t, s.Public); true {
		if err := h.request(1, true, getP...); err != nil || h.status(1) != "200" {
			t.Error("afterwards the peer is not asked any more")
		}
		_ = h.c.Close()
		rec.drained()
	}

	// What starts like HTTP/2 stays HTTP/2: it is no way to another parser.
	for _, raw := range []string{
		"PRI * HTTP/2.0\r\n|Host: a\r\n\r\nGET /hidden HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nContent-Length: 3\n\n",
		"PRI * HTTP/2.0\r\n\r\n|GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n|GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		c, err := net.Dial("tcp", s.Public)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		first, second, _ := strings.Cut(raw, "|")
		_, _ = io.WriteString(c, first)
		time.Sleep(50 * time.Millisecond) // so that it is passed on before the rest comes
		_, _ = io.WriteString(c, second)
		b, _ := io.ReadAll(c)
		_ = c.Close()
		if heads, _ := rec.drained(); len(heads) > 0 {
			t.Errorf("%q: %q, and the backend got %q", raw, b, heads)
		}
	}
}

// TestHTTP2FloodsAreBounded plays the known floods, and checks in between whether
// others are served, and afterwards whether all that they took was given back.
func TestHTTP2FloodsAreBounded(t *testing.T) {
	release := make(chan struct{})
	addr := stage(t, func(_ int, c net.Conn) {
		b := make([]byte, 4096)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
			if bytes.Contains(b, []byte("/slow")) {
				<-release
			}
			if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", 100000)); err != nil {
				return
			}
		}
	})
	s := judge.New(t, judge.Options{Build: judge.Plain, Memory: true, Config: forwardAll(addr, map[string]any{"log": map[string]any{"level": "info"}})})
	files := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	if status, _ := s.Get("/p"); status != 200 {
		t.Fatal(status)
	}
	before, memory := files(), s.Memory()
	flood := func(name string, f func(h *h2)) {
		t.Helper()
		began := time.Now()
		h := dialH2(t, s.Public, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		f(h)
		if status, _ := s.Get("/p"); status != 200 {
			t.Errorf("%s: another client gets %d", name, status)
		}
		_ = h.c.Close()
		t.Logf("%s: %s, %d MiB, %d descriptors", name, time.Since(began).Round(time.Millisecond), s.Memory()>>20, files())
	}
	flood("rapid reset (CVE-2023-44487)", func(h *h2) {
		for n := range uint32(3000) {
			if h.request(2*n+1, true, ":method", "GET", ":scheme", "http", ":path", "/slow", ":authority", "a") != nil ||
				h.WriteRSTStream(2*n+1, http2.ErrCodeCancel) != nil {
				return
			}
		}
	})
	flood("CONTINUATION without end", func(h *h2) {
		_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.block(getP...)})
		for range 5000 {
			if h.WriteContinuation(1, false, h.block("x", strings.Repeat("y", 1000))) != nil {
				return
			}
		}
		if _, err := io.Copy(io.Discard, h.c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a head without end does not end the connection")
		}
	})
	flood("pings", func(h *h2) {
		for range 20000 {
			if h.WritePing(false, [8]byte{}) != nil {
				return
			}
		}
	})
	flood("settings", func(h *h2) {
		for n := range uint32(20000) {
			if h.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: n}) != nil {
				return
			}
		}
	})
	flood("empty DATA", func(h *h2) {
		_ = h.request(1, false, ":method", "POST", ":scheme", "http", ":path", "/p", ":authority", "a")
		for range 20000 {
			if h.WriteData(1, false, nil) != nil {
				return
			}
		}
	})
	flood("streams that accept nothing", func(h *h2) {
		for n := range uint32(400) { // more than there may be
			if h.request(2*n+1, true, getP...) != nil {
				return
			}
		}
	})
	close(release)
	const pool = 32 // connections to the backend that are kept for the next request
	judge.Eventually(t, 20*time.Second, "what the floods took is given back", func() bool {
		return files() <= before+8+pool && s.Series("weir_upstream_in_flight_requests") == 0
	})
	if now := s.Memory(); now > memory+100<<20 {
		t.Errorf("%d MiB before and %d MiB after", memory>>20, now>>20)
	}
	c := http2Client()
	defer c.CloseIdleConnections()
	res, err := c.Get("http://" + s.Public + "/p")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, res.Body); n != 100000 || err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d, %d bytes, %v", res.StatusCode, n, err)
	}
	_ = res.Body.Close()
}
