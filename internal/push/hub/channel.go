package hub

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// channel is one channel with interest on this node: its ring of recent
// messages and the shards that want it.
type channel struct {
	// A publish of one channel of many finds nothing of it in the processor's
	// caches: what it needs is kept together, in three lines of 64 bytes.
	hub  *Hub
	ns   *namespace
	name string

	mu    sync.Mutex
	state chanState
	// handle is the broker's, nil for none.
	handle any
	// locals are the shards' sides that get every message; one is room for the first.
	locals []*local
	one    [1]*local
	epoch  string
	// last is the offset up to which the channel is complete here: what is
	// stored later arrives by deliver.
	last uint64
	// ring holds, oldest first from start, every message with floor < offset <= last.
	ring      []*Message
	start     int
	ringBytes int
	floor     uint64
	// messages and bytes count what came since it is active.
	messages, bytes uint64
	// whole reports that it is the wildcard of all channels of ns.
	whole bool

	// waiting are locals to attach once the channel is active.
	waiting []*local
	// early holds what the broker delivered while the snapshot was on its way;
	// at its bound the older half goes, up to earlyGone.
	early      []*Message
	earlyBytes int
	earlyGone  Position
	// reads are the broker reads under way, by the offset they start from; pages
	// are the newest of their answers, kept until the next sweep.
	reads map[uint64][]func(Page, error)
	pages []cachedPage
	// firstRetained is how far back the log reached at the snapshot, 0 if not known.
	firstRetained uint64
	// joined is the top of the snapshot: up to there the channel is complete.
	// proof is its check.
	joined uint64
	proof  Check
	// seen are the newest offsets that came, rising, for a whole namespace: which of
	// the late ones are repeats is found by them.
	seen []uint64
	// purges counts the removals, so that a page read before one is not kept.
	purges int
	// readAt is when the ring was read last, or the channel became active, in Unix
	// milliseconds.
	readAt int64
}

type chanState uint8

const (
	chanNew     chanState = iota // the broker is being asked
	chanActive                   // messages arrive
	chanClosing                  // the broker is unsubscribing
	chanGone                     // out of the table
)

const (
	maxEarly      = 1 << 16   // messages kept during one snapshot
	maxEarlyBytes = 8 << 20   // and their payload
	maxRingBytes  = 256 << 10 // of payload per ring, but at least the newest message
	maxSeen       = 1 << 12   // offsets that a whole namespace remembers
	maxSnapshots  = 10        // tries at a log that changes all the time
)

// attach gives l every later message of its channel and returns true when the
// channel was active: then epoch and last say from where on. Otherwise l.ready
// or l.failed runs later on l's shard.
//
// since is where the one that attaches l resumes; nil if it does not, or not known.
func (h *Hub) attach(name string, ns *namespace, l *local, since Positions) (active bool, at Position, err error) {
	hash := h.table.hash(name)
	t := h.table.part(hash)
	t.mu.Lock()
	ch := t.search(name, hash)
	if ch == nil {
		if h.channels.Load() >= h.maxChans {
			t.mu.Unlock()
			return false, at, fmt.Errorf("%w: %d channels are in use", ErrOverloaded, h.maxChans)
		}
		ch = &channel{hub: h, ns: ns, name: strings.Clone(name), whole: IsWhole(name), reads: map[uint64][]func(Page, error){}}
		t.add(ch, hash)
		if ch.whole {
			ns.whole.Store(ch)
		}
		h.channels.Add(1)
		h.goBroker(func(ctx context.Context) { ch.activate(ctx, since) })
	}
	l.ch = ch
	ch.mu.Lock() // both locks: a channel leaves the table only under the same pair
	t.mu.Unlock()
	defer ch.mu.Unlock()
	if ch.state != chanActive {
		ch.waiting = append(ch.waiting, l)
		return false, at, nil
	}
	ch.locals = append(ch.locals, l)
	here := Position{Epoch: ch.epoch, Offset: ch.last}
	if s := l.shard; s.busy > 0 && here.Epoch != s.epochs[ns] { // not now: before the next message
		s.post(func() { l.ready(here) })
		return false, at, nil
	}
	return true, here, nil
}

// subscribeFrom subscribes ch at the broker for a subscriber that resumes from since, nil for nowhere.
func subscribeFrom(ctx context.Context, ch *channel, since Positions) (Snapshot, error) {
	ns := ch.ns.options()
	if r, ok := ch.hub.broker.(Resumer); ok && len(since) > 0 {
		return r.SubscribeSince(ctx, ns, ch.name, ns.Recent, since)
	}
	return ch.hub.broker.Subscribe(ctx, ns, ch.name, ns.Recent)
}

