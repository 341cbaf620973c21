package hubhttp

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/pushhttp"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/wire"
)

type (
	// An Event is what a Hook decides on. It must not be changed.
	Event = extension.Event
	// A Verdict is a Hook's decision; nil and the zero value allow and change nothing.
	Verdict = extension.Verdict
	// A Refusal in a Verdict refuses.
	Refusal = extension.Refusal
	// An Identity in a Verdict is who the client is and may do; it replaces what Authorize
	// returned.
	Identity = extension.Identity
	// An EventKind is what has happened.
	EventKind = extension.Kind
)

// The kinds of events of a Handler.
const (
	// EventConnect is a client that opens a stream or a WebSocket.
	EventConnect = extension.Connect
	// EventSubscribe is a client that subscribes to channels, after EventConnect.
	EventSubscribe = extension.Subscribe
	// EventPublish is a call of the publish API.
	EventPublish = extension.Publish
	// EventDisconnect is a client that has left. Its verdict is ignored.
	EventDisconnect = extension.Disconnect
)

// hooks are what Hook is called by; nil: there is none.
func (c *Config) hooks() *extension.Extensions {
	if c.Hook == nil {
		return nil
	}
	events := c.HookEvents
	if len(events) == 0 {
		events = []EventKind{EventConnect, EventSubscribe, EventPublish, EventDisconnect}
	}
	return extension.NewHook(extension.HookFunc(c.Hook), events, extension.Options{Log: c.Log})
}

// event describes r to the Hook.
func (h *Handler) event(r *http.Request, k EventKind, id *auth.Identity, channels []string) *Event {
	e := &Event{
		Kind: k, Protocol: "native", Client: pushhttp.PeerOf(r.RemoteAddr).Addr(), User: id.Subject,
		Method: r.Method, Scheme: "http", Host: r.Host, Path: r.URL.RequestURI(), Channels: channels,
	}
	if r.TLS != nil {
		e.Scheme = "https"
	}
	for name, values := range r.Header {
		for _, v := range values {
			e.Headers = append(e.Headers, extension.Field{Name: name, Value: v})
		}
	}
	return e
}

// decideClient has the Hook decide on a client that subscribes. It returns who that is then, and
// has answered when it returns nil.
func (h *Handler) decideClient(w http.ResponseWriter, r *http.Request, id *auth.Identity, channels []string) *auth.Identity {
	for _, k := range []EventKind{EventConnect, EventSubscribe} {
		if !h.hooks.Handles(k, channels...) {
			continue
		}
		var of []string
		if k == EventSubscribe {
			of = channels
		}
		d := h.hooks.Decide(r.Context(), h.event(r, k, id, of))
		if !d.Admit {
			refuse(w, d)
			return nil
		}
		if d.Identity != nil {
			id = d.Identity
		}
	}
	return id
}

// decidePublish has the Hook decide on call. It has answered when it returns false.
func (h *Handler) decidePublish(w http.ResponseWriter, r *http.Request, id *auth.Identity, call *wire.Call) bool {
	if !h.hooks.Handles(EventPublish, call.Channels...) {
		return true
	}
	e := h.event(r, EventPublish, id, call.Channels)
	e.Data = call.Publication.Data
	d := h.hooks.Decide(r.Context(), e)
	if !d.Admit {
		refuse(w, d)
		return false
	}
	if err := push.ReplaceData(&call.Publication, d.Data); err != nil {
		pushhttp.Fail(w, wire.ErrorOf(err))
		return false
	}
	return true
}

// refuse answers with d, which refuses.
func refuse(w http.ResponseWriter, d *authz.Decision) {
	for line := range strings.Lines(string(d.Fields)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		w.Header().Add(name, value)
	}
	if d.Body == nil {
		pushhttp.Fail(w, &wire.Error{Status: d.Status, Message: d.Message})
		return
	}
	if d.ContentType != "" {
		w.Header().Set("Content-Type", d.ContentType)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(d.Body)))
	w.WriteHeader(d.Status)
	_, _ = w.Write(d.Body) // no client is left to be notified of a failure
}
