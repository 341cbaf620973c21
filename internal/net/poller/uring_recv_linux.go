package poller

import (
	"github.com/weir-gateway/weir/internal/net/sys"
)

// Receiving. A connection has one multishot receive in flight while the loop
// wants to read, and otherwise a wait for a hang-up, so that a broken connection
// shows as it does with epoll. What the kernel had received before the receive
// was cancelled is held until the loop reads again.

// heldInput is what came while the loop did not want it.
type heldInput struct {
	b   []byte
	eof bool
}

// heldInputs are by entry of the table; connHeld says that there is one.
type heldInputs map[uint32]*heldInput

// add keeps a copy of input that the loop does not want yet, so that its buffer can go back: at
// most what the kernel had received when reading was paused. No bytes are the end of the stream.
func (hs heldInputs) add(c *uringConn, idx uint32, b []byte) {
	in := hs[idx]
	if in == nil {
		in = &heldInput{}
		hs[idx] = in
		c.state |= connHeld
	}
	in.b = append(in.b, b...)
	in.eof = in.eof || len(b) == 0
}

func (hs heldInputs) drop(c *uringConn, idx uint32) {
	if c.state&connHeld != 0 {
		c.state &^= connHeld
		delete(hs, idx)
	}
}

// Add implements Poller.
func (p *Uring) Add(k Key, fd int) error {
	idx := index(fd)
	c := &p.conns[idx]
	c.key = k
	c.state |= connAdded | connReading
	if c.state&connHangup != 0 {
		p.cancel(opHangup, idx)
	}
	firstRecv(p, idx)
	return nil
}

// firstRecv requests the first receive of a connection: what comes then shows which kind it is.
func firstRecv(p *Uring, idx uint32) *sys.SQE {
	p.conns[idx].state |= connRecv
	s := p.request()
	s.PrepRecvOnce(idx, p.buffers)
	s.UserData = p.conns.userData(opRecv, idx)
	return s
}

// AddLater implements Poller.
func (p *Uring) AddLater(k Key, fd int) {
	c := &p.conns[index(fd)]
	c.key = k
	c.state |= connAdded | connReading
	p.late.add(k, fd)
}

// addLate requests receives for connections of AddLater. One that SetReading was called for has what it needs.
func addLate(p *Uring) {
	const flight = connRecv | connHangup | connBroken | connHeld
	for _, l := range p.late.next() {
		idx := index(l.fd)
		if c := &p.conns[idx]; c.key == l.key && c.state&(connOpen|connReading|flight) == connOpen|connReading {
			firstRecv(p, idx).ExpectNothing()
		}
	}
}

func (p *Uring) armRecv(idx uint32) {
	p.conns[idx].state |= connRecv
	if p.armBulk(idx) {
		return
	}
	s := p.request()
	if p.reads {
		s.PrepRead(idx, p.buffers)
	} else {
		s.PrepRecv(idx, p.buffers)
	}
	s.UserData = p.conns.userData(opRecv, idx)
}

func (p *Uring) cancel(op uint64, idx uint32) {
	s := p.request()
	s.PrepCancel(p.conns.userData(op, idx))
	s.UserData = opIgnore
}

// SetReading implements Poller.
func (p *Uring) SetReading(_ Key, fd int, on bool) {
	idx := index(fd)
	c := &p.conns[idx]
	if c.state&connOpen == 0 || (c.state&connReading != 0) == on {
		return
	}
	if on {
		c.state |= connReading
		if c.state&connHangup != 0 {
			p.cancel(opHangup, idx)
		}
		if c.state&connHeld != 0 {
			p.notes = append(p.notes, p.conns.note(noteResumed, idx, 0))
			return
		}
	} else {
		c.state &^= connReading
		if c.state&connRecv != 0 && c.state&connCancel == 0 {
			c.state |= connCancel
			p.cancel(p.bulk.receiving(idx), idx)
		}
	}
	p.settle(idx)
}