// activate subscribes at the broker and starts deliveries to the waiting locals. since is where the first of
// them resumes.
func (ch *channel) activate(ctx context.Context, since Positions) {
	for range maxSnapshots {
		before := ch.ns.position().Epoch
		snap, err := subscribeFrom(ctx, ch, since)
		if err != nil {
			ch.fail(err)
			return
		}
		known, began := ch.ns.learn(before, snap.Top)
		if began {
			ch.hub.table.restart(ch.ns)
		}
		if known && ch.begin(snap) {
			ch.setHandle(snap.Handle)
			return
		}
		ch.hub.broker.Unsubscribe(ch.ns.options(), ch.name)
	}
	ch.fail(fmt.Errorf("%w: subscribe %q: its log changes all the time", ErrUnavailable, ch.name))
}

// setHandle changes what publications carry from now on. One that was given up
// meanwhile may carry it still: brokers look whether it is good.
func (ch *channel) setHandle(handle any) {
	ch.mu.Lock()
	ch.handle = handle
	ch.mu.Unlock()
}

// begin makes the channel active from snap on. It returns false when the
// snapshot does not join what arrived meanwhile.
//
// What arrived goes to the ring only: subscribers start after it. Queued one by
// one it could come after later messages of other channels.
func (ch *channel) begin(snap Snapshot) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	early, gone := ch.early, ch.earlyGone
	ch.early, ch.earlyBytes, ch.earlyGone = nil, 0, Position{}
	switch {
	case ch.ns.isOver(snap.Top.Epoch):
		return false
	case gone.Offset > snap.Top.Offset && gone.Epoch == snap.Top.Epoch:
		return false
	}
	ch.epoch, ch.last, ch.joined = snap.Top.Epoch, snap.Top.Offset, snap.Top.Offset
	ch.proof, ch.messages, ch.bytes, ch.seen = snap.Top.Check, 0, 0, nil
	ch.floor, ch.firstRetained = snap.Floor, snap.FirstRetained
	if snap.FirstRetained == 0 { // whether something is missing before the first is not known
		first := snap.Top.Offset
		if len(snap.Messages) > 0 && !ch.whole { // of all channels together any may lack some
			first = snap.Messages[0].Offset - 1
		}
		ch.floor = max(ch.floor, first)
	}
	ch.readAt = time.Now().UnixMilli()
	for _, m := range snap.Messages {
		ch.remember(m)
	}
	var flow []*Message // of a namespace without log
	for _, m := range early {
		switch {
		case m.Offset == 0:
			flow = append(flow, m)
		case m.Damaged:
			forgetDamaged(ch, m)
		case !ch.misses(m) || !m.Missing:
			ch.advance(m)
		}
	}
	ch.state = chanActive
	ch.locals, ch.waiting = append(ch.one[:0], ch.waiting...), nil
	for _, l := range ch.locals {
		at := Position{Epoch: ch.epoch, Offset: ch.last}
		l.shard.post(func() { l.ready(at) })
	}
	for _, m := range flow {
		ch.deliverLocked(m, false, false)
	}
	return true
}

// fail notifies all waiters and takes the channel out of the table.
func (ch *channel) fail(err error) {
	h := ch.hub
	t := h.table.part(h.table.hash(ch.name))
	t.mu.Lock()
	ch.mu.Lock()
	ch.remove(t)
	waiting := ch.waiting
	ch.waiting = nil
	ch.mu.Unlock()
	t.mu.Unlock()
	h.log.Debug("subscribe at the broker", "channel", ch.name, "err", err)
	for _, l := range waiting {
		l.shard.post(func() { l.failed(err) })
	}
}

// remove takes ch out of the table. The locks of t and ch are held.
func (ch *channel) remove(t *tablePart) {
	ch.state = chanGone
	t.remove(ch, ch.hub.table.hash(ch.name))
	ch.hub.channels.Add(-1)
	if ch.whole {
		ch.ns.whole.Store(nil)
	}
}

// detach ends l's interest. Without interest left the broker is unsubscribed.
func (ch *channel) detach(l *local) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for i, x := range ch.locals {
		if x == l {
			ch.locals = slices.Delete(ch.locals, i, i+1)
			break
		}
	}
	if len(ch.locals) == 0 && ch.state == chanActive {
		ch.state = chanClosing
		ch.hub.goBroker(ch.deactivate)
	}
}

// deactivate unsubscribes, then forgets the channel, or subscribes anew for
// subscribers that came in the meantime.
func (ch *channel) deactivate(ctx context.Context) {
	h := ch.hub
	ch.setHandle(nil)
	h.broker.Unsubscribe(ch.ns.options(), ch.name)
	t := h.table.part(h.table.hash(ch.name))
	t.mu.Lock()
	ch.mu.Lock()
	again := len(ch.waiting) > 0
	ch.forget()
	ch.forgetPages()
	ch.state = chanNew
	if !again {
		ch.remove(t)
	}
	ch.mu.Unlock()
	t.mu.Unlock()
	if again {
		ch.activate(ctx, nil)
	}
}

