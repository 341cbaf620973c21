package app

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/websocket"
)

// patience is for what must happen: long, for a machine under load.
const patience = 20 * time.Second

// eventually waits for ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// rawConn is a client that says exactly what it is told to.
type rawConn struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func (g *gateway) dial(t *testing.T) *rawConn {
	t.Helper()
	c, err := net.Dial("tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return &rawConn{t, c, bufio.NewReader(c)}
}

// crlf writes heads as one would read them.
func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

func (w *rawConn) send(s string) {
	w.t.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		w.t.Fatalf("send %.40q: %v", s, err)
	}
}

// answer reads one response; method is what was asked with.
func (w *rawConn) answer(method string) (*http.Response, []byte) {
	w.t.Helper()
	res, err := http.ReadResponse(w.r, &http.Request{Method: method})
	if err != nil {
		w.t.Fatalf("read the answer: %v", err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatalf("read the body: %v", err)
	}
	return res, body
}

// head reads a response up to its body, which goes on for ever.
func (w *rawConn) head() *http.Response {
	w.t.Helper()
	res, err := http.ReadResponse(w.r, nil)
	if err != nil {
		w.t.Fatalf("read the head: %v", err)
	}
	return res
}

// closed says whether the server has nothing more to say and ends.
func (w *rawConn) closed() bool {
	n, err := w.r.Read(make([]byte, 1))
	return n == 0 && err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// block reads an SSE block.
func (w *rawConn) block() string {
	w.t.Helper()
	var b strings.Builder
	for {
		line, err := w.r.ReadString('\n')
		if err != nil {
			w.t.Fatalf("the stream ended after %q: %v", b.String(), err)
		}
		if line == "\n" {
			return b.String()
		}
		b.WriteString(line)
	}
}

const upgradeFields = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n"

// ws opens a WebSocket by hand.
func (g *gateway) ws(t *testing.T, query, fields string) *rawConn {
	t.Helper()
	w := g.dial(t)
	w.send(crlf("GET /ws?" + query + " HTTP/1.1\nHost: a\n" + upgradeFields + fields + "\n"))
	if res := w.head(); res.StatusCode != http.StatusSwitchingProtocols {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		t.Fatalf("GET /ws?%s: %d %s", query, res.StatusCode, b)
	}
	return w
}

// frame reads one WebSocket frame from the server.
func (w *rawConn) frame() (websocket.Opcode, []byte) {
	w.t.Helper()
	op, b, err := w.readFrame()
	if err != nil {
		w.t.Fatalf("read a frame: %v", err)
	}
	return op, b
}

func (w *rawConn) readFrame() (websocket.Opcode, []byte, error) {
	var h [2]byte
	if _, err := io.ReadFull(w.r, h[:]); err != nil {
		return 0, nil, err
	}
	n := int(h[1])
	ext := map[int]int{126: 2, 127: 8}[n]
	if ext > 0 {
		n = 0
		for range ext {
			c, err := w.r.ReadByte()
			if err != nil {
				return 0, nil, err
			}
			n = n<<8 | int(c)
		}
	}
	if h[0]&0x80 == 0 || h[0]&0x70 != 0 || n > 1<<24 {
		return 0, nil, fmt.Errorf("frame head % x", h)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(w.r, b)
	return websocket.Opcode(h[0] & 0xf), b, err
}

// say sends a WebSocket frame as a client.
func (w *rawConn) say(op websocket.Opcode, payload string) {
	w.t.Helper()
	w.send(string(websocket.AppendMaskedFrame(nil, op, []byte(payload), [4]byte{1, 2, 3, 4})))
}

// closeCode reads frames up to the close and returns its code.
func (w *rawConn) closeCode() int {
	w.t.Helper()
	for {
		if op, b := w.frame(); op == websocket.OpClose {
			if len(b) < 2 {
				return int(websocket.CloseNoStatus)
			}
			return int(b[0])<<8 | int(b[1])
		}
	}
}

// wantError checks that an answer is an error as all of them are.
func wantError(t *testing.T, what string, res *http.Response, body []byte, status int) {
	t.Helper()
	var e struct {
		Error struct {
			Code          int
			Message, Hint string
		}
	}
	if res.StatusCode != status {
		t.Errorf("%s: %d %s, want %d", what, res.StatusCode, body, status)
		return
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Error.Code != status || e.Error.Message == "" {
		t.Errorf("%s: body %q, want an error of code %d with a message", what, body, status)
	}
	f := func(name, want string) {
		t.Helper()
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s: %s is %q, want %q", what, name, got, want)
		}
	}
	f("Content-Type", "application/json")
	f("X-Content-Type-Options", "nosniff")
	f("Cache-Control", "no-store")
	if res.Header.Get("Date") == "" {
		t.Errorf("%s: no Date", what)
	}
	if status == 503 && res.Header.Get("Retry-After") == "" {
		t.Errorf("%s: no Retry-After", what)
	}
	if status == 401 && !strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Bearer") {
		t.Errorf("%s: no WWW-Authenticate", what)
	}
}

func postHead(fields string, length int) string {
	return crlf(fmt.Sprintf("POST /api/publish HTTP/1.1\nHost: a\n%sContent-Length: %d\n\n", fields, length))
}

const keyField = "X-API-Key: " + testKey + "\n"

// publishBody is a small call.
const publishBody = `{"channel":"news","data":{"n":1}}`

func hasResult(body []byte) bool { return bytes.Contains(body, []byte(`"offset":`)) }

func newContext(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx, cancel
}
