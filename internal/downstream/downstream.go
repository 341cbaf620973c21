// Package downstream is the hall between a client's connection and the wings:
// it reads request heads and bodies on the loop, finds the endpoint, the
// credentials and the identity, and hands the connection to push, or answers.
package downstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/push"
)

// Config of a Server: what an HTTP client may take in time and size. The zero
// value works.
type Config struct {
	// HeadTimeout bounds the time from accept, or from the first byte of a later
	// request, to the end of the head; 0 means 10s.
	HeadTimeout hub.Duration `json:"head_timeout"`
	// BodyTimeout bounds the time a body may take, plus one second per KiB;
	// 0 means 10s.
	BodyTimeout hub.Duration `json:"body_timeout"`
	// KeepAlive closes a connection without a request for that long; 0 means 15s.
	KeepAlive hub.Duration `json:"keep_alive"`
	// MaxLine bounds the request line in bytes; 0 means 8 KiB. Beyond: 414.
	MaxLine int `json:"max_line" unit:"bytes"`
	// MaxHead bounds the head in bytes; 0 means 32 KiB, at most 64 KiB. Beyond: 431.
	MaxHead int `json:"max_head" unit:"bytes"`
	// MaxFields bounds the header fields; 0 means 100. Beyond: 431.
	MaxFields int `json:"max_fields"`
	// MaxVerifying bounds the tokens that are being verified at a time; at the
	// bound clients are asked to come back. 0 means 1,024.
	MaxVerifying int `json:"max_verifying"`
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	if c.HeadTimeout < 0 || c.BodyTimeout < 0 || c.KeepAlive < 0 {
		errs = append(errs, errors.New("head_timeout, body_timeout and keep_alive must not be negative"))
	}
	within := func(key string, v, hi int) {
		if v < 0 || v > hi {
			errs = append(errs, fmt.Errorf("%s: %d is not within 1..%d", key, v, hi))
		}
	}
	within("max_line", c.MaxLine, 32<<10)
	within("max_head", c.MaxHead, 64<<10)
	within("max_fields", c.MaxFields, 1000)
	within("max_verifying", c.MaxVerifying, 1<<20)
	return errors.Join(errs...)
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	or := func(v *hub.Duration, d time.Duration) {
		if *v == 0 {
			*v = hub.Duration(d)
		}
	}
	or(&c.HeadTimeout, 10*time.Second)
	or(&c.BodyTimeout, 10*time.Second)
	or(&c.KeepAlive, 15*time.Second)
	orInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	orInt(&c.MaxLine, 8<<10)
	orInt(&c.MaxHead, 32<<10)
	orInt(&c.MaxFields, 100)
	orInt(&c.MaxVerifying, 1024)
	return c
}

// A Static is a reply that never changes.
type Static struct {
	ContentType string
	Body        []byte
}

// A Server is the front of a process on its event loops.
type Server struct {
	// Fixed at New; routes before the loops run.
	cfg    Config
	limits http1.Limits
	push   *push.Push
	auth   *auth.Authenticator
	log    *slog.Logger
	routes map[string]endpoint
	bounds struct{ head, body, idle int64 }

	// Any goroutine. Tokens are verified off the loops, a bounded number at a time.
	ctx       context.Context
	cancel    context.CancelFunc
	verifying sync.WaitGroup
	inFlight  atomic.Int64
	waiting   atomic.Int64 // requests whose answer is waited for
	counters  counters

	lanes []*lane
}

// lane is the server's part on one loop.
type lane struct {
	srv *Server
	req http1.Request // reused: parsing and dispatch are one call
	buf []byte        // scratch for answers
	// date is the Date field of the second dateAt of the loop's clock.
	date   []byte
	dateAt int64
}

// New returns a Server. loops is the number of loops it will be used on.
func New(cfg Config, p *push.Push, a *auth.Authenticator, loops int, log *slog.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		cfg: cfg.WithDefaults(), push: p, auth: a, log: log, routes: map[string]endpoint{},
		limits: http1.Limits{MaxLine: cfg.MaxLine, MaxHead: cfg.MaxHead, MaxFields: cfg.MaxFields},
	}
	s.bounds.head, s.bounds.body, s.bounds.idle = int64(s.cfg.HeadTimeout), int64(s.cfg.BodyTimeout), int64(s.cfg.KeepAlive)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for range loops {
		s.lanes = append(s.lanes, &lane{srv: s})
	}
	s.routes["/sse"] = endpoint{methods: "GET", serve: (*request).sse}
	s.routes["/ws"] = endpoint{methods: "GET", serve: (*request).websocket}
	s.routes["/api/publish"] = endpoint{methods: "POST", maxBody: push.MaxBody, serve: (*request).publish}
	s.routes["/api/broadcast"] = endpoint{methods: "POST", maxBody: push.MaxBody, serve: (*request).broadcast}
	s.routes["/healthz"] = endpoint{methods: "GET, HEAD", serve: (*request).healthz}
	s.routes["/readyz"] = endpoint{methods: "GET, HEAD", serve: (*request).readyz}
	if p.Config().Echo {
		s.routes["/echo"] = endpoint{methods: "GET", serve: (*request).echo}
	}
	return s, nil
}

// Handle adds static replies by path. Before the loops run only.
func (s *Server) Handle(files map[string]Static) {
	for path, f := range files {
		s.routes[path] = endpoint{methods: "GET, HEAD", serve: func(r *request) {
			r.answer(http.StatusOK, f.ContentType, f.Body, staticFields)
		}}
	}
}

const staticFields = "Cache-Control: no-cache\r\nX-Content-Type-Options: nosniff\r\n" +
	"Content-Security-Policy: default-src 'self'; frame-ancestors 'none'\r\nReferrer-Policy: no-referrer\r\n"

// Accept is the loops' accept function: it gives a new connection its handler.
func (s *Server) Accept(c *eventloop.Conn) eventloop.Handler {
	c.SetTimer(s.bounds.head)
	return &conn{lane: s.lanes[c.Loop().ID()]}
}

// Waiting returns how many requests wait for a broker or for keys. Any goroutine.
func (s *Server) Waiting() int64 { return s.waiting.Load() }

// Close waits for verifications under way. The loops must have ended.
func (s *Server) Close() {
	s.cancel()
	s.verifying.Wait()
}

type counters struct {
	requests, bad, refused, timeouts atomic.Uint64
}

// Stats are counters since New.
type Stats struct {
	Requests uint64 // heads understood
	Bad      uint64 // refused for breaking HTTP
	Refused  uint64 // answered with 4xx or 5xx otherwise
	Timeouts uint64 // closed for being too slow
}

// Stats may be called from any goroutine.
func (s *Server) Stats() Stats {
	c := &s.counters
	return Stats{Requests: c.requests.Load(), Bad: c.bad.Load(), Refused: c.refused.Load(), Timeouts: c.timeouts.Load()}
}
