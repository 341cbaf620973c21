package h2

import (
	"bytes"
	"slices"
	"unsafe"

	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// sendMost is how many bytes of a connection's frames are gathered before they are sent.
const sendMost = 64 << 10

// Send implements eventloop.Carrier: the head of the answer is translated, what follows is
// its body.
func (s *stream) Send(b []byte) (taken int) {
	h := s.conn
	if s.flags&ourEnd != 0 || h.flags&failed != 0 || h.sock.Closing() {
		return len(b) // nobody will get it
	}
	for s.flags&headSent == 0 && len(b) > 0 {
		if !h.room() {
			h.wait(s)
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
	for len(b) > 0 {
		if s.window <= 0 {
			return taken // until the client widens it
		}
		if h.window <= 0 || !h.room() {
			h.wait(s)
			return taken
		}
		n := min(len(b), int(s.window), int(h.window), int(h.maxFrame))
		s.window -= int32(n)
		h.window -= int32(n)
		h.frameOf(s)
		h.out = append(appendHeader(h.out, n, frameData, 0, s.id), b[:n]...)
		h.moved()
		taken += n
		b = b[n:]
	}
	return taken
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
	l := h.lane
	l.chunk = append(appendHeader(l.chunk[:0], int(n), frameData, 0, s.id), b...)
	h.sock.SendCopy(l.chunk)
	return true
}

// frameOf notes that a frame of s comes next.
func (h *conn) frameOf(s *stream) {
	h.buffer()
	h.lastAt, h.lastOf = int32(len(h.out)), s.id
	h.flags |= lastOpen
}

// sendEnd ends the stream: by the last frame, if that is still here and its own, or by
// trailers.
func (s *stream) sendEnd() {
	h := s.conn
	s.flags |= ourEnd
	if lines := h.lane.trailer[s]; lines != nil {
		h.buffer()
		h.out = appendBlock(h.out, h.lane.trailerBlock(h, lines), s.id, true, int(h.maxFrame))
		h.flags &^= lastOpen
		return
	}
	if h.flags&lastOpen != 0 && h.lastOf == s.id {
		h.out[h.lastAt+4] |= flagEndStream
		return
	}
	h.buffer()
	h.out = appendHeader(h.out, 0, frameData, flagEndStream, s.id)
}

// sendHead sends the head that b begins with, or keeps it until it is whole. It returns how
// much of b that used.
func (s *stream) sendHead(b []byte) int {
	l := s.conn.lane
	used := len(b)
	whole := b
	if kept := l.partial[s]; kept != nil {
		whole = append(kept, b...)
	}
	n, err := http1.ParseResponse(&l.res, whole, answerLimits, "GET")
	switch {
	case err != nil:
		l.srv.log.Error("an answer's head is none", "conn", s.Conn.ID(), "err", err)
		s.reset(InternalError)
		return used
	case n == 0:
		l.partial[s] = append([]byte(nil), whole...)
		return used
	}
	delete(l.partial, s)
	used = n - (len(whole) - len(b))
	s.answer(&l.res)
	return used
}

// answerLimits bound what we ourselves say.
var answerLimits = http1.Limits{MaxLine: 64 << 10, MaxHead: 1 << 20, MaxFields: 1 << 12}

// answer sends a head.
func (s *stream) answer(res *http1.Response) {
	h, l := s.conn, s.conn.lane
	status := res.Status
	switch {
	case status == 101 && s.flags&tunnel == 0:
		s.reset(InternalError)
		return
	case status == 101:
		status = 200 // RFC 8441 §5
	case s.flags&tunnel != 0 && status/100 == 2: // there it would say that the tunnel stands
		status = 502
	}
	if status >= 200 {
		s.flags |= headSent
	}
	if res.Body == http1.BodyChunked { // nobody frames what goes out here
		l.srv.log.Error("an answer over HTTP/2 is chunked", "conn", s.Conn.ID())
		s.reset(InternalError)
		return
	}
	l.begin(h)
	l.status(status)
	for i := range res.Fields {
		f := &res.Fields[i]
		l.field(f.Name, f.Value)
	}
	h.frameOf(s)
	block := l.block.Bytes()
	if len(block) > int(h.maxFrame) {
		h.flags &^= lastOpen
	}
	h.out = appendBlock(h.out, block, s.id, false, int(h.maxFrame))
	if status < 200 {
		h.flags &^= lastOpen // what follows is not the end of it
	} else {
		h.answered()
	}
}

// begin begins a header block for h.
func (l *lane) begin(h *conn) {
	l.block.Reset()
	if h.flags&noTable != 0 {
		h.flags &^= noTable
		l.block.WriteByte(0x20) // RFC 7541 §6.3: the table's size is 0
	}
}

func (l *lane) status(status int) {
	var digits [3]byte
	digits[0], digits[1], digits[2] = byte('0'+status/100), byte('0'+status/10%10), byte('0'+status%10)
	l.write(":status", digits[:])
}

// field adds a field of an answer, unless it is about a connection of HTTP/1.1 (§8.2.2).
func (l *lane) field(name, value []byte) {
	var sent bool
	if l.name, sent = AppendFieldName(l.name[:0], name); !sent {
		return
	}
	l.write(unsafe.String(unsafe.SliceData(l.name), len(l.name)), value)
}

// write encodes a field. The encoder has no table, so it keeps neither of the strings.
func (l *lane) write(name string, value []byte) {
	f := hpack.HeaderField{Name: name, Value: unsafe.String(unsafe.SliceData(value), len(value))}
	_ = l.encoder.WriteField(f) // a buffer takes all
}

// trailerBlock is a header block of lines.
func (l *lane) trailerBlock(h *conn, lines []byte) []byte {
	l.begin(h)
	for line := range bytes.Lines(lines) {
		name, value, ok := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
		if ok && http1.ValidName(name) {
			l.field(name, bytes.TrimSpace(value))
		}
	}
	return l.block.Bytes()
}

// buffer makes room for the frames of a tick.
func (h *conn) buffer() {
	if h.out == nil {
		h.out = h.lane.lend()
	}
	h.flushLater()
}

// control sends frames that no window holds back.
func (h *conn) control(b []byte) {
	h.buffer()
	h.out = append(h.out, b...)
	h.flags &^= lastOpen
	if len(h.out) >= sendMost {
		h.flushNow()
	}
}

func (h *conn) flushLater() {
	if h.flags&flushes == 0 {
		h.flags |= flushes
		h.sock.Loop().FlushLater(h)
	}
}

// room reports whether the socket takes more, as far as is known.
func (h *conn) room() bool {
	if h.sock.Stalled() || h.sock.Unsent() >= sendMost {
		return false
	}
	if len(h.out) >= sendMost {
		h.flushNow()
		return !h.sock.Stalled() && !h.sock.Closing()
	}
	return true
}

// flushNow sends what was gathered.
func (h *conn) flushNow() {
	if len(h.out) == 0 {
		return
	}
	b := h.out
	h.flags &^= lastOpen
	h.out = b[:0]
	h.sock.SendCopy(b)
}

// Flush implements eventloop.Flusher: it is the end of a tick.
func (h *conn) Flush() {
	h.flags &^= flushes
	settle := h.settle
	h.settle = nil
	for _, s := range settle {
		s.flags &^= settles
		s.resume()
		s.taken()
	}
	h.flushNow()
	if h.out != nil && len(h.out) == 0 {
		h.lane.giveBack(h.out)
		h.out = nil
	}
}

// wait notes that s waits for the connection.
func (h *conn) wait(s *stream) {
	if s.flags&waits == 0 {
		s.flags |= waits
		h.blocked = append(h.blocked, s)
	}
}

// unblock lets the streams that wait for the connection go on, the most urgent ones first.
func (h *conn) unblock() {
	if len(h.blocked) == 0 || h.window <= 0 || !h.room() {
		return
	}
	list := h.blocked
	h.blocked = nil
	slices.SortStableFunc(list, func(a, b *stream) int { return int(a.urgency) - int(b.urgency) })
	for _, s := range list {
		s.flags &^= waits
		if s.flags&gone == 0 {
			s.Writable()
		}
	}
}

// wake lets every stream go on whose window was widened.
func (h *conn) wake() {
	for _, s := range slices.Clone(h.streams) {
		if s.flags&gone == 0 {
			s.Writable()
		}
	}
}
