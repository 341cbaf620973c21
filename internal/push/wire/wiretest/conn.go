// Package wiretest has the clients and peers of tests that send exactly what they are
// given, byte by byte. Only tests import it.
package wiretest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// A Conn is one end of a connection, the client's or a peer's. Methods that fail the
// test are for the test's goroutine. What takes longer than trial.Patience has failed.
type Conn struct {
	T testing.TB
	net.Conn
	R *bufio.Reader
}

// On speaks on c, and closes it at the end of the test.
func On(t testing.TB, c net.Conn) *Conn {
	t.Cleanup(func() { c.Close() })
	return on(t, c)
}

func on(t testing.TB, c net.Conn) *Conn {
	_ = c.SetDeadline(time.Now().Add(trial.Patience))
	return &Conn{t, c, bufio.NewReader(c)}
}

// Dial connects to addr.
func Dial(t testing.TB, addr string) *Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return On(t, c)
}

// Peer listens and runs f on each connection, which is the n-th from 0 on, each on a
// goroutine of its own. It returns the address.
func Peer(t testing.TB, f func(n int, c *Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(n, on(t, c))
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return l.Addr().String()
}

// CRLF lets heads be written as one would read them.
func CRLF(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

// Send sends s as it is.
func (c *Conn) Send(s string) {
	c.T.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.T.Fatalf("send %.40q: %v", s, err)
	}
}

// TrySend sends s with CRLF for each newline, and ignores a peer that does not read: for a
// peer's goroutine.
func (c *Conn) TrySend(s string) { _, _ = io.WriteString(c, CRLF(s)) }

// Request reads one request, or reports that no whole one comes: for a peer's goroutine.
func (c *Conn) Request() (req *http.Request, body string, ok bool) {
	req, err := http.ReadRequest(c.R)
	if err != nil {
		return nil, "", false
	}
	b, err := io.ReadAll(req.Body)
	return req, string(b), err == nil
}

// Answer reads one response; method is what was asked with.
func (c *Conn) Answer(method string) (*http.Response, string) {
	c.T.Helper()
	res, err := http.ReadResponse(c.R, &http.Request{Method: method})
	if err != nil {
		c.T.Fatalf("read the answer: %v", err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.T.Fatalf("read the body: %v", err)
	}
	return res, string(body)
}

// Response reads a response up to its body, which may continue for ever. Of the last one of
// a connection the body is what c reads from then on, whether it comes in chunks or not.
func (c *Conn) Response() *http.Response {
	c.T.Helper()
	res, err := http.ReadResponse(c.R, nil)
	if err != nil {
		c.T.Fatalf("read the head: %v", err)
	}
	if res.Close && len(res.TransferEncoding) > 0 {
		c.R = bufio.NewReader(io.MultiReader(res.Body, c.R))
	}
	return res
}

// Head reads up to and with the empty line.
func (c *Conn) Head() string {
	c.T.Helper()
	return c.until("\r\n", true)
}

// Block reads an SSE block and returns it without the empty line that ends it.
func (c *Conn) Block() string {
	c.T.Helper()
	return c.until("\n", false)
}

func (c *Conn) until(last string, with bool) string {
	c.T.Helper()
	var b strings.Builder
	for {
		line, err := c.R.ReadString('\n')
		if err != nil {
			c.T.Fatalf("it ended after %q: %v", b.String(), err)
		}
		if with || line != last {
			b.WriteString(line)
		}
		if line == last {
			return b.String()
		}
	}
}

// EOF wants the end of the stream.
func (c *Conn) EOF() {
	c.T.Helper()
	if b, err := io.ReadAll(c.R); err != nil || len(b) > 0 {
		c.T.Fatalf("got %q, %v instead of the end", b, err)
	}
}

// Closed reports whether the other side has nothing more to say and has ended.
func (c *Conn) Closed() bool {
	n, err := c.R.Read(make([]byte, 1))
	return n == 0 && err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// UpgradeFields are those of a WebSocket handshake.
const UpgradeFields = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n"

// Upgrade makes a WebSocket of the connection; more are lines of more fields.
func (c *Conn) Upgrade(target, more string) {
	c.T.Helper()
	c.Send(CRLF("GET " + target + " HTTP/1.1\nHost: a.example\n" + UpgradeFields + more + "\n"))
	if res := c.Response(); res.StatusCode != http.StatusSwitchingProtocols { //nolint:bodyclose // it ends with the connection
		b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		c.T.Fatalf("GET %s: %d %s", target, res.StatusCode, b)
	}
}

// Frame reads one WebSocket frame of a server.
func (c *Conn) Frame() (websocket.Opcode, []byte) {
	c.T.Helper()
	op, b, err := c.ReadFrame()
	if err != nil {
		c.T.Fatalf("read a frame: %v", err)
	}
	return op, b
}

// ReadFrame is Frame without a test to fail. Fragments and masks are errors.
func (c *Conn) ReadFrame() (websocket.Opcode, []byte, error) {
	var h [2]byte
	if _, err := io.ReadFull(c.R, h[:]); err != nil {
		return 0, nil, err
	}
	n := int(h[1])
	if ext := map[int]int{126: 2, 127: 8}[n]; ext > 0 {
		n = 0
		for range ext {
			b, err := c.R.ReadByte()
			if err != nil {
				return 0, nil, err
			}
			n = n<<8 | int(b)
		}
	}
	if h[0]&0x80 == 0 || h[0]&0x70 != 0 || n > 1<<24 || h[1]&0x80 != 0 {
		return 0, nil, fmt.Errorf("frame head % x", h)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(c.R, b)
	return websocket.Opcode(h[0] & 0xf), b, err
}

// SendFrame sends a WebSocket frame as a client.
func (c *Conn) SendFrame(op websocket.Opcode, payload string) {
	c.T.Helper()
	c.Send(string(websocket.AppendMaskedFrame(nil, op, []byte(payload), [4]byte{1, 2, 3, 4})))
}

// CloseCode reads frames up to the close and returns its code.
func (c *Conn) CloseCode() int {
	c.T.Helper()
	for {
		if op, b := c.Frame(); op == websocket.OpClose {
			if len(b) < 2 {
				return int(websocket.CloseNoStatus)
			}
			return int(b[0])<<8 | int(b[1])
		}
	}
}
