package stdhttp

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/internal/wire"
	"github.com/weir-gateway/weir/websocket"
)

// ask is a request for an endpoint of a protocol's, as the protocol sees it. Its owner is
// the request's goroutine: what comes later is run there after the handler's return.
type ask struct {
	// Fixed.
	f        *Front
	w        http.ResponseWriter
	r        *http.Request
	e        *socket.Endpoint
	protocol int
	body     []byte

	// Any goroutine: what others want run.
	mu     sync.Mutex
	inbox  []func()
	posted chan struct{} // holds one: the inbox is not empty

	// Owned by the request's goroutine.
	done    bool     // answered, or taken
	taken   func()   // serves the connection that was taken
	next    []func() // to be run after the handler's return
	waiting int      // answers that will come by the inbox
}

var _ socket.Request = (*ask)(nil)

// run does what the handler left to be done.
func (a *ask) run() {
	for !a.done {
		switch {
		case len(a.next) > 0:
			f := a.next[0]
			a.next = a.next[1:]
			f()
		case a.waiting > 0:
			select {
			case <-a.posted:
				a.mu.Lock()
				a.next, a.inbox = append(a.next, a.inbox...), nil
				a.mu.Unlock()
			case <-a.r.Context().Done():
				return // the client has gone
			}
		default:
			a.f.log.Error("a protocol did not answer", "path", a.Path())
			a.Fail(&wire.Error{Status: http.StatusInternalServerError, Message: "internal error"})
		}
	}
	if a.taken != nil {
		a.taken()
	}
}

// Method implements socket.Request.
func (a *ask) Method() string {
	if isExtendedConnect(a.r) {
		return http.MethodGet // RFC 8441 §5: it stands for a GET
	}
	return a.r.Method
}

// Path implements socket.Request.
func (a *ask) Path() string { return rawPath(a.r) }

// Query implements socket.Request.
func (a *ask) Query() string { return a.r.URL.RawQuery }

// Header implements socket.Request. HTTP/2 may split Cookie (RFC 9113 §8.2.3).
func (a *ask) Header(name string) string {
	separator := ", "
	if http1.EqualFold([]byte(name), "Cookie") {
		separator = "; "
	}
	if http1.EqualFold([]byte(name), "Host") {
		return a.r.Host
	}
	return strings.Join(a.r.Header.Values(name), separator)
}

// Body implements socket.Request.
func (a *ask) Body() []byte { return a.body }

// Secure implements socket.Request.
func (a *ask) Secure() bool { return encrypted(a.r) }

// Host implements socket.Request.
func (a *ask) Host() string { return a.r.Host }

// Origin implements socket.Request.
func (a *ask) Origin() (string, auth.Access) { return a.r.Header.Get("Origin"), a.f.access(a.r) }

// AdmitPage implements socket.Request.
func (a *ask) AdmitPage() bool { return a.f.admitPage(a.r) }

// LogRefusedOrigin implements socket.Request.
func (a *ask) LogRefusedOrigin(hint string) {
	a.f.deps.Auth.LogRefusedOrigin(pageOf(a.r), []byte(rawPath(a.r)), hint)
}

// Peer implements socket.Request.
func (a *ask) Peer() netip.AddrPort {
	peer, _ := netip.ParseAddrPort(a.r.RemoteAddr)
	return peer
}

// Identify implements socket.Request.
func (a *ask) Identify(then func(*auth.Identity)) {
	if a.done {
		return
	}
	if id := a.f.identify(a.w, a.r); id != nil {
		then(id)
		return
	}
	a.done = true // answered
}

// maxWork bounds the work of protocols' requests that is under way.
const maxWork = 1024

// Do implements socket.Request.
func (a *ask) Do(work func(ctx context.Context), then func()) {
	a.next = append(a.next, func() {
		if a.f.atWork.Add(1) > maxWork {
			a.f.atWork.Add(-1)
			a.Away(a.e.Stream)
			return
		}
		func() {
			defer a.f.atWork.Add(-1)
			work(a.r.Context())
		}()
		if a.r.Context().Err() == nil {
			then()
		} else {
			a.done = true // the client has gone
		}
	})
}

// Publish implements socket.Request.
func (a *ask) Publish(p hub.Publication, done func(hub.Position, error)) {
	a.publish(nil, p, done)
}

// PublishTopics implements socket.Request.
func (a *ask) PublishTopics(topics []string, p hub.Publication, done func(hub.Position, error)) {
	a.publish(topics, p, done)
}

func (a *ask) publish(topics []string, p hub.Publication, done func(hub.Position, error)) {
	const under, returned, answered = 0, 1, 2
	var state atomic.Int32
	var at hub.Position
	var failed error
	tell := func(p hub.Position, err error) {
		at, failed = p, err
		if state.CompareAndSwap(under, answered) {
			return // publish has not returned, and looks
		}
		a.mu.Lock()
		a.inbox = append(a.inbox, func() {
			a.waiting--
			done(p, err)
		})
		a.mu.Unlock()
		select {
		case a.posted <- struct{}{}:
		default:
		}
	}
	counted := func(p hub.Position, err error) {
		a.f.deps.Push.CountPublished(err)
		tell(p, err)
	}
	switch c := pushhttp.CarrierOf(a.r.Context()); {
	case c != nil && c.Publish(topics, p, tell): // counted there
	case topics != nil:
		a.f.deps.Hub.PublishTopics(topics, p, counted)
	default:
		a.f.deps.Hub.Publish(p, counted)
	}
	if state.CompareAndSwap(under, returned) {
		a.waiting++
		return
	}
	done(at, failed)
}

