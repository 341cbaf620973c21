// Package push is the wing that subscribes: it turns a connection into a
// subscriber of the hub (SSE or WebSocket) and publishes what an API call
// brings. It knows wire formats; routes, heads and credentials are downstream's.
package push

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/backlog"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// Config of a Push. The zero value works.
type Config struct {
	// Heartbeat is how often a subscriber is sent something when nothing else
	// is: an SSE comment, a WebSocket ping; 0 means 25s.
	Heartbeat hub.Duration `json:"heartbeat"`
	// HeartbeatMin is the shortest interval of heartbeats that a client can bring about: one that
	// says its longest back-off (max_backoff) is sent something every 0.8 times that, if
	// that is less than what it is sent otherwise; 0 means 5s.
	HeartbeatMin hub.Duration `json:"heartbeat_min"`
	// IdleTimeout closes a WebSocket whose client sends nothing, not even pongs;
	// 0 means 60s.
	IdleTimeout hub.Duration `json:"idle_timeout"`
	// Retry is the reconnection time sent to SSE clients, each its own
	// between half of it and one and a half; 0 means 2s.
	Retry hub.Duration `json:"retry"`
	// MaxChannels bounds the channels of one subscriber, 1 to 128; 0 means 32.
	MaxChannels int `json:"max_channels"`
	// MaxClientMessage bounds in bytes what a WebSocket client may send at a
	// time, to /echo too; 0 means 64 KiB.
	MaxClientMessage int `json:"max_client_message" unit:"bytes"`
	// Echo serves GET /echo, a WebSocket that sends back what it gets: for
	// conformance suites and latency probes. Off by default. A suite that sends
	// more than 64 KiB at a time needs max_client_message raised, and beyond 4 MiB
	// eventloop.max_queue, where the answer waits.
	Echo bool `json:"echo"`
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	if c.HeartbeatMin < 0 {
		errs = append(errs, fmt.Errorf("heartbeat_min: %v is negative", c.HeartbeatMin))
	}
	if c.Heartbeat < 0 || c.IdleTimeout < 0 || c.Retry < 0 {
		errs = append(errs, errors.New("heartbeat, idle_timeout and retry must not be negative"))
	}
	d := c.WithDefaults()
	if d.IdleTimeout <= d.Heartbeat {
		errs = append(errs, fmt.Errorf("idle_timeout: %v must be longer than heartbeat (%v)", d.IdleTimeout, d.Heartbeat))
	}
	if c.MaxChannels < 0 || c.MaxChannels > hub.MaxSubscriberChannels {
		errs = append(errs, fmt.Errorf("max_channels: %d is not within 1..%d", c.MaxChannels, hub.MaxSubscriberChannels))
	}
	if c.MaxClientMessage < 0 || c.MaxClientMessage > 64<<20 {
		errs = append(errs, fmt.Errorf("max_client_message: %d is not within 1..%d", c.MaxClientMessage, 64<<20))
	}
	return errors.Join(errs...)
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	if c.Heartbeat == 0 {
		c.Heartbeat = hub.Duration(25 * time.Second)
	}
	if c.HeartbeatMin == 0 {
		c.HeartbeatMin = hub.Duration(5 * time.Second)
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = max(hub.Duration(60*time.Second), 2*c.Heartbeat)
	}
	if c.Retry == 0 {
		c.Retry = hub.Duration(2 * time.Second)
	}
	if c.MaxChannels == 0 {
		c.MaxChannels = 32
	}
	if c.MaxClientMessage == 0 {
		c.MaxClientMessage = 64 << 10
	}
	return c
}

// HeartbeatInterval returns how often a client is sent something whose longest back-off is that, and who would
// be sent something every so often otherwise. It is never longer: what lies between forgets
// silent connections whatever the client does. 0 and less stay as they are.
func (c *Config) HeartbeatInterval(every, maxBackoff time.Duration) time.Duration {
	if every <= 0 || maxBackoff <= 0 {
		return every
	}
	return min(every, max(maxBackoff/5*4, time.Duration(c.HeartbeatMin)))
}

// Deps are what a Push works with.
type Deps struct {
	Formats *wire.Formats
	Hub     *hub.Hub
	// Loops run the clients' connections: each gets a LoopState, and is the hub's shard. They
	// must not run yet.
	Loops []*eventloop.Loop
	// Access decides who may read and publish; nil: namespaces and grants alone.
	Access *access.Model
	// Admission has publications, and what else is offered to a LoopState, queued by class;
	// nil: nothing has a class. Namespaces say which class their channels have.
	Admission  *limit.AdmissionConfig
	Namespaces []hub.Namespace
	// Front holds what protocols publish to the limits per address; nil: no limits.
	Front *limit.Front
	// MaxSubscribers bounds the subscribers of all loops, so that connections are left for
	// publishers and health checks; 0: no bound.
	MaxSubscribers int
	// Extensions decide on clients and messages; nil: there are none.
	Extensions *extension.Extensions
	// Prover writes and reads the identities of sessions that move to another process; nil:
	// none does.
	Prover *auth.Authenticator
	// Log gets failures; nil discards them.
	Log *slog.Logger
}

