package hub

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"

	engine "github.com/weir-gateway/weir/internal/push/hub"
)

// SubscribeOptions select what a subscription receives.
type SubscribeOptions struct {
	// Channels to subscribe to, 1 to 128.
	Channels []string
	// Since is where to resume, exclusive: a Message's Position. Empty means new messages only.
	Since Position
	// All delivers everything retained first; Since is ignored.
	All bool
	// Buffer bounds the messages queued for the loop body; 0 means 1,024. A slow body does not lose
	// messages: past the bound the subscription reads on from the log. Namespaces without a log
	// have a *GapError instead.
	Buffer int
}

// A GapReason is why messages may be missing.
type GapReason string

// The reasons.
const (
	GapRetention GapReason = "retention" // older than what the namespace retains
	GapEpoch     GapReason = "epoch"     // the log was lost or started anew
	GapUnknown   GapReason = "unknown"   // the position is not of this log
	GapOverflow  GapReason = "overflow"  // the subscriber was too slow, in a namespace without a log
)

// A GapError reports that messages may be missing between the previous message and the next one. The
// subscription continues.
type GapError struct {
	Namespace string
	Reason    GapReason
	// Position is the end of the gap; empty for a namespace without a log.
	Position Position
}

func (e *GapError) Error() string {
	return fmt.Sprintf("messages of namespace %q may be missing: %s", e.Namespace, e.Reason)
}

// Subscribe returns the messages of o.Channels in the order of their log, until the loop is left or
// ctx ends. A pair has either a message or an error. After a *GapError the loop may continue, any
// other error is the last pair: of ctx, of Close (ErrClosed), or what made subscribing impossible.
//
//	for m, err := range h.Subscribe(ctx, hub.SubscribeOptions{Channels: []string{"news"}, Since: last}) {
//		if gap := (*hub.GapError)(nil); errors.As(err, &gap) {
//			reload()
//			continue
//		} else if err != nil {
//			return err
//		}
//		last = m.Position
//	}
func (h *Hub) Subscribe(ctx context.Context, o SubscribeOptions) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		if err := h.subscribe(ctx, o, yield); err != nil {
			yield(Message{}, err)
		}
	}
}

// subscribe returns the last error, nil if yield ended the loop.
func (h *Hub) subscribe(ctx context.Context, o SubscribeOptions, yield func(Message, error) bool) error {
	w := h.worker()
	if w == nil {
		return ErrClosed
	}
	s := &subscription{worker: w, channels: slices.Clone(o.Channels), bound: o.Buffer, ready: make(chan struct{}, 1)}
	if s.bound <= 0 {
		s.bound = defaultBuffer
	}
	opt := engine.SubscribeOptions{Channels: s.channels, All: o.All}
	if o.Since != "" && !o.All {
		var err error
		if opt.Since, err = engine.ParsePositions(string(o.Since)); err != nil {
			return err
		}
	}
	var err error
	if !w.call(func() { err = w.shard.Subscribe(&s.sub, s, opt) }) {
		return ErrClosed
	}
	if err != nil {
		return err
	}
	defer w.call(func() { w.shard.Unsubscribe(&s.sub) })
	for {
		items := s.dequeueAll()
		for i := range items {
			if err := items[i].err; err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if !items[i].yield(yield) {
				return nil
			}
		}
		if len(items) > 0 {
			if err := s.proceed(); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.done:
			return ErrClosed
		case <-s.ready:
		}
	}
}

const defaultBuffer = 1024

// An item is a message, a gap, or the last error.
type item struct {
	m   Message
	gap *GapError
	err error
}

func (it *item) yield(f func(Message, error) bool) bool {
	if it.gap != nil {
		return f(Message{}, it.gap)
	}
	return f(it.m, nil)
}

// A subscription is the sink of one Subscribe.
type subscription struct {
	// Fixed at Subscribe.
	worker   *worker
	channels []string
	bound    int
	ready    chan struct{}

	// Owned by the worker.
	sub engine.Subscriber
	// at is the position after what was queued last, epochs the epoch of the logs that a
	// message was queued of.
	at     engine.Positions
	epochs map[engine.Log]string

	mu    sync.Mutex
	queue []item
	// lagging is set when the subscription was ended at the bound, to continue from at; waits when a
	// replay waits for room.
	lagging, waits bool
}

var _ engine.Sink = (*subscription)(nil)

func (s *subscription) dequeueAll() []item {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queue
	s.queue = nil
	return q
}

// push queues items and wakes the loop. It reports whether the queue is within its bound.
func (s *subscription) push(items ...item) bool {
	s.mu.Lock()
	s.queue = append(s.queue, items...)
	ok := len(s.queue) < s.bound
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
	return ok
}

