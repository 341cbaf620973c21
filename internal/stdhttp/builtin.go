package stdhttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/wire"
	"github.com/weir-gateway/weir/websocket"
)

// access judges the page that asks, if a browser says which.
func (f *Front) access(r *http.Request) auth.Access {
	return f.deps.Auth.OriginAccess(pageOf(r))
}

// pageOf is what is known of the web page that makes r.
func pageOf(r *http.Request) auth.Page {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return auth.Page{}
	}
	p := auth.Page{Origin: []byte(origin), Host: []byte(r.Host), TLS: encrypted(r)}
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		p.Peer = peer.Addr()
	}
	for _, name := range auth.ForwardingFields {
		p.Forwarded = p.Forwarded || len(r.Header.Values(name)) > 0
	}
	return p
}

// admitPage reports whether the page may connect at all; a refusal is logged.
func (f *Front) admitPage(r *http.Request) bool {
	p := pageOf(r)
	if f.deps.Auth.OriginAccess(p) != auth.OriginRefused {
		return true
	}
	f.deps.Auth.LogRefusedOrigin(p, []byte(rawPath(r)), "")
	return false
}

// cors adds the fields that let a page of another origin read the answer.
func (f *Front) cors(w http.ResponseWriter, r *http.Request) {
	origin, access := r.Header.Get("Origin"), f.access(r)
	if origin == "" || access == auth.OriginRefused || !http1.ValidValue(origin) {
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", wire.ExposedFields)
	if !slices.Contains(h.Values("Vary"), "Origin") { // it may have been said already
		h.Add("Vary", "Origin")
	}
	if access == auth.OriginTrusted {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
}

var errOrigin = &wire.Error{Status: http.StatusForbidden, Message: "this origin is not allowed", Hint: "list it in auth.allowed_origins"}

// preflight answers CORS; methods are the endpoint's.
func (f *Front) preflight(w http.ResponseWriter, r *http.Request, methods string) {
	if !f.admitPage(r) {
		f.fail(w, r, errOrigin)
		return
	}
	f.cors(w, r)
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", methods)
	h.Set("Access-Control-Allow-Headers", "authorization, cache-control, content-type, last-event-id, x-api-key")
	h.Set("Access-Control-Max-Age", "7200")
	w.WriteHeader(http.StatusNoContent)
}

// fail answers with an error.
func (f *Front) fail(w http.ResponseWriter, r *http.Request, e *wire.Error) {
	f.cors(w, r)
	switch e.Status {
	case http.StatusUnauthorized:
		if w.Header().Get("WWW-Authenticate") == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
	case http.StatusUpgradeRequired:
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Sec-WebSocket-Version", "13")
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "Upgrade")
		}
	}
	pushhttp.Fail(w, e)
}

// identify finds who makes the request; it has answered when it returns nil.
func (f *Front) identify(w http.ResponseWriter, r *http.Request) *auth.Identity {
	for _, name := range []string{"X-Api-Key", "Authorization"} {
		if len(r.Header.Values(name)) > 1 {
			f.fail(w, r, &wire.Error{Status: http.StatusBadRequest, Message: "repeated " + name + " header"})
			return nil
		}
	}
	if key := r.Header.Values("X-Api-Key"); len(key) > 0 {
		id, ok := f.deps.Auth.APIKey([]byte(key[0]))
		if !ok {
			f.fail(w, r, &wire.Error{Status: http.StatusUnauthorized, Message: "unknown API key", Hint: "it must be listed in auth.api_keys"})
			return nil
		}
		return id
	}
	query, _ := http1.QueryValue([]byte(r.URL.RawQuery), "token")
	// HTTP/2 may split Cookie into several fields (RFC 9113 §8.2.3).
	cookie := strings.Join(r.Header.Values("Cookie"), "; ")
	token, source := f.deps.Auth.Token(bytesOrNil(r.Header.Get("Authorization")), bytesOrNil(cookie), query)
	if source == auth.NoToken || source == auth.FromCookie && f.access(r) != auth.OriginTrusted {
		return auth.Anonymous
	}
	id, err := f.deps.Auth.Verify(r.Context(), token, time.Now())
	if err != nil {
		f.tokenRefused(w, r, err)
		return nil
	}
	return id
}

