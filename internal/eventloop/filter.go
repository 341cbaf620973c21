package eventloop

import (
	"errors"
	"io"
)

// A Filter stands between a connection's socket and everything else: it turns
// what the socket carries into what the handler means, and back. TLS is one. It
// belongs to the connection's loop.
type Filter interface {
	// Open takes bytes from the socket, which it may change in place. plain is for
	// the handler and valid until the next call; reply is sent as it is, behind what
	// was sealed before and ahead of what is sealed from now on. io.EOF says that the
	// peer has ended its side in order; any other error closes the connection, after
	// reply.
	Open(b []byte) (plain, reply []byte, err error)
	// Seal appends to dst what the socket carries for b.
	Seal(dst, b []byte) []byte
	// Close appends an orderly goodbye to dst.
	Close(dst []byte) []byte
	// Release is the last call.
	Release()
}

// ErrTruncated says that the socket's stream ended before the filter's.
var ErrTruncated = errors.New("stream truncated")

// sealLimit is how much is sealed ahead of the socket. What a connection's peer
// does not take stays in the queue as it is, shared with other connections.
const sealLimit = 16 << 10

// filtered is the handler of a connection with a filter: the handler's calls
// pass through, and the filter is found here, so that connections without one
// do not pay for it in size.
type filtered struct {
	Handler
	filter Filter
}

// SetFilter puts f before the handler. early is what was read from the socket
// already and is meant for f; the handler gets what is in it at once.
//
// Only who was the handler so far may call it, after SetHandler, and not from
// Data.
func (c *Conn) SetFilter(f Filter, early []byte) {
	if c.Closing() {
		f.Release()
		return
	}
	c.sendGathered() // it was not meant for f
	if c.Closing() {
		f.Release()
		return
	}
	c.handler = &filtered{Handler: c.handler, filter: f}
	if q := c.out; q != nil {
		for _, s := range q.segs[q.head:] {
			q.sealed = append(q.sealed, s...)
		}
		clear(q.segs)
		q.segs, q.head, q.private = q.segs[:0], 0, false
	}
	ended := c.flags&flagEOF != 0 // the socket's stream, not f's
	c.flags &^= flagEOF | flagTold
	if len(early) > 0 {
		c.open(f, early)
	}
	if ended && !c.Closing() && c.flags&flagEOF == 0 {
		c.Close(ErrTruncated)
	}
	c.sendGathered()
}

// Filtered reports whether there is a filter on c's socket: whether c is TLS.
func (c *Conn) Filtered() bool { return c.Socket().filter() != nil }

// Filter returns the filter of c's socket, or nil. Loop only.
func (c *Conn) Filter() Filter {
	f := c.Socket().filter()
	if e, ok := f.(endedFilter); ok {
		return e.Filter
	}
	return f
}

func (c *Conn) filter() Filter {
	h := c.handler
	if p, ok := h.(*parting); ok {
		h = p.last
	}
	if f, ok := h.(*filtered); ok {
		return f.filter
	}
	return nil
}

// dropFilter takes the filter away. Loop only.
func (c *Conn) dropFilter(f Filter) {
	if p, ok := c.handler.(*parting); ok {
		p.last = p.last.(*filtered).Handler
	} else {
		c.handler = c.handler.(*filtered).Handler
	}
	f.Release()
}

// arrived takes what the socket brought.
func (c *Conn) arrived(b []byte) {
	if f, ok := c.handler.(*filtered); ok {
		c.open(f.filter, b)
		return
	}
	c.received(b)
}

// endOfSocket is called when the socket's stream has ended. A filter's has a
// mark of its own for that: without it, something may be missing.
func (c *Conn) endOfSocket() {
	if _, ok := c.handler.(*filtered); ok && c.flags&flagEOF == 0 {
		c.Close(ErrTruncated)
		return
	}
	c.endOfStream()
}

