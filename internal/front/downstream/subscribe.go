package downstream

import (
	"bytes"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// sse serves GET /sse.
func (r *builtin) sse() {
	sub, bad := r.subscription()
	if bad != nil {
		r.fail(bad)
		return
	}
	// A reconnecting EventSource knows better than the URL it was made with.
	if id := r.head.Get("Last-Event-ID"); len(id) > 0 {
		sub.Since = string(id)
	}
	sub.Accept = bytes.Clone(r.header("Accept-Encoding"))
	r.subscribe(sub, r.h.loopState.srv.push.ServeSSE)
}

// errOrigin refuses a web page.
var errOrigin = &push.APIError{Status: http.StatusForbidden, Message: "this origin is not allowed", Hint: "list it in auth.allowed_origins"}

// websocket serves GET /ws.
func (r *builtin) websocket() {
	key, bad := r.handshake(false)
	if bad != nil {
		r.fail(bad)
		return
	}
	sub, bad := r.subscription()
	if bad != nil {
		r.fail(bad)
		return
	}
	sub.Key = bytes.Clone(key)
	sub.Accept = bytes.Clone(r.header("Sec-WebSocket-Extensions"))
	r.subscribe(sub, r.h.loopState.srv.push.ServeWebSocket)
}

// echo serves GET /echo.
func (r *builtin) echo() {
	key, bad := r.handshake(false)
	if bad != nil {
		r.fail(bad)
		return
	}
	r.h.loopState.srv.push.ServeEcho(r.c, key, r.header("Sec-WebSocket-Extensions"))
	r.release()
}

// handshake validates a WebSocket handshake, with anyOrigin whatever page it comes from.
func (r *request) handshake(anyOrigin bool) (key []byte, bad *push.APIError) {
	if !anyOrigin && !r.admitPage() {
		return nil, errOrigin
	}
	if r.unread {
		return nil, &push.APIError{Status: http.StatusBadRequest, Message: "a WebSocket handshake has no body"}
	}
	key, err := websocket.CheckUpgrade(r.method, r.head.Minor == 1, r.header)
	if err != nil {
		status, reason := http.StatusBadRequest, err.Error()
		if e, ok := err.(*websocket.HandshakeError); ok { //nolint:errorlint // CheckUpgrade returns nothing else
			status, reason = e.Status, e.Reason
		}
		return nil, &push.APIError{Status: status, Message: reason, Hint: "connect with a WebSocket client"}
	}
	if r.head.Count("Sec-WebSocket-Key") > 1 || r.head.Count("Sec-WebSocket-Version") > 1 {
		return nil, &push.APIError{Status: http.StatusBadRequest, Message: "websocket: repeated handshake header"}
	}
	return key, nil
}

// header returns a field's value, several lines joined by commas.
func (r *request) header(name string) []byte {
	if r.head.Count(name) < 2 {
		return r.head.Get(name)
	}
	return bytes.Join(slices.Collect(r.head.Values(name)), []byte(", "))
}

// subscription reads the query of /sse and /ws.
func (r *builtin) subscription() (*push.Subscription, *push.APIError) {
	srv := r.h.loopState.srv
	if !r.admitPage() {
		return nil, errOrigin
	}
	sub, bad := wire.ParseSubscription(srv.push.Hub(), r.head.Query, srv.push.Config().MaxChannels)
	if bad == nil && sub.MaxBackoff == 0 {
		sub.MaxBackoff, bad = r.maxBackoff()
	}
	if bad != nil {
		return nil, bad
	}
	return &push.Subscription{Subscription: *sub, Chunked: r.chunks()}, nil
}

// maxBackoff is the client's longest back-off, as it says in the query or a field; 0: it does not.
func (r *request) maxBackoff() (time.Duration, *push.APIError) {
	v, ok := http1.QueryValue(r.head.Query, wire.MaxBackoffQuery)
	if !ok {
		v = r.header(wire.MaxBackoffField)
	}
	if len(v) == 0 {
		return 0, nil
	}
	return wire.ParseMaxBackoff(string(v))
}

// subscribe authenticates and authorizes the client, and passes the connection
// to the wing.
func (r *builtin) subscribe(sub *push.Subscription, serve func(*eventloop.Conn, *push.Subscription) error) {
	sub.Fields = append(r.fields(), r.h.loopState.srv.altSvc...)
	client, q := r.client(), r.clientEvents(0, nil, sub.Channels)
	r.identify(func(r *request, id *auth.Identity) {
		decideClient(&r.builtin, q, id, func(id *auth.Identity) { subscribeAs(&r.builtin, client, id, sub, serve) })
	})
}

// subscribeAs is subscribe for an identity.
func subscribeAs(r *builtin, client netip.Addr, id *auth.Identity, sub *push.Subscription, serve func(*eventloop.Conn, *push.Subscription) error) {
	if bad := r.h.loopState.srv.push.Access().MayRead(id, sub.Channels); bad != nil {
		r.fail(bad)
		return
	}
	if !r.maySubscribe(client, id) {
		return
	}
	sub.Identity = id
	w := &waitingSubscription{sub, serve}
	if sub.Since != "" {
		if class := r.h.loopState.srv.push.ReplayClass(sub.Channels); class != limit.Unclassed {
			r.subscribeQueued(class, w)
			return
		}
	}
	r.subscribed(w)
}

// subscribed hands the connection over.
func (r *builtin) subscribed(w *waitingSubscription) {
	if r.h.ended {
		r.c.Close(nil) // the client went while its token was verified
		return
	}
	c := r.c
	if err := w.serve(c, w.sub); err != nil {
		r.fail(push.ErrorOf(err))
		return
	}
	r.release()
	resumeInput(c)
}

// publish serves POST /api/publish.
func (r *builtin) publish() {
	p := r.h.loopState.srv.push
	if p.Sheds(r.c, r.body) {
		r.failWith(push.ShedAnswer())
		return
	}
	r.call(p.ParsePublish)
}

// broadcast serves POST /api/broadcast.
func (r *builtin) broadcast() { r.call(r.h.loopState.srv.push.ParseBroadcast) }

// call runs a call of the API. Its answer comes at once, or is waited for.
func (r *builtin) call(parse func([]byte) (*push.Call, *push.APIError)) {
	call, bad := parse(r.body)
	if bad != nil {
		r.fail(bad)
		return
	}
	if r.trace != nil {
		r.h.loopState.srv.traces(call, r.trace)
	}
	seq := r.seq
	r.h.loopState.srv.push.Publish(r.c, call, r.identity, r.published)
	if r.seq == seq {
		r.body = nil
		r.h.pending = r.request
		r.h.wait(r.c)
	}
}

// answerCall answers a call of the API.
func (r *builtin) answerCall(status int, body []byte) {
	switch {
	case r.c.Closing():
		r.release()
	case status == http.StatusOK:
		r.answer(status, "application/json", body, answerFields)
	default:
		r.failWith(status, body)
	}
}
