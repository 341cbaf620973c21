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
	// messages wait from head on, oldest first; nil where one was removed.
	messages []*hub.Message
	head     int
	moved    int // by how much messages was moved down so far
	waiting  int // messages that are not nil
	bytes    int // payload of them
	// live is where messages that are not of history start, in messages plus moved.
	// The hub passes on one page of history at a time and then waits, so those
	// before do not count against a bound.
	live   int
	spaces spaces
	gaps
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

type spaces []space

// of returns the counts of a namespace; from is where its oldest message is at the earliest if
// there are none yet.
func (ss *spaces) of(name string, from int) *space {
	for i := range *ss {
		if (*ss)[i].name == name {
			return &(*ss)[i]
		}
	}
	*ss = append(*ss, space{name: name, from: from})
	return &(*ss)[len(*ss)-1]
}

// anyLive reports whether a message waits that is not of history.
func (ss spaces) anyLive() bool {
	for i := range ss {
		if ss[i].messages > 0 {
			return true
		}
	}
	return false
}

// count counts m in its namespace, or off; from as in of.
func (ss *spaces) count(m *hub.Message, by, from int) {
	s := ss.of(hub.NamespaceOf(m.Channel), from)
	s.messages += by
	s.bytes += by * len(m.Data)
}

// gaps are what a Queue has to report besides messages.
type gaps struct {
	queued []queuedGap
	// dropped are the gaps that overflow made, one per log, and those that were
	// among what was dropped. They are older than what waits of their log.
	dropped []hub.Gap
}

// queuedGap is a gap to be reported before messages[before].
type queuedGap struct {
	before int
	gap    hub.Gap
}

// maxQueuedGaps bounds the gaps of a queue: each is a log that began anew.
const maxQueuedGaps = 16

// Len returns how many messages wait.
func (q *Queue) Len() int { return q.waiting }

// Bytes returns the payload that waits.
func (q *Queue) Bytes() int { return q.bytes }

// Empty reports whether neither messages nor gaps wait.
func (q *Queue) Empty() bool { return q.waiting == 0 && len(q.queued) == 0 && len(q.dropped) == 0 }

// Age is how long ago the oldest message was stored.
func (q *Queue) Age(now time.Time) time.Duration {
	q.skip()
	if q.head == len(q.messages) {
		return 0
	}
	return max(now.Sub(q.messages[q.head].At()), 0)
}

// tidy comes before a message is kept: a queue that never runs empty does not grow by
// what has left it.
func (q *Queue) tidy() {
	switch n := len(q.messages); {
	case n-q.head > 64 && n-q.head > 2*q.waiting:
		q.compact()
	case q.head > 64 && q.head > n/2: // move what waits down over what has left
		kept := copy(q.messages, q.messages[q.head:])
		clear(q.messages[kept:])
		q.messages = q.messages[:kept]
		for i := range q.queued {
			q.queued[i].before -= q.head
		}
		q.moved += q.head
		q.head = 0
	}
}

// push appends m.
func (q *Queue) push(m *hub.Message) {
	q.messages = append(q.messages, m)
	q.waiting++
	q.bytes += len(m.Data)
}

