// Package hub is the middle of Weir: it takes publications, has a Broker store
// and number them, and hands every message to the subscribers of its channel,
// live or replayed, in the order of the log, without loss and without repeat.
//
// It knows no socket and no wire format. A subscriber is a Sink; the shards
// that hold subscribers belong to whatever goroutines the caller has (an event
// loop each, or one for a whole net/http program); the bytes of a message are
// written by the Encoders of Config, once per message and format.
//
// The way of a message: Publish → Broker → Hub.deliver, which appends it to the
// channel's ring of recent messages and queues it for every Shard with
// interest → Shard.Run on the shard's own goroutine → Sink.Deliver.
package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Config of a Hub. The zero value works and has the default namespace.
type Config struct {
	// Namespaces that exist; empty means the default namespace with its defaults.
	Namespaces []Namespace
	// Encoders write the wire formats; a Format is an index into it.
	Encoders []Encoder
	// Linger is how long a channel that lost its last subscriber stays
	// subscribed, so that reconnecting clients find its ring warm; 0 means 30s.
	Linger time.Duration
	// ShardQueue bounds the messages that wait for one shard. At the bound
	// Publish answers ErrOverloaded. 0 means 65,536.
	ShardQueue int
	// MaxChannels bounds the channels with subscribers; 0 means 1,000,000.
	MaxChannels int
	// WireBudget bounds the bytes of wire forms kept with recent messages, so
	// that shards and replays share them; past it they are written again when
	// needed. 0 means 64 MiB.
	WireBudget int64
	// RecentBudget bounds the bytes of recent messages that all channels keep in memory,
	// each with messageBytes besides its payload, and of pages that were read from the
	// broker's log. At the bound those of the channels that were used longest ago go;
	// who resumes there is served from the log. 0 means 256 MiB.
	RecentBudget int64
	// Log gets lifecycle lines; nil discards them.
	Log *slog.Logger
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	seen := map[string]bool{}
	for _, n := range c.Namespaces {
		if seen[n.Name] {
			errs = append(errs, fmt.Errorf("namespace %q: it is listed twice", n.Name))
		}
		seen[n.Name] = true
		errs = append(errs, n.Validate())
	}
	if len(c.Encoders) > MaxFormats {
		errs = append(errs, fmt.Errorf("%d encoders, at most %d", len(c.Encoders), MaxFormats))
	}
	if c.Linger < 0 || c.ShardQueue < 0 || c.MaxChannels < 0 || c.WireBudget < 0 || c.RecentBudget < 0 {
		errs = append(errs, errors.New("linger, shard queue, max channels and the budgets must not be negative"))
	}
	return errors.Join(errs...)
}

// A Hub connects publishers, a Broker and the shards that hold subscribers.
type Hub struct {
	// Fixed at New.
	broker     Broker
	encoders   []Encoder
	linger     time.Duration
	shardQueue int
	maxChans   int64
	wireBudget int64
	log        *slog.Logger
	page       int // messages per channel and step of a replay
	maxEarly   int // messages kept during one snapshot

	// Fixed at Start.
	bus      Bus
	localBus *LocalBus // bus, if the broker has none

	// Any goroutine.
	// spaces are the logs that there were since the start; visible are the
	// options of those that there are now. See Change.
	spaces   atomic.Pointer[spaces]
	visible  atomic.Pointer[map[string]*Namespace]
	table    *table
	shards   atomic.Pointer[[]*Shard] // replaced under shardsMu
	shardsMu sync.Mutex
	// partial counts the partitions that the broker has of namespaces that could not be added
	// completely. Owned by Change.Add, of which one runs at a time.
	partial  map[string]int
	channels atomic.Int64
	wire     atomic.Int64 // bytes of wire forms kept in rings
	recent   recent
	closed   atomic.Bool
	versions versions
	gate     sync.RWMutex // held by Close while it sets closed, or a call would start after it
	stats    hubCounters

	// Broker calls that wait run here, at most brokerCalls at a time.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	slots  chan struct{}
}

const brokerCalls = 64

