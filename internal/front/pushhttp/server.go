// Package pushhttp serves the hub over net/http: a goroutine per stream, for what no event
// loop of ours carries: a listener that belongs to somebody else, systems without epoll.
// What clients see is the same as from internal/push.
package pushhttp

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/backlog"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// Config of a Server. The zero value works.
type Config struct {
	// Heartbeat is how often a stream is sent something when nothing else is;
	// 0 means 25s.
	Heartbeat time.Duration
	// Retry is the reconnection time that SSE clients are told, each its own
	// between half of it and one and a half; 0 means 2s.
	Retry time.Duration
	// WriteStall ends a stream whose client takes nothing for that long; 0 means 30s.
	WriteStall time.Duration
	// Opening bounds how long a client waits for its subscription; 0 means 15s.
	Opening time.Duration
	// Shards is the number of goroutines that hold the subscribers; 0 means one.
	Shards int
}

func (c Config) withDefaults() Config {
	or := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	or(&c.Heartbeat, 25*time.Second)
	or(&c.Retry, 2*time.Second)
	or(&c.WriteStall, 30*time.Second)
	or(&c.Opening, 15*time.Second)
	c.Shards = max(c.Shards, 1)
	return c
}

// A Server turns requests into subscribers of a hub and into publications. It
// knows no routes and no credentials: whoever calls it has judged both.
type Server struct {
	// Fixed at New.
	cfg     Config
	formats *wire.Formats
	hub     *hub.Hub
	access  *access.Model // replaced before clients come
	log     *slog.Logger
	lanes   []*lane
	base    time.Time

	// Any goroutine.
	next     atomic.Uint32 // the lane of the next stream
	drained  chan struct{} // closed by Drain
	draining atomic.Pointer[drain]
	ending   chan struct{} // closed by EndRefused
	endOnce  sync.Once
	held     atomic.Int64 // refused WebSockets that are still open
	counters counters
	waiting  backlog.Counts
	// streams are taken by turnedAway, under gate; Run, which has ended then, sets closed
	// before it waits for them.
	streams sync.WaitGroup
	gate    sync.RWMutex
	closed  bool
}

type counters struct {
	sse, ws                        atomic.Int64
	tooSlow, expired, sentAway     atomic.Uint64
	refusedDrain                   atomic.Uint64
	overloaded, failed, clientErrs atomic.Uint64
	published, publishErrors       atomic.Uint64
}

// Stats are gauges and counters since New.
type Stats struct {
	SSE, WebSocket           int64  // streams now
	TooSlow                  uint64 // ended at the bound of their queue
	Expired                  uint64 // ended because their token did
	SentAway                 uint64 // ended by a drain
	RefusedDrain             uint64 // refused because of a drain
	Overloaded               uint64 // refused because the broker or the hub could not take them
	Failed                   uint64 // whose subscription could not be had or kept
	ClientErrors             uint64 // closed for breaking the protocol
	Dropped, Conflated, Gaps uint64 // as the namespaces' policies asked
	Held, HeldBytes          int64  // messages that wait for slow clients now
	Published, PublishErrors uint64
}

// Stats may be called from any goroutine.
func (s *Server) Stats() Stats {
	c, w := &s.counters, &s.waiting
	return Stats{
		SSE: c.sse.Load(), WebSocket: c.ws.Load(), TooSlow: c.tooSlow.Load(), Expired: c.expired.Load(),
		SentAway: c.sentAway.Load(), RefusedDrain: c.refusedDrain.Load(), Overloaded: c.overloaded.Load(), Failed: c.failed.Load(), ClientErrors: c.clientErrs.Load(),
		Dropped: w.Dropped.Load(), Conflated: w.Conflated.Load(), Gaps: w.Gaps.Load(), Held: w.Held.Load(), HeldBytes: w.HeldBytes.Load(),
		Published: c.published.Load(), PublishErrors: c.publishErrors.Load(),
	}
}

// UseAccess has m decide who may read and publish; without, only namespaces and grants
// count. Call it before clients come.
func (s *Server) UseAccess(m *access.Model) { s.access = m }

// Access decides who may read and publish.
func (s *Server) Access() *access.Model { return s.access }

// New returns a Server over h, whose encoders are f's. Run must be running while
// it serves.
func New(cfg Config, f *wire.Formats, h *hub.Hub, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg.withDefaults(), formats: f, hub: h, access: access.New(h.Namespace, access.Config{}), log: log, drained: make(chan struct{}), ending: make(chan struct{}), base: time.Now()}
	for range s.cfg.Shards {
		l := &lane{wake: make(chan struct{}, 1)}
		l.shard = h.NewShard(l.rouse)
		s.lanes = append(s.lanes, l)
	}
	return s
}

// Run serves the shards until ctx is done and every stream has ended: streams end
// by their clients, by Drain, or when ctx is.
func (s *Server) Run(ctx context.Context) {
	live, stop := context.WithCancel(context.Background())
	var lanes sync.WaitGroup
	for _, l := range s.lanes {
		lanes.Go(func() { l.run(live) })
	}
	<-ctx.Done()
	s.Drain(wire.DrainPlan{Spread: s.cfg.Retry})
	s.EndRefused()
	s.gate.Lock()
	s.closed = true
	s.gate.Unlock()
	s.streams.Wait()
	stop()
	lanes.Wait()
}

// turnedAway says why somebody new is not served, and counts that; nil: it is, and who
// asked calls streams.Done when that is over.
func (s *Server) turnedAway() *farewell {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.Draining() || s.closed {
		s.counters.refusedDrain.Add(1)
		return &farewell{codeRestart, "draining"}
	}
	s.streams.Add(1)
	return nil
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
		s.counters.publishErrors.Add(1)
		return wire.AppendError(b, bad), bad
	}
	s.counters.published.Add(1)
	return wire.AppendResult(b, at), nil
}

// retryMillis is a client's own reconnection time, so that those who are cut
// together do not come back together.
func (s *Server) retryMillis() int {
	base := s.cfg.Retry.Milliseconds()
	return int(base/2 + rand.Int64N(base+1))
}

// A lane is a goroutine with its shard of the hub.
type lane struct {
	shard *hub.Shard
	wake  chan struct{} // holds one: there is something to do

	mu    sync.Mutex
	inbox []func() // at most one per stream and call of it
}

// rouse makes the lane look. Any goroutine.
func (l *lane) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// post makes the lane run f. Any goroutine.
func (l *lane) post(f func()) {
	l.mu.Lock()
	l.inbox = append(l.inbox, f)
	l.mu.Unlock()
	l.rouse()
}

func (l *lane) run(ctx context.Context) {
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		fs := l.inbox
		l.inbox = nil
		l.mu.Unlock()
		for _, f := range fs {
			f()
		}
		l.shard.Run()
	}
}
