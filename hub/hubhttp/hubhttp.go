// Package hubhttp is the hub as an http.Handler: SSE, WebSocket and publishing
// inside a program of one's own, with net/http or any router on top of it.
//
//	h, err := hubhttp.New(hubhttp.Config{})
//	go h.Run(ctx)
//	http.Handle("/events/", http.StripPrefix("/events", h))
//	h.Publish(ctx, hub.Publication{Channel: "news", Data: []byte(`{"hello":"world"}`)})
//
// The handler serves GET /sse, GET /ws, POST /api/publish and POST /api/broadcast
// as the gateway does (docs/reference/wire.md). On Linux a plaintext HTTP/1.1
// connection leaves net/http when it subscribes and moves to an event loop, where
// it costs no goroutine and no buffer; everything else (TLS of the program's own
// listener, HTTP/2, other systems) is served by a goroutine for each stream.
package hubhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/hub/internal/bridge"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/pushhttp"
	engine "github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// Config of a Handler. The zero value works: the default namespace, in memory,
// which every client may read and only the program itself may publish to.
type Config struct {
	// Namespaces that exist; empty means "default", open to anonymous readers.
	Namespaces []hub.Namespace
	// Broker stores and numbers messages; nil means one in memory. It is closed
	// by Close.
	Broker hub.Broker
	// Authorize reports who makes a request and what they may do. nil, or a nil
	// *Grants, means an anonymous reader. An error refuses with 401 and its text.
	Authorize func(*http.Request) (*Grants, error)
	// Heartbeat is how often a stream is sent something when nothing else is; 0
	// means 25s.
	Heartbeat time.Duration
	// Retry is the reconnection time sent to SSE clients, each its own around
	// it; 0 means 2s.
	Retry time.Duration
	// MaxChannels bounds the channels of one stream, 1 to 128; 0 means 32.
	MaxChannels int
	// CheckOrigin decides whether the page a browser runs may connect to /ws; nil
	// means the same host only.
	CheckOrigin func(*http.Request) bool
	// Hook decides on clients and messages: it is called at each of HookEvents, on the
	// goroutine of the request, and its context ends with the client. An error refuses with
	// 503. nil: there is none. The gateway's extensions get the same events by gRPC.
	Hook func(context.Context, *Event) (*Verdict, error)
	// HookEvents are those that Hook is called at, of EventConnect, EventSubscribe,
	// EventPublish and EventDisconnect; empty means all of them.
	HookEvents []EventKind
	// Loops is the number of event loops, to 255; 0 means one per CPU, negative none:
	// every stream is a goroutine.
	Loops int
	// Log gets lifecycle lines; nil discards them.
	Log *slog.Logger
}

// Grants are what a client may do. Patterns are as in a token: "*" represents one
// or more bytes other than ".", ":" and "/", "**" for any.
type Grants struct {
	// Subject names who it is in logs; it may be empty.
	Subject string
	// Subscribe and Publish are channel patterns; empty means no such right.
	Subscribe, Publish []string
	// Expires ends a stream; zero means never.
	Expires time.Time
}

// A Handler serves a hub.
type Handler struct {
	// Fixed at New.
	cfg     Config
	hub     *hub.Hub
	engine  *engine.Hub // of hub
	hooks   *extension.Extensions
	threads *pushhttp.Server
	loops   *loops // nil: none
}

var _ http.Handler = (*Handler)(nil)

