package h2

import (
	"bytes"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// beginData takes the head of a DATA frame, and the length of its padding (RFC 9113 §6.1).
func (h *conn) beginData(f header, b []byte) int {
	d, used, code, reason := dataHead(f, b)
	switch {
	case reason != "":
		h.fail(code, reason)
		return used
	case used == 0:
		return 0
	}
	s := h.find(f.stream)
	switch {
	case s == nil && h.idle(f.stream):
		h.fail(ProtocolError, "DATA for an idle stream")
		return used
	case int64(f.length) > int64(h.credit):
		h.fail(FlowControlError, "more DATA than the connection's window")
		return used
	}
	h.credit -= int32(f.length)
	switch {
	case s == nil:
		if stopped, _ := h.closed.find(f.stream); !stopped {
			h.resetStream(f.stream, StreamClosed)
		}
	case s.flags&theirEnd != 0:
		s.abort(StreamClosed)
		s = nil
	case int64(f.length) > int64(s.credit):
		s.abort(FlowControlError)
		s = nil
	case f.length == 0 && f.flags&flagEndStream == 0 && !h.tolerate(floodEmpty):
		return used
	default:
		s.credit -= int32(f.length)
	}
	h.data = data{stream: s, dataLeft: d}
	if f.flags&flagPadded != 0 {
		h.drop(1)
	}
	if d.none() {
		h.endData()
	}
	return used
}

// deliverData passes on what is there of a DATA frame.
func (h *conn) deliverData(b []byte) int {
	d := &h.data
	if len(b) == 0 {
		return 0
	}
	if d.left > 0 {
		n := min(int(d.left), len(b))
		d.left -= int32(n)
		if d.stream != nil {
			h.loopState.gather(d.stream, b[:n])
		} else {
			h.drop(int32(n))
		}
		if d.none() {
			h.endData()
		}
		return n
	}
	n := min(int(d.pad), len(b))
	d.pad -= int32(n)
	if h.drop(int32(n)); d.pad == 0 {
		h.endData()
	}
	return n
}

// endData is the end of a DATA frame.
func (h *conn) endData() {
	if h.data.ends {
		h.loopState.deliver()
	}
	s, ends := h.data.stream, h.data.ends
	h.data = data{}
	h.moved()
	if s != nil && ends {
		s.ended(nil)
	}
}

// gather puts p, a piece of the body of s, behind the last one in the input that both are
// in, so that what came in one read continues as one piece. Nothing that was not taken yet is
// written over: p moves towards the beginning.
func (l *loopState) gather(s *stream, p []byte) {
	if l.gathers != s {
		l.deliver()
		l.gathers, l.gathered = s, p
		return
	}
	l.gathered = append(l.gathered, p...)
}

// deliver gives what was gathered to its stream.
func (l *loopState) deliver() {
	s, b := l.gathers, l.gathered
	if s == nil {
		return
	}
	l.gathers, l.gathered = nil, nil
	s.body(b)
}

// drop returns credit for what is not consumed: padding, and what comes for a closed stream.
func (h *conn) drop(n int32) {
	if s := h.data.stream; s != nil && !s.gone {
		s.addCredit(n)
	}
	h.owe(n)
}

// owe gives n bytes of the connection's window back, in pieces that are worth a frame.
func (h *conn) owe(n int32) {
	h.owed += n
	if h.owed >= connWindow/4 && h.flags&failed == 0 && !h.sock.Closing() {
		h.control(appendWindowUpdate(nil, 0, uint32(h.owed)))
		h.credit += h.owed
		h.owed = 0
	}
}

// body gives a piece of the request's body to the handler, framed as it expects it.
func (s *stream) body(b []byte) {
	n := int32(len(b))
	if s.flags&measured != 0 {
		if s.left -= int64(n); s.left < 0 { // §8.1.1
			s.conn.owe(n)
			s.malformed()
			return
		}
	}
	if s.gone {
		s.more(n)
		return
	}
	s.unread += n
	if s.flags&stopped != 0 || s.buffered() != nil {
		s.buffer(b)
	} else {
		s.show(b)
	}
	s.consumed()
}

// show shows a piece of the body to the handler, and keeps what comes after the handler has
// stopped.
func (s *stream) show(b []byte) {
	for len(b) > 0 && !s.gone {
		if s.flags&stopped != 0 {
			s.buffer(b)
			return
		}
		piece := b[:min(len(b), showMost)]
		b = b[len(piece):]
		if s.flags&chunked != 0 {
			l := s.conn.loopState
			l.chunk = http1.AppendChunk(l.chunk[:0], piece)
			piece = l.chunk
		}
		s.Arrived(piece)
	}
}

// A bufferedBody is what came of a body while the handler takes none: at most a window.
type bufferedBody struct {
	b       []byte
	ends    bool // the request is complete
	trailer []byte
}

// buffered returns what is held of the body, or nil.
func (s *stream) buffered() *bufferedBody {
	if l := s.conn.loopState; len(l.held) > 0 {
		return l.held[s]
	}
	return nil
}

func (s *stream) buffer(b []byte) {
	held := s.buffered()
	if held == nil {
		held = &bufferedBody{}
		s.conn.loopState.held[s] = held
	}
	held.b = append(held.b, b...)
}

// resume shows what is held, if the handler takes input again.
func (s *stream) resume() {
	held := s.buffered()
	if held == nil || s.gone || s.flags&stopped != 0 {
		return
	}
	delete(s.conn.loopState.held, s)
	s.show(held.b)
	switch rest := s.buffered(); {
	case !held.ends || s.gone:
	case rest != nil:
		rest.ends, rest.trailer = true, held.trailer
	default:
		s.showEnd(held.trailer)
	}
}

// consumed gives credit for what the handler has taken of its input.
func (s *stream) consumed() {
	left := s.Unread()
	if held := s.buffered(); held != nil {
		left += len(held.b)
	}
	n := s.unread - min(int32(left), s.unread)
	if n == 0 || s.conn.find(s.id) != s {
		return
	}
	s.unread -= n
	s.addCredit(n)
	s.conn.owe(n)
}

// addCredit is owe for the stream's own window.
func (s *stream) addCredit(n int32) {
	s.owed += n
	half := int32(streamWindow / 2)
	if s.flags&wide != 0 {
		half = wideWindow / 2
	}
	if s.owed < half || s.flags&(theirEnd|ourEnd) != 0 {
		return
	}
	by := s.owed
	if s.flags&wide == 0 && s.unread == 0 && len(s.conn.streams) <= wideMost {
		s.flags |= wide
		by += wideWindow - streamWindow
	}
	s.conn.control(appendWindowUpdate(nil, s.id, uint32(by)))
	s.credit += by
	s.owed = 0
}

// ended reports that the request is complete. trailer are the fields behind its body, as
// lines; nil: none.
func (s *stream) ended(trailer []byte) {
	if s.flags&theirEnd != 0 {
		return
	}
	s.flags |= theirEnd
	switch {
	case s.flags&measured != 0 && s.left != 0:
		s.malformed()
	case s.gone:
		s.conn.unlinger(s, false)
	case s.buffered() != nil:
		held := s.buffered()
		held.ends, held.trailer = true, bytes.Clone(trailer)
	default:
		s.showEnd(trailer)
	}
}

// showEnd shows the end of a body to the handler.
func (s *stream) showEnd(trailer []byte) {
	switch {
	case s.flags&tunnel != 0:
		s.Ended()
	case s.flags&chunked != 0:
		l := s.conn.loopState
		l.chunk = http1.AppendLastChunk(l.chunk[:0], trailer)
		s.Arrived(l.chunk)
	}
}
