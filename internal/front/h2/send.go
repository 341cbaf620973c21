package h2

// Send implements eventloop.Carrier: the head of the answer is translated, what follows is
// its body.
func (s *stream) Send(b []byte) (taken int) {
	h := s.conn
	if s.flags&ourEnd != 0 || h.flags&failed != 0 || h.sock.Closing() {
		return len(b) // it will not be sent
	}
	for s.flags&headSent == 0 && len(b) > 0 {
		if !h.room() {
			h.wait(&s.flow)
			return taken
		}
		n := s.sendHead(b)
		taken += n
		b = b[n:]
		if s.flags&ourEnd != 0 {
			return taken + len(b)
		}
	}
	if len(h.streams) == 1 && len(h.out) == 0 && s.sendAlone(b) {
		return taken + len(b)
	}
	return taken + h.writer.data(&s.flow, b)
}

// sendAlone sends b at once where there is no other stream to wait for, as on a connection
// of HTTP/1.1. It returns false, and has done nothing, if b is more than one frame may be
// now.
func (s *stream) sendAlone(b []byte) bool {
	h := s.conn
	n := int32(len(b))
	if len(b) > sendMost || n == 0 || n > s.window || n > h.window || n > h.maxFrame || h.sock.Unsent() > 0 {
		return false
	}
	s.window -= n
	h.window -= n
	h.moved()
	l := h.loopState
	l.chunk = append(appendHeader(l.chunk[:0], int(n), frameData, 0, s.id), b...)
	h.sock.SendCopy(l.chunk)
	return true
}

// sendEnd ends the stream, by trailers if there are any.
func (s *stream) sendEnd() {
	h, l := s.conn, s.conn.loopState
	s.flags |= ourEnd
	if !l.answers.HasTrailer(s) {
		h.end(&s.flow)
		return
	}
	l.block.begin(&h.writer)
	l.answers.Trailer(s, l.block.write)
	h.block(&s.flow, l.block.b.Bytes(), true)
}

// sendHead sends the head that b starts with, or keeps it until it is complete. It returns
// how much of b that used.
func (s *stream) sendHead(b []byte) int {
	h, l := s.conn, s.conn.loopState
	res, used, err := l.answers.Head(s, b)
	if res == nil && err == nil {
		return used
	}
	status := 0
	if err == nil {
		status, err = l.answers.Status(res, s.flags&tunnel != 0)
	}
	if err != nil {
		l.srv.log.Error("invalid head of an answer", "conn", s.Conn.ID(), "err", err)
		s.reset(InternalError)
		return used
	}
	l.block.begin(&h.writer)
	l.answers.Fields(status, res, l.block.write)
	h.block(&s.flow, l.block.b.Bytes(), false)
	if status < 200 {
		h.lastOpen = false // what follows is not the end of it
		return used
	}
	s.flags |= headSent
	if h.budget != nil {
		h.budget.earn()
	}
	return used
}
