package eventloop

import (
	"bytes"
	"syscall"
)

// outQueue is what a connection's socket did not take yet: references to shared frames
// and private copies, in order. A connection has one only while something waits, or while
// it is dialled. Empty ones are kept by the loop for the next use.
type outQueue struct {
	c *Conn
	// sealed is what a filter made and goes as it is, before segs; nil mostly.
	sealed []byte
	segs   [][]byte
	bytes  int
	// head is of segs. stalled is the place in loop.stalled; -1: the socket is not
	// waited for.
	head, stalled int32
	// private reports that the last segment is a copy that may grow.
	private bool
	// dirty reports that the connection is in loop.dirty.
	dirty bool
	// measured reports that the last block of fields is valid.
	measured bool
	// dial is nil when the connection is open.
	dial *dialing
	// Progress while stalled, from the first sweep on: what was sent since, and
	// what the kernel had at that time.
	since           int64
	moved, inKernel int
}

const (
	privateLimit  = 16 << 10
	spareQueues   = 4096
	spareSegments = 16
)

// queuePool is a loop's empty queues.
type queuePool struct{ spare []*outQueue }

func (p *queuePool) get(c *Conn) *outQueue {
	if n := len(p.spare); n > 0 {
		q := p.spare[n-1]
		p.spare[n-1] = nil
		p.spare = p.spare[:n-1]
		q.c = c
		return q
	}
	return &outQueue{c: c, stalled: -1}
}

func (p *queuePool) put(q *outQueue) {
	if len(p.spare) < spareQueues && cap(q.segs) <= spareSegments {
		clear(q.segs)
		*q = outQueue{segs: q.segs[:0], stalled: -1}
		p.spare = append(p.spare, q)
	}
}

// release takes q, sent or not, away from its connection.
func (q *outQueue) release() {
	c, l := q.c, q.c.loop
	l.stalled.remove(q)
	c.out = nil
	l.queues.put(q)
}

// append adds a reference to b, whose bytes are counted.
func (q *outQueue) append(b []byte) {
	q.segs = append(q.segs, b)
	q.private = false
}

// appendCopy adds a copy of b, whose bytes are counted. Small ones share a segment, so
// that what they take here is in proportion to their bytes, which are what is bounded.
func (q *outQueue) appendCopy(b []byte) {
	if last := len(q.segs) - 1; q.private && last >= int(q.head) && len(q.segs[last])+len(b) <= privateLimit {
		q.segs[last] = append(q.segs[last], b...)
		return
	}
	q.segs = append(q.segs, bytes.Clone(b))
	q.private = true
}

// sealAll makes what waits go as it is, before what a filter seals from now on.
func (q *outQueue) sealAll() {
	for _, s := range q.segs[q.head:] {
		q.sealed = append(q.sealed, s...)
	}
	clear(q.segs)
	q.segs, q.head, q.private = q.segs[:0], 0, false
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
	if q.head > 32 && int(q.head) > len(q.segs)/2 {
		k := copy(q.segs, q.segs[q.head:])
		clear(q.segs[k:])
		q.segs, q.head = q.segs[:k], 0
	}
}

// waits reports whether the socket, or its connection, is waited for: then nothing is sent
// before it says so.
func (q *outQueue) waits() bool { return q.stalled >= 0 || q.dial != nil }

// markDirty sees to it that q is sent, if nothing else does.
func (q *outQueue) markDirty() {
	if !q.waits() && !q.dirty {
		q.dirty = true
		q.c.loop.dirty = append(q.c.loop.dirty, q.c)
	}
}

// push writes what waits, gathered into as few sends as possible, and reports whether all
// of it was taken.
func (q *outQueue) push() bool {
	c, f := q.c, q.c.filtered()
	for q.bytes > 0 {
		if f != nil || len(q.sealed) > 0 {
			if !q.pushSealed(f) {
				return false
			}
			continue
		}
		var n, want int
		var err syscall.Errno
		if first := q.segs[q.head]; len(q.segs)-int(q.head) == 1 || len(first) >= gatherLimit/2 {
			want = len(first)
			n, err = c.send(first, true)
		} else {
			b := q.merge(gatherLimit)
			want = len(b)
			n, err = c.send(b, false)
		}
		if !c.sent(n, err) {
			return false
		}
		q.advance(n)
		if n < want {
			q.stall()
			return false
		}
	}
	q.release()
	return true
}

// pushSealed sends what is sealed, or seals and sends the next piece. It reports whether
// the socket took all of it.
func (q *outQueue) pushSealed(f *filtered) bool {
	c, l := q.c, q.c.loop
	raw := q.sealed
	if len(raw) == 0 {
		b := q.merge(sealLimit)
		raw = l.seal(f.filter, b)
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
		q.stall()
		return false
	}
	q.sealed = nil
	return true
}

// merge copies the head of q into the loop's scratch, up to limit. One
// contiguous send is cheaper than a vector of small ones.
func (q *outQueue) merge(limit int) []byte {
	l := q.c.loop
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
