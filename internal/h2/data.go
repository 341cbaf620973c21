package h2

import "github.com/weir-gateway/weir/internal/http1"

// beginData takes the head of a DATA frame, and the length of its padding (RFC 9113 §6.1).
func (h *conn) beginData(f header, b []byte) int {
	used, pad, length := frameHead, 0, f.length
	if f.stream == 0 {
		h.fail(ProtocolError, "DATA for no stream")
		return used
	}
	if f.flags&flagPadded != 0 {
		if length == 0 {
			h.fail(FrameSizeError, "DATA has no room for its padding")
			return used
		}
		if len(b) == used {
			return 0
		}
		if pad = int(b[used]); pad >= length {
			h.fail(ProtocolError, "padding is longer than its frame")
			return used
		}
		used++
		length -= 1 + pad
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
	h.data = data{stream: s, left: int32(length), pad: int32(pad), ends: f.flags&flagEndStream != 0}
	if over := int32(f.length - length - pad); over > 0 {
		h.drop(over)
	}
	if length == 0 && pad == 0 {
		h.endData()
	}
	return used
}

// takeData passes on what is there of a DATA frame.
func (h *conn) takeData(b []byte) int {
	d := &h.data
	if len(b) == 0 {
		return 0
	}
	if d.left > 0 {
		n := min(int(d.left), len(b))
		d.left -= int32(n)
		if d.stream != nil {
			h.lane.gather(d.stream, b[:n])
		} else {
			h.drop(int32(n))
		}
		if d.left == 0 && d.pad == 0 {
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
		h.lane.deliver()
	}
	s, ends := h.data.stream, h.data.ends
	h.data = data{}
	h.moved()
	if s != nil && ends {
		s.ended(nil)
	}
}

// gather puts p, a piece of the body of s, behind the last one in the input that both are
// in, so that what came in one read goes on as one piece. Nothing that was not taken yet is
// written over: p moves towards the beginning.
func (l *lane) gather(s *stream, p []byte) {
	if l.gathers != s {
		l.deliver()
		l.gathers, l.gathered = s, p
		return
	}
	l.gathered = append(l.gathered, p...)
}

// deliver gives what was gathered to its stream.
func (l *lane) deliver() {
	s, b := l.gathers, l.gathered
	if s == nil {
		return
	}
	l.gathers, l.gathered = nil, nil
	s.body(b)
}

// drop gives back credit for what nobody takes: padding, and what comes for a closed stream.
func (h *conn) drop(n int32) {
	if s := h.data.stream; s != nil && s.flags&gone == 0 {
		s.give(n)
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
	if s.flags&gone != 0 {
		s.more(n)
		return
	}
	s.unread += n
	if s.flags&chunked != 0 {
		l := s.conn.lane
		l.chunk = http1.AppendChunk(l.chunk[:0], b)
		b = l.chunk
	}
	s.Arrived(b)
	s.taken()
}

// taken gives credit for what the handler has taken of its input.
func (s *stream) taken() {
	n := s.unread - min(int32(s.Unread()), s.unread)
	if n == 0 || s.conn.find(s.id) != s {
		return
	}
	s.unread -= n
	s.give(n)
	s.conn.owe(n)
}

// give is owe for the stream's own window.
func (s *stream) give(n int32) {
	s.owed += n
	if s.owed >= streamWindow/2 && s.flags&(theirEnd|ourEnd) == 0 {
		s.conn.control(appendWindowUpdate(nil, s.id, uint32(s.owed)))
		s.credit += s.owed
		s.owed = 0
	}
}

// ended says that the request is complete. trailer are the fields behind its body, as
// lines; nil: none.
func (s *stream) ended(trailer []byte) {
	if s.flags&theirEnd != 0 {
		return
	}
	s.flags |= theirEnd
	switch {
	case s.flags&measured != 0 && s.left != 0:
		s.malformed()
	case s.flags&gone != 0:
		s.conn.unlinger(s, false)
	case s.flags&tunnel != 0:
		s.Ended()
	case s.flags&chunked != 0:
		l := s.conn.lane
		b := append(l.chunk[:0], "0\r\n"...)
		b = append(b, trailer...)
		l.chunk = append(b, "\r\n"...)
		s.Arrived(l.chunk)
	}
}
