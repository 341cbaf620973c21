package wiretest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/websocket"
)

func TestBothEndsUnderstandEachOther(t *testing.T) {
	addr := wiretest.Peer(t, func(n int, c *wiretest.Conn) {
		req, body, ok := c.Request()
		if !ok {
			return
		}
		c.TrySend(fmt.Sprintf("HTTP/1.1 200 OK\nContent-Length: 1\n\n%d", n))
		c.TrySend("HTTP/1.1 200 OK\n\n")
		_, _ = fmt.Fprintf(c, "event: %s\ndata: %s\n\n", req.URL.Path, body)
	})
	for n := range 2 {
		c := wiretest.Dial(t, addr)
		c.Send(wiretest.CRLF("POST /a HTTP/1.1\nHost: b\nContent-Length: 2\n\nhi"))
		if res, body := c.Answer("POST"); res.StatusCode != 200 || body != fmt.Sprint(n) {
			t.Errorf("answer %d %q", res.StatusCode, body)
		}
		if h := c.Head(); h != "HTTP/1.1 200 OK\r\n\r\n" {
			t.Errorf("head %q", h)
		}
		if b := c.Block(); b != "event: /a\ndata: hi\n" {
			t.Errorf("block %q", b)
		}
		c.EOF()
		if !c.Closed() {
			t.Error("not closed")
		}
	}
}

func TestFramesAreRead(t *testing.T) {
	long := strings.Repeat("x", 70_000)
	addr := wiretest.Peer(t, func(n int, c *wiretest.Conn) {
		if _, _, ok := c.Request(); !ok {
			return
		}
		c.TrySend("HTTP/1.1 101 Switching Protocols\n\n")
		var b []byte
		for _, s := range []string{"", "short", long[:300], long} {
			b = websocket.AppendFrame(b, websocket.OpText, []byte(s))
		}
		b = websocket.AppendFrame(b, websocket.OpClose, []byte{0x03, 0xe9})
		if n > 0 {
			b = websocket.AppendMaskedFrame(nil, websocket.OpText, []byte("masked"), [4]byte{1})
		}
		_, _ = c.Write(b)
	})
	c := wiretest.Dial(t, addr)
	c.Upgrade("/ws", "")
	for _, want := range []string{"", "short", long[:300]} {
		if op, b := c.Frame(); op != websocket.OpText || string(b) != want {
			t.Errorf("frame %v of %d bytes, want %d", op, len(b), len(want))
		}
	}
	if code := c.CloseCode(); code != 1001 {
		t.Errorf("close code %d", code)
	}
	c = wiretest.Dial(t, addr)
	c.Upgrade("/ws", "")
	if _, _, err := c.ReadFrame(); err == nil {
		t.Error("a server's frame with a mask was read")
	}
}
