package h2

import (
	"slices"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// call is one request to a backend and its reply: a connection for anyone who sends it. Its id
// is 0 until its head was sent.
type call struct {
	flow

	session *Session
	// buffered is the beginning of a request's head, and later what came of a reply's body while
	// the handler takes none. It has at most a window.
	buffered []byte
	trailer  []byte // of a reply whose body is held
	toSend   int64  // of a request's body whose length was said
	left     int64  // of a reply's body whose length was said
	length   int64  // that length
	chunks   http1.Chunked
	flags    callFlags
}

type callFlags uint16

const (
	replyEnded   callFlags = 1 << iota // the backend sends no more
	requestEnded                       // nor do we
	gotHead                            // the reply's head came
	replyLength                        // left counts
	knownLength                        // length was said
	replyChunks                        // the body is shown in chunks
	sendsChunks                        // the request's body comes in chunks
	isHead                             // its method is HEAD
	bufferedEnd                        // the end of the reply is held too
	callWide                           // credit is of replyWindow
)

var _ eventloop.Carrier = (*call)(nil)

// Reading implements eventloop.Carrier.
func (c *call) Reading(on bool) {
	if on {
		c.session.settleLater(&c.flow, c)
	}
}

// settled implements settler.
func (c *call) settled() {
	c.settles = false
	c.consumed()
}

// Shutdown implements eventloop.Carrier: a request that is not whole has no end.
func (c *call) Shutdown() {
	if c.flags&requestEnded == 0 && c.id != 0 {
		c.cancel(Cancel)
	}
}

// Close implements eventloop.Carrier.
func (c *call) Close(error, bool) {
	if c.gone {
		return
	}
	c.gone = true
	s := c.session
	lingers := false
	switch {
	case c.id == 0, s.flags&sOver != 0, c.flags&(requestEnded|replyEnded) == requestEnded|replyEnded:
	case c.flags&requestEnded != 0 && c.flags&(replyLength|replyChunks) == replyLength:
		lingers = true
	default:
		c.cancel(Cancel)
	}
	if s.flags&sOver == 0 && lingers {
		s.await(c)
	}
	s.forget(c)
	c.buffered, c.trailer = nil, nil
}

// cancel resets the stream. What the backend sent before it knows may still come.
func (c *call) cancel(code Code) {
	s := c.session
	if c.flags&replyEnded == 0 {
		s.stray = int32(min(int64(s.stray)+int64(c.credit), maxWindow))
	}
	if code == Cancel {
		s.counters.canceled.Add(1)
	}
	c.flags |= requestEnded | replyEnded
	s.control(appendReset(nil, c.id, code))
}

// abort ends a call for what the backend did (§5.4.2).
func (c *call) abort(code Code) {
	if c.gone {
		return
	}
	c.session.counters.malformed.Add(1)
	if c.flags&(requestEnded|replyEnded) != requestEnded|replyEnded {
		c.cancel(code)
	}
	c.Conn.Close(&PeerError{Code: code, Malformed: true})
}

// Length returns the length of the reply's body if the backend has said it. The body is shown
// in chunks all the same, since fields may follow it. Loop only.
func (c *call) Length() (n int64, said bool) { return c.length, c.flags&knownLength != 0 }

// A reply without a body, as to HEAD, is complete before the backend ends its stream, mostly by
// the next frame. Such streams are kept for a while, so that they need no reset.
const replyLingers = 16

// await keeps c until the backend ends its stream.
func (s *Session) await(c *call) {
	if len(s.linger) == replyLingers {
		s.linger[0].cancel(NoError)
		s.unlinger(s.linger[0])
	}
	s.linger = append(s.linger, c)
}

// unlinger forgets c, and reports whether it was kept.
func (s *Session) unlinger(c *call) bool {
	i := slices.Index(s.linger, c)
	if i < 0 {
		return false
	}
	if s.linger = slices.Delete(s.linger, i, i+1); len(s.linger) == 0 {
		s.linger = nil
	}
	if s.data.call == c {
		s.data.call = nil
	}
	if s.flags&(sOver|sLeaving) == 0 {
		s.owner.Room(s)
	}
	return true
}

// body gives a piece of the reply's body to the handler, framed as it expects it. last says
// that the stream ends with it.
func (c *call) body(b []byte, last bool) {
	n := int32(len(b))
	if c.gone { // it lingers, and nothing more was to come
		c.cancel(ProtocolError)
		c.session.unlinger(c)
		return
	}
	switch {
	case c.flags&gotHead == 0: // §8.1
		c.abort(ProtocolError)
		return
	case c.flags&replyLength != 0:
		if c.left -= int64(n); c.left < 0 || last && c.left != 0 { // §8.1.1
			c.abort(ProtocolError)
			return
		}
	}
	c.unread += n
	if len(c.buffered) > 0 || c.Unread() > 0 {
		c.buffered = append(c.buffered, b...)
		c.consumed()
		return
	}
	c.show(b)
	c.consumed()
}

// showMost is how much of a body a handler is shown at a time: what it leaves is kept within
// the loop's bound.
const showMost = 32 << 10

// show shows b to the handler and keeps what it does not take now.
func (c *call) show(b []byte) {
	for len(b) > 0 && !c.gone {
		if c.Unread() > 0 {
			c.buffered = append(c.buffered, b...)
			return
		}
		n := min(len(b), showMost)
		piece := b[:n]
		if c.flags&replyChunks != 0 {
			l := c.session.caller
			l.chunk = http1.AppendChunk(l.chunk[:0], piece)
			piece = l.chunk
		}
		c.Arrived(piece)
		b = b[n:]
	}
}

// consumed gives credit for what the handler has taken, and shows it what is held.
func (c *call) consumed() {
	if c.gone {
		return
	}
	if len(c.buffered) > 0 && c.Unread() == 0 {
		b := c.buffered
		c.buffered = nil
		c.show(b)
	}
	if c.gone {
		return
	}
	if c.flags&bufferedEnd != 0 && len(c.buffered) == 0 && c.Unread() == 0 {
		c.flags &^= bufferedEnd
		c.showEnd(c.trailer)
		return
	}
	n := c.unread - min(int32(c.Unread()+len(c.buffered)), c.unread)
	if n == 0 {
		return
	}
	c.unread -= n
	half := int32(firstWindow / 2)
	if c.flags&callWide != 0 {
		half = replyWindow / 2
	}
	if c.owed += n; c.owed < half || c.flags&replyEnded != 0 {
		return
	}
	by := c.owed
	if c.flags&callWide == 0 && c.unread == 0 {
		c.flags |= callWide
		by += replyWindow - firstWindow
	}
	c.session.control(appendWindowUpdate(nil, c.id, uint32(by)))
	c.credit += by
	c.owed = 0
}

// ended reports that the reply is complete. trailer are the fields behind its body, as lines.
func (c *call) ended(trailer []byte) {
	if c.session.unlinger(c) {
		c.flags |= replyEnded
		return
	}
	if c.gone || c.flags&replyEnded != 0 {
		return
	}
	c.flags |= replyEnded
	switch {
	case c.flags&replyLength != 0 && c.left != 0, c.flags&gotHead == 0:
		c.abort(ProtocolError)
	case c.flags&replyChunks == 0:
	case len(c.buffered) > 0 || c.Unread() > 0:
		c.flags |= bufferedEnd
		c.trailer = slices.Clone(trailer)
	default:
		c.showEnd(trailer)
	}
}

// showEnd shows the end of a body in chunks.
func (c *call) showEnd(trailer []byte) {
	l := c.session.caller
	l.chunk = http1.AppendLastChunk(l.chunk[:0], trailer)
	c.Arrived(l.chunk)
}