// Answer implements socket.Request.
func (a *ask) Answer(status int, contentType string, body []byte, fields ...socket.Field) {
	if a.done {
		return
	}
	a.done = true
	h := a.w.Header()
	h.Set("Cache-Control", "no-store")
	a.fields(fields)
	h.Set("X-Content-Type-Options", "nosniff")
	h["Content-Type"] = nil // nothing is guessed
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	if status != http.StatusNoContent && status != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	a.w.WriteHeader(status)
	if a.r.Method != http.MethodHead && len(body) > 0 {
		_, _ = a.w.Write(body) // the client may be gone
	}
}

// fields adds header fields, but for those that would not be one line.
func (a *ask) fields(fields []socket.Field) {
	h := a.w.Header()
	for _, f := range fields {
		switch {
		case !http1.ValidName(f.Name) || !http1.ValidValue(f.Value):
		case http1.EqualFold([]byte(f.Name), "Cache-Control"):
			h.Set(f.Name, f.Value)
		default:
			h.Add(f.Name, f.Value)
		}
	}
}

// Fail implements socket.Request.
func (a *ask) Fail(e *wire.Error) {
	if !a.done {
		a.done = true
		a.f.fail(a.w, a.r, e)
	}
}

// Away implements socket.Request.
func (a *ask) Away(stream bool) {
	if !a.done {
		a.done = true
		a.f.deps.Push.Away(a.w, stream)
	}
}

// WebSocket implements socket.Request.
func (a *ask) WebSocket(o socket.WebSocketOptions, open func(socket.Transport) socket.Session) {
	if a.done {
		return
	}
	header := func(name string) []byte { return bytesOrNil(strings.Join(a.r.Header.Values(name), ", ")) }
	key, bad := a.handshake(o.AnyOrigin, header)
	if bad != nil {
		a.Fail(bad)
		return
	}
	chosen := ""
	if len(o.Subprotocols) > 0 {
		chosen = websocket.SelectSubprotocol(header("Sec-WebSocket-Protocol"), o.Subprotocols...)
	}
	if o.Chosen != nil {
		*o.Chosen = chosen
	}
	a.done = true
	a.taken = func() {
		nc, early, ok := a.upgrade(key, chosen)
		if ok {
			so := pushhttp.SocketOptions{
				Peer: a.Peer(), Protocol: a.protocol, MaxMessage: o.MaxMessage, Early: early, AwayCode: o.AwayCode, AwayReason: o.AwayReason,
			}
			a.f.deps.Push.ServeSocket(a.r.Context(), nc, so, open)
		}
	}
}

// handshake judges the request of a WebSocket.
func (a *ask) handshake(anyOrigin bool, header func(string) []byte) (key []byte, bad *wire.Error) {
	if !anyOrigin && !a.f.admitPage(a.r) {
		return nil, errOrigin
	}
	if isExtendedConnect(a.r) {
		if v := a.r.Header.Get("Sec-WebSocket-Version"); v != "13" {
			return nil, &wire.Error{Status: http.StatusUpgradeRequired, Message: "websocket: unknown version", Hint: "connect with a WebSocket client"}
		}
		return nil, nil
	}
	key, err := websocket.CheckUpgrade(a.r.Method, a.r.ProtoMajor == 1 && a.r.ProtoMinor == 1, header)
	if err != nil {
		status, reason := http.StatusBadRequest, err.Error()
		if e, ok := errors.AsType[*websocket.HandshakeError](err); ok {
			status, reason = e.Status, e.Reason
		}
		return nil, &wire.Error{Status: status, Message: reason, Hint: "connect with a WebSocket client"}
	}
	return key, nil
}

// upgrade completes the handshake.
func (a *ask) upgrade(key []byte, subprotocol string) (nc net.Conn, early []byte, ok bool) {
	rc := http.NewResponseController(a.w)
	if isExtendedConnect(a.r) {
		if subprotocol != "" {
			a.w.Header().Set("Sec-WebSocket-Protocol", subprotocol)
		}
		a.w.WriteHeader(http.StatusOK)
		return &h2Conn{r: a.r, w: a.w, rc: rc}, nil, rc.Flush() == nil
	}
	nc, rw, err := rc.Hijack()
	if err != nil {
		a.f.fail(a.w, a.r, &wire.Error{Status: http.StatusInternalServerError, Message: "the connection cannot be upgraded"})
		return nil, nil, false
	}
	if n := rw.Reader.Buffered(); n > 0 {
		early, _ = rw.Reader.Peek(n)
	}
	_ = nc.SetDeadline(time.Time{}) // the server's deadlines are for requests
	_ = nc.SetWriteDeadline(time.Now().Add(a.f.cfg.WriteStall))
	if _, err := nc.Write(websocket.AppendHandshakeResponse(nil, key, "", subprotocol)); err != nil {
		_ = nc.Close()
		return nil, nil, false
	}
	return nc, early, true
}

// Stream implements socket.Request.
func (a *ask) Stream(o socket.StreamOptions, open func(socket.Transport) socket.Session) {
	switch {
	case a.done:
	case a.r.Method == http.MethodHead:
		a.Answer(http.StatusOK, o.ContentType, nil, o.Fields...)
	default:
		a.done = true
		a.fields(o.Fields)
		a.taken = func() {
			a.f.deps.Push.ServeStream(a.w, a.r, pushhttp.StreamOptions{ContentType: o.ContentType, Protocol: a.protocol}, open)
		}
	}
}

// Subscribe implements socket.Request.
func (a *ask) Subscribe(s *socket.Subscription) {
	switch {
	case a.done:
	case a.r.Method == http.MethodHead:
		a.Answer(http.StatusOK, "text/event-stream", nil, s.Fields...)
	default:
		a.done = true
		a.fields(s.Fields)
		a.taken = func() { a.f.deps.Push.ServeEvents(a.w, a.r, s, a.protocol) }
	}
}