// compact closes the holes that conflation left: one that is not read has one
// for every message that was replaced, and its oldest may stay.
func (q *Queue) compact() {
	n, live, gap := 0, 0, 0
	var kept []int // where they were
	for i, m := range q.messages {
		for ; gap < len(q.queued) && q.queued[gap].before <= i; gap++ {
			q.queued[gap].before = n
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
	for ; gap < len(q.queued); gap++ {
		q.queued[gap].before = n
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

// remove removes and returns the message at i.
func (q *Queue) remove(i int) *hub.Message {
	m := q.messages[i]
	q.messages[i] = nil
	q.waiting--
	q.bytes -= len(m.Data)
	if i+q.moved >= q.live {
		q.spaces.count(m, -1, q.head+q.moved)
	}
	if m.Key != "" && q.newest != nil {
		if k := (conflationKey{m.Channel, m.Key}); q.newest[k].at == i+q.moved {
			delete(q.newest, k)
		}
	}
	return m
}

// drop takes the oldest message of a namespace out, history included, and adds it to
// the gap of its log. It returns nil if there is none.
func (q *Queue) drop(name string) *hub.Message {
	s := q.spaces.of(name, q.head+q.moved)
	i := max(s.from-q.moved, q.head)
	for i < len(q.messages) && (q.messages[i] == nil || hub.NamespaceOf(q.messages[i].Channel) != name) {
		i++
	}
	s.from = i + q.moved
	if i == len(q.messages) {
		return nil
	}
	log := q.messages[i].Log()
	q.gaps.pass(log, i)
	m := q.remove(i)
	for n := len(q.dropped) - 1; n >= 0; n-- {
		if g := &q.dropped[n]; hub.LogOf(g.Namespace, g.To.Epoch) == log {
			if g.Reason != hub.GapOverflow || g.To.Epoch != m.Epoch {
				break // what came between is reported in its place
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

// pass moves the held gaps of a log that come before messages[i] to the
// dropped ones: what is dropped next is newer, and is reported after them.
func (g *gaps) pass(log hub.Log, i int) {
	keep := g.queued[:0]
	for _, h := range g.queued {
		if h.before <= i && hub.LogOf(h.gap.Namespace, h.gap.To.Epoch) == log {
			g.dropped = append(g.dropped, h.gap)
		} else {
			keep = append(keep, h)
		}
	}
	clear(g.queued[len(keep):])
	g.queued = keep
}

// Counts are what all queues of a process hold and have done. Any goroutine.
type Counts struct {
	Queued, QueuedBytes atomic.Int64  // messages that wait now
	Dropped, Conflated  atomic.Uint64 // messages dropped and reported as gaps; replaced by a newer one
	Gaps                atomic.Uint64 // gaps taken that dropping made
}

func (c *Counts) queued(m *hub.Message, by int64) {
	c.Queued.Add(by)
	c.QueuedBytes.Add(by * int64(len(m.Data)))
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
	q.spaces.count(m, 1, q.head+q.moved)
	if replaces {
		k := conflationKey{m.Channel, m.Key}
		p, was := q.newest[k]
		if p.at = len(q.messages) - 1 + q.moved; !was {
			p.turn = p.at
		}
		q.newest[k] = p
	}
	c.queued(m, 1)
	return true
}

// conflate removes the waiting message that m replaces, if there is one, and
// gives its place to m.
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
	c.queued(old, -1)
	c.Conflated.Add(1)
	q.newest[k] = place{at: -1, turn: p.turn}
}

// PushReplay keeps a message of history, which has no bound here: the hub hands
// over one page of them and then waits. They come before live ones; one that does
// not counts as such.
func (q *Queue) PushReplay(m *hub.Message, c *Counts) {
	q.tidy()
	ahead := q.waiting > 0 && q.spaces.anyLive()
	q.push(m)
	if ahead {
		q.spaces.count(m, 1, q.head+q.moved)
	} else {
		q.live = len(q.messages) + q.moved
	}
	c.queued(m, 1)
}

// makeRoom applies the policy of ns so that m can be kept.
func (q *Queue) makeRoom(ns *hub.Namespace, m *hub.Message, c *Counts) bool {
	for {
		s := q.spaces.of(ns.Name, q.head+q.moved)
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
		c.queued(old, -1)
		c.Dropped.Add(1)
	}
}

// PushGap keeps g in its place among what waits. It returns false when there is
// no room for it.
func (q *Queue) PushGap(g hub.Gap) bool {
	if len(q.queued) >= maxQueuedGaps || len(q.dropped) >= maxQueuedGaps+hub.MaxPositions {
		return false
	}
	q.queued = append(q.queued, queuedGap{before: len(q.messages), gap: g})
	return true
}

// PopDropped takes the gaps that dropping has made, and those that were among what
// it took: older than all that waits of their namespaces.
func (g *gaps) PopDropped(c *Counts) []hub.Gap {
	taken := g.dropped
	g.dropped = nil
	for i := range taken {
		if taken[i].Reason == hub.GapOverflow {
			c.Gaps.Add(1)
		}
	}
	return taken
}

// PopGap takes the gap that is to be reported before the next message, if there is one.
func (q *Queue) PopGap() (hub.Gap, bool) {
	q.skip()
	if len(q.queued) == 0 || q.queued[0].before > q.head {
		return hub.Gap{}, false
	}
	g := q.queued[0].gap
	q.queued = q.queued[1:]
	return g, true
}

// Pop takes the oldest message. There must be one.
func (q *Queue) Pop(c *Counts) *hub.Message {
	q.skip()
	m := q.remove(q.head)
	q.head++
	q.sent = q.head + q.moved
	c.queued(m, -1)
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

// Position returns at, up to where the hub passed on everything, moved back to before what
// waits and what was dropped: from there it can be had again. ok is false if that is of a
// log that is over. Gaps of what cannot be had again are in Unlogged.
func (q *Queue) Position(at hub.Positions) (_ hub.Positions, ok bool) {
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
		if isPassed(g) {
			return
		}
		if p, err := hub.ParsePosition(g.From); err == nil {
			back(p)
		} else if !g.At.IsZero() {
			ok = false
		}
	}
	for _, g := range q.dropped {
		gap(g)
	}
	for _, g := range q.queued {
		gap(g.gap)
	}
	return at, ok
}

// isPassed reports whether g is of messages that the stream has been taken past: it can be
// sent again, but does not follow from a position.
func isPassed(g hub.Gap) bool { return !g.At.IsZero() && g.From == g.At.String() }

// Unlogged returns the gaps that do not come again from where Position is: of messages that were
// dropped and are in no log, and, without a position, of what the stream has been taken past.
func (g *gaps) Unlogged() (lost []hub.Gap) {
	for _, d := range g.dropped {
		if d.At.IsZero() || isPassed(d) {
			d.At = hub.Position{}
			lost = append(lost, d)
		}
	}
	for _, h := range g.queued {
		if isPassed(h.gap) {
			h.gap.At = hub.Position{}
			lost = append(lost, h.gap)
		}
	}
	return lost
}

// Forget counts off what is thrown away with q.
func (q *Queue) Forget(c *Counts) {
	c.Queued.Add(-int64(q.Len()))
	c.QueuedBytes.Add(-int64(q.bytes))
}
