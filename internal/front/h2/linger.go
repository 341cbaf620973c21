package h2

import "slices"

// A stream may be answered before its request is complete. The client is not reset then: it
// reads why, ends its request in order, and its errors meanwhile are reported to it, all
// within bounds. Past those it gets NO_ERROR (RFC 9113 §8.1).

const (
	// lingerMost is how many such streams a connection has.
	lingerMost = 16
	// lingerBytes is how much more of a request may come.
	lingerBytes = 1 << 20
)

// lingering returns the stream of that number if it was answered already, or nil.
func (h *conn) lingering(id uint32) *stream {
	for _, s := range h.linger {
		if s.id == id {
			return s
		}
	}
	return nil
}

// await keeps s, which was answered, until its request is complete.
func (h *conn) await(s *stream) {
	if len(h.linger) == lingerMost {
		h.stop(h.linger[0])
	}
	if held := streamWindow - s.credit; held > 0 { // what was throttled may come now
		h.control(appendWindowUpdate(nil, s.id, uint32(held)))
	}
	s.credit, s.owed, s.unread = max(s.credit, streamWindow), 0, 0
	h.linger = append(h.linger, s)
}

// stop notifies the client that the rest of a request is not needed.
func (h *conn) stop(s *stream) {
	h.control(appendReset(nil, s.id, NoError))
	h.unlinger(s, true)
}

// unlinger forgets s if it was kept. reset: the client was reset.
func (h *conn) unlinger(s *stream, reset bool) {
	i := slices.Index(h.linger, s)
	if i < 0 {
		return
	}
	if h.linger = slices.Delete(h.linger, i, i+1); len(h.linger) == 0 {
		h.linger = nil
	}
	if h.data.stream == s {
		h.data.stream = nil
	}
	if reset {
		h.closed.add(s.id, true)
	}
}

// more takes a piece of the body of a request that was answered. Its client may be one
// that reads the answer only when all of its body has left.
func (s *stream) more(n int32) {
	h := s.conn
	h.owe(n)
	if s.owed += n; s.owed > lingerBytes {
		h.stop(s)
		return
	}
	if s.unread += n; s.unread >= streamWindow/2 {
		h.control(appendWindowUpdate(nil, s.id, uint32(s.unread)))
		s.credit += s.unread
		s.unread = 0
	}
}
