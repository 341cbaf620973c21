package eventloop

import "syscall"

// outQueue is what a socket did not take yet: references to shared frames and
// private copies, in order.
type outQueue struct {
	segs  [][]byte
	head  int
	bytes int
	// since and moved measure progress while stalled.
	since int64
	moved int
}

func (q *outQueue) push(b []byte) {
	q.segs = append(q.segs, b)
	q.bytes += len(b)
}

func (q *outQueue) advance(n int) {
	q.bytes -= n
	q.moved += n
	for n > 0 {
		if s := q.segs[q.head]; n < len(s) {
			q.segs[q.head] = s[n:]
			return
		}
		n -= len(q.segs[q.head])
		q.segs[q.head] = nil
		q.head++
	}
	if q.head > 32 && q.head > len(q.segs)/2 {
		k := copy(q.segs, q.segs[q.head:])
		clear(q.segs[k:])
		q.segs, q.head = q.segs[:k], 0
	}
}

// Write copies b and sends it soon: everything written during one Data call, or
// one posted function, leaves in one system call.
func (c *Conn) Write(b []byte) {
	if c.Closing() || len(b) == 0 {
		return
	}
	if c.out != nil {
		c.enqueue(append([]byte(nil), b...))
		return
	}
	l := c.loop
	if l.gathering != c {
		l.flushGather()
		if c.Closing() { // it was c's turn to fail
			return
		}
		l.gathering = c
	}
	l.gather = append(l.gather, b...)
	if len(l.gather) >= gatherLimit {
		l.flushGather()
	}
}

// Send sends b now if nothing waits before it. b is kept, not copied, for as
// long as the socket does not take it: it must never change.
func (c *Conn) Send(b []byte) {
	if c.Closing() || len(b) == 0 {
		return
	}
	l := c.loop
	if l.gathering == c {
		l.flushGather()
		if c.Closing() {
			return
		}
	}
	if c.out != nil {
		c.enqueue(b)
		return
	}
	n, err := l.poller.Send(c.key, int(c.fd), b)
	if n == len(b) { // the whole of what one delivery costs
		l.n.sends++
		l.n.bytesOut += uint64(n)
		return
	}
	c.sent(n, err)
	if err == 0 {
		c.enqueue(b[n:])
		c.stall()
	}
}

// Queue keeps a reference to b, which must never change, and sends it at the
// end of the tick together with what else was queued for c.
func (c *Conn) Queue(b []byte) {
	if c.Closing() || len(b) == 0 {
		return
	}
	c.loop.flushGatherOf(c)
	c.enqueue(b)
	if c.flags&(flagDirty|flagWaiting|flagClosed) == 0 {
		c.flags |= flagDirty
		c.loop.dirty = append(c.loop.dirty, c)
	}
}

func (c *Conn) enqueue(b []byte) {
	if c.isClosed() {
		return
	}
	if c.out == nil {
		c.out = &outQueue{since: c.loop.now}
	}
	c.out.push(b)
	if c.out.bytes > c.loop.limits.maxQueue {
		c.loop.n.queueFull++
		c.Close(ErrQueueFul)
	}
}

// sent counts one send and closes the connection when it failed.
func (c *Conn) sent(n int, err syscall.Errno) {
	c.loop.n.sends++
	c.loop.n.bytesOut += uint64(n)
	if err != 0 {
		c.Close(err)
	}
}

// stall notes that c waits for its socket.
func (c *Conn) stall() {
	if c.isClosed() {
		return
	}
	c.flags |= flagWaiting
	if c.flags&flagStalled != 0 {
		return
	}
	c.flags |= flagStalled
	c.out.since, c.out.moved = c.loop.now, 0
	c.loop.stalled = append(c.loop.stalled, c)
	c.loop.n.stalls++
}

// flush writes what waits in out, gathered into as few sends as possible.
func (c *Conn) flush() {
	l := c.loop
	for c.out != nil && !c.isClosed() {
		q := c.out
		var n, want int
		var err syscall.Errno
		if len(q.segs)-q.head == 1 {
			want = len(q.segs[q.head])
			n, err = l.poller.Send(c.key, int(c.fd), q.segs[q.head])
		} else {
			b := l.merge(q)
			want = len(b)
			n, err = l.poller.SendCopy(c.key, int(c.fd), b)
		}
		c.sent(n, err)
		if c.isClosed() {
			return
		}
		q.advance(n)
		if n < want {
			c.stall()
			return
		}
		if q.bytes == 0 {
			c.out = nil
		}
	}
	c.flushed()
}

// flushed is called when out has become empty.
func (c *Conn) flushed() {
	if c.isClosed() {
		return
	}
	c.flags &^= flagWaiting
	if c.flags&flagClosing != 0 {
		c.linger()
		return
	}
	c.loop.guard(c, func() { c.handler.Drained(c) })
}

// merge copies the head of q into the loop's scratch, up to its limit. One
// contiguous send is cheaper than a vector of small ones.
func (l *Loop) merge(q *outQueue) []byte {
	b := l.scratch[:0]
	for _, s := range q.segs[q.head:] {
		if room := gatherLimit - len(b); len(s) > room {
			b = append(b, s[:room]...)
			break
		}
		b = append(b, s...)
	}
	l.scratch = b
	return b
}

// flushGather sends what Write gathered.
func (l *Loop) flushGather() {
	c := l.gathering
	if c == nil {
		return
	}
	b := l.gather
	l.gathering = nil
	n, err := l.poller.SendCopy(c.key, int(c.fd), b)
	c.sent(n, err)
	if err == 0 && n < len(b) && !c.isClosed() {
		c.enqueue(append([]byte(nil), b[n:]...))
		c.stall()
	}
	l.gather = b[:0]
	if cap(b) > 2*gatherLimit {
		l.gather = make([]byte, 0, 4<<10)
	}
}

func (l *Loop) flushGatherOf(c *Conn) {
	if l.gathering == c {
		l.flushGather()
	}
}

// minProgress is what a peer must take within Config.WriteStall to be kept.
const minProgress = 4 << 10

// sweepStalled closes connections whose peer takes nothing, or next to nothing.
func (l *Loop) sweepStalled() {
	keep := l.stalled[:0]
	for _, c := range l.stalled {
		switch {
		case c.isClosed():
			continue
		case c.out == nil:
			c.flags &^= flagStalled
			continue
		case l.now-c.out.since > l.limits.writeStall:
			if c.out.moved < minProgress {
				l.n.stallCloses++
				c.Close(ErrStalled)
				continue
			}
			c.out.since, c.out.moved = l.now, 0
		}
		keep = append(keep, c)
	}
	clear(l.stalled[len(keep):])
	l.stalled = keep
}
