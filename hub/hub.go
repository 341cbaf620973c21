// Package hub publishes and subscribes to channels inside a Go program: an ordered log of
// messages per namespace, with history, resume without loss, and presence.
//
//	h, err := hub.New(hub.Config{})
//	if err := h.Start(ctx); err != nil { ... }
//	defer h.Close()
//	at, err := h.Publish(ctx, hub.Publication{Channel: "orders:42", Data: data})
//	for m, err := range h.Subscribe(ctx, hub.SubscribeOptions{Channels: []string{"orders:42"}}) { ... }
//
// Channel "orders:42" belongs to the namespace "orders", channel "news" to "default". Messages are
// kept by a [Broker]: in memory (package broker/memory, the default) or in NATS JetStream
// (package broker/nats), where every program connected to the same servers sees the same channels.
//
// To serve the channels to browsers and other clients over SSE and WebSocket, use package
// hub/hubhttp, whose Handler has a Hub.
package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/hub/internal/bridge"
	"github.com/weir-gateway/weir/internal/cluster"
	engine "github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
)

// A Broker stores and numbers messages, and delivers them to every program that uses it. The
// implementations are *memory.Broker of package broker/memory and *nats.Broker of broker/nats.
type Broker interface{ engine.Broker }

// Config of a Hub. The zero value works: the default namespace, in memory.
type Config struct {
	// Namespaces are all namespaces; empty means DefaultNamespace with its defaults.
	Namespaces []Namespace
	// Broker stores the messages; nil means one in memory. Close closes it.
	Broker Broker
	// Node is the name of this program in presence, to 128 bytes; empty means the host's name.
	Node string
	// Log receives lifecycle lines; nil discards them.
	Log *slog.Logger
}

// A Hub is a set of channels. Its methods may be called from any goroutine, those that return
// errors return ErrClosed after Close.
type Hub struct {
	// Fixed at New.
	engine *engine.Hub
	node   string
	log    *slog.Logger

	// Fixed at Start.
	workers  []*worker
	presence *presence.Presence

	ready atomic.Bool // Start has succeeded

	mu      sync.Mutex
	started bool
	next    int // worker of the next subscription
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func init() {
	bridge.Open = func(cfg any, formats func([]engine.Namespace) ([]engine.Encoder, error)) (any, *engine.Hub, error) {
		h, err := open(cfg.(Config), formats)
		if err != nil {
			return nil, nil, err
		}
		return h, h.engine, nil
	}
}

// New returns a Hub; Start it before anything else. An error names the invalid field.
func New(cfg Config) (*Hub, error) {
	return open(cfg, func([]engine.Namespace) ([]engine.Encoder, error) { return nil, nil })
}

func open(cfg Config, formats func([]engine.Namespace) ([]engine.Encoder, error)) (*Hub, error) {
	if len(cfg.Namespaces) == 0 {
		cfg.Namespaces = []Namespace{{Name: DefaultNamespace}}
	}
	namespaces := make([]engine.Namespace, len(cfg.Namespaces))
	for i, n := range cfg.Namespaces {
		namespaces[i] = n.engine()
	}
	encoders, err := formats(namespaces)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	var b engine.Broker = cfg.Broker
	if cfg.Broker == nil {
		if b, err = memory.New(memory.Config{}); err != nil {
			return nil, fmt.Errorf("hub: %w", err)
		}
	}
	e, err := engine.New(engine.Config{Namespaces: namespaces, Encoders: encoders, Log: cfg.Log}, b)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return &Hub{engine: e, node: cfg.Node, log: cfg.Log}, nil
}

// Start connects the broker and returns when publishing works. It is called once; ctx bounds the
// start only. After an error the Hub is closed.
func (h *Hub) Start(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.started {
		return errors.New("hub: Start was called twice")
	}
	h.started = true
	if err := h.engine.Start(ctx); err != nil {
		return errors.Join(fmt.Errorf("hub: start the broker: %w", err), h.engine.Close())
	}
	c, err := cluster.New(cluster.Config{Name: h.node}, h.engine.Bus(), h.log)
	if err == nil {
		h.presence, err = presence.New(presence.Config{}, c, h.engine.Bus(), h.log)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("hub: %w", err), h.engine.Close())
	}
	live, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	for _, run := range []func(context.Context) error{c.Run, h.presence.Run} {
		h.running.Go(func() {
			if err := run(live); err != nil {
				h.log.Error("hub", "err", err)
			}
		})
	}
	for range runtime.GOMAXPROCS(0) {
		w := newWorker(h.engine)
		h.workers = append(h.workers, w)
		h.running.Go(func() { w.run(live) })
	}
	h.ready.Store(true)
	return nil
}

// Close ends all subscriptions with ErrClosed and closes the broker. It is idempotent.
func (h *Hub) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cancel != nil {
		h.cancel()
		h.running.Wait()
	}
	return h.engine.Close()
}

// Ready returns nil while publishing is expected to work: not before Start has returned, and not
// while the broker cannot be reached. It does not block.
func (h *Hub) Ready() error {
	if !h.ready.Load() {
		return fmt.Errorf("%w: not started", ErrUnavailable)
	}
	return h.engine.Ready()
}

// Stats are counters since New, and gauges.
type Stats struct {
	// Published counts the publications accepted by the broker, Delivered the messages delivered,
	// once for each subscriber, and Gaps the gaps reported to subscribers.
	Published, Delivered, Gaps uint64
	// Channels is the number of channels with subscribers in this program.
	Channels int64
}

// Stats returns the current values.
func (h *Hub) Stats() Stats {
	s := h.engine.Stats()
	return Stats{Published: s.Published, Delivered: s.Delivered, Gaps: s.Gaps, Channels: s.Channels}
}

// worker returns the worker of the next subscription; nil before Start and after Close.
func (h *Hub) worker() *worker {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.workers) == 0 {
		return nil
	}
	h.next++
	return h.workers[h.next%len(h.workers)]
}