// A Push serves the subscribers and publishers of a process.
type Push struct {
	refusals
	loopStates
	protocols // of endpoints. Fixed before the loops run
	*classes  // nil: nothing has a class

	// Fixed at New.
	cfg        Config
	formats    *wire.Formats
	hub        *hub.Hub
	access     *access.Model
	log        *slog.Logger
	limits     websocket.Limits
	front      *limit.Front        // nil: no limits
	prover     *auth.Authenticator // nil: sessions do not move
	workers    *socket.Workers
	extensions *extension.Extensions // nil: there are none
	// openingTime is the constant of that name; tests shorten it.
	openingTime int64

	// marking is nil if no packets are marked. Fixed at New.
	marking *markCounts

	// Any goroutine.
	guarded  atomic.Bool  // the process is short of processors
	starving atomic.Int32 // loops that are starved
	// admitting reports that there was a request of a class: until then loops look at no
	// clock for it.
	admitting atomic.Bool
	counters
	waiting backlog.Counts
}

// loopStates has one for each loop, by the loop's number.
type loopStates []*LoopState

// A LoopState is Push on one loop: the loop and the hub's shard on it. It belongs to
// the loop's goroutine.
type LoopState struct {
	push  *Push
	loop  *eventloop.Loop
	shard *hub.Shard
	// admission is nil if nothing has a class.
	admission *admission
	// marker is nil if no packets are marked.
	marker *marker
	// head is scratch for what is written once per connection.
	head []byte
	// answer is scratch for an API call's answer.
	answer []byte
	// publications were used before; see publication.
	publications []*publication
	// pubs is scratch for a broadcast's.
	pubs []hub.Publication
	// parser and deflateParser serve every WebSocket client that is not in the
	// middle of a message.
	parser, deflateParser websocket.Parser
	// parsers are the same for transports, by what their clients may send.
	parsers []*lentParser
	// within counts the calls of the hub that have not returned; left are the
	// subscribers whose connections were closed meanwhile.
	within int
	left   []*hub.Subscriber
	// drainEnd is when the last client is to be gone, on the loop's clock; 0
	// without a drain.
	drainEnd int64
	// refused counts the refused WebSockets that are still open.
	refused int
}

// enter comes before every call that makes the hub call sinks, exit after it.
func (l *LoopState) enter() { l.within++ }

func (l *LoopState) exit() {
	if l.within--; l.within > 0 {
		return
	}
	for i := 0; i < len(l.left); i++ {
		l.shard.Unsubscribe(l.left[i])
		l.left[i] = nil
	}
	l.left = l.left[:0]
}

// gone ends a subscription, now or as soon as the hub has returned.
func (l *LoopState) gone(s *hub.Subscriber) {
	if l.within > 0 {
		l.left = append(l.left, s)
		return
	}
	l.shard.Unsubscribe(s)
}

// run is what the loop does in every tick.
func (l *LoopState) run() {
	l.enter()
	defer l.exit()
	if l.admission != nil && l.push.admitting.Load() {
		l.admission.run()
		return
	}
	l.shard.Run()
}

// New makes the state of each loop and attaches the hub's shards to the loops.
func New(cfg Config, d Deps) (*Push, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Access == nil {
		d.Access = access.New(d.Hub.Namespace, access.Config{})
	}
	cfg = cfg.WithDefaults()
	p := &Push{
		cfg: cfg, formats: d.Formats, hub: d.Hub, access: d.Access, log: d.Log, front: d.Front, extensions: d.Extensions, prover: d.Prover, workers: socket.NewWorkers(d.Log), openingTime: openingTime,
		limits: websocket.Limits{MaxMessage: cfg.MaxClientMessage},
	}
	p.refusals = refusals{retry: time.Duration(cfg.Retry), maxSubscribers: int64(d.MaxSubscribers), log: d.Log, count: &p.counters}
	p.Protocol("")
	for _, l := range d.Loops {
		loopState := &LoopState{push: p, loop: l, shard: d.Hub.NewShard(l.Wake)}
		loopState.parser.Init(websocket.ParserOptions{Limits: &p.limits})
		loopState.deflateParser.Init(websocket.ParserOptions{Limits: &p.limits, Deflate: true})
		l.Local = loopState
		l.OnTick(loopState.run)
		p.loopStates = append(p.loopStates, loopState)
	}
	if d.Admission == nil {
		return p, nil
	}
	if err := p.admit(*d.Admission, d.Namespaces); err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	return p, nil
}

// Workers runs the work of protocols that may block.
func (p *Push) Workers() *socket.Workers { return p.workers }

// Close waits for the work of protocols that is under way. The loops must have ended.
func (p *Push) Close() { p.workers.Close() }

// Config returns the configuration with its defaults filled in.
func (p *Push) Config() Config { return p.cfg }