// New returns a Hub over broker. Call Start before anything else.
func New(cfg Config, broker Broker) (*Hub, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h := &Hub{
		broker: broker, encoders: cfg.Encoders,
		linger: cfg.Linger, shardQueue: cfg.ShardQueue, maxChans: int64(cfg.MaxChannels), wireBudget: cfg.WireBudget,
		log: cfg.Log, table: newTable(), page: replayPage, maxEarly: maxEarly, slots: make(chan struct{}, brokerCalls),
	}
	h.linger = cmp.Or(h.linger, 30*time.Second)
	h.shardQueue = cmp.Or(h.shardQueue, 1<<16)
	h.maxChans = cmp.Or(h.maxChans, 1_000_000)
	h.wireBudget = cmp.Or(h.wireBudget, 64<<20)
	h.recent.init(cfg.RecentBudget)
	h.versions.hub = h
	h.partial = map[string]int{}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if len(cfg.Namespaces) == 0 {
		cfg.Namespaces = []Namespace{{Name: DefaultNamespace}}
	}
	all, visible := spaces{}, map[string]*Namespace{}
	for _, n := range cfg.Namespaces {
		logs := newLogs(n.WithDefaults(), broker)
		all[n.Name], visible[n.Name] = logs, logs[0].options()
	}
	h.spaces.Store(&all)
	h.visible.Store(&visible)
	h.shards.Store(&[]*Shard{})
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h, nil
}

// Start starts the broker; deliveries start. It returns once publishing works.
func (h *Hub) Start(ctx context.Context) error {
	var list []Namespace
	for _, logs := range *h.spaces.Load() {
		for _, n := range logs {
			list = append(list, *n.options())
		}
	}
	if err := h.broker.Start(ctx, list, h.deliver); err != nil {
		return err
	}
	if a, ok := h.broker.(Archive); ok {
		h.bus = a.Bus()
	} else {
		h.localBus = NewLocalBus()
		h.bus = h.localBus
	}
	late := func(from string, data []byte) { receiveLate(h, from, data) }
	for topic, f := range map[string]func(string, []byte){removedTopic: h.removed, passingTopic: h.passed, lateTopic: late} {
		if _, err := h.bus.Listen(topic, f); err != nil {
			return fmt.Errorf("listen to other nodes: %w", err)
		}
	}
	h.work.Go(h.sweep)
	h.work.Go(func() { h.recent.run(h.ctx, h.table) })
	return nil
}

// Close ends the broker, waits for everything the hub started, and is
// idempotent. The shards' goroutines must no longer call into the hub.
func (h *Hub) Close() error {
	h.gate.Lock()
	over := h.closed.Swap(true)
	h.gate.Unlock()
	if over {
		return nil
	}
	h.cancel()
	for _, s := range *h.shards.Load() {
		s.mu.Lock() // or a waiter between its look at closed and its wait misses this
		s.room.Broadcast()
		s.mu.Unlock()
	}
	err := h.broker.Close()
	if h.localBus != nil {
		h.localBus.Close()
	}
	h.work.Wait()
	return err
}

// Ready returns nil while publishing is expected to work. It does not block.
func (h *Hub) Ready() error {
	if h.closed.Load() {
		return ErrClosed
	}
	return h.broker.Ready()
}

// Namespace returns the namespace of channel, or ErrUnknownNamespace. Any goroutine.
func (h *Hub) Namespace(channel string) (*Namespace, error) {
	return lookIn(*h.visible.Load(), channel)
}

// space returns the log of channel, also if its namespace was removed; nil if there was none.
func (h *Hub) space(channel string) *namespace { return h.spaces.Load().of(channel) }

// namespaceOf returns the log of channel, which may be the Whole of a namespace with one.
func (h *Hub) namespaceOf(channel string) (*namespace, error) {
	n, err := h.Namespace(channel)
	switch {
	case err != nil:
		return nil, err
	case n.Partitions > 1 && IsWhole(channel):
		return nil, errPartitioned(n)
	}
	return h.space(channel), nil
}

