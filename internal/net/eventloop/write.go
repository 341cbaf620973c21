package eventloop

import "syscall"

// Write copies b and sends it at the end of the tick: everything written to c
// until then leaves in one system call, and a loop under load sends in bursts,
// which spares it waking each receiver.
func (c *Conn) Write(b []byte) {
	if c.mute() || len(b) == 0 {
		return
	}
	switch gathered := c.flags&flagGathered != 0; {
	case c.out != nil:
		c.enqueueCopy(b)
	case !gathered && len(b) >= gatherLimit:
		c.sendCopy(b)
	default:
		c.loop.gather.add(c, b)
	}
}

// Send sends b now if nothing waits before it. b is kept, not copied, for as
// long as the socket does not take it: it must never change.
func (c *Conn) Send(b []byte) {
	if c.mute() || len(b) == 0 {
		return
	}
	l := c.loop
	if c.flags&flagGathered != 0 {
		l.gather.send(c)
		if c.mute() {
			return
		}
	}
	if c.out != nil {
		c.enqueue(b)
		return
	}
	if f, ok := c.handler.(*filtered); ok {
		f.send(c, b)
		return
	}
	if c.fd == carried {
		c.sendCarried(b)
		return
	}
	n, err := l.poller.Send(c.key, int(c.fd), b)
	if n == len(b) { // the whole of what one delivery costs
		l.n.sends++
		l.n.bytesOut += uint64(n)
		return
	}
	if c.sent(n, err) {
		c.enqueue(b[n:])
		c.out.stall()
	}
}

// SendCopy is Send for bytes that the caller will overwrite.
func (c *Conn) SendCopy(b []byte) {
	if c.mute() || len(b) == 0 {
		return
	}
	c.loop.gather.send(c)
	switch {
	case c.mute():
	case c.out != nil:
		c.enqueueCopy(b)
	default:
		c.sendCopy(b)
	}
}

// Queue keeps a reference to b, which must never change, and sends it at the
// end of the tick together with what else was queued for c. What is a write of
// its own by then leaves before b, so that a tick that brings much finds out
// whether the socket takes it.
func (c *Conn) Queue(b []byte) {
	if c.mute() || len(b) == 0 {
		return
	}
	c.loop.gather.send(c)
	if c.mute() {
		return
	}
	if q := c.out; q != nil && !q.waits() && q.bytes+len(b) > gatherLimit {
		if q.push(); c.mute() {
			return
		}
	}
	c.enqueue(b)
	if c.out != nil {
		c.out.markDirty()
	}
}

// enqueue appends a reference to b; over the bound the connection is closed.
func (c *Conn) enqueue(b []byte) {
	if c.hasRoom(len(b)) {
		c.out.append(b)
	}
}

// enqueueCopy appends a copy of b.
func (c *Conn) enqueueCopy(b []byte) {
	if c.hasRoom(len(b)) {
		c.out.appendCopy(b)
	}
}

// enqueueSealed appends a copy of b, which the socket carries as it is.
func (c *Conn) enqueueSealed(b []byte) {
	if c.hasRoom(len(b)) {
		c.out.sealed = append(c.out.sealed, b...)
	}
}

// hasRoom counts n bytes into out if they fit its bound, and closes c if not.
func (c *Conn) hasRoom(n int) bool {
	if c.isClosed() {
		return false
	}
	l := c.loop
	if c.out == nil {
		c.out = l.queues.get(c)
	}
	if c.out.bytes += n; c.out.bytes <= l.limits.maxQueue {
		return true
	}
	l.n.queueFull++
	c.Close(ErrQueueFull)
	return false
}

// sent counts one send and reports whether c continues: a send that failed closes it.
func (c *Conn) sent(n int, err syscall.Errno) bool {
	if c.fd != carried { // the carrier's own sends are counted
		c.loop.n.sends++
		c.loop.n.bytesOut += uint64(n)
	}
	if err != 0 {
		c.Close(err)
		return false
	}
	return true
}

// sendCopy sends b, which is the caller's, and keeps a copy of what is not taken.
func (c *Conn) sendCopy(b []byte) {
	if f := c.filtered(); f != nil {
		c.sendSealed(c.loop.seal(f.filter, b))
		return
	}
	n, err := c.send(b, false)
	if c.sent(n, err) && n < len(b) {
		c.enqueueCopy(b[n:])
		c.out.stall()
	}
}

// flush writes what waits in out and continues from there.
func (c *Conn) flush() {
	if c.out == nil || c.out.dial != nil || c.isClosed() || !c.out.push() {
		return
	}
	if c.flags&(flagClosing|flagHalf) != 0 {
		c.allTaken()
		return
	}
	c.loop.guard(c, func() { c.handler.Drained(c) })
}

// sendCarried is Send for a connection without a socket of its own.
func (c *Conn) sendCarried(b []byte) {
	if n := c.carrying().carrier.Send(b); n < len(b) && !c.isClosed() {
		c.enqueue(b[n:])
		c.out.stall()
	}
}