// deliver takes the next message of the channel from the broker. late says that
// later ones of other channels came before, also that another channel gets m as
// well. It returns false when the channel is no longer the one of that name.
func (ch *channel) deliver(m *Message, late, also bool) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	switch ch.state {
	case chanGone:
		return false
	case chanNew:
		ch.keepEarly(m)
	case chanActive:
		ch.deliverLocked(m, late, also)
	}
	return true
}

// keepEarly keeps m for start. Most of what goes at the bound is in the snapshot.
func (ch *channel) keepEarly(m *Message) {
	ch.early = append(ch.early, m)
	ch.earlyBytes += m.size()
	for len(ch.early) > ch.hub.maxEarly || ch.earlyBytes > maxEarlyBytes {
		half := (len(ch.early) + 1) / 2
		for _, old := range ch.early[:half] {
			ch.earlyBytes -= old.size()
			if p := old.Position(); p.Epoch != ch.earlyGone.Epoch || p.Offset > ch.earlyGone.Offset { // repeats come out of order
				ch.earlyGone = p
			}
		}
		ch.early = slices.Delete(ch.early, 0, half)
	}
}

// deliverLocked queues m for every shard, unless it was delivered before.
// Queueing under the lock is what keeps the order of the log in each shard.
func (ch *channel) deliverLocked(m *Message, late, also bool) {
	doubt, hole := false, false
	if m.Damaged {
		if !forgetDamaged(ch, m) {
			return
		}
	} else if m.Offset != 0 {
		fresh, had := false, ch.last
		if hole = ch.misses(m); hole {
			noteLate(ch.hub, ch.ns, ch.epoch, ch.name, had)
		}
		if m.Missing && !hole {
			return
		}
		if m.Missing {
			fresh = true
		} else if ch.whole && late {
			fresh, doubt = ch.insert(m)
		} else {
			fresh = ch.advance(m)
		}
		if !fresh {
			return
		}
		if late {
			noteLate(ch.hub, ch.ns, m.Epoch, m.Channel, m.Offset)
		}
	}
	it := item{m: m, late: late, doubt: doubt, hole: hole, shared: also || len(ch.locals) > 1}
	if !m.Missing {
		ch.messages++
		ch.bytes += uint64(len(m.Data))
	}
	if it.shared {
		m.await(len(ch.locals))
	}
	for _, l := range ch.locals {
		it.l = l
		l.shard.postMessage(it)
	}
}

// misses reports whether messages before m were not delivered. What the ring has is
// not all there is then: anyone who resumes from before the hole is served from the log.
func (ch *channel) misses(m *Message) bool {
	upTo := m.Prev
	if m.Missing {
		upTo = m.Offset
	}
	if upTo <= ch.last || m.Epoch != ch.epoch || ch.whole && !m.Missing {
		return false
	}
	ch.forget()
	ch.floor = max(ch.floor, upTo)
	if m.Missing {
		ch.last = upTo
	}
	return true
}

// advance makes m the newest message and returns true, unless it is not new.
func (ch *channel) advance(m *Message) bool {
	if m.Epoch != ch.epoch {
		if ch.ns.isOver(m.Epoch) {
			return false
		}
		ch.restart(m.Epoch)
	}
	if m.Offset <= ch.last {
		return false
	}
	ch.last = m.Offset
	if ch.whole {
		ch.see(len(ch.seen), m.Offset)
	}
	ch.remember(m)
	return true
}

// insert puts m, which came late, into its place in a whole namespace and returns
// true, unless it was there. Of one that is older than all it remembers it cannot
// say whether it is a repeat.
func (ch *channel) insert(m *Message) (fresh, doubt bool) {
	switch {
	case m.Epoch != ch.epoch || m.Offset > ch.last:
		return ch.advance(m), false
	case m.Offset <= ch.joined:
		return false, false
	}
	at, there := slices.BinarySearch(ch.seen, m.Offset)
	if there {
		return false, false
	}
	if at == 0 && len(ch.seen) >= maxSeen/2 {
		return true, true
	}
	ch.see(at, m.Offset)
	ch.forgetPages()
	if m.Offset > ch.floor {
		ring := ch.ring[ch.start:]
		i, _ := slices.BinarySearchFunc(ring, m.Offset, func(x *Message, o uint64) int { return cmp.Compare(x.Offset, o) })
		m.enter()
		ch.ring = slices.Insert(ch.ring, ch.start+i, m)
		ch.ringBytes += m.size()
		ch.hub.recent.add(m.cost())
		for len(ch.ring)-ch.start > ch.ns.options().Recent {
			ch.dropOldest()
		}
	}
	return true, false
}