// Access decides who may read and publish.
func (p *Push) Access() *access.Model { return p.access }

// Hub returns the hub.
func (p *Push) Hub() *hub.Hub { return p.hub }

// Ready returns why the process should get no new clients, or nil. Any goroutine.
func (p *Push) Ready() error {
	if p.leaving.Load() || p.Draining() {
		return errors.New("draining")
	}
	return p.hub.Ready()
}

// LoopState returns the state of a connection's loop.
func (all loopStates) LoopState(c *eventloop.Conn) *LoopState { return all[c.Loop().ID()] }

// retryMillis is a client's own reconnection time, so that those who are cut
// together do not come back together.
func (r *refusals) retryMillis() int {
	base := r.retry.Milliseconds()
	return int(base/2 + rand.Int64N(base+1))
}

// SessionBytes is what a subscriber takes in the common case, without what waits for it.
const SessionBytes = int(unsafe.Sizeof(wsSession{}))

type counters struct {
	sse, ws                   atomic.Int64
	overHTTP2, overHTTP3      struct{ sse, ws atomic.Int64 } // of those, the ones on streams
	tooSlow, expired, drained atomic.Uint64
	revoked                   atomic.Uint64
	refusedDrain              atomic.Uint64
	clientErrors, lagged      atomic.Uint64
	published, publishErrors  atomic.Uint64
	storing                   atomic.Int64
	overloaded, failedSubs    atomic.Uint64
	panics                    atomic.Uint64
}

// Stats are gauges and counters since New.
type Stats struct {
	SSE, WebSocket int64 // subscribers now
	// SSEOverHTTP2 and so on are those among them whose connection is a stream.
	SSEOverHTTP2, WebSocketOverHTTP2, SSEOverHTTP3, WebSocketOverHTTP3 int64
	TooSlow                                                            uint64 // closed at the bound of their queue
	Expired                                                            uint64 // closed because their token ended
	Revoked                                                            uint64 // closed because a reload took their rights away
	Drained                                                            uint64 // closed by a drain
	RefusedDrain                                                       uint64 // refused because of a drain
	Overloaded                                                         uint64 // refused because the broker or the hub could not take them
	Failed                                                             uint64 // whose subscription could not be had or kept
	ClientErrors                                                       uint64 // closed for breaking the protocol
	Panics                                                             uint64 // subscribers closed because their code panicked
	Gaps                                                               uint64 // gap events for dropped messages
	Dropped                                                            uint64 // messages dropped for slow subscribers, reported as gaps
	Conflated                                                          uint64 // messages replaced by a newer one of their key
	Lagged                                                             uint64 // times a subscriber fell behind its socket
	Published                                                          uint64 // publications answered with a position
	PublishErrors                                                      uint64 // publications answered with an error
	Storing                                                            int64  // publications that the broker has not answered
	Queued, QueuedBytes                                                int64  // messages that wait for slow subscribers now
}

// tally counts subscribers on c in, or out.
func (t *counters) tally(c *eventloop.Conn, socket bool, n int64) {
	shared := &t.overHTTP2
	if HTTPVersion(c) == 3 {
		shared = &t.overHTTP3
	}
	all, streams := &t.sse, &shared.sse
	if socket {
		all, streams = &t.ws, &shared.ws
	}
	all.Add(n)
	if c.Shared() {
		streams.Add(n)
	}
}

// HTTPVersion is the major version of HTTP that c speaks. Loop only.
func HTTPVersion(c *eventloop.Conn) uint8 {
	switch v := c.CarriedBy().(type) {
	case nil:
		return 1
	case interface{ Version() uint8 }:
		return v.Version()
	}
	return 2
}

// Stats may be called from any goroutine.
func (p *Push) Stats() Stats {
	c, w := &p.counters, &p.waiting
	return Stats{
		SSE: c.sse.Load(), WebSocket: c.ws.Load(), SSEOverHTTP2: c.overHTTP2.sse.Load(), WebSocketOverHTTP2: c.overHTTP2.ws.Load(),
		SSEOverHTTP3: c.overHTTP3.sse.Load(), WebSocketOverHTTP3: c.overHTTP3.ws.Load(), TooSlow: c.tooSlow.Load(), Expired: c.expired.Load(), Revoked: c.revoked.Load(),
		Drained: c.drained.Load(), RefusedDrain: c.refusedDrain.Load(), ClientErrors: c.clientErrors.Load(), Lagged: c.lagged.Load(),
		Published: c.published.Load(), PublishErrors: c.publishErrors.Load(), Storing: c.storing.Load(),
		Panics: c.panics.Load(), Gaps: w.Gaps.Load(), Dropped: w.Dropped.Load(), Conflated: w.Conflated.Load(),
		Overloaded: c.overloaded.Load(), Failed: c.failedSubs.Load(), Queued: w.Queued.Load(), QueuedBytes: w.QueuedBytes.Load(),
	}
}
