package h2

import (
	"bytes"
	"slices"
	"unsafe"

	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// requestLimits bound what we ourselves say.
var requestLimits = http1.Limits{MaxLine: 64 << 10, MaxHead: 1 << 20, MaxFields: 1 << 12}

// Send implements eventloop.Carrier: the head of the request is translated, what follows is
// its body, framed as the head says.
func (c *call) Send(b []byte) (taken int) {
	s := c.session
	if c.flags&requestEnded != 0 || s.flags&sOver != 0 || s.sock.Closing() {
		return len(b) // nobody will get it
	}
	if !s.Ready() || !s.room() {
		s.wait(c)
		return 0
	}
	if c.id == 0 {
		taken = c.sendRequest(b)
		b = b[taken:]
	}
	for len(b) > 0 && c.flags&requestEnded == 0 {
		n, more := c.sendBody(b)
		taken += n
		b = b[n:]
		if !more {
			break
		}
	}
	if c.flags&requestEnded != 0 {
		return taken + len(b)
	}
	return taken
}

// sendRequest sends the head that b begins with, or keeps it until it is whole. It returns
// how much of b that used.
func (c *call) sendRequest(b []byte) int {
	s, l := c.session, c.session.caller
	whole := b
	if len(c.held) > 0 {
		whole = append(c.held, b...)
	}
	n, err := http1.ParseRequest(&l.req, whole, requestLimits)
	switch {
	case err != nil:
		l.log.Error("a request's head is none", "conn", c.Conn.ID(), "err", err)
		c.flags |= requestEnded
		c.Conn.Close(&PeerError{Code: InternalError, Malformed: true})
		return len(b)
	case n == 0:
		c.held = append([]byte(nil), whole...)
		return len(b)
	}
	used := n - (len(whole) - len(b))
	c.request(&l.req)
	c.held = nil
	s.number(c)
	return used
}

// number moves c, whose head was sent, to the list of those with a number.
func (s *Session) number(c *call) {
	if i := slices.Index(s.fresh, c); i >= 0 {
		s.fresh = slices.Delete(s.fresh, i, i+1)
	}
	s.calls = append(s.calls, c)
}

// request sends a head.
func (c *call) request(req *http1.Request) {
	s, l := c.session, c.session.caller
	s.counters.calls.Add(1)
	c.id, c.window = s.next, s.callWindow
	s.next += 2
	s.beginBlock()
	scheme := "http"
	if s.sock.Filtered() {
		scheme = "https"
	}
	l.write(":method", req.Method)
	l.write(":scheme", []byte(scheme))
	l.write(":authority", req.Host)
	l.write(":path", req.Target)
	for i := range req.Fields {
		l.requestField(&req.Fields[i])
	}
	switch {
	case req.Chunked:
		c.flags |= sendsChunks
	case req.ContentLength > 0:
		c.toSend = req.ContentLength
	default:
		c.flags |= requestEnded
	}
	if string(req.Method) == "HEAD" {
		c.flags |= asksHead
	}
	s.frameOf(c)
	if l.block.Len() > int(s.maxFrame) {
		s.flags &^= sLastOpen
	}
	s.out = appendBlock(s.out, l.block.Bytes(), c.id, c.flags&requestEnded != 0, int(s.maxFrame))
}

// beginBlock begins a header block for s.
func (s *Session) beginBlock() {
	b := &s.caller.block
	b.Reset()
	if s.flags&sNoTable != 0 {
		s.flags &^= sNoTable
		b.WriteByte(0x20) // RFC 7541 §6.3: the table's size is 0
	}
}

// trailerBlock is a header block of lines.
func (s *Session) trailerBlock(lines []byte) []byte {
	s.beginBlock()
	for line := range bytes.Lines(lines) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok {
			s.caller.requestField(&http1.Field{Name: name, Value: bytes.TrimSpace(value)})
		}
	}
	return s.caller.block.Bytes()
}

// requestField adds a field, unless it is about a connection of HTTP/1.1 (§8.2.2).
func (l *Caller) requestField(f *http1.Field) {
	l.name = l.name[:0]
	for _, c := range f.Name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		l.name = append(l.name, c)
	}
	switch string(l.name) {
	case "host", "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "http2-settings":
		return
	case "te":
		if !http1.HasToken(f.Value, "trailers") {
			return
		}
		l.write("te", []byte("trailers"))
		return
	}
	l.write(unsafe.String(unsafe.SliceData(l.name), len(l.name)), f.Value)
}

// write encodes a field. The encoder has no table, so it keeps neither of the strings.
func (l *Caller) write(name string, value []byte) {
	f := hpack.HeaderField{Name: name, Value: unsafe.String(unsafe.SliceData(value), len(value)), Sensitive: name == "authorization"}
	_ = l.encoder.WriteField(f) // a buffer takes all
}

