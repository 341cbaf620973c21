package push

import (
	"time"

	"github.com/weir-gateway/weir/hub"
)

// backlog is what waits for one slow subscriber: references to shared messages,
// bounded by their namespaces in number and in bytes, and the gaps among them.
type backlog struct {
	messages []*hub.Message
	head     int
	// replayed of the first messages come from history. The hub hands over one
	// page of it at a time and then waits, so they do not count against the bound.
	replayed int
	bytes    int // payload of the others
	all      int // payload of all
	gaps     []heldGap
}

// heldGap is a gap to be told before messages[before].
type heldGap struct {
	before int
	gap    hub.Gap
}

// maxHeldGaps bounds the gaps of a backlog: each is a log that began anew.
const maxHeldGaps = 16

func (q *backlog) len() int { return len(q.messages) - q.head }

func (q *backlog) empty() bool { return q.len() == 0 && len(q.gaps) == 0 }

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
		q.head = 0
	}
	q.messages = append(q.messages, m)
	q.all += len(m.Data)
}

// pop takes the oldest message off.
func (q *backlog) pop() *hub.Message {
	m := q.messages[q.head]
	q.messages[q.head] = nil
	q.head++
	q.all -= len(m.Data)
	if q.replayed > 0 {
		q.replayed--
	} else {
		q.bytes -= len(m.Data)
	}
	return m
}

// age is how long ago the oldest message was stored.
func (q *backlog) age(now time.Time) time.Duration {
	if q.len() == 0 {
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

// hold keeps b's messages for later. At the bound of the namespace's queue its
// policy decides; with "disconnect" that is the end and hold returns false.
func (s *session) hold(b *hub.Batch) bool {
	p := s.lane.push
	q := s.held()
	for _, m := range b.Messages {
		if b.Replay {
			q.replayed++
		} else {
			ns, err := p.hub.Namespace(m.Channel)
			if err != nil {
				continue
			}
			if q.len()-q.replayed >= ns.QueueMessages || q.bytes+len(m.Data) > ns.QueueBytes {
				return false // hub.Disconnect; other policies make room here
			}
			q.bytes += len(m.Data)
		}
		q.push(m)
		p.counters.held.Add(1)
		p.counters.heldBytes.Add(int64(len(m.Data)))
	}
	return true
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

// release sends what is held, many messages in one write, while the socket takes it.
func (s *session) release() {
	p := s.lane.push
	for s.backlog != nil && !s.conn.Stalled() && !s.conn.Closing() {
		q := s.backlog
		var out []byte
		for !q.empty() && len(out) < releaseBytes {
			if len(q.gaps) > 0 && q.gaps[0].before <= q.head {
				out = s.appendGap(out, q.gaps[0].gap)
				q.gaps = q.gaps[1:]
				continue
			}
			m := q.pop()
			p.counters.held.Add(-1)
			p.counters.heldBytes.Add(-int64(len(m.Data)))
			frame := p.hub.Encode(m, s.format)
			if out == nil && s.stands == nil && (len(frame) >= releaseBytes || q.empty()) {
				out = frame // alone: no copy
				break
			}
			if s.stands != nil {
				out = append(out, s.ownID(m)...)
			}
			out = append(out, frame...)
		}
		if q.empty() {
			s.backlog = nil
		}
		s.conn.Send(out)
	}
}

// drop forgets what is held.
func (s *session) drop() {
	if q := s.backlog; q != nil {
		s.lane.push.counters.held.Add(-int64(q.len()))
		s.lane.push.counters.heldBytes.Add(-int64(q.all))
		s.backlog = nil
	}
}