func bytesOrNil(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

func (f *Front) tokenRefused(w http.ResponseWriter, r *http.Request, err error) {
	const hint = "get a new token and connect with that"
	if f.refuseEvents(w, r, err) {
		return
	}
	switch {
	case errors.Is(err, auth.ErrKeysUnavailable), errors.Is(err, context.Canceled):
		f.fail(w, r, &wire.Error{Status: http.StatusServiceUnavailable, Message: "the keys to verify tokens are not available, try again later"})
		return
	case errors.Is(err, auth.ErrExpired):
		err = errors.New("token expired")
	default:
		err = errors.New("token refused")
	}
	w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
	f.fail(w, r, &wire.Error{Status: http.StatusUnauthorized, Message: err.Error(), Hint: hint})
}

// refuseEvents answers a client of events whose token cannot be accepted now, in a way
// that keeps a browser's EventSource trying.
func (f *Front) refuseEvents(w http.ResponseWriter, r *http.Request, err error) bool {
	if f.ownPath(r) != "/sse" || !wire.AcceptsEvents([]byte(strings.Join(r.Header.Values("Accept"), ","))) {
		return false
	}
	switch {
	case errors.Is(err, auth.ErrExpired):
		f.deps.Push.SendExpiredSSE(w)
	case errors.Is(err, auth.ErrKeysUnavailable):
		f.deps.Push.SendAwaySSE(w)
	default:
		return false
	}
	return true
}

// subscription judges a request to subscribe; it has answered when it returns nil.
func (f *Front) subscription(w http.ResponseWriter, r *http.Request) (*wire.Subscription, *auth.Identity) {
	if !f.admitPage(r) {
		f.fail(w, r, errOrigin)
		return nil, nil
	}
	sub, bad := wire.ParseSubscription(f.deps.Hub, []byte(r.URL.RawQuery), f.cfg.MaxChannels)
	if bad != nil {
		f.fail(w, r, bad)
		return nil, nil
	}
	id := f.identify(w, r)
	if id == nil {
		return nil, nil
	}
	if bad := f.deps.Push.Access().MayRead(id, sub.Channels); bad != nil {
		f.fail(w, r, bad)
		return nil, nil
	}
	if !f.maySubscribe(w, r, id) {
		return nil, nil
	}
	return sub, id
}

func (f *Front) sse(w http.ResponseWriter, r *http.Request) {
	sub, id := f.subscription(w, r)
	if sub == nil {
		return
	}
	// A reconnecting EventSource knows better than the URL it was made with.
	if since := r.Header.Get("Last-Event-ID"); since != "" {
		sub.Since = since
	}
	if !f.replays(w, r, sub) {
		return
	}
	f.deps.Push.ServeSSE(w, r, sub, id)
}

func (f *Front) webSocket(w http.ResponseWriter, r *http.Request) {
	if isExtendedConnect(r) {
		f.webSocketOverHTTP2(w, r)
		return
	}
	header := func(name string) []byte { return bytesOrNil(strings.Join(r.Header.Values(name), ", ")) }
	if _, err := websocket.CheckUpgrade(r.Method, r.ProtoMajor == 1 && r.ProtoMinor == 1, header); err != nil {
		status, reason := http.StatusBadRequest, err.Error()
		if e, ok := errors.AsType[*websocket.HandshakeError](err); ok {
			status, reason = e.Status, e.Reason
		}
		f.fail(w, r, &wire.Error{Status: status, Message: reason, Hint: "connect with a WebSocket client"})
		return
	}
	sub, id := f.subscription(w, r)
	if sub == nil {
		return
	}
	if !f.replays(w, r, sub) {
		return
	}
	anyOrigin := func(*http.Request) bool { return true } // judged already
	f.deps.Push.AcceptWebSocket(w, r, anyOrigin, sub, id)
}

func (f *Front) publish(w http.ResponseWriter, r *http.Request) {
	if !f.admitPage(r) {
		f.fail(w, r, errOrigin)
		return
	}
	if r.ContentLength > wire.MaxBody {
		f.tooLarge(w, r)
		return
	}
	id := f.identify(w, r)
	if id == nil {
		return
	}
	if id == auth.Anonymous {
		f.fail(w, r, &wire.Error{Status: http.StatusUnauthorized, Message: "publishing needs a key or a token",
			Hint: "send X-API-Key, or Authorization: Bearer with publish grants"})
		return
	}
	if !f.mayPublish(w, r, id) {
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.MaxBody))
	if err != nil {
		f.tooLarge(w, r)
		return
	}
	parse := func(b []byte) (*wire.Call, *wire.Error) { return wire.ParsePublish(f.deps.Hub, b) }
	if f.ownPath(r) == "/api/broadcast" {
		parse = wire.ParseBroadcast
	}
	call, bad := parse(body)
	if bad != nil {
		f.fail(w, r, bad)
		return
	}
	if v := r.Header.Get("traceparent"); v != "" && f.deps.Traces != nil {
		f.deps.Traces(call, []byte(v))
	}
	status, answer := f.call(r, call, id)
	pushhttp.Respond(w, status, answer)
}

func (f *Front) tooLarge(w http.ResponseWriter, r *http.Request) {
	f.fail(w, r, &wire.Error{Status: http.StatusRequestEntityTooLarge, Message: "the body is too large"})
}

func (f *Front) healthz(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok\n") }

func (f *Front) readyz(w http.ResponseWriter, r *http.Request) {
	if err := f.deps.Ready(); err != nil {
		f.fail(w, r, &wire.Error{Status: http.StatusServiceUnavailable, Message: "not ready: " + err.Error()})
		return
	}
	text(w, http.StatusOK, "ready\n")
}

func text(w http.ResponseWriter, status int, s string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, s) // the client may be gone
}
