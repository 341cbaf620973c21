// Package backlog keeps what a slow subscriber cannot take yet, under the
// delivery policy of each message's namespace.
package backlog

import (
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A Queue is what waits for one slow subscriber: references to shared messages,
// bounded by each namespace for its own in number and in bytes, and the gaps among
// them. The zero value is empty. It belongs to one goroutine at a time.
type Queue struct {
	// messages wait from head on, oldest first; nil where one was taken out.
	messages []*hub.Message
	head     int
	moved    int // by how much messages was moved down so far
	waiting  int // messages that are not nil
	bytes    int // payload of them
	// live is where messages that are not of history begin, in messages plus moved.
	// The hub passes on one page of history at a time and then waits, so those
	// before do not count against a bound.
	live   int
	spaces []space
	gaps   []heldGap
	// dropped are the gaps that overflow made, one per log, and those that were
	// among what was dropped. They are older than what waits of their log.
	dropped []hub.Gap
	// newest is where the newest message of a key waits; nil without conflation.
	newest map[conflationKey]place
	// sent is behind the message that was popped last, in messages plus moved.
	sent int
}

type conflationKey struct{ channel, key string }

// place is where a message waits, and where the first of its key that it replaced
// did: both in messages plus moved. When what came after that place has been sent,
// the key's turn is over, and its message is not replaced any more: a key that
// changes faster than the queue moves would never be sent.
type place struct{ at, turn int }

// space is what waits of one namespace, history apart.
type space struct {
	name            string
	messages, bytes int
	// from is where its oldest message is at the earliest, in messages plus moved.
	from int
}

// heldGap is a gap to be told before messages[before].
type heldGap struct {
	before int
	gap    hub.Gap
}

// maxHeldGaps bounds the gaps of a queue: each is a log that began anew.
const maxHeldGaps = 16

// Len returns how many messages wait.
func (q *Queue) Len() int { return q.waiting }

// Bytes returns the payload that waits.
func (q *Queue) Bytes() int { return q.bytes }

// Empty reports whether neither messages nor gaps wait.
func (q *Queue) Empty() bool { return q.waiting == 0 && len(q.gaps) == 0 && len(q.dropped) == 0 }

// Age is how long ago the oldest message was stored.
func (q *Queue) Age(now time.Time) time.Duration {
	q.skip()
	if q.head == len(q.messages) {
		return 0
	}
	return max(now.Sub(q.messages[q.head].At()), 0)
}

// space returns the counts of a namespace.
func (q *Queue) space(name string) *space {
	for i := range q.spaces {
		if q.spaces[i].name == name {
			return &q.spaces[i]
		}
	}
	q.spaces = append(q.spaces, space{name: name, from: q.head + q.moved})
	return &q.spaces[len(q.spaces)-1]
}

// tidy comes before a message is kept: a queue that never runs empty does not grow by
// what has left it.
func (q *Queue) tidy() {
	switch n := len(q.messages); {
	case n-q.head > 64 && n-q.head > 2*q.waiting:
		q.compact()
	case q.head > 64 && q.head > n/2:
		q.slide()
	}
}

// push appends m.
func (q *Queue) push(m *hub.Message) {
	q.messages = append(q.messages, m)
	q.waiting++
	q.bytes += len(m.Data)
}

// slide moves what waits down over what has left.
func (q *Queue) slide() {
	n := copy(q.messages, q.messages[q.head:])
	clear(q.messages[n:])
	q.messages = q.messages[:n]
	for i := range q.gaps {
		q.gaps[i].before -= q.head
	}
	q.moved += q.head
	q.head = 0
}

// compact closes the holes that conflation left: one that is not read has one
// for every message that was replaced, and its oldest may stay.
func (q *Queue) compact() {
	n, live, gap := 0, 0, 0
	var kept []int // where they were
	for i, m := range q.messages {
		for ; gap < len(q.gaps) && q.gaps[gap].before <= i; gap++ {
			q.gaps[gap].before = n
		}
		if m == nil {
			continue
		}
		if i+q.moved < q.live {
			live = n + 1
		}
		if q.newest != nil {
			kept = append(kept, i+q.moved)
			if k := (conflationKey{m.Channel, m.Key}); m.Key != "" && q.newest[k].at == i+q.moved {
				turn := -1 // over
				if was := q.newest[k].turn; was >= q.sent {
					turn, _ = slices.BinarySearch(kept, was)
				}
				q.newest[k] = place{n + q.moved, turn + q.moved} // n is never more than i: no other's place is met again
			}
		}
		q.messages[n] = m
		n++
	}
	for ; gap < len(q.gaps); gap++ {
		q.gaps[gap].before = n
	}
	clear(q.messages[n:])
	q.messages, q.head, q.live, q.sent = q.messages[:n], 0, live+q.moved, q.moved
	for i := range q.spaces {
		q.spaces[i].from = q.moved
	}
}

// skip moves head to the oldest message that is still there.
func (q *Queue) skip() {
	for q.head < len(q.messages) && q.messages[q.head] == nil {
		q.head++
	}
}

// remove takes out and returns the message at i.
func (q *Queue) remove(i int) *hub.Message {
	m := q.messages[i]
	q.messages[i] = nil
	q.waiting--
	q.bytes -= len(m.Data)
	if i+q.moved >= q.live {
		q.count(m, -1)
	}
	if m.Key != "" && q.newest != nil {
		if k := (conflationKey{m.Channel, m.Key}); q.newest[k].at == i+q.moved {
			delete(q.newest, k)
		}
	}
	return m
}

// pop takes the oldest message off.
func (q *Queue) pop() *hub.Message {
	q.skip()
	m := q.remove(q.head)
	q.head++
	q.sent = q.head + q.moved
	return m
}

// drop takes the oldest message of a namespace out, history included, and adds it to
// the gap of its log. It returns nil if there is none.
func (q *Queue) drop(name string) *hub.Message {
	s := q.space(name)
	i := max(s.from-q.moved, q.head)
	for i < len(q.messages) && (q.messages[i] == nil || hub.NamespaceOf(q.messages[i].Channel) != name) {
		i++
	}
	s.from = i + q.moved
	if i == len(q.messages) {
		return nil
	}
	log := q.messages[i].Log()
	q.passGaps(log, i)
	m := q.remove(i)
	for n := len(q.dropped) - 1; n >= 0; n-- {
		if g := &q.dropped[n]; hub.LogOf(g.Namespace, g.To.Epoch) == log {
			if g.Reason != hub.GapOverflow || g.To.Epoch != m.Epoch {
				break // what came between is told in its place
			}
			g.To, g.At = m.Position(), m.Position()
			return m
		}
	}
	g := hub.Gap{Namespace: name, Reason: hub.GapOverflow}
	if m.Offset != 0 {
		g.From, g.To, g.At = hub.Position{Epoch: m.Epoch, Offset: m.Offset - 1}.String(), m.Position(), m.Position()
	}
	q.dropped = append(q.dropped, g)
	return m
}

// passGaps moves the held gaps of a log that come before messages[i] to the
// dropped ones: what is dropped next is newer, and is told after them.
func (q *Queue) passGaps(log hub.Log, i int) {
	keep := q.gaps[:0]
	for _, g := range q.gaps {
		if g.before <= i && hub.LogOf(g.gap.Namespace, g.gap.To.Epoch) == log {
			q.dropped = append(q.dropped, g.gap)
		} else {
			keep = append(keep, g)
		}
	}
	clear(q.gaps[len(keep):])
	q.gaps = keep
}

// Counts are what all queues of a process hold and have done. Any goroutine.
type Counts struct {
	Held, HeldBytes    atomic.Int64  // messages that wait now
	Dropped, Conflated atomic.Uint64 // messages dropped and told as gaps; replaced by a newer one
	Gaps               atomic.Uint64 // gaps taken that dropping made
}

func (c *Counts) held(m *hub.Message, by int64) {
	c.Held.Add(by)
	c.HeldBytes.Add(by * int64(len(m.Data)))
}

// Push keeps a live message. At the bound of ns's queue its policy decides; with
// "disconnect" that is the end of the subscriber, and Push returns false.
func (q *Queue) Push(m *hub.Message, ns *hub.Namespace, c *Counts) bool {
	q.tidy()
	replaces := ns.Policy == hub.Conflate && m.Key != ""
	if replaces {
		q.conflate(m, c)
	}
	if !q.makeRoom(ns, m, c) {
		delete(q.newest, conflationKey{m.Channel, m.Key})
		return false
	}
	q.push(m)
	q.count(m, 1)
	if replaces {
		k := conflationKey{m.Channel, m.Key}
		p, was := q.newest[k]
		if p.at = len(q.messages) - 1 + q.moved; !was {
			p.turn = p.at
		}
		q.newest[k] = p
	}
	c.held(m, 1)
	return true
}

// conflate takes out the waiting message that m replaces, if there is one, and
// leaves its turn to m.
func (q *Queue) conflate(m *hub.Message, c *Counts) {
	if q.newest == nil {
		q.newest = map[conflationKey]place{}
	}
	k := conflationKey{m.Channel, m.Key}
	p, ok := q.newest[k]
	if !ok {
		return
	}
	delete(q.newest, k)
	if p.turn < q.sent {
		return // it is sent next
	}
	old := q.remove(p.at - q.moved)
	c.held(old, -1)
	c.Conflated.Add(1)
	q.newest[k] = place{at: -1, turn: p.turn}
}

// PushReplay keeps a message of history, which has no bound here: the hub hands
// over one page of them and then waits. They come before live ones; one that does
// not counts as such.
func (q *Queue) PushReplay(m *hub.Message, c *Counts) {
	q.tidy()
	ahead := q.waiting > 0 && q.anyLive()
	q.push(m)
	if ahead {
		q.count(m, 1)
	} else {
		q.live = len(q.messages) + q.moved
	}
	c.held(m, 1)
}

// anyLive reports whether a message waits that is not of history.
func (q *Queue) anyLive() bool {
	for i := range q.spaces {
		if q.spaces[i].messages > 0 {
			return true
		}
	}
	return false
}

// count counts m in its namespace, or off.
func (q *Queue) count(m *hub.Message, by int) {
	s := q.space(hub.NamespaceOf(m.Channel))
	s.messages += by
	s.bytes += by * len(m.Data)
}

// makeRoom applies the policy of ns so that m can be kept.
func (q *Queue) makeRoom(ns *hub.Namespace, m *hub.Message, c *Counts) bool {
	for {
		s := q.space(ns.Name)
		if s.messages < ns.QueueMessages && s.bytes+len(m.Data) <= ns.QueueBytes {
			return true
		}
		if ns.Policy == hub.Disconnect {
			return false
		}
		old := q.drop(ns.Name)
		if old == nil {
			return false
		}
		c.held(old, -1)
		c.Dropped.Add(1)
	}
}

// PushGap keeps g in its place among what waits. It returns false when there is
// no room for it.
func (q *Queue) PushGap(g hub.Gap) bool {
	if len(q.gaps) >= maxHeldGaps || len(q.dropped) >= maxHeldGaps+hub.MaxPositions {
		return false
	}
	q.gaps = append(q.gaps, heldGap{before: len(q.messages), gap: g})
	return true
}

// TakeDropped takes the gaps that dropping has made, and those that were among what
// it took: older than all that waits of their namespaces.
func (q *Queue) TakeDropped(c *Counts) []hub.Gap {
	gaps := q.dropped
	q.dropped = nil
	for i := range gaps {
		if gaps[i].Reason == hub.GapOverflow {
			c.Gaps.Add(1)
		}
	}
	return gaps
}

// TakeGap takes the gap that is to be told before the next message, if there is one.
func (q *Queue) TakeGap() (hub.Gap, bool) {
	q.skip()
	if len(q.gaps) == 0 || q.gaps[0].before > q.head {
		return hub.Gap{}, false
	}
	g := q.gaps[0].gap
	q.gaps = q.gaps[1:]
	return g, true
}

// Pop takes the oldest message. There must be one.
func (q *Queue) Pop(c *Counts) *hub.Message {
	m := q.pop()
	c.held(m, -1)
	return m
}

// Messages are what waits, oldest first.
func (q *Queue) Messages() iter.Seq[*hub.Message] {
	return func(yield func(*hub.Message) bool) {
		for _, m := range q.messages[q.head:] {
			if m != nil && !yield(m) {
				return
			}
		}
	}
}

// Stands returns at, up to where the hub passed on everything, moved back to before what
// waits and what was dropped: from there it can be had again. ok is false if that is of a
// log that is over. Gaps of what is in no log are in Unlogged.
func (q *Queue) Stands(at hub.Positions) (_ hub.Positions, ok bool) {
	ok = true
	back := func(p hub.Position) {
		i := slices.IndexFunc(at, func(x hub.Position) bool { return x.Epoch == p.Epoch })
		switch {
		case i < 0:
			ok = false
		case p.Offset < at[i].Offset:
			at[i] = p
		}
	}
	for m := range q.Messages() {
		if m.Offset != 0 {
			back(hub.Position{Epoch: m.Epoch, Offset: m.Offset - 1})
		}
	}
	gap := func(g hub.Gap) {
		if p, err := hub.ParsePosition(g.From); err == nil {
			back(p)
		} else if !g.At.IsZero() {
			ok = false
		}
	}
	for _, g := range q.dropped {
		gap(g)
	}
	for _, g := range q.gaps {
		gap(g.gap)
	}
	return at, ok
}

// Unlogged returns the gaps of messages that were dropped and are in no log.
func (q *Queue) Unlogged() (gaps []hub.Gap) {
	for _, g := range q.dropped {
		if g.At.IsZero() {
			gaps = append(gaps, g)
		}
	}
	return gaps
}

// Forget counts off what is thrown away with q.
func (q *Queue) Forget(c *Counts) {
	c.Held.Add(-int64(q.Len()))
	c.HeldBytes.Add(-int64(q.bytes))
}
