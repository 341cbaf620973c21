package poller

import (
	"math/bits"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Sending. A connection has at most one send in flight, or their bytes could
// change places. Send takes all of its bytes, or none while the one before is
// stuck in a full socket. One that is merely gathered is submitted to find out,
// together with everything else that was gathered.

// An inflight send keeps its bytes reachable until the kernel is done.
type inflight struct {
	b      []byte
	done   int // bytes sent
	idx    uint32
	batch  uint32 // the submission it goes with
	pooled bool   // b is of the pool
}

// Send implements Poller.
func (p *Uring) Send(_ Key, fd int, b []byte) (int, syscall.Errno) {
	return p.send(index(fd), b, false)
}

// SendCopy implements Poller.
func (p *Uring) SendCopy(_ Key, fd int, b []byte) (int, syscall.Errno) {
	return p.send(index(fd), b, true)
}

func (p *Uring) send(idx uint32, b []byte, volatile bool) (int, syscall.Errno) {
	if len(p.recalls.rest) > 0 {
		resend(p, idx)
	}
	c := &p.conns[idx]
	if c.send != 0 && p.sends.all[c.send-1].batch == p.batch {
		p.submit()
	}
	switch {
	case c.state&connBroken != 0:
		return 0, sys.EPIPE
	case c.send != 0:
		c.state |= connStalled
		return 0, 0
	case len(b) == 0:
		return 0, 0
	}
	n := len(b)
	if volatile {
		b = p.copies.take(b)
	}
	op := p.sends.take()
	p.sends.all[op] = inflight{b: b, idx: idx, pooled: volatile}
	c.send = op + 1
	p.push(op)
	return n, 0
}

// inflights are the sends by their numbers.
type inflights struct {
	all  []inflight
	free []int32
}

// take returns the number of one that is not in use.
func (s *inflights) take() int32 {
	if n := len(s.free); n > 0 {
		op := s.free[n-1]
		s.free = s.free[:n-1]
		return op
	}
	s.all = append(s.all, inflight{})
	return int32(len(s.all) - 1)
}

func (s *inflights) put(op int32) {
	s.all[op] = inflight{}
	s.free = append(s.free, op)
}

// push requests what is left of a send.
func (p *Uring) push(op int32) {
	s := p.request() // may submit: only then is it known which batch this is
	f := &p.sends.all[op]
	f.batch = p.batch
	s.PrepSend(f.idx, f.b[f.done:])
	s.UserData = opSend | uint64(op)
}

// sent is called with the result of a send.
func (p *Uring) sent(cqe sys.CQE) {
	op := int32(uint32(cqe.UserData))
	f := &p.sends.all[op]
	e := cqe.Errno()
	f.done += int(max(cqe.Res, 0))
	idx := f.idx
	recalled := p.recalls.wanted != nil && p.conns[idx].state&connOpen != 0 && p.recalls.recalled(f, e)
	if !recalled && f.done < len(f.b) && (e == 0 || e == sys.EINTR) && p.conns[idx].state&connGiveUp == 0 {
		p.push(op)
		return
	}
	if f.pooled {
		p.copies.put(f.b)
	}
	p.sends.put(op)
	c := &p.conns[idx]
	c.send = 0
	switch {
	case c.state&connOpen == 0:
		p.finish(idx)
	case recalled: // Writable comes when it is sent after all
	case e != 0:
		if c.state&connBroken == 0 {
			c.state |= connBroken
			p.notes = append(p.notes, p.conns.note(noteBroken, idx, e))
		}
	default:
		if c.state&connStalled != 0 {
			c.state &^= connStalled
			p.notes = append(p.notes, p.conns.note(noteWritable, idx, 0))
		}
		if c.state&connShut != 0 {
			c.state &^= connShut
			p.shutdown(idx)
		}
	}
}

// Shutdown implements Poller.
func (p *Uring) Shutdown(_ Key, fd int) {
	idx := index(fd)
	resend(p, idx)
	switch c := &p.conns[idx]; {
	case c.state&(connOpen|connBroken) != connOpen:
	case c.send != 0:
		c.state |= connShut
	default:
		p.shutdown(idx)
	}
}

func (p *Uring) shutdown(idx uint32) {
	p.conns[idx].state |= connShutting
	s := p.request()
	s.PrepShutdown(idx, sys.SendingSide)
	s.UserData = p.conns.userData(opShutdown, idx)
}

// An orphan is a closed connection whose last send is still in flight. Send took
// those bytes, so they are not dropped with it, unless the peer does not take
// them in time.
type orphan struct {
	idx   uint32
	gen   uint16
	until time.Time
}

const (
	orphanTime  = 30 * time.Second
	orphanCheck = time.Second
)

// Close implements Poller. The entry of the table is free, and the peer notified,
// once nothing is in flight any more: at the next Wait as a rule.
func (p *Uring) Close(_ Key, fd int) { p.close(index(fd), false) }

// Abort is Close with a reset: the peer cannot take what it got for whole, and
// what is in flight is lost.
func (p *Uring) Abort(_ Key, fd int) { p.close(index(fd), true) }

func (p *Uring) close(idx uint32, reset bool) {
	c := &p.conns[idx]
	if c.state&connOpen == 0 {
		return
	}
	resend(p, idx)
	c.state &^= connOpen | connReading
	if reset {
		c.state |= connReset
	}
	p.held.drop(&p.conns[idx], idx)
	if c.state&connRecv != 0 && c.state&connCancel == 0 {
		p.cancel(p.bulk.receiving(idx), idx)
	}
	if c.state&connHangup != 0 {
		p.cancel(opHangup, idx)
	}
	if c.state&connConnecting != 0 {
		p.cancel(opConnect, idx)
	}
	switch {
	case c.send == 0:
	case reset:
		p.giveUp(idx)
	default:
		p.orphans = append(p.orphans, orphan{idx: idx, gen: c.gen, until: time.Now().Add(orphanTime)})
	}
	p.finish(idx)
}

// finish closes the entry of a closed connection when nothing is in flight for it.
func (p *Uring) finish(idx uint32) {
	c := &p.conns[idx]
	if c.state&connTaken == 0 || c.send != 0 || c.state&(connRecv|connHangup|connShutting|connConnecting) != 0 {
		return
	}
	if p.ended.has(idx) { // and then it is finished
		p.ended.drop(idx)
		c.state |= connShutting
		s := p.request()
		s.PrepShutdown(idx, sys.BothSides)
		s.UserData = p.conns.userData(opShutdown, idx)
		return
	}
	if c.state&connReset != 0 {
		s := p.request()
		s.PrepReset(idx)
		s.UserData = opIgnore
	}
	c.state = 0
	p.stopped.drop(idx)
	p.bulk.forget(idx)
	p.used--
	s := p.request()
	s.PrepClose(idx)
	s.UserData = opIgnore
}

// giveUp cancels the send in flight of a closed connection.
func (p *Uring) giveUp(idx uint32) {
	p.conns[idx].state |= connGiveUp
	cancelSend(p, p.conns[idx].send-1)
}

// expireOrphans gives up the sends of closed connections that took too long.
func (p *Uring) expireOrphans() {
	if len(p.orphans) == 0 {
		return
	}
	now := time.Now()
	keep := p.orphans[:0]
	for _, o := range p.orphans {
		c := &p.conns[o.idx]
		switch {
		case c.gen != o.gen || c.send == 0:
		case now.After(o.until):
			p.giveUp(o.idx)
		default:
			keep = append(keep, o)
		}
	}
	p.orphans = keep
}

// Unsent returns how many bytes of a connection wait in the kernel, and here for
// it. It is a system call; before Linux 6.7 it cannot see into the kernel.
func (p *Uring) Unsent(_ Key, fd int) int {
	idx := index(fd)
	p.unsent = 0
	s := p.request()
	s.PrepUnsent(idx)
	s.UserData = opUnsent
	p.submit()
	n := int(max(p.unsent, 0)) + len(p.recalls.rest[idx])
	if c := &p.conns[idx]; c.send != 0 {
		f := &p.sends.all[c.send-1]
		n += len(f.b) - f.done
	}
	return n
}

// SetOption implements Poller. Before Linux 6.7 the kernel refuses it.
func (p *Uring) SetOption(_ Key, fd int, o sys.Setting) error {
	p.option, p.optionErr = int32(o.Value), -int32(sys.EAGAIN)
	s := p.request()
	s.PrepSetOption(index(fd), o.Option, &p.option)
	s.UserData = opOption
	p.submit()
	if p.optionErr < 0 {
		return &sys.SettingError{Setting: o, Err: syscall.Errno(-p.optionErr)}
	}
	return nil
}

// copyPool keeps buffers for SendCopy, by powers of two.
type copyPool struct {
	free [copyClasses][][]byte
}

const (
	copySmallest = 9 // bits: 512 bytes
	copyClasses  = 9 // up to 128 KiB
	copyKeep     = 1 << 20
)

func copyClass(n int) int { return max(bits.Len(uint(n-1))-copySmallest, 0) }

// take returns a copy of b.
func (p *copyPool) take(b []byte) []byte {
	class := copyClass(len(b))
	if class >= copyClasses {
		return append([]byte(nil), b...)
	}
	if n := len(p.free[class]); n > 0 {
		c := p.free[class][n-1]
		p.free[class][n-1] = nil
		p.free[class] = p.free[class][:n-1]
		return append(c, b...)
	}
	return append(make([]byte, 0, 1<<(class+copySmallest)), b...)
}

// put takes back what take returned, up to copyKeep bytes of a size.
func (p *copyPool) put(b []byte) {
	class := copyClass(cap(b))
	if class < copyClasses && cap(b) == 1<<(class+copySmallest) && len(p.free[class]) < copyKeep>>(class+copySmallest) {
		p.free[class] = append(p.free[class], b[:0])
	}
}
