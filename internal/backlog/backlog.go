// Package backlog keeps what a slow subscriber cannot take yet, under the
// delivery policy of each message's namespace.
package backlog

import (
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/hub"
)

// A Queue is what waits for one slow subscriber: references to shared messages,
// bounded by their namespaces in number and in bytes, and the gaps among them.
// The zero value is empty. It belongs to one goroutine at a time.
type Queue struct {
	// messages wait from head on, oldest first; nil where conflation took one out.
	messages []*hub.Message
	head     int
	moved    int // by how much messages was moved down so far
	waiting  int // messages that are not nil
	// replayed of the first messages come from history. The hub hands over one
	// page of it at a time and then waits, so they do not count against the bound.
	replayed int
	bytes    int // payload of the others
	all      int // payload of all
	gaps     []heldGap
	// dropped are the gaps that overflow made, one per namespace. They are always
	// older than what waits.
	dropped []hub.Gap
	// newest is where the newest message of a key waits, in messages plus moved;
	// nil without conflation.
	newest map[conflationKey]int
}

type conflationKey struct{ channel, key string }

// heldGap is a gap to be told before messages[before].
type heldGap struct {
	before int
	gap    hub.Gap
}

// maxHeldGaps bounds the gaps of a queue: each is a log that began anew.
const maxHeldGaps = 16

// Len returns how many messages wait.
func (q *Queue) Len() int { return q.waiting }

// Empty reports whether neither messages nor gaps wait.
func (q *Queue) Empty() bool { return q.waiting == 0 && len(q.gaps) == 0 && len(q.dropped) == 0 }

// push appends m. A queue that never runs empty is moved down now and then, so
// that it does not grow by what has left it.
func (q *Queue) push(m *hub.Message) {
	if q.head > 64 && q.head > len(q.messages)/2 {
		n := copy(q.messages, q.messages[q.head:])
		clear(q.messages[n:])
		q.messages = q.messages[:n]
		for i := range q.gaps {
			q.gaps[i].before -= q.head
		}
		q.moved += q.head
		q.head = 0
	}
	q.messages = append(q.messages, m)
	q.waiting++
	q.all += len(m.Data)
}

// pop takes the oldest message off.
func (q *Queue) pop() *hub.Message {
	q.skip()
	m := q.messages[q.head]
	q.messages[q.head] = nil
	q.head++
	q.took(m)
	if q.replayed > 0 {
		q.replayed--
	} else {
		q.bytes -= len(m.Data)
	}
	if m.Key != "" && q.newest != nil {
		if k := (conflationKey{m.Channel, m.Key}); q.newest[k] == q.head-1+q.moved {
			delete(q.newest, k)
		}
	}
	return m
}

// skip moves head to the oldest message that is still there.
func (q *Queue) skip() {
	for q.head < len(q.messages) && q.messages[q.head] == nil {
		q.head++
	}
}

func (q *Queue) took(m *hub.Message) {
	q.waiting--
	q.all -= len(m.Data)
}

// conflate takes out the waiting message with m's key, which m replaces, and
// returns it, or nil.
func (q *Queue) conflate(m *hub.Message) *hub.Message {
	if m.Key == "" {
		return nil
	}
	if q.newest == nil {
		q.newest = map[conflationKey]int{}
	}
	k := conflationKey{m.Channel, m.Key}
	at, ok := q.newest[k]
	var old *hub.Message
	if i := at - q.moved; ok && i >= q.head+q.replayed && i < len(q.messages) {
		old = q.messages[i]
		q.messages[i] = nil
		q.took(old)
		q.bytes -= len(old.Data)
	}
	return old
}

// drop takes the oldest message off and adds it to the gap of its namespace. It
// returns nil if there is none.
func (q *Queue) drop() *hub.Message {
	if q.waiting == 0 {
		return nil
	}
	m := q.pop()
	ns := hub.NamespaceOf(m.Channel)
	for i := range q.dropped {
		if g := &q.dropped[i]; g.Namespace == ns && g.To.Epoch == m.Epoch {
			g.To, g.At = m.Position(), m.Position()
			return m
		}
	}
	g := hub.Gap{Namespace: ns, Reason: hub.GapOverflow}
	if m.Offset != 0 {
		g.From, g.To, g.At = hub.Position{Epoch: m.Epoch, Offset: m.Offset - 1}.String(), m.Position(), m.Position()
	}
	q.dropped = append(q.dropped, g)
	return m
}

// Age is how long ago the oldest message was stored.
func (q *Queue) Age(now time.Time) time.Duration {
	q.skip()
	if q.head == len(q.messages) {
		return 0
	}
	return max(now.Sub(q.messages[q.head].At()), 0)
}

// Bytes returns the payload that waits.
func (q *Queue) Bytes() int { return q.all }

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
	if !q.makeRoom(ns, m, c) {
		return false
	}
	q.bytes += len(m.Data)
	q.push(m)
	c.held(m, 1)
	return true
}

// PushReplay keeps a message of history, which has no bound here: the hub hands
// over one page of them and then waits. They come before live ones.
func (q *Queue) PushReplay(m *hub.Message, c *Counts) {
	q.replayed++
	q.push(m)
	c.held(m, 1)
}

// makeRoom applies the policy of ns so that m can be kept.
func (q *Queue) makeRoom(ns *hub.Namespace, m *hub.Message, c *Counts) bool {
	if ns.Policy == hub.Conflate {
		if old := q.conflate(m); old != nil {
			c.held(old, -1)
			c.Conflated.Add(1)
		}
		if m.Key != "" {
			defer func() { q.newest[conflationKey{m.Channel, m.Key}] = len(q.messages) + q.moved }()
		}
	}
	for q.Len()-q.replayed >= ns.QueueMessages || q.bytes+len(m.Data) > ns.QueueBytes {
		if ns.Policy == hub.Disconnect {
			return false
		}
		old := q.drop()
		if old == nil {
			return false
		}
		c.held(old, -1)
		c.Dropped.Add(1)
	}
	return true
}

// PushGap keeps g in its place among what waits. It returns false when there is
// no room for it.
func (q *Queue) PushGap(g hub.Gap) bool {
	if len(q.gaps) >= maxHeldGaps {
		return false
	}
	q.gaps = append(q.gaps, heldGap{before: len(q.messages), gap: g})
	return true
}

// TakeDropped takes the gaps that dropping has made: older than all that waits.
func (q *Queue) TakeDropped(c *Counts) []hub.Gap {
	gaps := q.dropped
	q.dropped = nil
	c.Gaps.Add(uint64(len(gaps)))
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

// Forget counts off what is thrown away with q.
func (q *Queue) Forget(c *Counts) {
	c.Held.Add(-int64(q.Len()))
	c.HeldBytes.Add(-int64(q.all))
}
