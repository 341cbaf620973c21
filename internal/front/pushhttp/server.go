// Package pushhttp serves the push session of internal/push on requests of net/http: for what
// no event loop of ours has a socket of, such as a listener that belongs to another program,
// HTTP/2 of net/http, and systems without epoll. Such a request becomes a connection of a
// loop that has no sockets (eventloop.CarryRoot), and its goroutine moves the bytes.
package pushhttp

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// Config of a Server. The zero value works.
type Config struct {
	// Heartbeat is how often a stream is sent something when nothing else is;
	// 0 means 25s.
	Heartbeat time.Duration
	// Retry is the reconnection time sent to SSE clients, each its own
	// between half of it and one and a half; 0 means 2s.
	Retry time.Duration
	// WriteStall ends a stream whose client reads nothing for that long; 0 means 30s.
	WriteStall time.Duration
	// Loops is the number of goroutines that hold the subscribers, at most 255; 0 means one.
	Loops int
}

// Push is the configuration of a push.Push that behaves as c says.
func (c Config) Push() push.Config {
	d := push.Config{Heartbeat: hub.Duration(c.Heartbeat), Retry: hub.Duration(c.Retry)}
	d.IdleTimeout = max(d.WithDefaults().IdleTimeout, 2*d.Heartbeat)
	return d
}

// A Server turns requests into subscribers of a hub and into publications. It has no routes
// and checks no credentials: its caller has done both.
type Server struct {
	// Fixed at New.
	cfg    Config
	hub    *hub.Hub
	log    *slog.Logger
	access *access.Model
	group  *eventloop.Group
	push   *push.Push
	// answers are those of each loop.
	answers []h2.Answers[*carrier]

	// Any goroutine.
	next                     atomic.Uint32 // the loop of the next stream
	published, publishErrors atomic.Uint64
	// streams are added to by enter, under gate; Run, which has ended then, sets closed
	// before it waits for them.
	streams sync.WaitGroup
	gate    sync.RWMutex
	closed  bool
}

// Deps are what a Server works with.
type Deps struct {
	// Hub has the encoders of Formats. Required, both.
	Hub     *hub.Hub
	Formats *wire.Formats
	// Extensions are notified of clients that leave: the caller has them decide on all else.
	// nil: there are none.
	Extensions *extension.Extensions
	// Log gets lifecycle lines; nil discards them.
	Log *slog.Logger
}

// New returns a Server. Run must be running while it serves.
func New(cfg Config, d Deps) (*Server, error) {
	h, log := d.Hub, d.Log
	cfg.WriteStall = cmp.Or(cfg.WriteStall, 30*time.Second)
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	s := &Server{cfg: cfg, hub: h, log: log, access: access.New(h.Namespace, access.Config{})}
	var err error
	s.group, err = eventloop.NewPortable(eventloop.Config{Loops: max(cfg.Loops, 1), MaxConns: maxStreams, WriteStall: hub.Duration(cfg.WriteStall)}, log)
	if err != nil {
		return nil, err
	}
	s.answers = make([]h2.Answers[*carrier], len(s.group.Loops()))
	s.push, err = push.New(cfg.Push(), push.Deps{Formats: d.Formats, Hub: h, Loops: s.group.Loops(), Access: s.access, Extensions: d.Extensions, Log: log})
	return s, err
}

// maxStreams bounds the streams of a Server: no descriptor of ours does.
const maxStreams = 1 << 24

// Access decides who may read and publish.
func (s *Server) Access() *access.Model { return s.access }

// Stats are gauges and counters since New. Any goroutine.
func (s *Server) Stats() push.Stats {
	st := s.push.Stats()
	st.Published, st.PublishErrors = s.published.Load(), s.publishErrors.Load()
	return st
}

// Run serves until ctx is done and every stream has ended: streams end by their clients, by
// Drain, or when ctx is.
func (s *Server) Run(ctx context.Context) error {
	err := RunLoops(ctx, s.group, s.push)
	s.gate.Lock()
	s.closed = true
	s.gate.Unlock()
	s.streams.Wait()
	return err
}

// RunLoops runs the loops of p until ctx is done, and then until the clients have got an end
// or a second is over.
func RunLoops(ctx context.Context, g *eventloop.Group, p *push.Push) error {
	live, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- g.Run(live) }()
	select {
	case <-ctx.Done():
	case err := <-ended:
		return err
	}
	p.Drain(wire.DrainPlan{Spread: time.Duration(p.Config().Retry)})
	patience, look := time.NewTimer(time.Second), time.NewTicker(5*time.Millisecond)
	defer patience.Stop()
	defer look.Stop()
	for waiting := true; waiting && g.Open() > 0; {
		select {
		case <-look.C:
		case <-patience.C:
			waiting = false
		case err := <-ended:
			return err
		}
	}
	stop()
	return <-ended
}

// Drain refuses new streams and ends those there are, as plan says. It returns at once, and
// only the first call counts.
func (s *Server) Drain(plan wire.DrainPlan) { s.push.Drain(plan) }

// enter notes a request that is served from now on, until it calls streams.Done. It returns
// false when Run has ended.
func (s *Server) enter() bool {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return false
	}
	s.streams.Add(1)
	return true
}

// Publish carries out call for who, and returns the answer's status and body.
func (s *Server) Publish(ctx context.Context, call *wire.Call, who *auth.Identity) (status int, body []byte) {
	refused := make([]*wire.Error, len(call.Channels))
	pubs := make([]hub.Publication, 0, len(call.Channels))
	for i, ch := range call.Channels {
		if refused[i] = s.access.MayPublish(who, ch); refused[i] == nil {
			pubs = append(pubs, call.For(i, who))
		}
	}
	outcomes := s.hub.PublishAll(ctx, pubs)
	if !call.Broadcast {
		body, bad := s.outcome(nil, refused[0], &outcomes)
		if bad != nil {
			return bad.Status, body
		}
		return 200, body
	}
	b := []byte(`{"result":{"responses":[`)
	for i, bad := range refused {
		if i > 0 {
			b = append(b, ',')
		}
		b, _ = s.outcome(b, bad, &outcomes)
		b = b[:len(b)-1] // its newline
	}
	return 200, append(b, "]}}\n"...)
}

// outcome appends what became of a publication that was refused as bad says, or else is the
// next of outcomes.
func (s *Server) outcome(b []byte, bad *wire.Error, outcomes *[]hub.Outcome) ([]byte, *wire.Error) {
	var at hub.Position
	if bad == nil {
		o := (*outcomes)[0]
		*outcomes = (*outcomes)[1:]
		if at = o.At; o.Err != nil {
			bad = wire.ErrorOf(o.Err)
		}
	}
	if bad != nil {
		s.publishErrors.Add(1)
		return wire.AppendError(b, bad), bad
	}
	s.published.Add(1)
	return wire.AppendResult(b, at), nil
}

// Fail answers with an error of the API.
func Fail(w http.ResponseWriter, e *wire.Error) {
	Respond(w, e.Status, wire.AppendError(nil, e))
}

// Respond is Answer, for an error too: a client there is no room for is asked to wait.
func Respond(w http.ResponseWriter, status int, body []byte) {
	if (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", strconv.FormatInt(1+rand.Int64N(4), 10)) // not the same for all
	}
	Answer(w, status, body)
}

// Answer answers a call of the API.
func Answer(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // no client is left to be notified of a failure
}
