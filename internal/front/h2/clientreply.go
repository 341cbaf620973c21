package h2

import (
	"strconv"

	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// headers takes a HEADERS frame (RFC 9113 §6.2).
func (s *Session) headers(f header, p []byte) {
	if s.isIdle(f.stream) {
		s.fail(ProtocolError, "HEADERS for an idle stream")
		return
	}
	block, complete, code, reason := s.blocks.start(f, p)
	switch {
	case reason != "":
		s.fail(code, reason)
	case complete:
		s.replied(f.stream, block)
	}
}

// continuation takes the next piece of a header block (§6.10).
func (s *Session) continuation(f header, p []byte) {
	block, complete, code, reason := s.blocks.add(f, p, 2*s.caller.limits.MaxHead)
	switch {
	case reason != "":
		if code == EnhanceYourCalm {
			s.counters.floods[floodContinuation].Add(1)
		}
		s.fail(code, reason)
	case complete:
		s.replied(f.stream, block)
	}
}

// replied takes a whole header block: the head of a reply, or its trailers.
func (s *Session) replied(id uint32, block []byte) {
	r := &s.caller.reply
	r.reset(s.caller.limits)
	if !s.blocks.decode(block, s.caller.limits.MaxHead, r.emit) {
		s.fail(CompressionError, "a header block cannot be decoded")
		return
	}
	c := s.find(id)
	switch {
	case c == nil:
		s.tolerate(floodHeaders) // it was closed, and the backend did not know
	case c.gone: // it lingers
		if !s.blocks.ends() {
			c.cancel(ProtocolError)
			s.unlinger(c)
			return
		}
		c.ended(nil)
	case c.flags&replyEnded != 0:
		c.abort(StreamClosed)
	case r.bad != "":
		s.caller.log.Debug("malformed reply", "conn", s.sock.ID(), "peer", s.sock.Peer(), "stream", id, "err", r.bad)
		c.abort(ProtocolError)
	case r.over:
		c.abort(EnhanceYourCalm)
	case c.flags&gotHead == 0:
		c.deliverHead(r, s.blocks.ends())
	case !s.blocks.ends() || r.status != 0: // §8.1
		c.abort(ProtocolError)
	default:
		c.ended(r.rest)
	}
}

// replyFields are what a header block says, as far as is needed to make a head of it.
type replyFields struct {
	emit func(hpack.HeaderField) // r.add, made once

	status      int
	rest        []byte // the fields, as lines
	length      int64  // of the body; -1: not said
	regular     bool   // a field that is no pseudo-field was there
	room, count int    // what is left of the bounds
	over        bool
	bad         string // why it is malformed; empty: it is not
}

func (r *replyFields) reset(lim http1.Limits) {
	*r = replyFields{emit: r.emit, rest: r.rest[:0], length: -1, room: lim.MaxHead, count: lim.MaxFields}
	if r.count == 0 {
		r.count = 1 << 10
	}
	if r.emit == nil {
		r.emit = r.add
	}
}

// add takes one field (§8.2, §8.3.2).
func (r *replyFields) add(f hpack.HeaderField) {
	if r.bad != "" || r.over {
		return
	}
	if r.room -= len(f.Name) + len(f.Value) + 4; r.room < 0 || r.count <= 0 {
		r.over = true
		return
	}
	switch {
	case !http1.ValidValue(f.Value) || trimmedValue(f.Value):
		r.bad = "a field value of " + strconv.Quote(f.Name)
	case f.Name == ":status":
		n, err := strconv.Atoi(f.Value)
		if err != nil || len(f.Value) != 3 || n < 100 || n > 999 || r.status != 0 || r.regular {
			r.bad = "the status " + strconv.Quote(f.Value)
		}
		r.status = n
	case !validName(f.Name): // an unknown pseudo-field too
		r.bad = "a field name"
	default:
		r.regular = true
		r.count--
		r.field(f.Name, f.Value)
	}
}

func (r *replyFields) field(name, value string) {
	switch name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade": // §8.2.2
		r.bad = "a field for the connection: " + name
	case "content-length":
		n, err := strconv.ParseUint(value, 10, 62)
		if err != nil || r.length >= 0 && r.length != int64(n) {
			r.bad = "content-length"
		}
		r.length = int64(n)
	default:
		r.rest = http1.AppendField(r.rest, name, value)
	}
}