// Opened returns Broker's Opened, or the zero Time if the broker is not an Opener. It is for
// protocols whose positions have no room for a check: see NewBeforeCheck.
func (h *Hub) Opened() time.Time {
	if o, ok := h.broker.(Opener); ok {
		return o.Opened()
	}
	return time.Time{}
}

// Publish hands p to the broker and calls done exactly once with its position
// or the reason it was not accepted, from any goroutine, possibly before
// Publish returns. Any goroutine may call it; it does not block.
func (h *Hub) Publish(p Publication, done func(Position, error)) {
	if a := p.Attributes; a != nil {
		err := a.Validate()
		if err == nil && (len(a.Topics) > 0 || a.First != 0) {
			err = errTopics
		}
		if err != nil {
			h.stats.refused.Add(1)
			done(Position{}, err)
			return
		}
	}
	h.publish(p, done)
}

// publish is Publish for attributes that are in order.
func (h *Hub) publish(p Publication, done func(Position, error)) {
	var n *namespace
	var err error
	if p.to == nil || p.to.name != p.Channel { // it was not aimed, or is another by now
		h.prefetchOne(&p)
	}
	if p.to != nil && !p.to.whole { // its name is in order then
		if n = p.to.ns; (*h.visible.Load())[n.name] == nil { // the channel briefly outlives its namespace
			n, err = h.namespaceOf(p.Channel)
		}
	} else if n, err = h.namespaceOf(p.Channel); err == nil {
		err = CheckChannel(p.Channel)
	}
	var opts *Namespace
	if err == nil {
		opts = n.options()
	}
	switch {
	case err != nil:
	case h.closed.Load():
		err = ErrClosed
	case len(p.Data) > opts.MaxMessageBytes || p.Attributes != nil && len(p.Data)+p.Attributes.Size() > opts.MaxMessageBytes:
		err = fmt.Errorf("%w: %d bytes, namespace %q takes at most %d", ErrTooLarge, len(p.Data)+p.Attributes.Size(), n.name, opts.MaxMessageBytes)
	case h.overloaded():
		err = fmt.Errorf("%w: a shard's queue is full", ErrOverloaded)
	}
	if err != nil {
		h.stats.refused.Add(1)
		done(Position{}, err)
		return
	}
	h.stats.published.Add(1)
	if p.Checked {
		done = h.checked(n, p.Channel, done)
	}
	if a := p.Attributes; a != nil && (a.SkipHistory || a.Version != 0) && opts.Durability != None && len(a.Topics) == 0 {
		h.publishSpecial(n, p, done)
		return
	}
	h.broker.Publish(opts, p, done)
}

// checked returns a done that gives the position of a message of channel the check that
// the message has. Without an answer of the broker it stays as it is.
func (h *Hub) checked(n *namespace, channel string, done func(Position, error)) func(Position, error) {
	return func(at Position, err error) {
		if err != nil || at.Check.Exact() || at.Offset == 0 {
			done(at, err)
			return
		}
		if _, err := h.begin(channel); err != nil {
			done(at, nil)
			return
		}
		defer h.work.Done()
		if ch := h.lookup(channel); ch != nil {
			if c, known := ch.check(at.Epoch, at.Offset); known {
				at.Check = c
				done(at, nil)
				return
			}
		}
		h.prove(n, Position{Epoch: at.Epoch, Offset: at.Offset}, func(c Check, err error) {
			if err != nil {
				h.log.Debug("position without the message's check", "channel", channel, "err", err)
			}
			if c != 0 {
				at.Check = c
			}
			done(at, nil)
		})
	}
}

// publishSpecial is publish for what the broker alone does not do.
func (h *Hub) publishSpecial(n *namespace, p Publication, done func(Position, error)) {
	if p.Attributes.SkipHistory {
		done(Position{}, h.pass(p))
		return
	}
	h.versions.publish(n, p, done)
}

func (h *Hub) overloaded() bool {
	for _, s := range *h.shards.Load() {
		if s.depth.Load() >= int64(h.shardQueue) {
			return true
		}
	}
	return false
}

// goBroker runs f, which may wait for the broker, on a goroutine of the hub.
func (h *Hub) goBroker(f func(ctx context.Context)) {
	h.work.Go(func() {
		select {
		case h.slots <- struct{}{}:
			defer func() { <-h.slots }()
		case <-h.ctx.Done():
		}
		f(h.ctx)
	})
}

// deliver is what the broker calls with every message, in order per namespace.
func (h *Hub) deliver(m *Message) {
	to := m.to
	var n *namespace
	if to != nil {
		n = to.ns
		m.to = nil // the channel may end before the message
	} else if n = h.space(m.Channel); n == nil {
		return
	}
	for _, s := range *h.shards.Load() {
		s.awaitRoom()
	}
	late := false
	if m.Offset != 0 {
		ok, began := n.accept(m, &late)
		if !ok {
			return
		}
		if began {
			h.table.restart(n)
		}
	}
	if m.Damaged {
		noteDamage(h, n, m)
	}
	if m.Missing {
		if ch := h.lookup(m.Channel); ch != nil {
			ch.deliver(m, false, false)
		}
		return
	}
	whole := n.whole.Load()
	if to == nil || !to.deliver(m, late, whole != nil) {
		// Between being found and now it may leave the table.
		for to = h.lookup(m.Channel); to != nil && !to.deliver(m, late, whole != nil); to = h.lookup(m.Channel) {
		}
	}
	for whole != nil && !whole.deliver(m, late, true) {
		whole = n.whole.Load()
	}
	if m.Offset != 0 {
		n.passed(m.Position())
	}
}

// restart takes every channel of n that is still in an epoch that is
// over to the current one: a channel without messages would not notice.
func (t *table) restart(n *namespace) {
	var all []*channel
	for i := range t.parts {
		all = append(all, t.parts[i].all()...)
	}
	for _, ch := range all {
		if ch.ns != n {
			continue
		}
		ch.mu.Lock()
		if ch.state == chanActive && n.isOver(ch.epoch) {
			ch.restart(n.position().Epoch)
		}
		ch.mu.Unlock()
	}
}

func (h *Hub) lookup(channel string) *channel { return h.table.find(channel, h.table.hash(channel)) }

// Stats are counters since New and gauges, summed over all shards.
type Stats struct {
	Published, Refused uint64 // publications handed to the broker / refused before it
	Delivered          uint64 // messages handed to sinks, once per subscriber
	Replayed           uint64 // of those, replayed rather than live
	Encoded            uint64 // times an Encoder ran
	Gaps               uint64 // gaps declared to subscribers
	Refuted            uint64 // positions whose check is not that of the log
	Channels           int64  // channels with interest
	QueueDepth         int64  // messages that wait for the shards
	WireBytes          int64  // bytes of wire forms kept with recent messages
	RingBytes          int64  // bytes of recent messages in memory
	PageBytes          int64  // bytes of pages that were read from the broker's log and are kept
	Evicted            uint64 // messages of these dropped at RecentBudget
}

type hubCounters struct {
	published, refused, encoded, gaps, refuted atomic.Uint64
}

// Stats may be called from any goroutine.
func (h *Hub) Stats() Stats {
	st := Stats{
		Published: h.stats.published.Load(), Refused: h.stats.refused.Load(),
		Encoded: h.stats.encoded.Load(), Gaps: h.stats.gaps.Load(), Refuted: h.stats.refuted.Load(), Channels: h.channels.Load(), WireBytes: h.wire.Load(),
		RingBytes: h.recent.rings.Load(), PageBytes: h.recent.pages.Load(), Evicted: h.recent.evicted.Load(),
	}
	for _, s := range *h.shards.Load() {
		st.Delivered += s.delivered.Load()
		st.Replayed += s.replayed.Load()
		st.QueueDepth += s.depth.Load()
	}
	return st
}

// sweep lets the shards give up channels without subscribers for a while.
func (h *Hub) sweep() {
	t := time.NewTicker(max(h.linger/4, 10*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case now := <-t.C:
			for _, s := range *h.shards.Load() {
				if s.sweeping.CompareAndSwap(false, true) { // or a shard that stops gathers them
					s.post(func() { s.sweeping.Store(false); s.releaseIdle(now) })
				}
			}
		}
	}
}
