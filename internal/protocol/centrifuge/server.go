package centrifuge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/backlog"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
)

// Deps are what a Server works with.
type Deps struct {
	// Hub carries the messages. Required.
	Hub *hub.Hub
	// Formats are what AddFormats returned for the hub's encoders. Required.
	Formats Formats
	// Auth verifies tokens where Config names no key set, and Weir's own API keys.
	// Required.
	Auth *auth.Authenticator
	// KeySets are those that Config may name.
	KeySets auth.KeySets
	// Presence knows who is on a channel, over all nodes. Nil: no namespace may have
	// presence or join_leave.
	Presence *presence.Presence
	// Bus connects the nodes; nil means the hub's.
	Bus hub.Bus
	// Cluster queries the other nodes. Nil: there are none.
	Cluster *cluster.Cluster
	// Access decides who may do what; nil means a model of Config alone.
	Access *access.Model
	// Version is sent to clients; empty means "weir".
	Version string
	// Name is what people call this node; empty means the host's name.
	Name string
	// Request sends a request to a NATS subject and waits for its answer, for
	// Config.RPCSubject; nil: there is none.
	Request func(ctx context.Context, subject string, data []byte) ([]byte, error)
	// Log gets what a human may want to know; nil discards.
	Log *slog.Logger
}

// A Server speaks the protocol with the clients of a process.
type Server struct {
	// Fixed at New.
	deps Deps
	epochs
	log     *slog.Logger
	version string
	now     func() time.Time // the wall clock; tests have their own
	started time.Time
	names   *names
	kinds   kinds

	// Any goroutine.
	settings atomic.Pointer[settings]
	nodeID   atomic.Pointer[string]
	registry *registry
	emulated emulatedClients
	moved    movedClients
	deltas   deltas
	counters counters
	events   eventLog
	waiting  backlog.Counts

	mu    sync.Mutex // guards stops
	stops []func()
}

// kinds are the kinds of clients, by endpoint.
type kinds struct {
	srv        *Server
	ws, stream [2]*kind // by encoding
	sse        *kind
	uniWS      *kind
	uniSSE     *kind
	uniStream  *kind
}

// New returns a Server. The hub need not be started yet; presence must not be.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Hub == nil || deps.Auth == nil || !deps.Formats.set {
		return nil, errors.New("hub, auth and formats are required")
	}
	s := &Server{
		deps: deps, epochs: epochs{deps.Hub}, log: deps.Log, version: deps.Version, now: time.Now,
		started: time.Now(), registry: newRegistry(),
	}
	cfg = cfg.WithDefaults()
	s.version = cmp.Or(s.version, "weir")
	s.log = cmp.Or(s.log, slog.New(slog.DiscardHandler))
	if s.deps.Name == "" {
		s.deps.Name, _ = os.Hostname()
	}
	if s.deps.Access == nil {
		s.deps.Access = access.New(deps.Hub.Namespace, access.Config{Centrifuge: cfg.Access()})
	}
	var err error
	if s.names, err = newNames(); err != nil {
		return nil, err
	}
	x, err := s.compile(cfg, deps.KeySets, deps.Hub.Namespace)
	if err != nil {
		return nil, err
	}
	s.settings.Store(x)
	s.kinds = newKinds(s)
	s.emulated.srv = s
	if cfg.Enabled && cfg.Insecure {
		s.log.Warn("centrifuge.insecure: everybody may subscribe and publish")
	}
	if deps.Presence != nil {
		deps.Presence.Watch(s.presenceChanged)
	}
	return s, nil
}