// deliverHead shows the head of a reply, as one of HTTP/1.1.
func (c *call) deliverHead(r *replyFields, ends bool) {
	l := c.session.caller
	if r.status < 100 || r.status == 101 || r.status < 200 && (ends || r.length >= 0) { // §8.6, §8.1
		c.abort(ProtocolError)
		return
	}
	b := http1.AppendStatusLine(l.head[:0], r.status)
	b = append(b, r.rest...)
	if r.status >= 200 {
		c.flags |= gotHead
		b = c.framed(b, r, ends)
		if c.gone {
			return
		}
		if c.session.budget != nil {
			c.session.budget.earn()
		}
	}
	l.head = append(b, "\r\n"...)
	c.Arrived(l.head)
}

// framed adds how the body of the reply is framed.
func (c *call) framed(b []byte, r *replyFields, ends bool) []byte {
	if ends {
		c.flags |= replyEnded
	}
	switch {
	case c.flags&isHead != 0, r.status == 304:
		if r.length >= 0 {
			b = http1.AppendIntField(b, "content-length", r.length)
		}
		c.flags |= replyLength
	case r.status == 204:
		c.flags |= replyLength
	case ends && r.length > 0: // §8.1.1
		c.abort(ProtocolError)
	case ends:
		c.flags |= replyLength
		b = http1.AppendIntField(b, "content-length", 0)
	default: // trailers may follow, whether its length was said or not
		if r.length >= 0 {
			c.left = r.length
			c.flags |= replyLength | knownLength
			c.length = r.length
		}
		c.flags |= replyChunks
		b = append(b, "transfer-encoding: chunked\r\n"...)
	}
	return b
}

// beginData takes the head of a DATA frame, and the length of its padding (§6.1).
func (s *Session) beginData(f header, b []byte) int {
	d, used, code, reason := dataHead(f, b)
	switch {
	case f.stream != 0 && s.isIdle(f.stream):
		s.fail(ProtocolError, "DATA for an idle stream")
		return frameHead
	case reason != "":
		s.fail(code, reason)
		return used
	case used == 0:
		return 0
	}
	if int64(f.length) > int64(s.credit) {
		s.fail(FlowControlError, "more DATA than the connection's window")
		return used
	}
	s.credit -= int32(f.length)
	s.owe(int32(f.length))
	c := s.charge(f, int32(f.length)-d.left)
	if s.flags&sOver != 0 {
		return used
	}
	s.data = replyData{call: c, dataLeft: d}
	if d.none() {
		s.endData()
	}
	return used
}

// charge takes a DATA frame from what its stream may send, and returns the call that gets
// it; nil: none. over is what of it is padding.
func (s *Session) charge(f header, over int32) *call {
	c := s.find(f.stream)
	switch {
	case c == nil:
		if s.stray -= int32(f.length); s.stray < 0 {
			s.fail(FlowControlError, "DATA for a closed stream")
			return nil
		}
		if f.length == 0 {
			s.tolerate(floodEmpty)
		}
		return nil
	case c.flags&replyEnded != 0:
		c.abort(StreamClosed)
		return nil
	case int64(f.length) > int64(c.credit):
		c.abort(FlowControlError)
		return nil
	case f.length == 0 && f.flags&flagEndStream == 0 && !s.tolerate(floodEmpty):
		return nil
	}
	c.credit -= int32(f.length)
	c.owed += over // no reader is left
	return c
}

// deliverData passes on what is there of a DATA frame.
func (s *Session) deliverData(b []byte) int {
	d := &s.data
	if len(b) == 0 {
		return 0
	}
	n := min(int(d.left), len(b))
	if n == 0 {
		n = min(int(d.pad), len(b))
		d.pad -= int32(n)
	} else {
		d.left -= int32(n)
		if c := d.call; c != nil {
			c.body(b[:n], d.none() && d.ends)
		}
	}
	if d.none() && s.flags&sOver == 0 {
		s.endData()
	}
	return n
}

// endData is the end of a DATA frame.
func (s *Session) endData() {
	c, ends := s.data.call, s.data.ends
	s.data = replyData{}
	s.moved()
	if c != nil && ends {
		c.ended(nil)
	}
}

// owe gives n bytes of the connection's window back, in pieces that are worth a frame.
func (s *Session) owe(n int32) {
	if s.owed += n; s.owed >= sessionWindow/4 && s.flags&sOver == 0 && !s.sock.Closing() {
		s.control(appendWindowUpdate(nil, 0, uint32(s.owed)))
		s.credit += s.owed
		s.owed = 0
	}
}
