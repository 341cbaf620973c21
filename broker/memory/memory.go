// Package memory is a hub.Broker that keeps everything in this process: one
// node, no files, nothing left when it ends. It serves tests, demos and
// deployments whose messages are worthless soon after.
//
// Every namespace has one log under one lock. Publish appends and delivers
// inside that lock, so the order in which messages arrive is the order of the
// log, and answers before it returns. What retention removes is always at the
// old end of the log or of a channel: expiry never looks at what it keeps.
package memory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

var (
	_ hub.Broker  = (*Broker)(nil)
	_ hub.Changer = (*Broker)(nil)
)

// Config of a Broker. The zero value works.
type Config struct {
	// IdempotencyKeys bounds the remembered keys per namespace; at the bound the
	// oldest are forgotten before their window ends. 0 means 1,000,000.
	IdempotencyKeys int `json:"idempotency_keys"`
	// Bytes bounds what all namespaces keep together; each is also bounded by its
	// history_bytes. At the bound the oldest messages of the namespace that is published
	// to go, but for its newest. 0 means no bound.
	Bytes int64 `json:"bytes"`
}

// Validate returns what is wrong with c.
func (c Config) Validate() error {
	if c.IdempotencyKeys < 0 {
		return fmt.Errorf("memory broker: idempotency_keys: %d is negative", c.IdempotencyKeys)
	}
	if c.Bytes < 0 {
		return fmt.Errorf("memory broker: bytes: %d is negative", c.Bytes)
	}
	return nil
}

// sweepEvery is how often expired messages of namespaces without traffic are let go.
const sweepEvery = time.Second

// Broker is a hub.Broker in memory. The zero value is not usable: see New.
type Broker struct {
	// Fixed by New.
	maxKeys int
	bus     *hub.LocalBus
	budget  *budget

	deliver func(*hub.Message) // fixed by Start

	registry
	stop chan struct{}
	wg   sync.WaitGroup

	moving map[string]*importing // what Import took, until Start; nil: nothing. Under mu.
}

// A registry holds the logs. logs is read only after state says so.
type registry struct {
	mu    sync.RWMutex
	state error // why nothing works, nil while started
	logs  map[string]*log
}

// A budget is what all logs keep together.
type budget struct {
	bytes   int64 // 0: no bound
	used    atomic.Int64
	evicted atomic.Uint64
}

func (b *budget) exceeded() bool { return b.bytes > 0 && b.used.Load() > b.bytes }

// Memory returns the bytes that all logs keep, and how many messages have been removed
// because of Config.Bytes.
func (b *Broker) Memory() (bytes int64, evicted uint64) {
	return b.budget.used.Load(), b.budget.evicted.Load()
}

var errNotStarted = fmt.Errorf("%w: not started", hub.ErrUnavailable)

// New returns a broker that is not started.
func New(cfg Config) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.IdempotencyKeys == 0 {
		cfg.IdempotencyKeys = 1_000_000
	}
	return &Broker{maxKeys: cfg.IdempotencyKeys, bus: hub.NewLocalBus(), budget: &budget{bytes: cfg.Bytes}, registry: registry{state: errNotStarted}, stop: make(chan struct{})}, nil
}

// Start creates an empty log per namespace. It refuses a synced namespace:
// nothing here survives the power.
//
// deliver is called inside Publish and under the namespace's lock: it must not
// call the broker.
func (b *Broker) Start(ctx context.Context, namespaces []hub.Namespace, deliver func(*hub.Message)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	logs := make(map[string]*log, len(namespaces))
	for _, n := range namespaces {
		if err := check(n); err != nil {
			return fmt.Errorf("start memory broker: %w", err)
		}
		n = n.WithDefaults()
		if logs[n.LogName()] != nil {
			return fmt.Errorf("start memory broker: namespace %s is given twice", n.Title())
		}
		logs[n.LogName()] = newLog(n, b.maxKeys, b.budget, deliver)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case errors.Is(b.state, hub.ErrClosed):
		return b.state
	case b.state == nil:
		return errors.New("start memory broker: it is started already")
	}
	for name, in := range b.moving {
		if l := logs[name]; l != nil {
			var err error
			if logs[name], err = in.restored(*l.opts.Load(), deliver); err != nil {
				return fmt.Errorf("start memory broker: %w", err)
			}
		} else if err := repartitioned(name, namespaces); err != nil {
			return fmt.Errorf("start memory broker: %w", err)
		} else {
			b.budget.used.Add(-in.log.bytes)
		}
	}
	b.moving = nil
	b.logs, b.deliver, b.state = logs, deliver, nil
	b.wg.Go(func() { b.sweep(b.stop) })
	return nil
}

// repartitioned returns an error if the log called moved is of one of namespaces, which has
// another number of partitions than it had.
func repartitioned(moved string, namespaces []hub.Namespace) error {
	name, _, _ := strings.Cut(moved, "@")
	for _, n := range namespaces {
		if n.Name == name {
			return fmt.Errorf("namespace %q: partitions changed: its logs cannot move to the new process; restart instead", name)
		}
	}
	return nil
}

