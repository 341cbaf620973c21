package pushhttp

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// ServeSSE answers r with the subscription, and returns when the stream has ended.
// Header fields of the caller's may be set on w already.
func (s *Server) ServeSSE(w http.ResponseWriter, r *http.Request, sub *wire.Subscription, id *auth.Identity) {
	p := &push.Subscription{Subscription: *sub, Identity: id, Accept: Joined(r, "Accept-Encoding")}
	out := &response{w: w, rc: http.NewResponseController(w), within: s.cfg.WriteStall}
	if err := s.carry(r.Context(), &carrier{}, PeerOf(r.RemoteAddr), out, func(c *eventloop.Conn) error { return s.push.ServeSSE(c, p) }); err != nil {
		Fail(w, wire.ErrorOf(err))
	}
}

// ServeWebSocket checks the handshake of r and serves the subscription on it. checkOrigin is
// as in websocket.AcceptOptions.
func (s *Server) ServeWebSocket(w http.ResponseWriter, r *http.Request, checkOrigin func(*http.Request) bool, sub *wire.Subscription, id *auth.Identity) {
	p := &push.Subscription{Subscription: *sub, Identity: id}
	var ok bool
	if p.Key, p.Accept, ok = Handshake(r, checkOrigin); !ok {
		if c, err := websocket.Accept(w, r, websocket.AcceptOptions{CheckOrigin: checkOrigin}); err == nil { // it reports what is wrong
			c.CloseNow()
		}
		return
	}
	nc, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "connection can not be upgraded", http.StatusInternalServerError)
		return
	}
	early := make([]byte, rw.Reader.Buffered())
	_, _ = rw.Read(early) // what is buffered can be read
	s.ServeConn(r.Context(), nc, early, p)
}

// Handshake checks that r opens a WebSocket, and returns its key and the extensions that the
// client offers.
func Handshake(r *http.Request, checkOrigin func(*http.Request) bool) (key, extensions []byte, ok bool) {
	key, err := websocket.CheckUpgrade(r.Method, r.ProtoMajor == 1 && r.ProtoMinor >= 1, func(name string) []byte { return Joined(r, name) })
	if checkOrigin == nil {
		checkOrigin = func(r *http.Request) bool {
			return websocket.SameOrigin([]byte(r.Header.Get("Origin")), []byte(r.Host))
		}
	}
	return key, Joined(r, "Sec-WebSocket-Extensions"), err == nil && checkOrigin(r)
}

// ServeConn serves p, a WebSocket if it has a key, on a connection that was hijacked from
// net/http, of which early was read already. It returns when the stream has ended; nc is
// closed then.
func (s *Server) ServeConn(ctx context.Context, nc net.Conn, early []byte, p *push.Subscription) {
	defer func() { _ = nc.Close() }()
	_ = nc.SetDeadline(time.Time{}) // the server's deadlines are for requests
	serve := s.push.ServeSSE
	if p.Key != nil {
		serve = s.push.ServeWebSocket
	}
	c, reading := &carrier{raw: true}, make(chan struct{})
	out := &hijacked{nc: nc, within: s.cfg.WriteStall}
	err := s.carry(ctx, c, PeerOf(nc.RemoteAddr().String()), out, func(conn *eventloop.Conn) error {
		err := serve(conn, p)
		if err == nil {
			go func() {
				defer close(reading)
				c.read(nc, early)
			}()
		}
		return err
	})
	if err != nil {
		e := wire.ErrorOf(err)
		_, _ = nc.Write(http1.AppendResponse(nil, e.Status, false, "application/json", wire.AppendError(nil, e))) // the client may be gone
		return
	}
	// Closing with unread input would reset the connection and could take the end with it.
	if half, ok := nc.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil || nc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		_ = nc.Close()
	}
	<-reading
}

const (
	lingerTime  = 2 * time.Second
	lingerBytes = 4 << 20
)

// read shows the loop what the client sends until it is gone, and discards what nothing
// wants any more.
func (c *carrier) read(nc net.Conn, early []byte) {
	wanted := len(early) == 0 || c.received(early)
	for b := make([]byte, 4<<10); wanted; {
		n, err := nc.Read(b)
		wanted = n == 0 || c.received(b[:n])
		if err != nil {
			c.loop.Post(c.Ended)
			return
		}
	}
	_, _ = io.CopyN(io.Discard, nc, lingerBytes)
}

// response is the outlet of a request.
type response struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	within time.Duration
}

func (o *response) head(h *head) {
	for name, values := range h.fields {
		if name == "Vary" { // of the program, too
			values = append(o.w.Header()[name], values...)
		}
		o.w.Header()[name] = values
	}
	o.w.WriteHeader(h.status)
}

// write flushes, too: whatever comes is to leave at once. The deadline goes with it: one that
// is left behind ends a stream of HTTP/2 when it comes, even if nothing waits then.
func (o *response) write(b []byte) error {
	_ = o.rc.SetWriteDeadline(time.Now().Add(o.within)) // not every writer has one
	if _, err := o.w.Write(b); err != nil {
		return err
	}
	err := o.rc.Flush()
	_ = o.rc.SetWriteDeadline(time.Time{})
	return err
}

// hijacked is the outlet of a connection that was taken from net/http.
type hijacked struct {
	nc     net.Conn
	within time.Duration
}

func (*hijacked) head(*head) {}

func (o *hijacked) write(b []byte) error {
	_ = o.nc.SetWriteDeadline(time.Now().Add(o.within))
	_, err := o.nc.Write(b)
	return err
}

// Joined returns the value of a field of r, several lines joined by commas.
func Joined(r *http.Request, name string) []byte {
	v := r.Header.Values(name)
	if len(v) == 0 {
		return nil
	}
	return []byte(strings.Join(v, ", "))
}

// PeerOf returns the address that net/http gives a client; invalid if it is none of IP.
func PeerOf(addr string) netip.AddrPort {
	a, _ := netip.ParseAddrPort(addr)
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
