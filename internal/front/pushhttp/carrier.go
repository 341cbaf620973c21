package pushhttp

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"sync"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// carrier carries a connection of a loop on a request of net/http, or on a connection that
// was hijacked from it. What the loop writes waits in it for the request's goroutine, up to
// a bound.
type carrier struct {
	eventloop.Carried

	// Fixed at carry.
	srv  *Server
	loop *eventloop.Loop
	raw  bool          // heads go out as they are
	more chan struct{} // lets the reading goroutine read on

	// Owned by the loop's goroutine. No lock.
	began  bool // the answer's head was written
	over   bool // Close was called
	paused bool // no input is wanted now
	waits  bool // the reading goroutine does

	ready chan struct{} // holds one: something below has changed

	mu      sync.Mutex
	head    *head  // to be written first; nil: it is written, or does not exist
	pending []byte // to be written
	wanted  bool   // the loop waits for room in pending
	ended   bool   // nothing follows pending
}

// A head is that of an answer.
type head struct {
	status int
	fields http.Header
}

const (
	pendingMost = 64 << 10
	writeMost   = 16 << 10 // in one call, for which there is WriteStall
)

var (
	_ eventloop.Carrier = (*carrier)(nil)
	_ eventloop.Handler = (*carrier)(nil)
)

// An outlet writes what a carrier has.
type outlet interface {
	// head starts an answer; a hijacked connection gets none.
	head(*head)
	// write writes b, within Config.WriteStall, and flushes it.
	write(b []byte) error
}

// carry makes c a connection of a loop, has open start what it is for, and writes to out
// until that is over or ctx is done. It returns an error, and has written nothing, if open
// does or there is no room.
func (s *Server) carry(ctx context.Context, c *carrier, peer netip.AddrPort, out outlet, open func(*eventloop.Conn) error) error {
	if !s.enter() {
		return errEnds
	}
	defer s.streams.Done()
	c.srv, c.ready, c.more = s, make(chan struct{}, 1), make(chan struct{}, 1)
	c.loop = s.group.Loops()[int(s.next.Add(1))%len(s.group.Loops())]
	opened := make(chan error, 1)
	if !c.loop.Post(func() { opened <- c.open(peer, open) }) {
		return errEnds
	}
	if err := <-opened; err != nil {
		return err
	}
	c.pump(ctx, out)
	return nil
}

var errEnds = &wire.Error{Status: http.StatusServiceUnavailable, Message: "not available now, try again later"}

// open is carry's part on the loop.
func (c *carrier) open(peer netip.AddrPort, open func(*eventloop.Conn) error) error {
	if !c.loop.CarryRoot(&c.Carried, peer, c, c) {
		return errEnds
	}
	if err := open(&c.Conn); err != nil {
		c.Conn.Close(err)
		return err
	}
	return nil
}

// pump writes what comes until the connection is over.
func (c *carrier) pump(ctx context.Context, out outlet) {
	for {
		select {
		case <-c.ready:
		case <-ctx.Done():
			c.fail(ctx.Err())
			return
		}
		c.mu.Lock()
		h, b, wanted, ended := c.head, c.pending, c.wanted, c.ended
		c.head, c.pending, c.wanted = nil, nil, false
		c.mu.Unlock()
		if h != nil {
			out.head(h)
		}
		if wanted {
			c.loop.Post(c.Writable)
		}
		for len(b) > 0 {
			n := min(len(b), writeMost)
			if err := out.write(b[:n]); err != nil {
				c.fail(err)
				return
			}
			b = b[n:]
		}
		if ended {
			return
		}
	}
}

// fail ends the connection because of what its client did, or did not.
func (c *carrier) fail(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = eventloop.ErrStalled
	}
	c.loop.Post(func() { c.Conn.Close(err) })
}

// change changes what the request's goroutine looks at.
func (c *carrier) change(f func()) {
	c.mu.Lock()
	f()
	c.mu.Unlock()
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// Send implements eventloop.Carrier.
func (c *carrier) Send(b []byte) (taken int) {
	for !c.raw && !c.began && len(b) > 0 {
		n, err := c.sendHead(b)
		if err != nil {
			c.srv.log.Error("invalid head of an answer", "conn", c.ID(), "err", err)
			c.fail(err)
			return taken + len(b)
		}
		taken += n
		b = b[n:]
	}
	n := 0
	c.change(func() {
		n = min(len(b), max(pendingMost-len(c.pending), 0))
		c.pending = append(c.pending, b[:n]...)
		c.wanted = n < len(b)
	})
	return taken + n
}

// sendHead reads the head of the answer, and returns how much of b it used.
func (c *carrier) sendHead(b []byte) (int, error) {
	a := &c.srv.answers[c.loop.ID()]
	res, used, err := a.Head(c, b)
	if res == nil || err != nil {
		return used, err
	}
	status, err := a.Status(res, false)
	if err != nil {
		return used, err
	}
	h := &head{status: status, fields: http.Header{}}
	a.Fields(status, res, func(name string, value []byte) {
		if name[0] != ':' {
			h.fields.Add(name, string(value))
		}
	})
	c.began = true
	c.change(func() { c.head = h })
	return used, nil
}

// Reading implements eventloop.Carrier.
func (c *carrier) Reading(on bool) {
	c.paused = !on
	c.readOn()
}

// readOn lets the reading goroutine read on, unless what it has read waits for the handler.
func (c *carrier) readOn() {
	if c.waits && (c.over || !c.paused) {
		c.waits = false
		c.more <- struct{}{}
	}
}

// received shows b, which the client has sent, to the handler. It returns false when no more
// is wanted. b may be used again then, by the goroutine that reads.
func (c *carrier) received(b []byte) bool {
	over := false
	if !c.loop.Post(func() {
		c.Arrived(b)
		over, c.waits = c.over, true
		c.readOn()
	}) {
		return false
	}
	<-c.more
	return !over
}

// Shutdown implements eventloop.Carrier.
func (c *carrier) Shutdown() { c.change(func() { c.ended = true }) }

// Close implements eventloop.Carrier.
func (c *carrier) Close(err error, orderly bool) {
	if c.over {
		return
	}
	c.over = true
	c.srv.answers[c.loop.ID()].Forget(c)
	c.readOn()
	c.change(func() {
		if c.ended = true; !orderly {
			c.pending = nil
		}
	})
}

// Data implements eventloop.Handler, until there is a subscriber. So do the others.
func (c *carrier) Data(_ *eventloop.Conn, b []byte) int { return len(b) }

// EndOfStream implements eventloop.Handler.
func (c *carrier) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (c *carrier) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler.
func (c *carrier) Timer(*eventloop.Conn, int64) {}

// Closed implements eventloop.Handler.
func (c *carrier) Closed(*eventloop.Conn, error) {}
