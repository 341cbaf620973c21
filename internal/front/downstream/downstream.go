// Package downstream is the hall between a client's connection and the wings:
// it reads request heads and bodies on the loop, finds the endpoint, the
// credentials and the identity, and hands the connection to push, or the request
// to proxy, or answers.
//
// Requests of one connection are served in order. While one waits for an answer,
// what follows it is not looked at; answers that are there at once leave together,
// in one write per read. What a request needs beyond its parse is reused, so that
// in the steady state none allocates.
package downstream

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/batch"
	"github.com/weir-gateway/weir/internal/proxy/record"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// A Static is a reply that never changes.
type Static struct {
	ContentType string
	Body        []byte
}

// A Server is the front of a process on its event loops.
type Server struct {
	// Fixed at New; endpoints, altSvc and local before the loops run.
	cfg       Config
	limits    http1.Limits
	push      *push.Push
	auth      *auth.Authenticator
	log       *slog.Logger
	endpoints socket.Table[*endpoint]
	paths     string                   // Weir's own, for hints
	proxy     *proxy.Proxy             // nil: nothing is forwarded
	traces    func(*push.Call, []byte) // nil: none
	recorder  *record.Recorder         // nil: nothing is recorded
	batcher   *batch.Batcher           // nil: nothing is forwarded
	http2     ServeHTTP2               // nil: HTTP/1 only
	altSvc    []byte                   // a line of every answer; empty: none
	front     *limit.Front             // nil: no limits
	local     []netip.AddrPort
	bounds    struct{ head, body, idle int64 }

	// Any goroutine. Tokens are verified off the loops, a bounded number at a time.
	ctx      context.Context
	cancel   context.CancelFunc
	working  sync.WaitGroup
	inFlight atomic.Int64
	routes   atomic.Pointer[table] // nil: none are configured

	loopStates []*loopState
}

// loopState is the server's part on one loop.
type loopState struct {
	srv  *Server
	req  http1.Request // reused: parsing and dispatch are one call
	buf  []byte        // scratch for answers
	raw  []byte        // the head of the request that a protocol is about to serve
	free []*request    // for the next requests
	// date is the Date field of the second dateAt of the loop's clock.
	date   []byte
	dateAt int64
	// drainEnd is when event streams of backends have to be over; 0: nothing drains.
	drainEnd  int64
	marked    bool // MarkRequests was called
	drainPlan wire.DrainPlan
	drainAt   time.Time

	// Any goroutine.
	counters counters
	waiting  atomic.Int64 // requests whose answer is waited for
	late     atomic.Int64 // of those, the ones that came after MarkRequests or have no end
	streams  atomic.Int64 // event streams of backends
	_        [64]byte     // the next loop's counters are another processor's
}

// Deps are what a Server works with.
type Deps struct {
	// Push serves subscriptions and the calls of the API. Required.
	Push *push.Push
	// Auth verifies tokens and keys. Required.
	Auth *auth.Authenticator
	// Loops is the number of loops that the Server is used on.
	Loops int
	// Proxy forwards the requests of routes that lead to clusters; nil: there are none.
	Proxy *proxy.Proxy
	// Recorder keeps the replies of routes that are recorded; nil: there are none.
	Recorder *record.Recorder
	// Limits are those per address and identity on Weir's own endpoints; nil: none.
	Limits *limit.Front
	// Traces gets the traceparent of every call of the API that has one, on the
	// connection's loop and before the call is executed; nil: none.
	Traces func(call *push.Call, traceparent []byte)
	// HTTP2 gets connections that speak HTTP/2: with TLS after ALPN, without it by prior
	// knowledge, recognised by the preface. Nil: HTTP/1 only.
	HTTP2 ServeHTTP2
	// Log gets lifecycle lines; nil discards them.
	Log *slog.Logger
}

