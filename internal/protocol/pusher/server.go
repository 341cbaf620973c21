package pusher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/backlog"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
)

// Deps are what a Server needs.
type Deps struct {
	// Hub carries the messages; it has been started. Required.
	Hub *hub.Hub
	// Format is what AddFormat returned for the hub's encoders. Required.
	Format hub.Format
	// Cluster reports which node sends a webhook. Required.
	Cluster *cluster.Cluster
	// Presence counts subscribers and knows the members of presence channels over all
	// nodes. It does not run yet. Required.
	Presence *presence.Presence
	// Access decides who may do what; nil means a model of Config alone.
	Access *access.Model
	// Bus connects the nodes; nil means the hub's.
	Bus hub.Bus
	// Client sends webhooks; nil means one that follows no redirects.
	Client *http.Client
	// Revoked reports whether a user is revoked; nil: no user is.
	Revoked func(user string) bool
	// Ready returns why the process should get no new clients, or nil; a nil Ready means that
	// it always should.
	Ready func() error
	// Log gets what a human may want to know; nil discards.
	Log *slog.Logger
}

// A Server speaks the protocol with the clients of a process.
type Server struct {
	// Fixed in New.
	deps Deps
	log  *slog.Logger

	// Any goroutine.
	settings  atomic.Pointer[settings]
	lag       backlog.Counts
	counts    counters
	news      *newsDesk
	announced *flaps
	totals    countDesk
	hooks     hookRunner
}

// counters are the totals of Stats.
type counters struct {
	connected, rejected, slow, unanswered        atomic.Uint64
	flooded                                      atomic.Uint64
	subscribed, denied, clientEvents, limited    atomic.Uint64
	triggers, refused, noticesLost, terminated   atomic.Uint64
	hooksSent, hooksRetried, hooksFailed, hooksD atomic.Uint64
}

// Stats are counters since New and gauges.
type Stats struct {
	Connected       uint64 // connections that were greeted
	Rejected        uint64 // connections closed instead, with a code
	Slow            uint64 // connections closed because their client read too slowly
	Flooded         uint64 // connections closed because their client sent too much
	Unanswered      uint64 // connections closed because a ping was not answered
	Subscribed      uint64 // subscriptions that began
	Denied          uint64 // subscriptions and users that were refused
	ClientEvents    uint64 // client events passed on
	Limited         uint64 // client events over the rate
	Triggers        uint64 // events triggered by the REST API, one for each channel
	Refused         uint64 // REST calls refused for their signature
	Terminated      uint64 // connections ended by the REST API
	NoticesLost     uint64 // changes of membership that subscribers were not notified of
	Webhooks        uint64 // webhook requests that were taken
	WebhooksRetried uint64 // webhook requests that were tried again
	WebhooksFailed  uint64 // webhook requests given up
	WebhooksDropped uint64 // events dropped at the bound of a webhook's queue, or at the end of the process
	Waiting         int64  // messages that wait for slow clients
	Dropped         uint64 // messages dropped for slow clients
	Conflated       uint64 // messages replaced by newer ones for slow clients
}

// Stats may be called from any goroutine.
func (s *Server) Stats() Stats {
	c := &s.counts
	return Stats{
		Connected: c.connected.Load(), Rejected: c.rejected.Load(),
		Slow: c.slow.Load(), Flooded: c.flooded.Load(), Unanswered: c.unanswered.Load(), Subscribed: c.subscribed.Load(), Denied: c.denied.Load(),
		ClientEvents: c.clientEvents.Load(), Limited: c.limited.Load(), Triggers: c.triggers.Load(), Refused: c.refused.Load(),
		Terminated: c.terminated.Load(), NoticesLost: c.noticesLost.Load(),
		Webhooks: c.hooksSent.Load(), WebhooksRetried: c.hooksRetried.Load(), WebhooksFailed: c.hooksFailed.Load(),
		WebhooksDropped: c.hooksD.Load(), Waiting: s.lag.Queued.Load(), Dropped: s.lag.Dropped.Load(), Conflated: s.lag.Conflated.Load(),
	}
}

// app is an application at work.
type app struct {
	App
	secret string
	inside string // a name in its namespace
	prefix string // of the names of its channels in the hub
	hooks  []*hook
	// hooked are the events that some webhook wants.
	hooked map[string]bool
	// crowd is the name under which presence counts the app's connections.
	crowd string
	// lobby is the name under which presence knows who has signed in.
	lobby string
	users *users
}

