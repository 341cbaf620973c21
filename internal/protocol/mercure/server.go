// Package mercure speaks the Mercure protocol over the hub, both as deployed
// clients speak it (draft 07) and as version 1.0 will (draft 08).
//
//	s, err := mercure.New(cfg, deps)    // after the hub has started, before presence runs
//	front.Mount(s.Endpoints())          // on every front
//	go s.Run(ctx)                       // the owner waits for it
//
// A topic is a channel of one namespace, so that what is published here arrives at
// subscribers of every protocol, and the other way round. An update goes by the id
// that its publisher gave it, otherwise by its position in the namespace's log; either
// can be resumed from, however long the log is.
package mercure

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
)

// Deps are what a Server needs.
type Deps struct {
	// Hub carries the updates; it has been started. Required.
	Hub *hub.Hub
	// Auth verifies the tokens for which Config names no key set. Required.
	Auth *auth.Authenticator
	// KeySets are those that Config may name.
	KeySets auth.KeySets
	// Access decides who may do what; nil means a model of Config alone.
	Access *access.Model
	// Cluster reports which nodes live, and Presence keeps the subscriptions of all of
	// them. Presence does not run yet. Both are needed with Config.Subscriptions.
	Cluster  *cluster.Cluster
	Presence *presence.Presence
	// Log gets what a human may want to know; nil discards.
	Log *slog.Logger
}

// A Server is a Mercure hub. All methods may be called from any goroutine.
type Server struct {
	// Fixed in New.
	deps  Deps
	log   *slog.Logger
	serve protocol.Dialects

	// Any goroutine.
	settings  atomic.Pointer[settings]
	tokens    verifier
	ids       locator
	directory directory
	counts    counters
}

type counters struct {
	subscribed, resumed, unknown, denied, published, refused, eventsLost atomic.Uint64
	unlisted                                                             atomic.Uint64
}

// Stats are counters since New and gauges.
type Stats struct {
	Subscribed uint64 // streams that began
	Resumed    uint64 // of those, the ones that resumed from an id
	UnknownIDs uint64 // ids to resume from that are not in the log
	Denied     uint64 // requests refused for their token, or for want of one
	Published  uint64 // updates that were stored
	Refused    uint64 // updates that were not
	EventsLost uint64 // subscription events that could not be published
	Unlisted   uint64 // subscriptions that presence did not take
	Patterns   int64  // bytes that compiled patterns take, about
}

// Stats returns the totals so far.
func (s *Server) Stats() Stats {
	c := &s.counts
	return Stats{
		Subscribed: c.subscribed.Load(), Resumed: c.resumed.Load(),
		UnknownIDs: c.unknown.Load(), Denied: c.denied.Load(), Published: c.published.Load(),
		Refused: c.refused.Load(), EventsLost: c.eventsLost.Load(), Unlisted: c.unlisted.Load(), Patterns: s.tokens.selectors.used.Load(),
	}
}

// New returns a Server. Call it before Presence runs.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Hub == nil || deps.Auth == nil {
		return nil, errors.New("hub and auth are needed")
	}
	if cfg.Subscriptions && (deps.Cluster == nil || deps.Presence == nil) {
		return nil, errors.New("subscriptions: cluster and presence are needed")
	}
	cfg = cfg.WithDefaults()
	s := &Server{deps: deps, log: deps.Log}
	s.log = cmp.Or(s.log, slog.New(slog.DiscardHandler))
	if s.deps.Access == nil {
		s.deps.Access = access.New(deps.Hub.Namespace, access.Config{Mercure: cfg.Access()})
	}
	x, err := compile(cfg, deps.KeySets, deps.Auth, deps.Hub.Namespace)
	if err != nil {
		return nil, err
	}
	s.settings.Store(x)
	s.serve = cfg.served()
	s.tokens.s, s.ids.s, s.directory.s = s, s, s
	s.tokens.base = cfg.base()
	s.tokens.selectors.most = cfg.MaxPatternBytes
	s.directory.untold.wake = make(chan struct{}, 1)
	if s.serve.Draft08 && s.conf().cfg.Resource == "" {
		s.log.Warn("tokens of draft 08 are refused: mercure.public_url or mercure.resource is to say whom they are for")
	}
	if slices.Contains(s.conf().cfg.PublishOrigins, "*") {
		s.log.Warn("every page that a publisher looks at may publish in its name: mercure.publish_origins has *")
	}
	if s.conf().cfg.Subscriptions {
		deps.Presence.Watch(s.directory.watch)
	}
	return s, nil
}

// Run keeps the cursor of Link fresh and announces subscriptions, until ctx
// ends. Only one call.
func (s *Server) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.directory.publishAll(ctx) })
	ticker := time.NewTicker(cursorEvery)
	defer ticker.Stop()
	for {
		s.ids.readCursor(ctx)
		select {
		case <-ctx.Done():
			wg.Wait()
			return nil
		case <-ticker.C:
		}
	}
}

// Endpoints are to be mounted on every front.
func (s *Server) Endpoints() []socket.Endpoint {
	main := socket.Endpoint{
		Path: s.conf().cfg.Path, Protocol: "mercure", Methods: "GET, HEAD, POST", MaxBody: s.conf().cfg.MaxBody, Stream: true, Serve: s.serveHub,
	}
	if s.serve.Draft08 {
		main.Methods += ", QUERY"
	}
	list := []socket.Endpoint{main}
	if s.conf().cfg.Subscriptions {
		for _, p := range []string{"/subscriptions", "/subscriptions/*"} {
			list = append(list, socket.Endpoint{Path: s.conf().cfg.Path + p, Protocol: "mercure", Methods: "GET, HEAD", Serve: s.directory.serveSubscriptions})
		}
	}
	if s.serve.Draft08 {
		list = append(list, socket.Endpoint{Path: metadataPath + s.conf().cfg.Path, Protocol: "mercure", Methods: "GET, HEAD", Serve: s.serveMetadata})
	}
	return list
}

func (s *Server) serveHub(r socket.Request) {
	if r.Method() == http.MethodPost {
		s.servePublish(r)
		return
	}
	s.serveSubscribe(r)
}

// isForm reports whether a body is what forms are sent as; nothing said is treated as it.
func isForm(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	kind = strings.TrimSpace(kind)
	return kind == "" || strings.EqualFold(kind, "application/x-www-form-urlencoded")
}