// New returns a Server.
func New(cfg Config, d Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	d.Log = cmp.Or(d.Log, slog.New(slog.DiscardHandler))
	s := &Server{
		cfg: cfg.WithDefaults(), push: d.Push, auth: d.Auth, log: d.Log, proxy: d.Proxy, recorder: d.Recorder, front: d.Limits,
		traces: d.Traces, http2: d.HTTP2, paths: socket.BuiltinPaths(cfg.BuiltinPrefix, !cfg.RoutesOnly),
		limits: http1.Limits{MaxLine: cfg.MaxLine, MaxHead: cfg.MaxHead, MaxFields: cfg.MaxFields},
	}
	s.bounds.head, s.bounds.body, s.bounds.idle = int64(s.cfg.HeadTimeout), int64(s.cfg.BodyTimeout), int64(s.cfg.KeepAlive)
	if d.Proxy != nil {
		s.batcher = batch.New(d.Proxy, d.Log)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for range d.Loops {
		s.loopStates = append(s.loopStates, &loopState{srv: s})
	}
	s.handleBuiltin("/healthz", &endpoint{methods: "GET, HEAD", serve: healthz})
	s.handleBuiltin("/readyz", &endpoint{methods: "GET, HEAD", serve: readyz})
	if cfg.RoutesOnly {
		return s, nil
	}
	s.handleBuiltin("/sse", &endpoint{methods: "GET", serve: func(r *request) { r.builtin.sse() }, stream: true})
	s.handleBuiltin("/ws", &endpoint{methods: "GET", serve: func(r *request) { r.builtin.websocket() }})
	s.handleBuiltin("/api/publish", &endpoint{methods: "POST", maxBody: push.MaxBody, serve: func(r *request) { r.builtin.publish() }})
	s.handleBuiltin("/api/broadcast", &endpoint{methods: "POST", maxBody: push.MaxBody, serve: func(r *request) { r.builtin.broadcast() }})
	if d.Push.Config().Echo {
		s.handleBuiltin("/echo", &endpoint{methods: "GET", serve: func(r *request) { r.builtin.echo() }})
	}
	if d.Recorder != nil {
		s.handleBuiltin(record.Path, &endpoint{methods: "GET", serve: func(r *request) { r.builtin.recordingAgain() }, stream: true})
	}
	return s, nil
}

// handleBuiltin serves a path of Weir's own, below the prefix.
func (s *Server) handleBuiltin(path string, e *endpoint) {
	s.endpoints.SetBuiltin(s.cfg.BuiltinPrefix+path, e)
}

// Handle adds static replies by path, below the prefix. Before the loops run only.
func (s *Server) Handle(files map[string]Static) {
	for path, f := range files {
		s.handleBuiltin(path, &endpoint{methods: "GET, HEAD", serve: func(r *request) {
			r.answer(http.StatusOK, f.ContentType, f.Body, staticFields)
		}})
	}
}

const staticFields = "Cache-Control: no-cache\r\nX-Content-Type-Options: nosniff\r\n" +
	"Content-Security-Policy: default-src 'self'; frame-ancestors 'none'\r\nReferrer-Policy: no-referrer\r\n"

// Listening sets the addresses of the listeners, in their order, for peers that
// get the address at which a client connected. Before the loops run only.
func (s *Server) Listening(addrs ...netip.AddrPort) { s.local = addrs }

// Accept is the loops' accept function: it gives a new connection its handler.
func (s *Server) Accept(c *eventloop.Conn) eventloop.Handler {
	if s.http2 != nil && agreedOnHTTP2(c) {
		s.http2(c, 0)
		return c.Handler()
	}
	c.SetTimer(s.bounds.head)
	return &conn{loopState: s.loopStates[c.Loop().ID()]}
}

// AcceptStream is Accept for a stream of HTTP/2, which is a connection with one request.
func (s *Server) AcceptStream(c *eventloop.Conn) eventloop.Handler {
	return &conn{loopState: s.loopStates[c.Loop().ID()]}
}

// MarkRequests separates the requests under way from those that come later, for
// Unfinished. Any goroutine; it returns at once.
func (s *Server) MarkRequests(loops []*eventloop.Loop) {
	for _, l := range loops {
		loopState := s.loopStates[l.ID()]
		l.Post(func() { loopState.marked = true })
	}
}

// Unfinished is Waiting without the requests that came after MarkRequests.
func (s *Server) Unfinished() (n int64) {
	for _, l := range s.loopStates {
		n += l.waiting.Load() - l.late.Load()
	}
	return n
}

// Streams returns how many event streams of backends are followed. Any goroutine.
func (s *Server) Streams() (n int64) {
	for _, l := range s.loopStates {
		n += l.streams.Load()
	}
	return n
}

// Waiting returns how many requests wait for a broker, for keys or for a backend.
// Any goroutine.
func (s *Server) Waiting() (n int64) {
	for _, l := range s.loopStates {
		n += l.waiting.Load()
	}
	return n
}

// Close waits for verifications and other work under way. The loops must have ended.
func (s *Server) Close() {
	s.cancel()
	s.working.Wait()
	if s.batcher != nil {
		s.batcher.Close()
	}
	s.push.Close()
}

type counters struct {
	requests, bad, refused, timeouts, forwarded, held, holdsRefused atomic.Uint64
}

// Stats are counters since New.
type Stats struct {
	Requests  uint64 // heads understood
	Bad       uint64 // refused for breaking HTTP
	Refused   uint64 // answered with 4xx or 5xx otherwise
	Timeouts  uint64 // closed for being too slow
	Forwarded uint64 // handed to a cluster
	Held      uint64 // connections that backends turned into subscriptions
	// HoldsRefused are those that backends may not have turned, or not so.
	HoldsRefused uint64
}

// Stats may be called from any goroutine.
func (s *Server) Stats() (t Stats) {
	for _, l := range s.loopStates {
		c := &l.counters
		t.Requests += c.requests.Load()
		t.Bad += c.bad.Load()
		t.Refused += c.refused.Load()
		t.Timeouts += c.timeouts.Load()
		t.Forwarded += c.forwarded.Load()
		t.Held += c.held.Load()
		t.HoldsRefused += c.holdsRefused.Load()
	}
	return t
}
