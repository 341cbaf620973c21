package hub

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Shard is the part of the hub that one goroutine owns: the subscribers that
// live on it and an index of their channels. The owner is an event loop, or any
// goroutine that calls Run when woken.
type Shard struct {
	hub  *Hub
	wake func()

	// Any goroutine: what waits for Run, in order.
	mu    sync.Mutex
	queue []item
	room  sync.Cond    // signalled when Run has taken the queue
	depth atomic.Int64 // messages in queue

	// Owned by the shard's goroutine. No lock.
	locals  map[string]*local
	running []item // the queue being worked on, swapped with queue
	dirty   []*local
	subs    int

	// Written by the owner, read by anyone.
	delivered, replayed atomic.Uint64
}

// item is one thing for the shard's goroutine to do: a message or a function.
type item struct {
	l *local
	m *Message
	f func()
	// shared says that other shards get m as well.
	shared bool
}

// local is a shard's side of a channel.
type local struct {
	shard *Shard
	ch    *channel
	name  string

	// Owned by the shard's goroutine.
	active bool
	epoch  string
	last   uint64 // offset of the newest message processed here
	// single subscribe to this channel alone and are where it is: a message
	// costs them one call and no look at their state.
	single []*Subscriber
	// filtered subscribe to several channels, or are ahead of the shard: each
	// takes messages after an offset of its own.
	filtered []member
	joining  []*join // wait for the channel to become active
	pending  Batch   // this run's messages, for single
	memo     replayMemo
	idle     time.Time // when the last subscriber left
}

// member is one subscription of a subscriber in local.filtered.
type member struct {
	s     *Subscriber
	index int32 // into s.more
}

const (
	maxBatchMessages = 64
	maxBatchBytes    = 64 << 10
)

// NewShard adds a shard. wake is called, from any goroutine, when Run has
// something to do and had nothing before: it must make the owner call Run soon.
func (h *Hub) NewShard(wake func()) *Shard {
	s := &Shard{hub: h, wake: wake, locals: map[string]*local{}}
	s.room.L = &s.mu
	h.shardsMu.Lock()
	defer h.shardsMu.Unlock()
	all := append([]*Shard(nil), *h.shards.Load()...)
	all = append(all, s)
	h.shards.Store(&all)
	return s
}

// post queues f for the shard's goroutine. Functions are not bounded: there is
// at most a fixed number per channel and per joining subscriber at a time.
func (s *Shard) post(f func()) { s.enqueue(item{f: f}) }

// postMessage queues m for l.
func (s *Shard) postMessage(l *local, m *Message, shared bool) {
	s.depth.Add(1)
	s.enqueue(item{l: l, m: m, shared: shared})
}

func (s *Shard) enqueue(it item) {
	s.mu.Lock()
	first := len(s.queue) == 0
	s.queue = append(s.queue, it)
	s.mu.Unlock()
	if first {
		s.wake()
	}
}

// awaitRoom waits while the queue is at twice its bound. Publish refuses at the
// bound itself, so only a broker's own delivery goroutine ever waits here.
func (s *Shard) awaitRoom() {
	if s.depth.Load() < 2*int64(s.hub.shardQueue) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) >= 2*s.hub.shardQueue && !s.hub.closed.Load() {
		s.room.Wait()
	}
}

// Run does what was queued since the last call: it hands messages to the sinks
// of this shard. Only the shard's goroutine may call it.
func (s *Shard) Run() {
	s.mu.Lock()
	if len(s.queue) == 0 {
		s.mu.Unlock()
		return
	}
	s.queue, s.running = s.running[:0], s.queue
	s.room.Broadcast()
	s.mu.Unlock()
	taken := 0
	for i := range s.running {
		it := &s.running[i]
		if it.f != nil {
			it.f()
		} else {
			s.process(it.l, it.m, it.shared)
			taken++
		}
	}
	s.depth.Add(-int64(taken))
	for _, l := range s.dirty {
		l.flush()
	}
	s.dirty = s.dirty[:0]
	for i := range s.running {
		if s.running[i].shared {
			s.running[i].m.sent()
		}
	}
	clear(s.running)
	if cap(s.running) > 1<<12 { // after a burst, do not hold its memory
		s.running = nil
	}
}