// sendBody sends what may leave of the beginning of b, which is of the body. It returns how
// much it used, and whether there may be more to do.
func (c *call) sendBody(b []byte) (used int, more bool) {
	s := c.session
	if c.flags&sendsChunks == 0 {
		n := min(len(b), int(min(c.toSend, 1<<30)))
		n = c.sendData(b[:n])
		if c.toSend -= int64(n); c.toSend == 0 {
			c.sendEnd(nil)
		}
		return n, n > 0
	}
	l := s.caller
	l.trailer = append(l.trailer[:0], l.cut[c]...)
	chunks := c.chunks // to be tried: only so much is decoded as may leave
	data, n, done, err := chunks.DecodeTrailer(b, &l.trailer)
	switch {
	case err != nil:
		s.caller.log.Error("a request's chunks are none", "conn", c.Conn.ID(), "err", err)
		c.abort(InternalError)
		return len(b), false
	case len(data) > 0:
		sent := c.sendData(data)
		if sent < len(data) {
			chunks = c.chunks
			_, n, _, _ = chunks.Decode(b[:n-len(data)+sent])
		}
		c.chunks = chunks
		return n, sent > 0
	}
	c.chunks = chunks
	switch {
	case done:
		delete(l.cut, c)
		c.sendEnd(bytes.TrimSuffix(l.trailer, crlf))
	case len(l.trailer) > 0:
		l.cut[c] = bytes.Clone(l.trailer)
	}
	return n, n > 0
}

var crlf = []byte("\r\n")

// sendData sends as much of b as the windows and the socket take.
func (c *call) sendData(b []byte) (sent int) {
	s := c.session
	for len(b) > 0 {
		if c.window <= 0 {
			return sent // until the backend widens it
		}
		if s.window <= 0 || !s.room() {
			s.wait(c)
			return sent
		}
		n := min(len(b), int(c.window), int(s.window), int(s.maxFrame))
		c.window -= int32(n)
		s.window -= int32(n)
		s.frameOf(c)
		s.out = append(appendHeader(s.out, n, frameData, 0, c.id), b[:n]...)
		s.moved()
		sent += n
		b = b[n:]
	}
	return sent
}

// sendEnd ends the request: by trailer, lines as HTTP/1.1 has them, or by its last frame, if
// that is still here.
func (c *call) sendEnd(trailer []byte) {
	s := c.session
	c.flags |= requestEnded
	if len(trailer) > 0 {
		s.buffer()
		s.out = appendBlock(s.out, s.trailerBlock(trailer), c.id, true, int(s.maxFrame))
		s.flags &^= sLastOpen
		return
	}
	if s.flags&sLastOpen != 0 && s.lastOf == c.id {
		s.out[s.lastAt+4] |= flagEndStream
		return
	}
	s.buffer()
	s.out = appendHeader(s.out, 0, frameData, flagEndStream, c.id)
	s.flags &^= sLastOpen
}

// frameOf notes that a frame of c comes next.
func (s *Session) frameOf(c *call) {
	s.buffer()
	s.lastAt, s.lastOf = int32(len(s.out)), c.id
	s.flags |= sLastOpen
}

// buffer makes room for the frames of a tick.
func (s *Session) buffer() {
	if s.out == nil {
		s.out = s.caller.lend()
	}
	s.flushLater()
}

// control sends frames that no window holds back.
func (s *Session) control(b []byte) {
	s.buffer()
	s.out = append(s.out, b...)
	s.flags &^= sLastOpen
	if len(s.out) >= sendMost {
		s.flushNow()
	}
}

func (s *Session) flushLater() {
	if s.flags&sFlushes == 0 {
		s.flags |= sFlushes
		s.sock.Loop().FlushLater(s)
	}
}

// room reports whether the socket takes more, as far as is known.
func (s *Session) room() bool {
	if s.sock.Stalled() || s.sock.Unsent() >= sendMost {
		return false
	}
	if len(s.out) >= sendMost {
		s.flushNow()
		return !s.sock.Stalled() && !s.sock.Closing()
	}
	return true
}

// flushNow sends what was gathered.
func (s *Session) flushNow() {
	if len(s.out) == 0 {
		return
	}
	b := s.out
	s.flags &^= sLastOpen
	s.out = b[:0]
	s.sock.SendCopy(b)
}

// Flush implements eventloop.Flusher: it is the end of a tick.
func (s *Session) Flush() {
	s.flags &^= sFlushes
	settle := s.settle
	s.settle = nil
	for _, c := range settle {
		c.flags &^= callSettles
		c.taken()
	}
	s.flushNow()
	if s.out != nil && len(s.out) == 0 {
		s.caller.giveBack(s.out)
		s.out = nil
	}
}

// wait notes that c waits for the connection.
func (s *Session) wait(c *call) {
	if c.flags&callWaits == 0 {
		c.flags |= callWaits
		s.blocked = append(s.blocked, c)
	}
}

// unblock lets the calls that wait for the connection go on, in turn.
func (s *Session) unblock() {
	if len(s.blocked) == 0 || !s.Ready() || !s.room() {
		return
	}
	list := s.blocked
	s.blocked = nil
	for _, c := range list {
		c.flags &^= callWaits
		c.widened()
	}
}

// widened lets c go on.
func (c *call) widened() {
	if c.flags&callGone == 0 {
		c.Writable()
	}
}