// New returns a Server. Run must run beside it. Call it before Presence runs.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Hub == nil || deps.Cluster == nil || deps.Presence == nil {
		return nil, errors.New("hub, cluster and presence are needed")
	}
	cfg = cfg.WithDefaults()
	s := &Server{deps: deps, log: deps.Log}
	s.news = newNewsDesk(deps.Hub, deps.Presence.Has, &s.counts.noticesLost)
	s.log = cmp.Or(s.log, slog.New(slog.DiscardHandler))
	if s.deps.Access == nil {
		s.deps.Access = access.New(deps.Hub.Namespace, access.Config{Pusher: cfg.Access()})
	}
	s.deps.Bus = cmp.Or(s.deps.Bus, deps.Hub.Bus())
	if s.deps.Client == nil {
		s.deps.Client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	x, err := s.compile(cfg, nil, deps.Hub.Namespace)
	if err != nil {
		return nil, err
	}
	s.settings.Store(x)
	s.announced = newFlaps(time.Duration(s.conf().cfg.VacatedDelay), s.gone)
	s.totals = countDesk{s: s, channels: map[string]bool{}}
	deps.Presence.Watch(s.watch)
	return s, nil
}

// channel returns the name in the hub of one of a's channels.
func (a *app) channel(name string) string { return a.prefix + protocol.Topic(name) }

// split returns the app and the protocol's name of a hub channel; nil for channels of
// namespaces that no app has.
func (s *Server) split(channel string) (*app, string) {
	ns := "default"
	if i := strings.IndexByte(channel, ':'); i >= 0 {
		ns = channel[:i]
	}
	return s.conf().byNS[ns], channelOf(channel)
}

// Run does what is to be done beside the connections until ctx ends: webhooks, what
// notices to members, and what other nodes say. Only one call.
func (s *Server) Run(ctx context.Context) error {
	for topic, f := range map[string]func(string, []byte){topicTerminate: s.onTerminate, topicCounts: s.totals.receive} {
		stop, err := s.deps.Bus.Listen(topic, f)
		if err != nil {
			return fmt.Errorf("listen to other nodes: %w", err)
		}
		defer stop()
	}
	defer s.announced.stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	s.hooks.run(ctx, &wg, s.conf().hooks())
	defer s.hooks.end()
	wg.Go(func() { s.news.run(ctx) })
	wg.Go(func() { s.totals.run(ctx) })
	<-ctx.Done()
	return nil
}

// Endpoints are what the fronts are to serve; none if the protocol is not enabled.
func (s *Server) Endpoints() []socket.Endpoint {
	if !s.conf().cfg.Enabled {
		return nil
	}
	one := 4*s.conf().cfg.MaxEventData + s.conf().cfg.MaxChannels*(protocol.MaxChannel+8) + 8<<10
	list := []socket.Endpoint{
		{Path: "/app/*", Methods: "GET", Serve: s.connect},
		{Path: "/apps/*", Methods: "GET, POST", MaxBody: min(one*s.conf().cfg.MaxBatch, 64<<20), Serve: restAPI{s}.serve},
	}
	for _, path := range s.conf().cfg.HealthPaths {
		list = append(list, socket.Endpoint{Path: path, Methods: "GET, HEAD", Serve: s.deps.health})
	}
	for i := range list {
		list[i].Protocol = "pusher"
	}
	return list
}

// health answers a balancer as soketi does at / and /ready, and Reverb at /up.
func (d *Deps) health(r socket.Request) {
	switch {
	case d.Ready != nil && d.Ready() != nil:
		r.Answer(http.StatusServiceUnavailable, "text/plain; charset=utf-8", []byte("Service Unavailable"))
	case r.Path() == "/up":
		r.Answer(http.StatusOK, "application/json", []byte(`{"health":"OK"}`))
	default:
		r.Answer(http.StatusOK, "text/plain; charset=utf-8", []byte("OK"))
	}
}

// newSocketID returns an id that no other connection ever had: 100 random bits.
func newSocketID() string {
	const limit = 1_000_000_000_000_000
	b := strconv.AppendUint(make([]byte, 0, 31), rand.Uint64N(limit), 10)
	return string(strconv.AppendUint(append(b, '.'), rand.Uint64N(limit), 10))
}
