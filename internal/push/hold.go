package push

import (
	"github.com/weir-gateway/weir/internal/push/backlog"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// ensureBacklog returns the session's backlog, made on first use.
func (s *session) ensureBacklog() *backlog.Queue {
	if s.backlog == nil {
		s.backlog = &backlog.Queue{}
		s.loopState.push.counters.lagged.Add(1)
	}
	return s.backlog
}

// enqueue keeps b's messages for later. It returns false when a namespace's policy
// ends the subscriber.
func (s *session) enqueue(b *hub.Batch) bool {
	q, p := s.ensureBacklog(), s.loopState.push
	for _, m := range b.Messages {
		if b.Replay {
			q.PushReplay(m, &p.waiting)
			continue
		}
		if ns, err := p.hub.Namespace(m.Channel); err == nil && !q.Push(m, ns, &p.waiting) {
			return false
		}
	}
	return true
}

// enqueueGap keeps g in its place among what is held. It returns false when
// nothing is, and g can go out at once.
func (s *session) enqueueGap(g hub.Gap) (kept, full bool) {
	if s.backlog == nil {
		return false, false
	}
	kept = s.backlog.PushGap(g)
	return kept, !kept
}

const releaseBytes = 64 << 10

// release sends what is held, many messages in one write, while the socket takes
// it and the subscriber's rate allows.
func (s *session) release() {
	for s.backlog != nil && !s.conn.Stalled() && !s.conn.Closing() {
		q := s.backlog
		out := s.gather(q)
		if q.Empty() {
			s.backlog = nil
		}
		if len(out) == 0 {
			if s.backlog != nil {
				s.conn.SetTimer(s.extras.pace.wait()) // over its rate
			}
			return
		}
		s.conn.Send(out)
	}
}

// gather takes off q what leaves in one write.
func (s *session) gather(q *backlog.Queue) (out []byte) {
	p := s.loopState.push
	for _, g := range q.PopDropped(&p.waiting) {
		out = s.appendGap(out, g)
	}
	for !q.Empty() && len(out) < releaseBytes {
		if g, ok := q.PopGap(); ok {
			out = s.appendGap(out, g)
			continue
		}
		if s.flags&paced != 0 && !s.extras.pace.allow(s.loopState.loop.Now()) {
			return out
		}
		m := q.Pop(&p.waiting)
		frame := p.hub.Encode(m, s.format)
		if out == nil && s.position() == nil && (len(frame) >= releaseBytes || q.Empty()) {
			return frame // alone: no copy
		}
		if s.position() != nil {
			out = append(out, s.advanceID(m)...)
		}
		out = append(out, frame...)
	}
	return out
}

// drop forgets what is held.
func (s *session) drop() {
	if s.backlog != nil {
		s.backlog.Forget(&s.loopState.push.waiting)
		s.backlog = nil
	}
}
