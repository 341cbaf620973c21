package poller

import (
	"github.com/weir-gateway/weir/internal/net/sys"
)

// Bulk. A multishot receive takes whatever arrives, as fast as it does, also while
// the loop has not yet been able to say that it is enough: of a connection that
// moves a large body it could be megabytes, which would then have to be held. Such
// a connection is received from once at a time, into one large buffer, until it
// sends little again.

const (
	// bulkFrom is what a connection brings in one dispatch to be treated as bulk, and
	// bulkUntil the size below which a receive ends that.
	bulkFrom  = 32 << 10
	bulkUntil = bufferSize

	firstBulkBuffers = 2
	maxBulkBuffers   = 64
)

// bulk is what the connections that move much have in common. Owned by the loop's
// goroutine.
type bulk struct {
	// conns are they, by entry of the table, and whether a bulk receive is in flight.
	conns   map[uint32]bool
	buffers *sys.Buffers // nil until it is needed, or when it cannot be had
	starved bool
	failed  bool // it cannot be had

	// What one connection has brought in results that follow each other.
	idx  uint32
	came int
}

// watchBulk looks at a result of a receive that is not bulk. The first of a
// connection is for one buffer only.
func (p *Uring) watchBulk(idx uint32, cqe sys.CQE) {
	b := &p.bulk
	if idx != b.idx || cqe.Res < bufferSize {
		b.idx, b.came = idx, 0
	}
	b.came += int(max(cqe.Res, 0))
	single := !cqe.More() && cqe.Res == bufferSize
	if b.came < bulkFrom && !single || !p.bulk.have(p.ring) {
		return
	}
	c := &p.conns[idx]
	if _, is := b.conns[idx]; is || c.state&connOpen == 0 {
		return
	}
	b.conns[idx] = false
	if c.state&connRecv != 0 && c.state&connCancel == 0 {
		c.state |= connCancel
		p.cancel(opRecv, idx)
	}
}

// have makes the buffers, once.
func (b *bulk) have(ring *sys.Ring) bool {
	if b.buffers != nil || b.failed {
		return b.buffers != nil
	}
	var err error
	if b.buffers, err = sys.NewBuffers(ring, 1, maxBulkBuffers, ReadBuffer, firstBulkBuffers); err != nil {
		b.buffers, b.failed = nil, true
		return false
	}
	b.conns = map[uint32]bool{}
	return true
}

// receiving returns which receive is in flight for a connection, if one is.
func (b *bulk) receiving(idx uint32) uint64 {
	if b.conns[idx] {
		return opBulk
	}
	return opRecv
}

// armBulk requests the next receive of a connection that moves much.
func (p *Uring) armBulk(idx uint32) bool {
	if _, is := p.bulk.conns[idx]; !is {
		return false
	}
	p.bulk.conns[idx] = true
	s := p.request()
	s.PrepRecvOnce(idx, p.bulk.buffers)
	s.UserData = p.conns.userData(opBulk, idx)
	return true
}

// receivedBulk is called with the result of a bulk receive.
func (p *Uring) receivedBulk(cqe sys.CQE, h Handler) {
	idx := uint32(cqe.UserData)
	b := &p.bulk
	id, filled := cqe.Buffer()
	if cqe.UserData == p.conns.userData(opBulk, idx) {
		p.conns[idx].state &^= connRecv | connCancel
		e := cqe.Errno()
		if b.conns[idx] = false; e == 0 && cqe.Res < bulkUntil {
			delete(b.conns, idx)
		}
		b.starved = b.starved || e == sys.ENOBUFS
		var bytes []byte
		if filled {
			bytes = b.buffers.Bytes(id, int(cqe.Res))
		}
		p.input(idx, cqe, bytes, h)
		if cqe.UserData == p.conns.userData(opBulk, idx) {
			p.settle(idx)
		}
	}
	if filled {
		b.buffers.Recycle(id)
	}
}

// forget is called when the entry of a connection is free.
func (b *bulk) forget(idx uint32) {
	if len(b.conns) > 0 {
		delete(b.conns, idx)
	}
}

// grow makes more buffers if there was none for a receive.
func (b *bulk) grow() {
	if b.starved {
		b.starved = false
		b.buffers.Grow()
	}
}

func (b *bulk) free() {
	if b.buffers != nil {
		b.buffers.Free()
	}
	b.buffers, b.conns, b.failed = nil, nil, true
}