// process takes one message: filtered subscribers get it now, single ones with
// what else this run brings for the channel.
func (s *Shard) process(l *local, m *Message, shared bool) {
	if m.Offset != 0 {
		l.last = m.Offset
	}
	if len(l.single) > 0 {
		p := &l.pending
		if len(p.Messages) == 0 {
			s.dirty = append(s.dirty, l)
		}
		p.Messages = append(p.Messages, m)
		p.size += len(m.Data)
		p.shared = p.shared || shared
		if len(p.Messages) >= maxBatchMessages || p.size >= maxBatchBytes {
			l.flush()
		}
	}
	if len(l.filtered) > 0 {
		l.deliverFiltered(m, shared)
	}
}

// flush hands the pending batch to the single subscribers. A sink may
// unsubscribe itself (or others) meanwhile: the walk runs from the end, where
// removal swaps in only members that were served already.
func (l *local) flush() {
	if len(l.pending.Messages) == 0 {
		return
	}
	b := l.pending
	l.pending = Batch{}
	b.hub = l.shard.hub
	n := 0
	for i := len(l.single) - 1; i >= 0; i-- {
		if i >= len(l.single) {
			continue
		}
		l.single[i].sink.Deliver(&b)
		n++
	}
	l.shard.delivered.Add(uint64(n * len(b.Messages)))
}

func (l *local) deliverFiltered(m *Message, shared bool) {
	b := Batch{Messages: []*Message{m}, hub: l.shard.hub, size: len(m.Data), shared: shared}
	n := 0
	for i := len(l.filtered) - 1; i >= 0; i-- {
		if i >= len(l.filtered) {
			continue
		}
		e := l.filtered[i]
		if m.Offset != 0 {
			if m.Offset <= (*e.s.more)[e.index].after {
				continue
			}
		}
		e.s.sink.Deliver(&b)
		n++
	}
	l.shard.delivered.Add(uint64(n))
}

// ready is called when the broker's deliveries begin after last.
func (l *local) ready(epoch string, last uint64) {
	l.active, l.epoch, l.last = true, epoch, last
	joining := l.joining
	l.joining = nil
	for _, j := range joining {
		j.channelReady()
	}
}

// failed tells those who wait that the channel cannot be had.
func (l *local) failed(err error) {
	if l.shard.locals[l.name] == l {
		delete(l.shard.locals, l.name)
	}
	joining := l.joining
	l.joining = nil
	for _, j := range joining {
		j.fail(err)
	}
}

// restarted tells every subscriber that the log began anew.
func (l *local) restarted(from Position, epoch string) {
	l.flush()
	l.epoch, l.last = epoch, 0
	l.memo = replayMemo{}
	g := Gap{Namespace: l.ch.ns.Name, From: from.String(), To: Position{Epoch: epoch}, Reason: GapEpoch}
	for i := len(l.single) - 1; i >= 0; i-- {
		if i < len(l.single) {
			l.shard.gap(l.single[i].sink, g)
		}
	}
	for i := len(l.filtered) - 1; i >= 0; i-- {
		if i < len(l.filtered) {
			e := l.filtered[i]
			(*e.s.more)[e.index].after = 0
			l.shard.gap(e.s.sink, g)
		}
	}
}

func (s *Shard) gap(sink Sink, g Gap) {
	s.hub.stats.gaps.Add(1)
	sink.Gap(g)
}

// giveUpIdle ends interest in channels without subscribers since linger, and
// moves subscribers that are no longer ahead to the straight path.
func (s *Shard) giveUpIdle(now time.Time) {
	for name, l := range s.locals {
		l.promote()
		switch {
		case !l.active || len(l.single)+len(l.filtered)+len(l.joining) > 0:
		case now.Sub(l.idle) >= s.hub.linger:
			delete(s.locals, name)
			l.ch.detach(l)
		}
	}
}

func (l *local) promote() {
	l.memo = replayMemo{}
	for i := len(l.filtered) - 1; i >= 0; i-- {
		e := l.filtered[i]
		if more := e.s.memberships(); len(more) == 1 && more[0].after <= l.last {
			l.flush()
			e.s.leave()
			e.s.enterSingle(l)
		}
	}
}

// local returns the shard's side of a channel, making it on first use.
func (s *Shard) local(name string, ns *namespace) (*local, error) {
	if l := s.locals[name]; l != nil {
		return l, nil
	}
	l := &local{shard: s, name: name, idle: time.Now()}
	active, err := s.hub.attach(name, ns, l)
	if err != nil {
		return nil, err
	}
	l.active = active
	l.name = l.ch.name
	s.locals[l.name] = l
	return l, nil
}

// Subscribers returns how many subscribers the shard has. Owner only.
func (s *Shard) Subscribers() int { return s.subs }
