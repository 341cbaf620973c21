package downstream

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/websocket"
)

// sse serves GET /sse.
func (r *request) sse() {
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
	r.subscribe(sub, r.h.lane.srv.push.ServeSSE)
}

// errOrigin refuses a web page.
var errOrigin = &push.APIError{Status: http.StatusForbidden, Message: "this origin is not allowed", Hint: "list it in auth.allowed_origins"}

// websocket serves GET /ws.
func (r *request) websocket() {
	key, bad := r.upgrade()
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
	r.subscribe(sub, r.h.lane.srv.push.ServeWebSocket)
}

// echo serves GET /echo.
func (r *request) echo() {
	key, bad := r.upgrade()
	if bad != nil {
		r.fail(bad)
		return
	}
	r.h.lane.srv.push.ServeEcho(r.c, key, r.header("Sec-WebSocket-Extensions"))
	r.release()
}

// upgrade judges a WebSocket handshake.
func (r *request) upgrade() (key []byte, bad *push.APIError) {
	if r.access == auth.OriginRefused {
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
func (r *request) subscription() (*push.Subscription, *push.APIError) {
	srv := r.h.lane.srv
	badRequest := func(msg, hint string) (*push.Subscription, *push.APIError) {
		return nil, &push.APIError{Status: http.StatusBadRequest, Message: msg, Hint: hint}
	}
	if r.access == auth.OriginRefused {
		return nil, errOrigin
	}
	sub := &push.Subscription{}
	for pair, err := range http1.Query(r.head.Query) {
		if err != nil {
			return badRequest(err.Error(), "")
		}
		switch string(pair.Name) {
		case "channel":
			ch := string(pair.Value)
			if err := hub.CheckChannel(ch); err != nil {
				return badRequest(err.Error(), "")
			}
			if _, err := srv.push.Hub().Namespace(ch); err != nil {
				return nil, push.ErrorOf(err)
			}
			if !slices.Contains(sub.Channels, ch) {
				sub.Channels = append(sub.Channels, ch)
			}
		case "lastEventId", "since":
			sub.Since = string(pair.Value)
		case "envelope":
			sub.Envelope = truthy(pair.Value)
		case "hello":
			sub.Hello = truthy(pair.Value)
		}
		if limit := srv.push.Config().MaxChannels; len(sub.Channels) > limit {
			return badRequest("too many channels", "raise push.max_channels")
		}
	}
	if n := namespaces(sub.Channels); n > hub.MaxPositions {
		return badRequest(fmt.Sprintf("channels of %d namespaces, at most %d in one stream", n, hub.MaxPositions), "open another stream")
	}
	if len(sub.Channels) == 0 {
		return badRequest("no channel is named", "add ?channel=NAME, once per channel")
	}
	return sub, nil
}

// namespaces counts those of channels. A stream's position has one entry for each.
func namespaces(channels []string) int {
	var names []string
	for _, ch := range channels {
		if n := hub.NamespaceOf(ch); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return len(names)
}

func truthy(b []byte) bool { return len(b) > 0 && string(b) != "0" && string(b) != "false" }

// subscribe finds out who asks, whether that one may, and hands the connection
// to the wing.
func (r *request) subscribe(sub *push.Subscription, serve func(*eventloop.Conn, *push.Subscription) error) {
	sub.Fields = r.fields()
	r.identify(func(r *request, id *auth.Identity) {
		if bad := r.mayRead(id, sub.Channels); bad != nil {
			r.fail(bad)
			return
		}
		if r.h.ended {
			r.c.Close(nil) // the client went while its token was verified
			return
		}
		sub.Identity = id
		c := r.c
		if err := serve(c, sub); err != nil {
			r.fail(push.ErrorOf(err))
			return
		}
		r.release()
		goOn(c)
	})
}

// mayRead judges the channels one by one: by the identity's grants, or because
// the namespace is open to everyone.
func (r *request) mayRead(id *auth.Identity, channels []string) *push.APIError {
	for _, ch := range channels {
		if id.CanSubscribe(ch) {
			continue
		}
		ns, err := r.h.lane.srv.push.Hub().Namespace(ch)
		switch {
		case err != nil:
			return push.ErrorOf(err)
		case ns.Anonymous:
		case id == auth.Anonymous:
			return &push.APIError{Status: http.StatusUnauthorized, Message: "a token is needed to read " + quoted(ch),
				Hint: "send Authorization: Bearer, the cookie, or ?token="}
		default:
			return &push.APIError{Status: http.StatusForbidden, Message: "reading " + quoted(ch) + " is not granted",
				Hint: "the token's weir.subscribe must match the channel"}
		}
	}
	return nil
}

// publish serves POST /api/publish.
func (r *request) publish() { r.call(r.h.lane.srv.push.ParsePublish) }

// broadcast serves POST /api/broadcast.
func (r *request) broadcast() { r.call(r.h.lane.srv.push.ParseBroadcast) }

// call runs a call of the API. Its answer comes at once, or is waited for.
func (r *request) call(parse func([]byte) (*push.Call, *push.APIError)) {
	call, bad := parse(r.body)
	if bad != nil {
		r.fail(bad)
		return
	}
	seq := r.seq
	r.h.lane.srv.push.Publish(r.c, call, r.identity, r.published)
	if r.seq == seq {
		r.body = nil
		r.h.pending = r
		r.h.wait(r.c)
	}
}

// answerCall answers a call of the API.
func (r *request) answerCall(status int, body []byte) {
	switch {
	case r.c.Closing():
		r.release()
	case status == http.StatusOK:
		r.answer(status, "application/json", body, answerFields)
	default:
		r.failWith(status, body)
	}
}
