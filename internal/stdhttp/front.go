// Package stdhttp is the front on net/http: for HTTP/2, for connections that the
// event loops hand over, and for systems that have no event loops. It answers
// what internal/downstream answers, with the library's parser in place of ours,
// and so is what that one is compared with.
package stdhttp

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/limit"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/internal/upstream"
	"github.com/weir-gateway/weir/internal/wire"
)

// Config of a Front. The zero value works.
type Config struct {
	// HeadTimeout bounds the time a head may take; 0 means 10s.
	HeadTimeout time.Duration
	// KeepAlive closes a connection without a request for that long; 0 means 15s.
	KeepAlive time.Duration
	// MaxHead bounds a head in bytes; 0 means 32 KiB.
	MaxHead int
	// BuiltinHosts, BuiltinPrefix and RoutesOnly are as in downstream.Config.
	BuiltinHosts  []string
	BuiltinPrefix string
	RoutesOnly    bool
	// MaxChannels bounds the channels of one stream; 0 means 32.
	MaxChannels int
	// MaxStreams bounds the requests at a time of one HTTP/2 connection; 0 means 250.
	MaxStreams int
	// WriteStall ends a reply of which the client takes nothing for that long; 0 means 30s.
	WriteStall time.Duration
	// Reply bounds the heads of upstreams' replies; zeros mean http1's.
	Reply http1.Limits
}

// Deps are what a Front leans on.
type Deps struct {
	Hub  *hub.Hub
	Push *pushhttp.Server
	Auth *auth.Authenticator
	// Upstreams serve the routes; nil: none.
	Upstreams *upstream.Set
	// Now is the clock that policy and upstream share; nil means nanoseconds since New.
	Now func() int64
	// Ready returns why the process should get no new clients, or nil.
	Ready func() error
	// Limits hold clients of Weir's own endpoints to bounds; nil: there are none.
	Limits *limit.Front
	// Files are static replies by path.
	Files map[string]Static
	// Traces is told the traceparent of a call of the API before it is carried out; nil:
	// nobody wants to know.
	Traces func(call *wire.Call, traceparent []byte)
	// Log gets what goes wrong; nil discards.
	Log *slog.Logger
}

// A Static is a reply that never changes.
type Static struct {
	ContentType string
	Body        []byte
}

// A Front serves requests of net/http.
type Front struct {
	// Fixed at New.
	cfg    Config
	deps   Deps
	log    *slog.Logger
	server *http.Server
	goAway *goAway
	conns  *handedOver
	// Weir's own, and before requests come those of protocols.
	endpoints socket.Table[endpoint]
	paths     string // Weir's own, for hints
	// UseTurns's. classes is nil while nothing has a class.
	classes classes
	push    any

	// Any goroutine.
	routes     atomic.Pointer[policy.Set]
	transports sync.Map // *upstream.Cluster → *transport
	mirrors    chan struct{}
	atWork     atomic.Int64
	exchanges  atomic.Int64
	streams    streams // of upstreams
}

var _ http.Handler = (*Front)(nil)

