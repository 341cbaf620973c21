package hub

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/prefetch"
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
	waits int          // messages in queue
	room  sync.Cond    // signalled when Run has taken the queue
	depth atomic.Int64 // messages in queue and in Run
	// sweeping reports that releaseIdle is in the queue.
	sweeping atomic.Bool

	// Owned by the shard's goroutine. No lock.
	locals map[string]*local
	// epochs says in which epoch the shard is in each namespace: all its locals
	// and subscribers there are, and change together.
	epochs  map[*namespace]string
	joins   []*join
	running []item // the queue being worked on, swapped with queue
	dirty   []*local
	spares  spares
	// busy counts the work under way that calls sinks and relies on the epochs: what a
	// sink starts meanwhile must not change them.
	busy int
	subs int

	// Written by the owner, read by anyone.
	delivered, replayed atomic.Uint64
}

// item is one thing for the shard's goroutine to do: a message or a function.
type item struct {
	l *local
	m *Message
	f func()
	// shared reports that other shards get m as well.
	shared bool
	// late reports that later messages of other channels came before m.
	late bool
	// doubt reports that m may have come before: it is not delivered, but reported as a gap.
	doubt bool
	// hole reports that messages before m were not delivered and will not be.
	hole bool
}

// local is a shard's side of a channel.
type local struct {
	// Owned by the shard's goroutine. What each message needs comes first, as in
	// channel.
	shard *Shard
	epoch string
	last  uint64 // offset of the newest message processed here
	// single subscribe to this channel alone and are where it is: a message
	// costs them one call and no look at their state. one is room for the first.
	single  []*Subscriber
	one     [1]*Subscriber
	pending pending // this run's messages, for single
	// filtered subscribe to several channels, or are ahead of the shard: each
	// takes messages after an offset of its own.
	filtered []member
	walking  int  // walks of single and filtered under way: no entry moves meanwhile
	holes    bool // one has left during a walk
	whole    bool // it is for all channels of the namespace

	ch      *channel
	name    string
	active  bool
	ahead   int     // of filtered, those that follow this channel alone
	waiting []*join // for the channel to become active; some may have been cancelled
	joins   int     // under way that want this channel
	memo    replayMemo
	read    bool      // pages were read from the broker since the last sweep
	idle    time.Time // when the last subscriber left
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
// something to do and had nothing before: it must make the owner call Run soon,
// and must not call into the hub itself.
func (h *Hub) NewShard(wake func()) *Shard {
	s := &Shard{hub: h, wake: wake, locals: map[string]*local{}, epochs: map[*namespace]string{}}
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

// postMessage queues a message for a local.
func (s *Shard) postMessage(it item) {
	s.depth.Add(1)
	s.enqueue(it)
}

func (s *Shard) enqueue(it item) {
	s.mu.Lock()
	first := len(s.queue) == 0
	s.queue = append(s.queue, it)
	if it.m != nil {
		s.waits++
	}
	s.mu.Unlock()
	if first {
		s.wake()
	}
}

// publishers is how many goroutines may pass the look at a shard's depth at the
// same time before their messages arrive there.
const publishers = 1 << 10

// awaitRoom waits while the queue is at twice its bound, and then some. Publish
// refuses at the bound itself, so only a broker's own delivery goroutine ever
// waits here, never a publisher, which may be the shard's own goroutine.
func (s *Shard) awaitRoom() {
	limit := s.hub.shardQueue + max(s.hub.shardQueue, publishers)
	if s.depth.Load() < int64(limit) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.waits >= limit && !s.hub.closed.Load() {
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
	s.waits = 0
	s.room.Broadcast()
	s.mu.Unlock()
	taken := 0
	for i := range s.running {
		it := &s.running[i]
		if it.f != nil {
			it.f()
		} else {
			s.process(it)
			taken++
		}
	}
	s.depth.Add(-int64(taken))
	s.flush()
	clear(s.dirty)
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

// flush hands on what is pending. Of subscribers of many channels nothing is in the
// processor's caches: they are requested some ahead.
func (s *Shard) flush() {
	for i := 0; i < len(s.dirty); i += prefetchBatch {
		some := s.dirty[i:min(i+prefetchBatch, len(s.dirty))]
		for _, l := range some {
			if len(l.single) > 0 && l.single[0] != nil {
				prefetch.Bytes(l.single[0], 2*prefetch.Line) // a sink that embeds it starts here
			}
		}
		for _, l := range some {
			if len(l.single) > 0 && l.single[0] != nil {
				if sink, ok := l.single[0].sink.(Prefetcher); ok {
					sink.Prefetch(1)
				}
			}
		}
		for _, l := range some {
			l.flush()
		}
	}
}

// process takes one message: filtered subscribers get it now, single ones with
// what else this run brings for the channel.
func (s *Shard) process(it *item) {
	l, m := it.l, it.m
	if m.Offset != 0 {
		if m.Epoch != l.epoch {
			return // of a log that was lost: that was reported already
		}
		if m.Damaged {
			reportDamage(l)
			return
		}
		if it.hole {
			if l.missed(it); m.Missing {
				return
			}
		}
		l.last = max(l.last, m.Offset) // of a whole namespace, one that comes late is older
		if it.late {
			if l.late(it); it.doubt {
				return
			}
		}
	}
	if len(l.single) > 0 && !(l.whole && m.isCopy()) {
		p := &l.pending
		if len(p.messages) == 0 {
			s.dirty = append(s.dirty, l)
			p.messages = s.spares.list()
		}
		p.messages = append(p.messages, m)
		p.size += len(m.Data)
		p.shared = p.shared || it.shared
		if len(p.messages) >= maxBatchMessages || p.size >= maxBatchBytes {
			l.flush()
		}
	}
	if len(l.filtered) > 0 {
		l.deliverFiltered(m, it)
	}
}

// flush hands the pending batch to the single subscribers. A sink may subscribe and
// unsubscribe meanwhile: no place changes, one that leaves makes a hole, and one
// that comes is behind where the walk began.
func (l *local) flush() {
	if len(l.pending.messages) == 0 {
		return
	}
	p, s := l.pending, l.shard
	l.pending = pending{}
	b := s.spares.lend(s.hub)
	b.Messages, b.size, b.shared = p.messages, p.size, p.shared
	if len(l.single) == 1 && !p.shared {
		b.scratch = s.spares.once()
	}
	n := 0
	l.walk()
	for i := len(l.single) - 1; i >= 0; i-- {
		if sub := l.single[i]; sub != nil {
			sub.sink.Deliver(b)
			n++
		}
	}
	l.walked()
	s.delivered.Add(uint64(n * len(b.Messages)))
	s.spares.put(b)
}

// pending is what a run has brought for a channel so far.
type pending struct {
	messages []*Message
	size     int // payload bytes
	shared   bool
}

// spares are the memory that deliveries of a shard use again: what every message would need
// costs nothing that way.
type spares struct {
	batch   *Batch       // lent to one flush at a time
	lists   [][]*Message // for pending, used before
	scratch []byte       // for Batch.Once
	lent    bool         // scratch is in use
}

// lend returns an empty batch of h.
func (s *spares) lend(h *Hub) *Batch {
	b := s.batch
	s.batch = nil
	if b == nil {
		b = &Batch{hub: h}
	}
	return b
}

// list returns an empty list of messages.
func (s *spares) list() []*Message {
	if n := len(s.lists); n > 0 {
		l := s.lists[n-1]
		s.lists = s.lists[:n-1]
		return l
	}
	return make([]*Message, 0, 4)
}

// once returns what Batch.Once writes into, to one batch at a time.
func (s *spares) once() *[]byte {
	if s.lent {
		return nil
	}
	s.lent = true
	if s.scratch == nil {
		s.scratch = make([]byte, 0, 512)
	}
	return &s.scratch
}

const maxSpareLists = 256

// put keeps b and its list for the next.
func (s *spares) put(b *Batch) {
	list := b.Messages
	if b.scratch != nil {
		s.lent = false
	}
	clear(b.more)
	*b = Batch{hub: b.hub, more: b.more[:0]}
	s.batch = b
	if len(s.lists) < maxSpareLists {
		clear(list)
		s.lists = append(s.lists, list[:0])
	}
}

// deliverFiltered hands m to the filtered subscribers that have not passed it. If
// it came late, one that has passed it may have missed it and is notified.
func (l *local) deliverFiltered(m *Message, it *item) {
	s := l.shard
	b := s.spares.lend(s.hub)
	b.Messages, b.size, b.shared = append(s.spares.list(), m), len(m.Data), it.shared
	n := 0
	l.walk()
	for i := len(l.filtered) - 1; i >= 0; i-- {
		e := l.filtered[i]
		if e.s == nil {
			continue
		}
		if after := e.s.more.members[e.index].after; m.Offset != 0 && m.Offset <= after {
			if it.late {
				at := Position{Epoch: l.epoch, Offset: after}
				s.gap(e.s.sink, Gap{Namespace: l.ch.ns.name, From: at.String(), To: at, At: at, Reason: GapUnknown})
			}
			continue
		}
		if (m.Attributes != nil || e.s.more.filter != nil) && !e.s.more.matches(m) {
			continue
		}
		e.s.sink.Deliver(b)
		n++
	}
	l.walked()
	s.delivered.Add(uint64(n))
	s.spares.put(b)
}

// ready is called when the broker's deliveries start after at.
func (l *local) ready(at Position) {
	l.arrive(at)
	waiting := l.waiting
	l.waiting = nil
	for _, j := range waiting {
		j.channelReady()
	}
}

// arrive makes l active: deliveries start after at. The shard may know of a
// newer epoch than the channel, for which the channel is complete then.
func (l *local) arrive(at Position) {
	s, ns := l.shard, l.ch.ns
	s.moveTo(ns, at.Epoch)
	l.active, l.epoch = true, s.epochs[ns]
	if l.epoch == at.Epoch {
		l.last = at.Offset
	} else {
		l.last, _ = ns.carriesOn(at.Epoch, l.epoch)
	}
}

// failed notifies the waiters that the channel cannot be had.
func (l *local) failed(err error) {
	if l.shard.locals[l.name] == l {
		delete(l.shard.locals, l.name)
	}
	waiting := l.waiting
	l.waiting = nil
	for _, j := range waiting {
		j.fail(err)
	}
}

// moveTo takes the shard to a later epoch of ns: the log began anew, and every
// subscriber there that it does not carry on for is notified, once. It never goes back.
func (s *Shard) moveTo(ns *namespace, epoch string) {
	old := s.epochs[ns]
	if epoch == "" || epoch == old || old != "" && ns.rank(epoch) <= ns.rank(old) {
		return
	}
	for _, l := range s.inUse(ns) {
		l.flush()
	}
	s.epochs[ns] = epoch
	upTo, carriesOn := ns.carriesOn(old, epoch)
	last := map[*Subscriber]uint64{}
	var order []*Subscriber
	advance := func(sub *Subscriber, at uint64) {
		if _, ok := last[sub]; !ok {
			order = append(order, sub)
		}
		last[sub] = max(last[sub], at)
	}
	for _, l := range s.inUse(ns) { // no sink is called here: all change together
		for _, sub := range l.single {
			if sub != nil {
				advance(sub, l.last)
			}
		}
		for _, e := range l.filtered {
			if e.s == nil {
				continue
			}
			m := &e.s.more.members[e.index]
			advance(e.s, max(l.last, m.after))
			m.after = min(m.after, upTo)
		}
		l.epoch, l.last, l.memo = epoch, upTo, replayMemo{}
	}
	var joins []*join
	for _, j := range s.joins {
		if from, ok := j.restart(ns, epoch, upTo, carriesOn); ok {
			joins = append(joins, j)
			advance(j.s, from)
		}
	}
	to := Position{Epoch: epoch, Offset: upTo}
	s.busy++
	for _, sub := range order {
		if carriesOn && last[sub] <= upTo {
			continue
		}
		if sub.sink != nil { // it may have left during one of these calls
			from := Position{Epoch: old, Offset: last[sub]}
			s.gap(sub.sink, Gap{Namespace: ns.name, From: from.String(), To: to, At: to, Reason: GapEpoch})
		}
	}
	s.busy--
	for _, j := range joins {
		if !j.waitsForRoom {
			j.run()
		}
	}
}

// inUse returns the active channels of ns, by name.
func (s *Shard) inUse(ns *namespace) []*local {
	var locals []*local
	for _, l := range s.locals {
		if l.active && l.ch.ns == ns {
			locals = append(locals, l)
		}
	}
	slices.SortFunc(locals, func(a, b *local) int { return strings.Compare(a.name, b.name) })
	return locals
}

func (s *Shard) gap(sink Sink, g Gap) {
	s.hub.stats.gaps.Add(1)
	sink.Gap(g)
}

// releaseIdle ends interest in channels without subscribers since linger, and
// moves subscribers that are no longer ahead to the straight path.
func (s *Shard) releaseIdle(now time.Time) {
	for name, l := range s.locals {
		l.memo = replayMemo{}
		if l.read {
			l.read = false
			l.ch.dropPages()
		}
		if l.ahead > 0 {
			l.promote()
		}
		if l.active && l.unused() && now.Sub(l.idle) >= s.hub.linger {
			delete(s.locals, name)
			l.ch.detach(l)
		}
	}
}

// unused reports whether l has no subscribers.
func (l *local) unused() bool { return l.subscribers() == 0 }

// promote moves those that were ahead of the shard and are not any more. What
// waits in pending has been handed to them already.
func (l *local) promote() {
	l.flush()
	for i := len(l.filtered) - 1; i >= 0; i-- {
		s := l.filtered[i].s
		if s != nil && s.ahead() && s.more.members[0].after <= l.last {
			s.leave()
			s.enterSingle(l)
		}
	}
}

// local returns the shard's side of a channel, making it on first use, for one who resumes from since.
func (s *Shard) local(name string, ns *namespace, since Positions) (*local, error) {
	if l := s.locals[name]; l != nil {
		return l, nil
	}
	l := &local{shard: s, name: name, whole: IsWhole(name), idle: time.Now()}
	l.single = l.one[:0]
	active, at, err := s.hub.attach(name, ns, l, since)
	if err != nil {
		return nil, err
	}
	l.name = l.ch.name
	s.locals[l.name] = l
	if active {
		l.ready(at) // there may be waiters: sinks are called if the epoch is new
	}
	return l, nil
}

// Subscribers returns how many subscribers the shard has. Owner only.
func (s *Shard) Subscribers() int { return s.subs }
