package stdhttp

import (
	"io"
	"net"
	"net/http"
	"time"

	"github.com/weir-gateway/weir/internal/wire"
	"github.com/weir-gateway/weir/websocket"
)

// isExtendedConnect reports whether r opens a WebSocket over HTTP/2 (RFC 8441 §4).
// net/http offers that to clients when the process was started with
// GODEBUG=http2xconnect=1, and refuses it otherwise.
func isExtendedConnect(r *http.Request) bool {
	return r.Method == http.MethodConnect && r.ProtoMajor == 2 && r.Header.Get(":protocol") == "websocket"
}

// webSocketOverHTTP2 serves a WebSocket on a stream of HTTP/2: there is no key to
// answer, and 200 takes the place of 101 (RFC 8441 §5).
func (f *Front) webSocketOverHTTP2(w http.ResponseWriter, r *http.Request) {
	if v := r.Header.Get("Sec-WebSocket-Version"); v != "13" {
		f.fail(w, r, &wire.Error{Status: http.StatusUpgradeRequired, Message: "websocket: unknown version", Hint: "connect with a WebSocket client"})
		return
	}
	sub, id := f.subscription(w, r)
	if sub == nil {
		return
	}
	if !f.replays(w, r, sub) {
		return
	}
	rc := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	if rc.Flush() != nil {
		return
	}
	c := websocket.NewConn(&h2Conn{r: r, w: w, rc: rc}, websocket.ConnOptions{Config: f.deps.Push.SocketConfig()})
	f.deps.Push.ServeWebSocket(r.Context(), c, sub, id)
}

// h2Conn is a stream of HTTP/2 as a net.Conn. Its end is the handler's return.
type h2Conn struct {
	r  *http.Request
	w  http.ResponseWriter
	rc *http.ResponseController
}

var _ net.Conn = (*h2Conn)(nil)

// Read implements net.Conn.
func (c *h2Conn) Read(b []byte) (int, error) { return c.r.Body.Read(b) }

// Write implements net.Conn.
func (c *h2Conn) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if err == nil {
		err = c.rc.Flush()
	}
	// The deadline was for this: left behind it would end a stream that rests.
	_ = c.rc.SetWriteDeadline(time.Time{})
	return n, err
}

// Close implements net.Conn.
func (c *h2Conn) Close() error { return c.r.Body.Close() }

// LocalAddr implements net.Conn.
func (c *h2Conn) LocalAddr() net.Addr {
	a, _ := c.r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return a
}

// RemoteAddr implements net.Conn.
func (c *h2Conn) RemoteAddr() net.Addr { return address(c.r.RemoteAddr) }

// SetDeadline implements net.Conn.
func (c *h2Conn) SetDeadline(t time.Time) error {
	if err := c.rc.SetReadDeadline(t); err != nil {
		return err
	}
	return c.rc.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *h2Conn) SetReadDeadline(t time.Time) error { return c.rc.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *h2Conn) SetWriteDeadline(t time.Time) error { return c.rc.SetWriteDeadline(t) }

var _ io.ReadWriteCloser = (*h2Conn)(nil)

// address is a peer's address as text.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }
