package eventloop

import (
	"errors"
	"io"
)

// A Filter is between a connection's socket and everything else: it turns
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
	// Close appends an orderly end to dst.
	Close(dst []byte) []byte
	// Release is the last call.
	Release()
}

// ErrTruncated reports that the socket's stream ended before the filter's.
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
	c.loop.gather.send(c) // it was not meant for f
	if c.Closing() {
		f.Release()
		return
	}
	h := &filtered{Handler: c.handler, filter: f}
	c.handler = h
	if c.out != nil {
		c.out.sealAll()
	}
	ended := c.flags&flagEOF != 0 // the socket's stream, not f's
	c.flags &^= flagEOF | flagNotified
	if len(early) > 0 {
		h.open(c, early)
	}
	if ended && !c.Closing() && c.flags&flagEOF == 0 {
		c.Close(ErrTruncated)
	}
	c.loop.gather.send(c)
}

// Filtered reports whether there is a filter on c's socket: whether c is TLS.
func (c *Conn) Filtered() bool { return c.Socket().filtered() != nil }

// Filter returns the filter of c's socket, or nil. Loop only.
func (c *Conn) Filter() Filter {
	h := c.Socket().filtered()
	if h == nil {
		return nil
	}
	if e, ok := h.filter.(endedFilter); ok {
		return e.Filter
	}
	return h.filter
}

// filtered returns what puts a filter before c's handler, or nil.
func (c *Conn) filtered() *filtered {
	h := c.handler
	if p, ok := h.(*parting); ok {
		h = p.last
	}
	f, _ := h.(*filtered)
	return f
}

// arrived takes what the socket brought.
func (c *Conn) arrived(b []byte) {
	if f, ok := c.handler.(*filtered); ok {
		f.open(c, b)
		return
	}
	c.received(b)
}

// endOfSocket is called when the socket's stream has ended. The filter's has a mark of its own for
// that: without it, something may be missing.
func (h *filtered) endOfSocket(c *Conn) {
	if c.flags&flagEOF == 0 {
		c.Close(ErrTruncated)
		return
	}
	c.endOfStream()
}

// open shows what is in b, from the socket, to the handler.
func (h *filtered) open(c *Conn, b []byte) {
	if c.loop.gather.send(c); c.isClosed() { // the filter may seal its reply, and all after it, in another way
		return
	}
	plain, reply, err := h.filter.Open(b)
	if _, ended := h.filter.(endedFilter); !ended && len(reply) > 0 {
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
	c.loop.gather.send(c)
	switch {
	case c.isClosed(), len(b) == 0:
	case c.out != nil:
		if c.enqueueSealed(b); c.out != nil {
			c.out.markDirty()
		}
	default:
		n, err := c.loop.poller.SendCopy(c.key, int(c.fd), b)
		if c.sent(n, err) && n < len(b) {
			c.enqueueSealed(b[n:])
			c.out.stall()
		}
	}
}

// send is Conn.Send through the filter.
func (h *filtered) send(c *Conn, b []byte) {
	if len(b) <= sealLimit {
		c.sendSealed(c.loop.seal(h.filter, b))
		return
	}
	c.enqueue(b)
	if c.out != nil {
		c.out.push()
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

// drop takes the filter away.
func (h *filtered) drop(c *Conn) {
	if p, ok := c.handler.(*parting); ok {
		p.last = h.Handler
	} else {
		c.handler = h.Handler
	}
	h.filter.Release()
}

// closeFilter lets the filter end its side and takes it away. It reports whether
// that is sent; if not, it waits for the socket like anything else. Without a filter
// there is nothing to send.
func (h *filtered) closeFilter(c *Conn) bool {
	if h == nil {
		return true
	}
	c.loop.sealed = h.filter.Close(c.loop.sealed[:0])
	h.drop(c)
	c.sendSealed(c.loop.sealed)
	return c.out == nil && !c.isClosed()
}

// endedFilter is a filter whose own side has ended.
type endedFilter struct{ Filter }

func (endedFilter) Seal(dst, _ []byte) []byte { return dst }
func (endedFilter) Close(dst []byte) []byte   { return dst }

// end lets the filter, if there is one, end its side, and reports whether that is sent.
// It still opens what comes.
func (h *filtered) end(c *Conn) bool {
	if h == nil {
		return true
	}
	if _, ended := h.filter.(endedFilter); !ended {
		c.loop.sealed = h.filter.Close(c.loop.sealed[:0])
		h.filter = endedFilter{h.filter}
		c.sendSealed(c.loop.sealed)
	}
	return c.out == nil && !c.isClosed()
}

// lastWords ends the filter for a connection that closes at once.
func (h *filtered) lastWords(c *Conn, orderly bool) {
	if h == nil {
		return
	}
	if orderly && c.out == nil && c.flags&flagShut == 0 && c.fd != carried {
		c.loop.sealed = h.filter.Close(c.loop.sealed[:0])
		c.loop.poller.SendCopy(c.key, int(c.fd), c.loop.sealed) //nolint:errcheck // nothing hangs on it
	}
	h.filter.Release()
}
