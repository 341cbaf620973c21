package eventloop

import (
	"bytes"
	"syscall"
)

// outQueue is what a socket did not take yet: references to shared frames and
// private copies, in order. Empty ones are kept by the loop for the next use.
type outQueue struct {
	// sealed is what a filter made and goes as it is, before segs; nil mostly.
	sealed []byte
	segs   [][]byte
	head   int
	bytes  int
	// private says that the last segment is a copy that may grow.
	private bool
	// dirty says that the connection is in loop.dirty.
	dirty bool
	// measured says that the last block of fields is valid.
	measured bool
	// dial is nil when the connection stands.
	dial *dialing
	// stalled is the place in loop.stalled; -1: the socket is not waited for.
	stalled int
	// Progress while stalled, from the first sweep on: what was sent since, and
	// what the kernel had at that time.
	since           int64
	moved, inKernel int
}

func (q *outQueue) advance(n int) {
	q.bytes -= n
	q.moved += n
	q.skip(n)
}

// skip takes n bytes off the head.
func (q *outQueue) skip(n int) {
	for n > 0 {
		s := q.segs[q.head]
		if n < len(s) {
			q.segs[q.head] = s[n:]
			return
		}
		n -= len(s)
		q.segs[q.head] = nil
		q.head++
	}
	if q.head > 32 && q.head > len(q.segs)/2 {
		k := copy(q.segs, q.segs[q.head:])
		clear(q.segs[k:])
		q.segs, q.head = q.segs[:k], 0
	}
}

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
		c.gather(b)
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
		c.sendGathered()
		if c.mute() {
			return
		}
	}
	if c.out != nil {
		c.enqueue(b)
		return
	}
	if f, ok := c.handler.(*filtered); ok {
		c.sendFiltered(f.filter, b)
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
		c.stall()
	}
}

// SendCopy is Send for bytes that the caller will overwrite.
func (c *Conn) SendCopy(b []byte) {
	if c.mute() || len(b) == 0 {
		return
	}
	c.sendGathered()
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
	c.sendGathered()
	if c.mute() {
		return
	}
	if q := c.out; q != nil && q.stalled < 0 && q.dial == nil && q.bytes+len(b) > gatherLimit {
		if c.push(); c.mute() {
			return
		}
	}
	c.enqueue(b)
	c.markDirty()
}

// markDirty sees to it that out is sent, if nothing else does.
func (c *Conn) markDirty() {
	if q := c.out; q != nil && q.stalled < 0 && q.dial == nil && !q.dirty {
		q.dirty = true
		c.loop.dirty = append(c.loop.dirty, c)
	}
}

// enqueue appends a reference to b; over the bound the connection is closed.
func (c *Conn) enqueue(b []byte) {
	if c.hasRoom(len(b)) {
		c.out.segs = append(c.out.segs, b)
		c.out.private = false
	}
}

const privateLimit = 16 << 10

// enqueueCopy appends a copy of b. Small ones share a segment, so that what they
// take here is in proportion to their bytes, which are what is bounded.
func (c *Conn) enqueueCopy(b []byte) {
	if !c.hasRoom(len(b)) {
		return
	}
	q := c.out
	if last := len(q.segs) - 1; q.private && last >= q.head && len(q.segs[last])+len(b) <= privateLimit {
		q.segs[last] = append(q.segs[last], b...)
		return
	}
	q.segs = append(q.segs, bytes.Clone(b))
	q.private = true
}

// hasRoom counts n bytes into out if they fit its bound, and closes c if not.
func (c *Conn) hasRoom(n int) bool {
	if c.isClosed() {
		return false
	}
	l := c.loop
	if c.out == nil {
		c.out = l.newQueue()
	}
	if c.out.bytes += n; c.out.bytes <= l.limits.maxQueue {
		return true
	}
	l.n.queueFull++
	c.Close(ErrQueueFull)
	return false
}

// sent counts one send and reports whether c goes on: a send that failed closes it.
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
	if f := c.filter(); f != nil {
		c.sendSealed(c.loop.seal(f, b))
		return
	}
	n, err := c.send(b, false)
	if c.sent(n, err) && n < len(b) {
		c.enqueueCopy(b[n:])
		c.stall()
	}
}

// flush writes what waits in out and goes on from there.
func (c *Conn) flush() {
	if c.out == nil || c.out.dial != nil || c.isClosed() || !c.push() {
		return
	}
	if c.flags&(flagClosing|flagHalf) != 0 {
		c.allTaken()
		return
	}
	c.loop.guard(c, func() { c.handler.Drained(c) })
}

// push writes what waits in out, gathered into as few sends as possible, and
// reports whether all of it was taken.
func (c *Conn) push() bool {
	l, q, f := c.loop, c.out, c.filter()
	for q.bytes > 0 {
		if f != nil || len(q.sealed) > 0 {
			if !c.pushSealed(f) {
				return false
			}
			continue
		}
		var n, want int
		var err syscall.Errno
		if first := q.segs[q.head]; len(q.segs)-q.head == 1 || len(first) >= gatherLimit/2 {
			want = len(first)
			n, err = c.send(first, true)
		} else {
			b := l.merge(q, gatherLimit)
			want = len(b)
			n, err = c.send(b, false)
		}
		if !c.sent(n, err) {
			return false
		}
		q.advance(n)
		if n < want {
			c.stall()
			return false
		}
	}
	c.dropOut()
	return true
}

// merge copies the head of q into the loop's scratch, up to limit. One
// contiguous send is cheaper than a vector of small ones.
func (l *Loop) merge(q *outQueue, limit int) []byte {
	b := l.scratch[:0]
	for _, s := range q.segs[q.head:] {
		if room := limit - len(b); len(s) > room {
			b = append(b, s[:room]...)
			break
		}
		b = append(b, s...)
	}
	l.scratch = b
	return b
}

const (
	spareQueues   = 4096
	spareSegments = 16
)

func (l *Loop) newQueue() *outQueue {
	if n := len(l.spare); n > 0 {
		q := l.spare[n-1]
		l.spare[n-1] = nil
		l.spare = l.spare[:n-1]
		return q
	}
	return &outQueue{stalled: -1}
}

// dropOut gives up out, sent or not.
func (c *Conn) dropOut() {
	q, l := c.out, c.loop
	if q == nil {
		return
	}
	c.out = nil
	if i := q.stalled; i >= 0 {
		last := l.stalled[len(l.stalled)-1]
		l.stalled[i] = last
		if last != c {
			last.out.stalled = i
		}
		l.stalled[len(l.stalled)-1] = nil
		l.stalled = l.stalled[:len(l.stalled)-1]
	}
	if len(l.spare) < spareQueues && cap(q.segs) <= spareSegments {
		clear(q.segs)
		*q = outQueue{segs: q.segs[:0], stalled: -1}
		l.spare = append(l.spare, q)
	}
}

// sendCarried is Send for a connection without a socket of its own.
func (c *Conn) sendCarried(b []byte) {
	if n := c.carrying().carrier.Send(b); n < len(b) && !c.isClosed() {
		c.enqueue(b[n:])
		c.stall()
	}
}