// check returns what of a namespace memory cannot give.
func check(n hub.Namespace) error {
	if err := n.Validate(); err != nil {
		return err
	}
	if n.WithDefaults().Durability == hub.Synced {
		return fmt.Errorf("namespace %q wants durability synced, which memory cannot give; use stored, none or the nats broker", n.Name)
	}
	return nil
}

// Add implements hub.Changer.
func (b *Broker) Add(_ context.Context, n hub.Namespace) error {
	if err := check(n); err != nil {
		return fmt.Errorf("memory broker: %w", err)
	}
	n = n.WithDefaults()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.state != nil:
		return b.state
	case b.logs[n.LogName()] != nil:
		return fmt.Errorf("memory broker: namespace %s is there already", n.Title())
	}
	b.logs[n.LogName()] = newLog(n, b.maxKeys, b.budget, b.deliver)
	return nil
}

// Change implements hub.Changer.
func (b *Broker) Change(_ context.Context, n hub.Namespace) error {
	if err := check(n); err != nil {
		return fmt.Errorf("memory broker: %w", err)
	}
	l, err := b.log(&n)
	if err != nil {
		return err
	}
	return l.change(n.WithDefaults())
}

// all returns the logs that there are now.
func (r *registry) all() []*log {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.logs))
}

// sweep lets go of what expired while no client published or read, until stop is closed.
func (r *registry) sweep(stop <-chan struct{}) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
			for _, l := range r.all() {
				l.expire()
			}
		}
	}
}

// log returns the started log of ns.
func (r *registry) log(ns *hub.Namespace) (*log, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.state != nil {
		return nil, r.state
	}
	l := r.logs[ns.LogName()]
	if l == nil {
		return nil, fmt.Errorf("%w: %s", hub.ErrUnknownNamespace, ns.Title())
	}
	return l, nil
}

// Publish stores p, delivers it and calls done before it returns.
func (b *Broker) Publish(ns *hub.Namespace, p hub.Publication, done func(hub.Position, error)) {
	if c, ok := p.Handle.(*channel); ok { // then the log is there, or says that it is closed
		done(c.log.publish(&p, c))
		return
	}
	l, err := b.log(ns)
	if err != nil {
		done(hub.Position{}, err)
		return
	}
	done(l.publish(&p, nil))
}

// Subscribe starts delivery of channel and returns its newest messages.
func (b *Broker) Subscribe(ctx context.Context, ns *hub.Namespace, channel string, tail int) (hub.Snapshot, error) {
	l, err := b.ready(ctx, ns)
	if err != nil {
		return hub.Snapshot{}, err
	}
	return l.subscribe(channel, tail)
}

// Unsubscribe ends delivery of channel. When it returns, deliver is not running
// for it and will not be called for it again.
func (b *Broker) Unsubscribe(ns *hub.Namespace, channel string) {
	if l, err := b.log(ns); err == nil {
		l.unsubscribe(channel)
	}
}

// History returns a stretch of channel. FirstRetained is exact while the channel
// holds a message or has lately; of channels long empty only the newest removed
// offset of all is remembered (see log.forget).
func (b *Broker) History(ctx context.Context, ns *hub.Namespace, channel string, since uint64, limit int) (hub.Page, error) {
	l, err := b.ready(ctx, ns)
	if err != nil {
		return hub.Page{}, err
	}
	return l.history(channel, since, limit), nil
}

// Prove returns 0: a log here is as old as its epoch and cannot come back changed.
func (b *Broker) Prove(ctx context.Context, ns *hub.Namespace, _ hub.Position) (hub.Check, error) {
	_, err := b.ready(ctx, ns)
	return 0, err
}

// Top returns the end of the namespace's log.
func (b *Broker) Top(ctx context.Context, ns *hub.Namespace) (hub.Position, error) {
	l, err := b.ready(ctx, ns)
	if err != nil {
		return hub.Position{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.top(), nil
}

func (r *registry) ready(ctx context.Context, ns *hub.Namespace) (*log, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return r.log(ns)
}

// Ready returns nil between Start and Close.
func (r *registry) Ready() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.state
}

// Close forgets everything. When it returns, deliver is not running and will
// not be called again. Do not call it from deliver, nor from a listener of the bus.
func (b *Broker) Close() error {
	b.mu.Lock()
	if errors.Is(b.state, hub.ErrClosed) {
		b.mu.Unlock()
		return nil
	}
	b.state = fmt.Errorf("memory broker: %w", hub.ErrClosed)
	close(b.stop)
	b.mu.Unlock()
	b.wg.Wait()
	b.bus.Close()
	for _, l := range b.all() {
		l.close(b.state)
	}
	return nil
}

// newEpoch returns a name for the life of a log: 48 random bits as 8 letters
// and digits, which the wire token may hold.
func newEpoch() string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789AB"
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	for i := range b {
		b[i] = letters[b[i]&63]
	}
	return string(b[:])
}
