package push

import (
	"time"

	"github.com/weir-gateway/weir/hub"
)

// backlog is what waits for one slow subscriber: references to shared messages,
// bounded by their namespaces in number and in bytes, and the gaps among them.
type backlog struct {
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

// maxHeldGaps bounds the gaps of a backlog: each is a log that began anew.
const maxHeldGaps = 16

func (q *backlog) len() int { return q.waiting }

func (q *backlog) empty() bool { return q.waiting == 0 && len(q.gaps) == 0 && len(q.dropped) == 0 }

// push appends m. A queue that never runs empty is moved down now and then, so
// that it does not grow by what has left it.
func (q *backlog) push(m *hub.Message) {
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
func (q *backlog) pop() *hub.Message {
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
func (q *backlog) skip() {
	for q.head < len(q.messages) && q.messages[q.head] == nil {
		q.head++
	}
}

func (q *backlog) took(m *hub.Message) {
	q.waiting--
	q.all -= len(m.Data)
}

// conflate takes out the waiting message with m's key, which m replaces, and
// returns it, or nil.
func (q *backlog) conflate(m *hub.Message) *hub.Message {
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
func (q *backlog) drop() *hub.Message {
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

// age is how long ago the oldest message was stored.
func (q *backlog) age(now time.Time) time.Duration {
	q.skip()
	if q.head == len(q.messages) {
		return 0
	}
	return max(now.Sub(q.messages[q.head].At()), 0)
}

// held returns the session's backlog, made on first use.
func (s *session) held() *backlog {
	if s.backlog == nil {
		s.backlog = &backlog{}
		s.lane.push.counters.lagged.Add(1)
	}
	return s.backlog
}

// hold keeps b's messages for later. At the bound of a namespace's queue its
// policy decides; with "disconnect" that is the end and hold returns false.
func (s *session) hold(b *hub.Batch) bool {
	q := s.held()
	for _, m := range b.Messages {
		if b.Replay {
			q.replayed++
		} else {
			ns, err := s.lane.push.hub.Namespace(m.Channel)
			if err != nil {
				continue
			}
			if !s.makeRoom(q, ns, m) {
				return false
			}
			q.bytes += len(m.Data)
		}
		q.push(m)
		s.lane.push.countHeld(m, 1)
	}
	return true
}

// makeRoom applies the policy of ns so that m can be kept.
func (s *session) makeRoom(q *backlog, ns *hub.Namespace, m *hub.Message) bool {
	p := s.lane.push
	if ns.Policy == hub.Conflate {
		if old := q.conflate(m); old != nil {
			p.countHeld(old, -1)
			p.counters.conflated.Add(1)
		}
		if m.Key != "" {
			defer func() { q.newest[conflationKey{m.Channel, m.Key}] = len(q.messages) + q.moved }()
		}
	}
	for q.len()-q.replayed >= ns.QueueMessages || q.bytes+len(m.Data) > ns.QueueBytes {
		if ns.Policy == hub.Disconnect {
			return false
		}
		old := q.drop()
		if old == nil {
			return false
		}
		p.countHeld(old, -1)
		p.counters.dropped.Add(1)
	}
	return true
}

// countHeld counts one message that began (by 1) or ceased (by -1) to wait.
func (p *Push) countHeld(m *hub.Message, by int64) {
	p.counters.held.Add(by)
	p.counters.heldBytes.Add(by * int64(len(m.Data)))
}

// holdGap keeps g in its place among what is held. It returns false when
// nothing is, and g can go out at once.
func (s *session) holdGap(g hub.Gap) (kept, full bool) {
	q := s.backlog
	switch {
	case q == nil:
		return false, false
	case len(q.gaps) >= maxHeldGaps:
		return false, true
	}
	q.gaps = append(q.gaps, heldGap{before: len(q.messages), gap: g})
	return true, false
}

const releaseBytes = 64 << 10

// release sends what is held, many messages in one write, while the socket takes
// it and the subscriber's rate allows.
func (s *session) release() {
	for s.backlog != nil && !s.conn.Stalled() && !s.conn.Closing() {
		q := s.backlog
		out := s.gather(q)
		if q.empty() {
			s.backlog = nil
		}
		if len(out) == 0 {
			if s.backlog != nil {
				s.conn.SetTimer(s.rare.pace.wait()) // over its rate
			}
			return
		}
		s.conn.Send(out)
	}
}

// gather takes off q what leaves in one write.
func (s *session) gather(q *backlog) (out []byte) {
	p := s.lane.push
	for _, g := range q.dropped {
		out = s.appendGap(out, g)
		p.counters.gaps.Add(1)
	}
	q.dropped = nil
	for !q.empty() && len(out) < releaseBytes {
		q.skip()
		if len(q.gaps) > 0 && q.gaps[0].before <= q.head {
			out = s.appendGap(out, q.gaps[0].gap)
			q.gaps = q.gaps[1:]
			continue
		}
		if s.flags&paced != 0 && !s.rare.pace.take(s.lane.loop.Now()) {
			return out
		}
		m := q.pop()
		p.countHeld(m, -1)
		frame := p.hub.Encode(m, s.format)
		if out == nil && s.stands() == nil && (len(frame) >= releaseBytes || q.empty()) {
			return frame // alone: no copy
		}
		if s.stands() != nil {
			out = append(out, s.ownID(m)...)
		}
		out = append(out, frame...)
	}
	return out
}

// drop forgets what is held.
func (s *session) drop() {
	if q := s.backlog; q != nil {
		s.lane.push.counters.held.Add(-int64(q.len()))
		s.lane.push.counters.heldBytes.Add(-int64(q.all))
		s.backlog = nil
	}
}