// proceed continues what the bound stopped; the queue is empty.
func (s *subscription) proceed() error {
	s.mu.Lock()
	lagging, waits := s.lagging, s.waits
	s.lagging, s.waits = false, false
	s.mu.Unlock()
	var err error
	switch {
	case lagging:
		if !s.worker.call(func() {
			err = s.worker.shard.Subscribe(&s.sub, s, engine.SubscribeOptions{Channels: s.channels, Since: s.at})
		}) {
			return ErrClosed
		}
	case waits:
		s.worker.call(func() { s.sub.Continue() })
	}
	return err
}

// Start implements engine.Sink.
func (s *subscription) Start(at engine.Positions) { s.at = append(engine.Positions(nil), at...) }

// Live implements engine.Sink.
func (s *subscription) Live() {}

// Room implements engine.Sink.
func (s *subscription) Room() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = len(s.queue) >= s.bound
	return !s.waits
}

// Deliver implements engine.Sink. Past the bound it ends the subscription, which proceed continues
// from the log.
func (s *subscription) Deliver(b *engine.Batch) {
	for _, m := range b.Messages {
		s.advance(engine.NamespaceOf(m.Channel), m.Position())
		out := message(m)
		if len(s.at) > 1 {
			out.Position = Position(s.at.AppendTo(nil))
		}
		if s.push(item{m: out}) || b.Replay {
			continue
		}
		s.worker.shard.Unsubscribe(&s.sub)
		s.mu.Lock()
		s.lagging = true
		s.mu.Unlock()
		s.reportUnlogged()
		return
	}
}

// reportUnlogged queues a gap for the namespaces without a log: of those nothing can be read later,
// neither what is left of a batch nor what is published until the subscription continues.
func (s *subscription) reportUnlogged() {
	var reported []string
	for _, c := range s.channels {
		ns := engine.NamespaceOf(c)
		options, err := s.worker.hub.Namespace(c)
		if err == nil && options.Durability == engine.None && !slices.Contains(reported, ns) {
			reported = append(reported, ns)
			s.push(item{gap: &GapError{Namespace: ns, Reason: GapOverflow}})
		}
	}
}

// Gap implements engine.Sink.
func (s *subscription) Gap(g engine.Gap) {
	s.advance(g.Namespace, g.At)
	gap := &GapError{Namespace: g.Namespace, Reason: GapReason(g.Reason)}
	if len(s.at) > 0 {
		gap.Position = Position(s.at.AppendTo(nil))
	}
	s.push(item{gap: gap})
}

// Failed implements engine.Sink.
func (s *subscription) Failed(err error) { s.push(item{err: err}) }

// advance notes that everything up to p, of a namespace, was queued.
func (s *subscription) advance(namespace string, p engine.Position) {
	if p.IsZero() {
		return
	}
	if s.epochs == nil {
		s.epochs = map[engine.Log]string{}
	}
	log := engine.LogOf(namespace, p.Epoch)
	old, known := s.epochs[log]
	s.epochs[log] = p.Epoch
	for i := range s.at {
		if e := s.at[i].Epoch; e == p.Epoch || known && e == old || len(s.at) == 1 && s.oneNamespace() && engine.LogOf(namespace, e) == log {
			s.at[i] = p
			return
		}
	}
	s.at = append(s.at, p)
}

func (s *subscription) oneNamespace() bool {
	first := engine.NamespaceOf(s.channels[0])
	return !slices.ContainsFunc(s.channels, func(c string) bool { return engine.NamespaceOf(c) != first })
}

// A worker is a goroutine that owns a shard of the engine.
type worker struct {
	hub   *engine.Hub
	shard *engine.Shard
	wake  chan struct{}
	done  chan struct{} // closed when run has ended

	mu   sync.Mutex
	jobs []func()
}

func newWorker(h *engine.Hub) *worker {
	w := &worker{hub: h, wake: make(chan struct{}, 1), done: make(chan struct{})}
	w.shard = h.NewShard(w.notify)
	return w
}

func (w *worker) notify() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run does jobs and deliveries until ctx ends.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		w.mu.Lock()
		jobs := w.jobs
		w.jobs = nil
		w.mu.Unlock()
		for _, f := range jobs {
			f()
		}
		w.shard.Run()
	}
}

// call runs f on the worker and waits for it. It returns false, and f may not have run, when the
// worker has ended.
func (w *worker) call(f func()) bool {
	ran := make(chan struct{})
	w.mu.Lock()
	w.jobs = append(w.jobs, func() { f(); close(ran) })
	w.mu.Unlock()
	w.notify()
	select {
	case <-ran:
		return true
	case <-w.done:
		return false
	}
}
