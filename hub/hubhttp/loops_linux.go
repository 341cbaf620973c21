package hubhttp

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/pushhttp"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/push"
	engine "github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// loops carry the streams whose connections left net/http. A nil *loops carries none.
type loops struct {
	group       *eventloop.Group
	push        *push.Push
	threads     *pushhttp.Server // for connections that turn out not to be sockets
	checkOrigin func(*http.Request) bool
	next        atomic.Uint32
}

func newLoops(cfg Config, f *wire.Formats, h *engine.Hub, threads *pushhttp.Server, hooks *extension.Extensions) (*loops, error) {
	if cfg.Loops < 0 {
		return nil, nil
	}
	none := func(*eventloop.Conn) eventloop.Handler { return nil } // they listen on nothing
	g, err := eventloop.New(eventloop.Config{Loops: cfg.Loops}, none, cfg.Log)
	if err != nil {
		return nil, err
	}
	p, err := push.New(cfg.carried().Push(), push.Deps{
		Formats: f, Hub: h, Loops: g.Loops(), Access: threads.Access(), Extensions: hooks, Log: cfg.Log,
	})
	if err != nil {
		g.Release()
		return nil, err
	}
	return &loops{group: g, push: p, threads: threads, checkOrigin: cfg.CheckOrigin}, nil
}

func (l *loops) run(ctx context.Context) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	return pushhttp.RunLoops(ctx, l.group, l.push)
}

func (l *loops) release() {
	if l != nil {
		l.group.Release()
	}
}

func (l *loops) drain(plan wire.DrainPlan) {
	if l != nil {
		l.push.Drain(plan)
	}
}

func (l *loops) streams() int64 {
	if l == nil {
		return 0
	}
	st := l.push.Stats()
	return st.SSE + st.WebSocket
}

func (l *loops) adoptSSE(w http.ResponseWriter, r *http.Request, sub *wire.Subscription, id *auth.Identity) bool {
	if l == nil || r.Method != http.MethodGet || !movable(w, r) {
		return false
	}
	s := l.subscription(w, sub, id)
	s.Accept = pushhttp.Joined(r, "Accept-Encoding")
	return l.adopt(w, r, s, l.push.ServeSSE)
}

func (l *loops) adoptWebSocket(w http.ResponseWriter, r *http.Request, sub *wire.Subscription, id *auth.Identity) bool {
	if l == nil || !movable(w, r) {
		return false
	}
	key, extensions, ok := pushhttp.Handshake(r, l.checkOrigin)
	if !ok || len(r.Header.Values("Sec-WebSocket-Key")) > 1 {
		return false // the goroutine's way refuses it in words
	}
	s := l.subscription(w, sub, id)
	s.Key, s.Accept = key, extensions
	return l.adopt(w, r, s, l.push.ServeWebSocket)
}

// movable reports whether the connection of r is bare HTTP/1.1 without a body, so
// that the request alone is between it and the loops.
func movable(w http.ResponseWriter, r *http.Request) bool {
	if r.TLS != nil || r.ProtoMajor != 1 || r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		return false
	}
	addr, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	_, tcp := addr.(*net.TCPAddr)
	_, unix := addr.(*net.UnixAddr)
	return tcp || unix
}

// subscription is sub with the header fields that the program set for the answer.
func (l *loops) subscription(w http.ResponseWriter, sub *wire.Subscription, id *auth.Identity) *push.Subscription {
	s := &push.Subscription{Subscription: *sub, Identity: id}
	ours := []string{"Content-Type", "Cache-Control", "X-Accel-Buffering", "X-Content-Type-Options", "Connection", "Content-Length", "Content-Encoding",
		"Transfer-Encoding", "Date", "Upgrade", "Sec-Websocket-Accept", "Sec-Websocket-Extensions", "Sec-Websocket-Protocol"}
	for name, values := range w.Header() {
		for _, v := range values {
			if !slices.Contains(ours, name) {
				s.Fields = http1.AppendField(s.Fields, name, v)
			}
		}
	}
	return s
}

// adopt moves the connection to a loop. It returns false when nothing was done yet
// and net/http still has it.
func (l *loops) adopt(w http.ResponseWriter, r *http.Request, s *push.Subscription, serve func(*eventloop.Conn, *push.Subscription) error) bool {
	nc, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return false
	}
	defer func() { _ = nc.Close() }() // a loop has a descriptor of its own
	early := make([]byte, rw.Reader.Buffered())
	_, _ = rw.Read(early) // what is buffered can be read
	fd, err := descriptor(nc)
	if err != nil {
		l.threads.ServeConn(r.Context(), nc, early, s) // a listener of the program's own: its bytes are not the socket's
		return true
	}
	_ = r.Body.Close() // there is none
	loop := l.group.Loops()[int(l.next.Add(1))%len(l.group.Loops())]
	loop.Adopt(fd, pushhttp.PeerOf(nc.RemoteAddr().String()), early, &arrival{push: l.push, sub: s, serve: serve})
	return true
}

// descriptor returns a descriptor of its own for the socket of nc.
func descriptor(nc net.Conn) (int, error) {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return 0, net.ErrClosed
	}
	raw, err := nc.(interface {
		SyscallConn() (syscall.RawConn, error)
	}).SyscallConn()
	if err != nil {
		return 0, err
	}
	fd, failed := -1, error(nil)
	if err := raw.Control(func(old uintptr) { fd, failed = sys.Dup(int(old)) }); err != nil {
		return 0, err
	}
	return fd, failed
}

// arrival is the handler of a connection until it is a subscriber.
type arrival struct {
	push  *push.Push
	sub   *push.Subscription
	serve func(*eventloop.Conn, *push.Subscription) error
}

var _ eventloop.Connector = (*arrival)(nil)

// Connected implements eventloop.Connector.
func (a *arrival) Connected(c *eventloop.Conn) {
	if err := a.serve(c, a.sub); err != nil {
		e := wire.ErrorOf(err)
		c.Write(http1.AppendResponse(nil, e.Status, false, "application/json", wire.AppendError(nil, e)))
		c.CloseAfterFlush()
	}
}

// Data implements eventloop.Handler: nothing is asked of a client on its way out.
func (a *arrival) Data(_ *eventloop.Conn, b []byte) int { return len(b) }

// EndOfStream implements eventloop.Handler.
func (a *arrival) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (a *arrival) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler.
func (a *arrival) Timer(*eventloop.Conn, int64) {}

// Closed implements eventloop.Handler.
func (a *arrival) Closed(*eventloop.Conn, error) {}