func newKinds(s *Server) kinds {
	f := s.deps.Formats
	return kinds{
		srv: s,
		ws: [2]*kind{
			newKind(s, kind{name: "websocket", socket: true, format: f.wsJSON}),
			newKind(s, kind{name: "websocket", socket: true, enc: protocol.Protobuf, format: f.wsProtobuf}),
		},
		stream: [2]*kind{
			newKind(s, kind{name: "http_stream", format: f.lines}),
			newKind(s, kind{name: "http_stream", enc: protocol.Protobuf, format: f.stream}),
		},
		sse:       newKind(s, kind{name: "sse", sse: true, format: f.sse}),
		uniWS:     newKind(s, kind{name: "uni_websocket", socket: true, uni: true, format: f.uniWS}),
		uniSSE:    newKind(s, kind{name: "uni_sse", sse: true, uni: true, ids: true, format: f.uniSSEOne}),
		uniStream: newKind(s, kind{name: "uni_http_stream", uni: true, format: f.uniStream}),
	}
}

// Start starts to listen to the other nodes. Call it once, after the hub's Start and
// before clients come.
func (s *Server) Start() error {
	s.deps.Bus = cmp.Or(s.deps.Bus, s.deps.Hub.Bus())
	bus := s.deps.Bus
	if bus == nil {
		return errors.New("centrifuge: the hub is not started")
	}
	node := bus.Node()
	s.nodeID.Store(&node)
	for topic, f := range map[string]func(string, []byte){topicControl: s.controlled, topicEmulate: s.emulated.received} {
		stop, err := bus.Listen(topic, f)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", topic, err)
		}
		s.mu.Lock()
		s.stops = append(s.stops, stop)
		s.mu.Unlock()
	}
	if c := s.deps.Cluster; c != nil {
		c.Handle(topicInfo, func(string, []byte) []byte { return census{s}.info() })
		c.Handle(topicChannels, func(_ string, pattern []byte) []byte { return census{s}.channels(string(pattern)) })
	}
	return nil
}

// Close ends what Start and New began. Clients are the fronts' to end, before.
func (s *Server) Close() error {
	s.mu.Lock()
	stops := s.stops
	s.stops = nil
	s.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
	if c := s.deps.Cluster; c != nil {
		c.Handle(topicInfo, nil)
		c.Handle(topicChannels, nil)
	}
	s.conf().proxies.close()
	return nil
}

// node is this node's id.
func (s *Server) node() string {
	if p := s.nodeID.Load(); p != nil {
		return *p
	}
	return ""
}

// counters are what a Server has done.
type counters struct {
	subscriptions           atomic.Int64
	commands                [32]atomic.Uint64 // by kind
	failed                  atomic.Uint64
	recovered, unrecovered  atomic.Uint64
	insufficient, slow      atomic.Uint64
	backendErrors, apiCalls atomic.Uint64
	disconnects             atomic.Uint64
}

func (c *counters) disconnected(d protocol.Disconnection) {
	c.disconnects.Add(1)
	if d == protocol.DisconnectedSlow {
		c.slow.Add(1)
	}
}

// Stats are counters since New and gauges.
type Stats struct {
	Commands      uint64 // that clients sent
	Failed        uint64 // of these, those answered with an error
	Recovered     uint64 // subscriptions that recovered
	Unrecovered   uint64 // subscriptions that asked to and could not
	Insufficient  uint64 // subscriptions ended because the client missed something
	Disconnects   uint64 // connections that the server ended
	Slow          uint64 // of these, because the client was too slow
	BackendErrors uint64 // calls of proxies that brought no answer
	EventsLost    uint64 // events that could not be published
	APICalls      uint64 // calls of the server API
	Queued        int64  // messages that wait for slow clients
	Dropped       uint64 // messages dropped because a client was too slow
}

// Stats may be called from any goroutine.
func (s *Server) Stats() Stats {
	c := &s.counters
	st := Stats{
		Failed:    c.failed.Load(),
		Recovered: c.recovered.Load(), Unrecovered: c.unrecovered.Load(), Insufficient: c.insufficient.Load(),
		Disconnects: c.disconnects.Load(), Slow: c.slow.Load(), BackendErrors: c.backendErrors.Load(),
		EventsLost: s.events.lost.Load(), APICalls: c.apiCalls.Load(),
		Queued: s.waiting.Queued.Load(), Dropped: s.waiting.Dropped.Load(),
	}
	for i := range c.commands {
		st.Commands += c.commands[i].Load()
	}
	return st
}