// see notes that offset came, which belongs at i.
func (ch *channel) see(i int, offset uint64) {
	ch.seen = slices.Insert(ch.seen, i, offset)
	if len(ch.seen) > maxSeen {
		ch.seen = slices.Delete(ch.seen, 0, maxSeen/2)
	}
}

// restart starts a new epoch. Unless it carries on from the one before the log was lost, and
// every subscriber gets a gap event.
func (ch *channel) restart(epoch string) {
	upTo, _ := ch.ns.carriesOn(ch.epoch, epoch)
	ch.epoch, ch.last, ch.floor, ch.firstRetained, ch.joined, ch.proof = epoch, upTo, upTo, 1, upTo, 0
	ch.seen = nil
	ch.forgetPages()
	ch.forget()
	for _, l := range ch.locals {
		l.shard.post(func() { l.shard.moveTo(ch.ns, epoch) })
	}
}

// remember appends m to the ring; what no longer fits moves the floor.
func (ch *channel) remember(m *Message) {
	for len(ch.ring)-ch.start > 0 && (len(ch.ring)-ch.start >= ch.ns.options().Recent || ch.ringBytes+m.size() > maxRingBytes) {
		ch.dropOldest()
	}
	for len(ch.ring)-ch.start > 0 && ch.hub.recent.exceeded(m.cost()) { // faster than rarely used channels are found
		ch.dropOldest()
		ch.hub.recent.evicted.Add(1)
	}
	if ch.start > 16 && ch.start > len(ch.ring)/2 { // slide down: amortised one copy per message
		n := copy(ch.ring, ch.ring[ch.start:])
		clear(ch.ring[n:])
		ch.ring, ch.start = ch.ring[:n], 0
	}
	m.enter()
	ch.hub.recent.add(m.cost())
	if ch.ring == nil { // few channels have one message only, and growing from one costs four times
		ch.ring = make([]*Message, 0, min(ch.ns.options().Recent, firstRing))
	}
	ch.ring = append(ch.ring, m)
	ch.ringBytes += m.size()
}

// firstRing is the room of a ring that gets its first message.
const firstRing = 8

// dropOldest takes the oldest message out of the ring.
func (ch *channel) dropOldest() {
	old := ch.ring[ch.start]
	ch.ring[ch.start] = nil
	ch.start++
	ch.floor = max(ch.floor, old.Offset)
	ch.ringBytes -= old.size()
	ch.hub.recent.add(-old.cost())
	old.evict(&ch.hub.wire)
}

// forget empties the ring.
func (ch *channel) forget() {
	for _, m := range ch.ring[ch.start:] {
		ch.hub.recent.add(-m.cost())
		m.evict(&ch.hub.wire)
	}
	ch.ring, ch.start, ch.ringBytes = nil, 0, 0
}

// recent appends to dst up to limit messages with since < offset <= upto of
// epoch from the ring; first has the meaning of Page.FirstRetained. ok is false
// when the ring does not reach back to since.
func (ch *channel) recent(dst []*Message, epoch string, since, upto uint64, limit int) (msgs []*Message, first uint64, ok bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.readAt = time.Now().UnixMilli()
	if epoch != ch.epoch || since < ch.floor {
		return dst, 0, false
	}
	for _, m := range ch.ring[ch.after(since):] {
		if m.Offset > upto || limit == 0 {
			break
		}
		dst = append(dst, m)
		limit--
	}
	return dst, ch.firstRetained, true
}

// after returns where in the ring the messages after offset start. ch.mu is held.
func (ch *channel) after(offset uint64) int {
	lo, hi := ch.start, len(ch.ring)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); ch.ring[mid].Offset > offset {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// check returns the check of the message at offset in epoch, if it is one of those
// that the channel has here. Of the end of the snapshot it may be known as well,
// which may be a message of another channel.
func (ch *channel) check(epoch string, offset uint64) (c Check, known bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if epoch != ch.epoch {
		return 0, false
	}
	if i := ch.after(offset); i > ch.start && ch.ring[i-1].Offset == offset {
		return ch.ring[i-1].Check, true
	}
	return ch.proof, offset == ch.joined && ch.proof != 0
}

// proves reports whether p's check is that of the message there; known is false if the
// channel does not have it here.
func (ch *channel) proves(p Position) (ok, known bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if p.Epoch != ch.epoch {
		return false, false
	}
	if i := ch.after(p.Offset); i > ch.start && ch.ring[i-1].Offset == p.Offset {
		return ch.ring[i-1].proves(p.Check), true
	}
	return ch.proof == p.Check, p.Offset == ch.joined && ch.proof != 0 && p.Check.Exact()
}
