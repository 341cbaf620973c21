package hub

import (
	"context"
	"fmt"
	"strings"
	"sync"
)

// channel is one channel with interest on this node: its ring of recent
// messages and the shards that want it.
type channel struct {
	hub  *Hub
	ns   *namespace
	name string

	mu    sync.Mutex
	state chanState
	// waiting are locals to attach once the channel is active.
	waiting []*local
	// early holds what the broker delivered while the snapshot was on its way.
	early []*Message
	// earlyLost says that early was full: the snapshot must be taken again.
	earlyLost bool
	// locals are the shards' sides that get every message.
	locals []*local

	epoch string
	// last is the offset up to which the channel is complete here: what is
	// stored later arrives by deliver.
	last uint64
	// ring holds, oldest first from start, every message with floor < offset <= last.
	ring      []*Message
	start     int
	ringBytes int
	floor     uint64
	// reads are the broker reads under way, by the offset they start from.
	reads map[uint64][]func(Page, error)
	// firstRetained is how far back the log reached at the snapshot.
	firstRetained uint64
}

type chanState uint8

const (
	chanNew     chanState = iota // the broker is being asked
	chanActive                   // messages arrive
	chanClosing                  // the broker is being told to stop
)

const (
	maxEarly     = 1 << 16   // messages that may arrive during one snapshot
	maxRingBytes = 256 << 10 // of payload per ring, but at least the newest message
)

// attach gives l every later message of its channel and returns true when the
// channel was active: then l.last and l.epoch are set. Otherwise l.ready or
// l.failed runs later on l's shard.
func (h *Hub) attach(name string, ns *namespace, l *local) (bool, error) {
	t := h.part(name)
	t.mu.Lock()
	ch := t.channels[name]
	if ch == nil {
		if h.channels.Load() >= h.maxChans {
			t.mu.Unlock()
			return false, fmt.Errorf("%w: %d channels are in use", ErrOverloaded, h.maxChans)
		}
		ch = &channel{hub: h, ns: ns, name: strings.Clone(name), reads: map[uint64][]func(Page, error){}}
		t.channels[ch.name] = ch
		h.channels.Add(1)
		h.goBroker(ch.activate)
	}
	l.ch = ch
	ch.mu.Lock() // both locks: a channel leaves the table only under the same pair
	t.mu.Unlock()
	defer ch.mu.Unlock()
	if ch.state != chanActive {
		ch.waiting = append(ch.waiting, l)
		return false, nil
	}
	ch.locals = append(ch.locals, l)
	l.epoch, l.last = ch.epoch, ch.last
	return true, nil
}

// activate subscribes at the broker and starts deliveries to the waiting locals.
func (ch *channel) activate(ctx context.Context) {
	snap, err := ch.hub.broker.Subscribe(ctx, &ch.ns.Namespace, ch.name, ch.ns.Recent)
	if err != nil {
		ch.fail(err)
		return
	}
	if snap.Top.Epoch != "" {
		ch.ns.advance(snap.Top)
	}
	if !ch.begin(snap) {
		ch.hub.broker.Unsubscribe(&ch.ns.Namespace, ch.name)
		ch.activate(ctx)
	}
}

// begin makes the channel active from snap on. It returns false when more
// arrived meanwhile than could be kept.
func (ch *channel) begin(snap Snapshot) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.earlyLost {
		ch.early, ch.earlyLost = nil, false
		return false
	}
	ch.epoch, ch.last = snap.Top.Epoch, snap.Top.Offset
	ch.floor, ch.firstRetained = snap.Floor, snap.FirstRetained
	for _, m := range snap.Messages {
		ch.remember(m)
	}
	ch.state = chanActive
	ch.locals, ch.waiting = ch.waiting, nil
	for _, l := range ch.locals {
		epoch, last := ch.epoch, ch.last
		l.shard.post(func() { l.ready(epoch, last) })
	}
	early := ch.early
	ch.early = nil
	for _, m := range early {
		ch.deliverLocked(m)
	}
	return true
}

// fail tells everyone who waits and takes the channel out of the table.
func (ch *channel) fail(err error) {
	h := ch.hub
	t := h.part(ch.name)
	t.mu.Lock()
	ch.mu.Lock()
	delete(t.channels, ch.name)
	h.channels.Add(-1)
	waiting := ch.waiting
	ch.waiting = nil
	ch.mu.Unlock()
	t.mu.Unlock()
	h.log.Debug("subscribe at the broker", "channel", ch.name, "err", err)
	for _, l := range waiting {
		l.shard.post(func() { l.failed(err) })
	}
}

