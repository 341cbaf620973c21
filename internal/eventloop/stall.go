package eventloop

// minProgress is what a peer must take within Config.WriteStall to be kept.
const minProgress = 4 << 10

// stall notes that c waits for its socket.
func (c *Conn) stall() {
	l := c.loop
	if c.out == nil || c.out.stalled >= 0 {
		return
	}
	c.out.stalled = len(l.stalled)
	l.stalled = append(l.stalled, c)
	l.n.stalls++
}

// sweepStalled closes connections whose peer takes nothing, or next to nothing.
// Handlers it tells may close others: the walk runs from the end, where removal
// moves in only what was looked at already.
func (l *Loop) sweepStalled() {
	l.swept = l.now
	var queued uint64
	for _, c := range l.stalled {
		queued += uint64(c.Unsent())
	}
	l.n.queued = queued
	for i := len(l.stalled) - 1; i >= 0; i-- {
		if i < len(l.stalled) {
			l.stalled[i].checkProgress()
		}
	}
}

// checkProgress judges by what the peer acknowledged: the kernel asks for more
// only in large pieces, so that a slow reader may seem to take nothing for long.
func (c *Conn) checkProgress() {
	q, l := c.out, c.loop
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