// open shows what is in b, from the socket, to the handler.
func (c *Conn) open(f Filter, b []byte) {
	if c.sendGathered(); c.isClosed() { // f may seal its reply, and all after it, in another way
		return
	}
	plain, reply, err := f.Open(b)
	if _, ended := f.(endedFilter); !ended && len(reply) > 0 {
		c.sendSealed(reply)
	}
	if len(plain) > 0 && !c.Closing() {
		c.received(plain)
	}
	switch {
	case err == nil || c.Closing():
	case err == io.EOF: //nolint:errorlint // returned bare, by contract
		c.endOfStream()
	default:
		c.Close(err)
	}
}

// sendSealed sends b, which the socket carries as it is, and keeps a copy of
// what is not taken.
func (c *Conn) sendSealed(b []byte) {
	c.sendGathered()
	switch {
	case c.isClosed(), len(b) == 0:
	case c.out != nil:
		if c.hasRoom(len(b)) {
			c.out.sealed = append(c.out.sealed, b...)
			c.markDirty()
		}
	default:
		n, err := c.loop.poller.SendCopy(c.key, int(c.fd), b)
		if c.sent(n, err) && n < len(b) && c.hasRoom(len(b)-n) {
			c.out.sealed = append(c.out.sealed, b[n:]...)
			c.stall()
		}
	}
}

// sendFiltered is Send through f.
func (c *Conn) sendFiltered(f Filter, b []byte) {
	if len(b) <= sealLimit {
		c.sendSealed(c.loop.seal(f, b))
		return
	}
	c.enqueue(b)
	if c.out != nil {
		c.push()
	}
}

// seal returns what the socket carries for b, in the loop's scratch.
func (l *Loop) seal(f Filter, b []byte) []byte {
	if cap(l.sealed) > 4*gatherLimit {
		l.sealed = nil
	}
	l.sealed = f.Seal(l.sealed[:0], b)
	return l.sealed
}

// pushSealed sends what is sealed, or seals and sends the next piece of the
// queue. It reports whether the socket took all of it.
func (c *Conn) pushSealed(f Filter) bool {
	l, q := c.loop, c.out
	raw := q.sealed
	if len(raw) == 0 {
		b := l.merge(q, sealLimit)
		raw = l.seal(f, b)
		q.skip(len(b))
		q.bytes += len(raw) - len(b)
	}
	n, err := l.poller.SendCopy(c.key, int(c.fd), raw)
	if !c.sent(n, err) {
		return false
	}
	q.bytes -= n
	q.moved += n
	if n < len(raw) {
		q.sealed = append(q.sealed[:0], raw[n:]...)
		c.stall()
		return false
	}
	q.sealed = nil
	return true
}

// goodbye lets the filter end its side and takes it away. It reports whether
// that is sent; if not, it waits for the socket like anything else.
func (c *Conn) goodbye() bool {
	f := c.filter()
	if f == nil {
		return true
	}
	c.loop.sealed = f.Close(c.loop.sealed[:0])
	c.dropFilter(f)
	c.sendSealed(c.loop.sealed)
	return c.out == nil && !c.isClosed()
}

// endedFilter is a filter whose own side has ended.
type endedFilter struct{ Filter }

func (endedFilter) Seal(dst, _ []byte) []byte { return dst }
func (endedFilter) Close(dst []byte) []byte   { return dst }

// endFilter lets the filter, if there is one, end its side, and reports whether
// that is sent. It still opens what comes.
func (c *Conn) endFilter() bool {
	f, ok := c.handler.(*filtered)
	if !ok {
		return true
	}
	if _, ended := f.filter.(endedFilter); !ended {
		c.loop.sealed = f.filter.Close(c.loop.sealed[:0])
		f.filter = endedFilter{f.filter}
		c.sendSealed(c.loop.sealed)
	}
	return c.out == nil && !c.isClosed()
}

// lastWords is goodbye for a connection that closes at once.
func (c *Conn) lastWords(orderly bool) {
	f := c.filter()
	if f == nil {
		return
	}
	if orderly && c.out == nil && c.flags&flagShut == 0 {
		c.loop.sealed = f.Close(c.loop.sealed[:0])
		c.loop.poller.SendCopy(c.key, int(c.fd), c.loop.sealed) //nolint:errcheck // nothing hangs on it
	}
	f.Release()
}
