package push

import (
	"github.com/weir-gateway/weir/hub"
)

// backlog is what waits for one slow subscriber: references to shared messages,
// bounded by its namespace in number and in bytes.
type backlog struct {
	messages []*hub.Message
	head     int
	bytes    int
	since    int64 // when the oldest began to wait, on the loop's clock
}

func (b *backlog) len() int { return len(b.messages) - b.head }

// hold keeps b's messages for later. At the bound of the namespace's queue its
// policy decides; with "disconnect" that is the end and hold returns false.
func (s *session) hold(b *hub.Batch) bool {
	p := s.lane.push
	q := s.backlog
	if q == nil {
		q = &backlog{since: s.lane.loop.Now()}
		s.backlog = q
		p.counters.lagged.Add(1)
	}
	for _, m := range b.Messages {
		ns, err := p.hub.Namespace(m.Channel)
		if err != nil {
			continue
		}
		if q.len() >= ns.QueueMessages || q.bytes+len(m.Data) > ns.QueueBytes {
			return false // hub.Disconnect; other policies make room here
		}
		q.messages = append(q.messages, m)
		q.bytes += len(m.Data)
		p.counters.held.Add(1)
		p.counters.heldBytes.Add(int64(len(m.Data)))
	}
	return true
}

const releaseBytes = 64 << 10

// release sends held messages, many in one write, while the socket takes them.
func (s *session) release() {
	p := s.lane.push
	for s.backlog != nil && !s.conn.Stalled() && !s.conn.Closing() {
		q := s.backlog
		var out []byte
		for q.len() > 0 && len(out) < releaseBytes {
			m := q.messages[q.head]
			q.messages[q.head] = nil
			q.head++
			q.bytes -= len(m.Data)
			p.counters.held.Add(-1)
			p.counters.heldBytes.Add(-int64(len(m.Data)))
			if s.stands != nil {
				out = append(out, s.ownID(m)...)
			}
			out = append(out, p.hub.Encode(m, s.format)...)
		}
		if q.len() == 0 {
			s.backlog = nil
		} else {
			q.since = s.lane.loop.Now()
		}
		s.conn.Send(out)
	}
}

// drop forgets what is held.
func (s *session) drop() {
	if q := s.backlog; q != nil {
		s.lane.push.counters.held.Add(-int64(q.len()))
		s.lane.push.counters.heldBytes.Add(-int64(q.bytes))
		s.backlog = nil
	}
}
