package eventloop

import (
	"net/netip"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Adopt takes over a connected stream socket: fd is the loop's from now on,
// whatever follows. early is what was read from it already, and is shown to h
// before anything else; it must not change any more. If h is a Connector it is
// notified first. h.Closed comes also when the socket cannot be taken: ErrTooManyConns,
// or the system's reason.
//
// Any goroutine. It returns false when the loop has ended: fd is closed and h not
// called.
func (l *Loop) Adopt(fd int, peer netip.AddrPort, early []byte, h Handler) bool {
	if l.Post(func() { l.adopt(fd, peer, early, h) }) {
		return true
	}
	sys.Close(fd)
	return false
}

func (l *Loop) adopt(fd int, peer netip.AddrPort, early []byte, h Handler) {
	d := &dialing{}
	c := l.outgoing(peer, h, d)
	if c.isClosed() {
		sys.Close(fd)
		return
	}
	if l.shared.open.Load() > l.limits.maxConns {
		l.n.refused++
		sys.Close(fd)
		c.Close(ErrTooManyConns)
		return
	}
	err := sys.SetNonblock(fd)
	if err != nil {
		sys.Close(fd)
	} else {
		err = d.own(fd)
	}
	if err != nil {
		c.Close(err)
		return
	}
	d.established(&l.n.adopted)
	if len(early) > 0 && !c.isClosed() {
		l.n.bytesIn += uint64(len(early))
		c.arrived(early)
	}
}