// New returns a Front. It serves connections given to Serve and Take.
func New(cfg Config, deps Deps) *Front {
	or := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	or(&cfg.HeadTimeout, 10*time.Second)
	or(&cfg.KeepAlive, 15*time.Second)
	or(&cfg.WriteStall, 30*time.Second)
	orInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	orInt(&cfg.MaxHead, 32<<10)
	orInt(&cfg.MaxChannels, 32)
	orInt(&cfg.MaxStreams, 250)
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		base := time.Now()
		deps.Now = func() int64 { return int64(time.Since(base)) }
	}
	f := &Front{cfg: cfg, deps: deps, log: deps.Log, conns: newHandedOver(), mirrors: make(chan struct{}, maxMirrors)}
	f.paths = socket.OwnPaths(cfg.BuiltinPrefix, !cfg.RoutesOnly)
	for path, ep := range endpoints {
		if !cfg.RoutesOnly || !ep.push {
			f.endpoints.Own(cfg.BuiltinPrefix+path, ep)
		}
	}
	for path, file := range deps.Files {
		f.endpoints.Own(cfg.BuiltinPrefix+path, endpoint{methods: "GET, HEAD", serve: func(_ *Front, w http.ResponseWriter, _ *http.Request) { file.serve(w) }})
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	f.server = &http.Server{
		Handler: f, Protocols: &protocols, ReadHeaderTimeout: cfg.HeadTimeout, IdleTimeout: cfg.KeepAlive, MaxHeaderBytes: cfg.MaxHead,
		DisableGeneralOptionsHandler: true, // OPTIONS * is answered with Allow

		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: cfg.MaxStreams, WriteByteTimeout: 30 * time.Second, SendPingTimeout: 30 * time.Second},
		ErrorLog: slog.NewLogLogger(debugOnly{f.log.Handler()}, slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if l, ok := c.(pushhttp.Carrier); ok {
				ctx = pushhttp.WithCarrier(ctx, l)
			}
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	f.goAway = announceBy(f.server)
	return f
}

// SetRoutes makes f serve routes from now on; requests under way keep theirs.
func (f *Front) SetRoutes(s *policy.Set) {
	f.routes.Store(s)
	f.forget()
}

// Serve answers the connections of l until Close. TLS is the listener's.
func (f *Front) Serve(l net.Listener) error { return f.server.Serve(l) }

// Take serves a connection that somebody else accepted: HTTP/1.1, or HTTP/2 with
// prior knowledge. ServeTaken must be running.
func (f *Front) Take(c net.Conn) { f.conns.give(c) }

// ServeTaken answers the connections given to Take until Close.
func (f *Front) ServeTaken() error { return f.server.Serve(f.conns) }

// Close waits for requests under way until ctx is done, and ends what is left.
func (f *Front) Close(ctx context.Context) error {
	f.goAway.announce()
	err := f.server.Shutdown(ctx)
	if err != nil {
		err = f.server.Close()
	}
	f.transports.Range(func(_, t any) bool {
		t.(*transport).CloseIdleConnections() //nolint:forcetypeassert // nothing else is stored
		return true
	})
	return err
}

// debugOnly writes at debug level: clients that break off are nothing to act on.
type debugOnly struct{ slog.Handler }

type connKey struct{}

// encrypted reports whether the client speaks TLS, to us or to the loop before us.
func encrypted(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	c, ok := r.Context().Value(connKey{}).(interface{ Encrypted() bool })
	return ok && c.Encrypted()
}

// certificate returns the client's, verified by us or by the loop before us, or nil.
func certificate(r *http.Request) *auth.Certificate {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return auth.NewCertificate(r.TLS.PeerCertificates[0])
	}
	if c, ok := r.Context().Value(connKey{}).(interface{ Certificate() *auth.Certificate }); ok {
		return c.Certificate()
	}
	return nil
}

// endpoint is what a path leads to.
type endpoint struct {
	methods string
	serve   func(*Front, http.ResponseWriter, *http.Request)
	push    bool // it is not there where only routes are served
}

// endpoints are Weir's own.
var endpoints = map[string]endpoint{
	"/sse":           {"GET", (*Front).sse, true},
	"/ws":            {"GET", (*Front).webSocket, true},
	"/api/publish":   {"POST", (*Front).publish, true},
	"/api/broadcast": {"POST", (*Front).publish, true},
	"/healthz":       {"GET, HEAD", (*Front).healthz, false},
	"/readyz":        {"GET, HEAD", (*Front).readyz, false},
}