// New returns a Handler. Run must be running before it serves or publishes.
func New(cfg Config) (*Handler, error) {
	if len(cfg.Namespaces) == 0 {
		cfg.Namespaces = []hub.Namespace{{Name: hub.DefaultNamespace, Anonymous: true}}
	}
	if cfg.MaxChannels == 0 {
		cfg.MaxChannels = 32
	}
	if cfg.MaxChannels < 1 || cfg.MaxChannels > engine.MaxSubscriberChannels {
		return nil, fmt.Errorf("hubhttp: MaxChannels: %d is not within 1..%d", cfg.MaxChannels, engine.MaxSubscriberChannels)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	var f *wire.Formats
	opened, e, err := bridge.Open(hub.Config{Namespaces: cfg.Namespaces, Broker: cfg.Broker, Log: cfg.Log}, func(n []engine.Namespace) ([]engine.Encoder, error) {
		var err error
		if f, err = wire.NewFormats(n); err != nil {
			return nil, err
		}
		return f.Encoders(), nil
	})
	if err != nil {
		return nil, fmt.Errorf("hubhttp: %w", err)
	}
	h := &Handler{cfg: cfg, hub: opened.(*hub.Hub), engine: e, hooks: cfg.hooks()}
	if h.threads, err = pushhttp.New(cfg.carried(), pushhttp.Deps{Formats: f, Hub: e, Extensions: h.hooks, Log: cfg.Log}); err == nil {
		h.loops, err = newLoops(cfg, f, e, h.threads, h.hooks)
	}
	if err != nil {
		h.hooks.Close()
		return nil, errors.Join(fmt.Errorf("hubhttp: %w", err), h.hub.Close())
	}
	return h, nil
}

// carried configures what serves the streams that stay with net/http.
func (c Config) carried() pushhttp.Config {
	return pushhttp.Config{Heartbeat: c.Heartbeat, Retry: c.Retry, Loops: min(runtime.GOMAXPROCS(0), 255)}
}

// Run serves until ctx is done, then ends every stream and closes the hub and its
// broker. It is called once.
func (h *Handler) Run(ctx context.Context) error {
	if err := h.hub.Start(ctx); err != nil {
		h.loops.release()
		return fmt.Errorf("hubhttp: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- h.loops.run(ctx) }()
	err := h.threads.Run(ctx)
	defer h.hooks.Close()
	return errors.Join(err, <-ended, h.hub.Close())
}

// Hub returns the hub, to subscribe, read history and presence within the program. Run starts and
// closes it.
func (h *Handler) Hub() *hub.Hub { return h.hub }

// Publish stores and fans out p, and returns its position when it is as safe as
// its namespace promises. Any goroutine.
func (h *Handler) Publish(ctx context.Context, p hub.Publication) (hub.Position, error) {
	return h.hub.Publish(ctx, p)
}

// Drain ends the streams, spread over the given time, each with a reconnection
// time of its own, and sends new ones away. It returns at once. Call it before the
// program's own shutdown, so that clients go to another node.
func (h *Handler) Drain(over time.Duration) {
	// Whether another node takes them is not known here: they return as after a
	// connection that was cut, if no sooner than this process refuses them.
	retry := h.cfg.Retry
	if retry == 0 {
		retry = 2 * time.Second
	}
	plan := wire.DrainPlan{Over: over, Spread: retry}
	h.threads.Drain(plan)
	h.loops.drain(plan)
}

// Stats are a Handler's gauges.
type Stats struct {
	// OnLoops and OnGoroutines are the streams there are, by what carries them.
	OnLoops, OnGoroutines int64
}

// Stats may be called from any goroutine.
func (h *Handler) Stats() Stats {
	t := h.threads.Stats()
	return Stats{OnLoops: h.loops.streams(), OnGoroutines: t.SSE + t.WebSocket}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	methods := map[string]string{"/sse": http.MethodGet, "/ws": http.MethodGet, "/api/publish": http.MethodPost, "/api/broadcast": http.MethodPost}
	switch method, ok := methods[r.URL.Path]; {
	case !ok:
		pushhttp.Fail(w, &wire.Error{Status: http.StatusNotFound, Message: "no such path", Hint: "there are /sse, /ws, /api/publish and /api/broadcast"})
	case r.Method != method:
		w.Header().Set("Allow", method)
		pushhttp.Fail(w, &wire.Error{Status: http.StatusMethodNotAllowed, Message: "method not allowed", Hint: "use " + method})
	case r.URL.Path == "/sse":
		h.ServeSSE(w, r)
	case r.URL.Path == "/ws":
		h.ServeWebSocket(w, r)
	default:
		h.ServePublish(w, r)
	}
}

// identify authenticates the request; it has answered when it returns nil.
func (h *Handler) identify(w http.ResponseWriter, r *http.Request) *auth.Identity {
	if h.cfg.Authorize == nil {
		return auth.Anonymous
	}
	g, err := h.cfg.Authorize(r)
	if err != nil {
		w.Header().Set("WWW-Authenticate", "Bearer")
		pushhttp.Fail(w, &wire.Error{Status: http.StatusUnauthorized, Message: err.Error()})
		return nil
	}
	if g == nil {
		return auth.Anonymous
	}
	id, err := auth.Granted(g.Subject, g.Subscribe, g.Publish, g.Expires)
	if err != nil {
		h.cfg.Log.Error("grants", "err", err)
		pushhttp.Fail(w, &wire.Error{Status: http.StatusInternalServerError, Message: "internal error"})
		return nil
	}
	return id
}

// subscription checks a request to subscribe; it has answered when it returns nil.
func (h *Handler) subscription(w http.ResponseWriter, r *http.Request) (*wire.Subscription, *auth.Identity) {
	sub, bad := wire.ParseSubscription(h.engine, []byte(r.URL.RawQuery), h.cfg.MaxChannels)
	if bad != nil {
		pushhttp.Fail(w, bad)
		return nil, nil
	}
	id := h.identify(w, r)
	if id == nil {
		return nil, nil
	}
	if id = h.decideClient(w, r, id, sub.Channels); id == nil {
		return nil, nil
	}
	if bad := h.threads.Access().MayRead(id, sub.Channels); bad != nil {
		pushhttp.Fail(w, bad)
		return nil, nil
	}
	return sub, id
}

// ServeSSE serves a subscription over server-sent events, whatever its path.
func (h *Handler) ServeSSE(w http.ResponseWriter, r *http.Request) {
	sub, id := h.subscription(w, r)
	if sub == nil {
		return
	}
	// A reconnecting EventSource knows better than the URL it was made with.
	if since := r.Header.Get("Last-Event-ID"); since != "" {
		sub.Since = since
	}
	if !h.loops.adoptSSE(w, r, sub, id) {
		h.threads.ServeSSE(w, r, sub, id)
	}
}

// ServeWebSocket serves a subscription over WebSocket, whatever its path.
func (h *Handler) ServeWebSocket(w http.ResponseWriter, r *http.Request) {
	sub, id := h.subscription(w, r)
	if sub == nil {
		return
	}
	if h.loops.adoptWebSocket(w, r, sub, id) {
		return
	}
	h.threads.ServeWebSocket(w, r, h.cfg.CheckOrigin, sub, id)
}

// ServePublish serves a call of the publish API, whatever its path: a body with
// "channels" is a broadcast.
func (h *Handler) ServePublish(w http.ResponseWriter, r *http.Request) {
	id := h.identify(w, r)
	if id == nil {
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.MaxBody))
	if err != nil {
		pushhttp.Fail(w, &wire.Error{Status: http.StatusRequestEntityTooLarge, Message: "the body is too large or was cut"})
		return
	}
	call, bad := wire.ParseCall(h.engine, body)
	if bad != nil {
		pushhttp.Fail(w, bad)
		return
	}
	if !h.decidePublish(w, r, id, call) {
		return
	}
	status, answer := h.threads.Publish(r.Context(), call, id)
	pushhttp.Answer(w, status, answer)
}