// settle brings what is in flight in line with what the loop wants.
func (p *Uring) settle(idx uint32) {
	c := &p.conns[idx]
	switch {
	case c.state&connOpen == 0:
		p.finish(idx)
	case c.state&(connRecv|connHangup|connBroken) != 0:
	case c.state&connReading == 0:
		if p.stopped.has(idx) {
			return
		}
		if c.state&connHeld != 0 && p.held[idx].eof {
			return // it would come at once, and there is nothing to learn
		}
		c.state |= connHangup
		s := p.request()
		s.PrepHangup(idx)
		s.UserData = p.conns.userData(opHangup, idx)
	case c.state&connHeld == 0:
		p.armRecv(idx)
	}
}

// received is called with a result of a receive.
func (p *Uring) received(cqe sys.CQE, h Handler) {
	idx := uint32(cqe.UserData)
	id, filled := cqe.Buffer()
	if cqe.UserData == p.conns.userData(opRecv, idx) {
		if !cqe.More() {
			p.conns[idx].state &^= connRecv | connCancel
		}
		p.watchBulk(idx, cqe)
		var b []byte
		if filled {
			b = p.buffers.Bytes(id, int(cqe.Res))
		}
		if cqe.Errno() == sys.ENOBUFS {
			p.starved = true
		}
		p.input(idx, cqe, b, h)
		if !cqe.More() && cqe.UserData == p.conns.userData(opRecv, idx) { // or the entry has a new connection
			p.settle(idx)
		}
	}
	if filled {
		p.buffers.Recycle(id)
	}
}

// input is a result of a receive of either kind; b is what came.
func (p *Uring) input(idx uint32, cqe sys.CQE, b []byte, h Handler) {
	c := &p.conns[idx]
	switch e := cqe.Errno(); {
	case e == sys.ENOBUFS, e == sys.ECANCELED, e == sys.EINTR, e == sys.EAGAIN:
	case c.state&connOpen == 0:
	case e != 0:
		c.state |= connBroken
		h.Received(c.key, nil, e)
	case cqe.Res == 0 && c.state&connEOF != 0:
		h.Received(c.key, nil, 0) // again: this time because the connection is gone
	case c.state&(connReading|connHeld) != connReading:
		p.held.add(c, idx, b)
	case cqe.Res == 0:
		p.conns[idx].endOfStream(h)
	default:
		h.Received(c.key, b, 0)
	}
}

// release passes on held input as long as the loop reads.
func (p *Uring) release(idx uint32, h Handler) {
	c := &p.conns[idx]
	in := p.held[idx]
	if in == nil || c.state&connReading == 0 {
		return
	}
	if b := in.b; len(b) > 0 {
		n := min(len(b), ReadBuffer)
		in.b = b[n:]
		h.Received(c.key, b[:n], 0)
		c = &p.conns[idx] // a handler that dials may have moved it
	}
	switch {
	case c.state&connOpen == 0, c.state&connReading == 0:
		return // SetReading or Close has seen to the rest
	case len(in.b) > 0:
		p.notes = append(p.notes, p.conns.note(noteResumed, idx, 0))
		return
	}
	p.held.drop(&p.conns[idx], idx)
	if in.eof {
		p.conns[idx].endOfStream(h)
	}
	p.settle(idx)
}

// hungUp is called when something happened to a connection that is not being
// read, or when the wait for that was cancelled. If it broke, or both sides have
// ended and the loop has read all, a receive finds out; that only the peer ended
// its stream can wait.
func (p *Uring) hungUp(cqe sys.CQE) {
	idx := uint32(cqe.UserData)
	if cqe.UserData != p.conns.userData(opHangup, idx) {
		return
	}
	c := &p.conns[idx]
	if !cqe.More() {
		c.state &^= connHangup
	}
	if cqe.Res > 0 && cqe.Res&sys.EpollErr == 0 && c.state&(connOpen|connReading|connEOF) == connOpen {
		return // what is left to be read waits until the loop wants it, and can be a lot
	}
	gone := cqe.Res > 0 && cqe.Res&(sys.EpollErr|sys.EpollHup) != 0
	if gone && c.state&(connOpen|connRecv|connBroken) == connOpen {
		if cqe.More() {
			p.cancel(opHangup, idx)
		}
		p.armRecv(idx)
		return
	}
	if !cqe.More() {
		p.settle(idx)
	}
}
