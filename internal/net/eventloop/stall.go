package eventloop

// A stallList is the connections that wait for their socket to take more, in no order. A
// queue knows its place in it.
type stallList struct {
	conns []*Conn
	every int64 // between looks at their progress
	swept int64
}

// minProgress is what a peer must take within Config.WriteStall to be kept.
const minProgress = 4 << 10

func (s *stallList) add(q *outQueue) {
	q.stalled = int32(len(s.conns))
	s.conns = append(s.conns, q.c)
}

func (s *stallList) remove(q *outQueue) {
	i := q.stalled
	if i < 0 {
		return
	}
	last := s.conns[len(s.conns)-1]
	s.conns[i] = last
	if last != q.c {
		last.out.stalled = i
	}
	s.conns[len(s.conns)-1] = nil
	s.conns = s.conns[:len(s.conns)-1]
	q.stalled = -1
}

// sweep closes connections whose peer accepts nothing, or next to nothing, and returns how
// many bytes wait for all of them. Handlers that it notifies may close others: the walk runs from
// the end, where removal moves in only what was looked at already.
func (s *stallList) sweep(now int64) (queued uint64) {
	s.swept = now
	for _, c := range s.conns {
		queued += uint64(c.Unsent())
	}
	for i := len(s.conns) - 1; i >= 0; i-- {
		if i < len(s.conns) {
			s.conns[i].out.checkProgress()
		}
	}
	return queued
}

// stall notes that q waits for its socket. q may be nil: its connection was closed.
func (q *outQueue) stall() {
	if q == nil || q.stalled >= 0 {
		return
	}
	l := q.c.loop
	l.stalled.add(q)
	l.n.stalls++
}

// checkProgress goes by what the peer acknowledged: the kernel requests more
// only in large pieces, so that a slow reader may seem to take nothing for long.
func (q *outQueue) checkProgress() {
	c, l := q.c, q.c.loop
	if q.measured && l.now-q.since < l.limits.writeStall {
		return
	}
	inKernel := c.UnsentKernel()
	if q.measured && q.moved+q.inKernel-inKernel < minProgress {
		l.n.stallCloses++
		c.Abort(ErrStalled)
		return
	}
	q.measured, q.since, q.moved, q.inKernel = true, l.now, 0, inKernel
}