// ServeHTTP implements http.Handler. What is built in comes before routes, as on
// the loops.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ep, known := f.endpoints.Find([]byte(rawPath(r)))
	known = known && socket.BuiltinHost(f.cfg.BuiltinHosts, []byte(r.Host))
	set := f.routes.Load()
	if f.deps.Push.Draining() {
		w.Header().Set("Connection", "close") // on HTTP/2 the connection's GOAWAY
	}
	switch {
	case !f.understood(w, r):
	case r.RequestURI == "*":
		f.asterisk(w, r)
	case strings.Contains(r.RequestURI, "#"): // RFC 9112 §3.2: no form of target has one
		f.fail(w, r, &wire.Error{Status: http.StatusBadRequest, Message: "bad request target"})
	case !known && set != nil:
		f.route(set, w, r)
	case !known:
		f.fail(w, r, &wire.Error{Status: http.StatusNotFound, Message: "no such path",
			Hint: f.paths})
	case r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "":
		f.preflight(w, r, ep.methods)
	case !allowed(ep.methods, r):
		w.Header().Set("Allow", ep.methods)
		f.fail(w, r, &wire.Error{Status: http.StatusMethodNotAllowed, Message: "method not allowed", Hint: "use " + ep.methods})
	default:
		f.cors(w, r)
		ep.serve(f, w, r)
	}
}

// understood refuses requests that the loops' own parser refuses and the library
// lets pass; it has answered when it returns false.
func (f *Front) understood(w http.ResponseWriter, r *http.Request) bool {
	c, _ := r.Context().Value(connKey{}).(interface{ OnlyHTTP2() bool })
	switch {
	case c != nil && c.OnlyHTTP2() && (r.ProtoMajor != 2 || r.Method == "PRI"):
		// It began like HTTP/2 to get away from the loops' parser.
		w.Header().Set("Connection", "close")
		f.fail(w, r, &wire.Error{Status: http.StatusBadRequest, Message: "bad request"})
	case len(r.Method) > maxMethod || !http1.ValidName(r.Method):
		f.fail(w, r, &wire.Error{Status: http.StatusBadRequest, Message: "bad method"})
	case http1.RepeatedIn(r.Header) != "":
		w.Header().Set("Connection", "close")
		f.fail(w, r, &wire.Error{Status: http.StatusBadRequest, Message: "repeated field: " + http1.RepeatedIn(r.Header)})
	case r.ProtoMajor == 2 && !oneHost(r):
		f.fail(w, r, &wire.Error{Status: http.StatusBadRequest, Message: "Host and :authority differ"})
	case r.Method == http.MethodConnect && !isExtendedConnect(r):
		f.fail(w, r, &wire.Error{Status: http.StatusNotImplemented, Message: "CONNECT is not supported"})
	default:
		return true
	}
	return false
}

// oneHost reports whether the Host fields that an HTTP/2 request may have besides
// :authority name the same (RFC 9113 §8.3.1).
func oneHost(r *http.Request) bool {
	hosts := r.Header["Host"]
	return len(hosts) == 0 || len(hosts) == 1 && strings.EqualFold(hosts[0], r.Host)
}

// asterisk answers for the server as a whole (RFC 9110 §9.3.7).
func (f *Front) asterisk(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodOptions {
		f.fail(w, r, &wire.Error{Status: http.StatusBadRequest, Message: "request target * is for OPTIONS only"})
		return
	}
	w.Header().Set("Allow", policy.UsualMethods)
	w.WriteHeader(http.StatusNoContent)
}

// maxMethod is how long a method may be, as on the loops.
const maxMethod = 32

// rawPath is the path as it was sent.
func rawPath(r *http.Request) string {
	if p, _, _ := strings.Cut(r.RequestURI, "?"); strings.HasPrefix(p, "/") {
		return p
	}
	return r.URL.EscapedPath()
}

// ownPath is the path of a request for one of Weir's own, without the prefix.
func (f *Front) ownPath(r *http.Request) string {
	return strings.TrimPrefix(rawPath(r), f.cfg.BuiltinPrefix)
}

func allowed(methods string, r *http.Request) bool {
	m := r.Method
	if isExtendedConnect(r) {
		m = http.MethodGet // RFC 8441 §5: it stands for a GET
	}
	for have := range strings.SplitSeq(methods, ", ") {
		if have == m {
			return true
		}
	}
	return false
}

func (s Static) serve(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", s.ContentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write(s.Body) // the client may be gone
}