// detach ends l's interest. Without interest left the broker is told.
func (ch *channel) detach(l *local) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for i, x := range ch.locals {
		if x == l {
			ch.locals[i] = ch.locals[len(ch.locals)-1]
			ch.locals = ch.locals[:len(ch.locals)-1]
			break
		}
	}
	if len(ch.locals) == 0 && ch.state == chanActive {
		ch.state = chanClosing
		ch.hub.goBroker(ch.deactivate)
	}
}

// deactivate unsubscribes, then forgets the channel, or subscribes anew for
// whoever came in the meantime.
func (ch *channel) deactivate(ctx context.Context) {
	h := ch.hub
	h.broker.Unsubscribe(&ch.ns.Namespace, ch.name)
	t := h.part(ch.name)
	t.mu.Lock()
	ch.mu.Lock()
	again := len(ch.waiting) > 0
	ch.forget()
	ch.early = nil
	ch.state = chanNew
	if !again {
		delete(t.channels, ch.name)
		h.channels.Add(-1)
	}
	ch.mu.Unlock()
	t.mu.Unlock()
	if again {
		ch.activate(ctx)
	}
}

// deliver takes the next message of the channel from the broker.
func (ch *channel) deliver(m *Message) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	switch ch.state {
	case chanNew:
		if len(ch.early) < maxEarly {
			ch.early = append(ch.early, m)
			return
		}
		ch.early, ch.earlyLost = nil, true
	case chanActive:
		ch.deliverLocked(m)
	}
}

// deliverLocked queues m for every shard, unless it was delivered before.
// Queueing under the lock is what keeps the order of the log in each shard.
func (ch *channel) deliverLocked(m *Message) {
	if m.Offset != 0 {
		if m.Epoch != ch.epoch {
			ch.restart(m.Epoch)
		}
		if m.Offset <= ch.last {
			return
		}
		ch.last = m.Offset
		ch.remember(m)
	}
	shared := len(ch.locals) > 1
	if shared {
		m.await(len(ch.locals))
	}
	for _, l := range ch.locals {
		l.shard.postMessage(l, m, shared)
	}
}

// restart begins a new epoch: the log was lost, and every subscriber is told.
func (ch *channel) restart(epoch string) {
	from := Position{Epoch: ch.epoch, Offset: ch.last}
	ch.epoch, ch.last, ch.floor, ch.firstRetained = epoch, 0, 0, 0
	ch.forget()
	for _, l := range ch.locals {
		l.shard.post(func() { l.restarted(from, epoch) })
	}
}

// remember appends m to the ring; what no longer fits moves the floor.
func (ch *channel) remember(m *Message) {
	for len(ch.ring)-ch.start > 0 && (len(ch.ring)-ch.start >= ch.ns.Recent || ch.ringBytes+len(m.Data) > maxRingBytes) {
		old := ch.ring[ch.start]
		ch.ring[ch.start] = nil
		ch.start++
		ch.floor = old.Offset
		ch.ringBytes -= len(old.Data)
		old.evict(&ch.hub.wire)
	}
	if ch.start > 16 && ch.start > len(ch.ring)/2 { // slide down: amortised one copy per message
		n := copy(ch.ring, ch.ring[ch.start:])
		clear(ch.ring[n:])
		ch.ring, ch.start = ch.ring[:n], 0
	}
	m.enter()
	ch.ring = append(ch.ring, m)
	ch.ringBytes += len(m.Data)
}

// forget empties the ring.
func (ch *channel) forget() {
	for _, m := range ch.ring[ch.start:] {
		m.evict(&ch.hub.wire)
	}
	ch.ring, ch.start, ch.ringBytes = nil, 0, 0
}

// recent appends to dst up to limit messages with since < offset <= upto from
// the ring. ok is false when the ring does not reach back to since.
func (ch *channel) recent(dst []*Message, since, upto uint64, limit int) (msgs []*Message, ok bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if since < ch.floor {
		return dst, false
	}
	ring := ch.ring[ch.start:]
	lo, hi := 0, len(ring)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); ring[mid].Offset > since {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	for _, m := range ring[lo:] {
		if m.Offset > upto || limit == 0 {
			break
		}
		dst = append(dst, m)
		limit--
	}
	return dst, true
}
