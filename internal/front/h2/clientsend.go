package h2

import (
	"bytes"
	"slices"
	"unsafe"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// requestLimits bound what we ourselves say.
var requestLimits = http1.Limits{MaxLine: 64 << 10, MaxHead: 1 << 20, MaxFields: 1 << 12}

// Send implements eventloop.Carrier: the head of the request is translated, what follows is
// its body, framed as the head says.
func (c *call) Send(b []byte) (taken int) {
	s := c.session
	if c.flags&requestEnded != 0 || s.flags&sOver != 0 || s.sock.Closing() {
		return len(b) // it will not be sent
	}
	if !s.Ready() || !s.room() {
		s.wait(&c.flow)
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

// sendRequest sends the head that b starts with, or keeps it until it is complete. It returns
// how much of b that used.
func (c *call) sendRequest(b []byte) int {
	s, l := c.session, c.session.caller
	whole := b
	if len(c.buffered) > 0 {
		whole = append(c.buffered, b...)
	}
	n, err := http1.ParseRequest(&l.req, whole, requestLimits)
	switch {
	case err != nil:
		l.log.Error("a request's head is none", "conn", c.Conn.ID(), "err", err)
		c.flags |= requestEnded
		c.Conn.Close(&PeerError{Code: InternalError, Malformed: true})
		return len(b)
	case n == 0:
		c.buffered = append([]byte(nil), whole...)
		return len(b)
	}
	used := n - (len(whole) - len(b))
	c.request(&l.req)
	c.buffered = nil
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
	c.id, c.window = s.next, s.theirWindow
	s.next += 2
	l.block.begin(&s.writer)
	scheme := "http"
	if s.sock.Filtered() {
		scheme = "https"
	}
	l.block.write(":method", req.Method)
	l.block.write(":scheme", []byte(scheme))
	l.block.write(":authority", req.Host)
	l.block.write(":path", req.Target)
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
		c.flags |= isHead
	}
	s.block(&c.flow, l.block.b.Bytes(), c.flags&requestEnded != 0)
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
		l.block.write("te", []byte("trailers"))
		return
	}
	l.block.write(unsafe.String(unsafe.SliceData(l.name), len(l.name)), f.Value)
}

// sendBody sends what may leave of the beginning of b, which is of the body. It returns how
// much it used, and whether there may be more to do.
func (c *call) sendBody(b []byte) (used int, more bool) {
	s := c.session
	if c.flags&sendsChunks == 0 {
		n := min(len(b), int(min(c.toSend, 1<<30)))
		n = s.writer.data(&c.flow, b[:n])
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
		sent := s.writer.data(&c.flow, data)
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

// sendEnd ends the request, by trailer, lines as HTTP/1.1 has them, if there is one.
func (c *call) sendEnd(trailer []byte) {
	s, l := c.session, c.session.caller
	c.flags |= requestEnded
	if len(trailer) == 0 {
		s.end(&c.flow)
		return
	}
	l.block.begin(&s.writer)
	for line := range bytes.Lines(trailer) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok {
			l.requestField(&http1.Field{Name: name, Value: bytes.TrimSpace(value)})
		}
	}
	s.block(&c.flow, l.block.b.Bytes(), true)
}
