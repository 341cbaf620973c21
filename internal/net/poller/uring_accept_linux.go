package poller

import (
	"syscall"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Accepting. A multishot accept would need one request for ever, but it gives no
// peer address, and a direct descriptor has no getpeername. So a listener has a
// few single accepts in flight, each with room for an address: a burst of
// connections is then still taken many at a time without a system call each. It
// costs 10 % of a reconnect against a multishot accept that knows no address;
// accept4, which knows it, would need two more requests to get the socket into
// the table and out of the process.

// acceptsInFlight per listener.
const acceptsInFlight = 32

type uringListener struct {
	fd     int
	paused bool
	armed  int
	first  int // its acceptSlots
}

// An acceptSlot is one accept. peer does not move: it is reached by pointer.
type acceptSlot struct {
	listener int
	armed    bool
	peer     *sys.PeerAddress
}

// Listen implements Poller.
func (p *Uring) Listen(index, fd int) error {
	for len(p.listeners) <= index {
		p.listeners = append(p.listeners, uringListener{fd: -1})
	}
	p.listeners[index] = uringListener{fd: fd, first: len(p.accepts)}
	peers := make([]sys.PeerAddress, acceptsInFlight)
	for i := range peers {
		p.accepts = append(p.accepts, acceptSlot{listener: index, peer: &peers[i]})
	}
	if p.locked {
		p.armAccepts(index)
	}
	return nil
}

// SetAccepting implements Poller.
func (p *Uring) SetAccepting(index int, on bool) {
	l := &p.listeners[index]
	if l.paused == !on {
		return
	}
	l.paused = !on
	if !p.locked {
		return
	}
	if on {
		p.armAccepts(index)
		return
	}
	for i := l.first; i < l.first+acceptsInFlight; i++ {
		if p.accepts[i].armed {
			s := p.request()
			s.PrepCancel(opAccept | uint64(i))
			s.UserData = opIgnore
		}
	}
}

// armAccepts asks for as many connections as there is room for in the table. The
// kernel would accept and drop one that finds no room.
func (p *Uring) armAccepts(index int) {
	l := &p.listeners[index]
	if l.fd < 0 || l.paused {
		return
	}
	for i := l.first; i < l.first+acceptsInFlight && p.used < p.files; i++ {
		a := &p.accepts[i]
		if a.armed {
			continue
		}
		a.armed = true
		l.armed++
		p.used++
		s := p.request()
		s.PrepAccept(l.fd, a.peer)
		s.UserData = opAccept | uint64(i)
	}
	if l.armed == 0 {
		p.notes = append(p.notes, note{kind: noteFull, idx: uint32(index), err: sys.ENFILE})
	}
}

// accepted is called with the result of an accept.
func (p *Uring) accepted(c sys.CQE, h Handler) {
	a := &p.accepts[uint32(c.UserData)]
	l := &p.listeners[a.listener]
	peer := a.peer.AddrPort()
	a.armed = false
	l.armed--
	if e := c.Errno(); e != 0 {
		p.used--
		p.acceptFailed(a.listener, e, h)
		return
	}
	idx := uint32(c.Res)
	gen := p.entered(idx)
	h.Accepted(a.listener, directBase+int(idx), peer)
	if k := &p.conns[idx]; k.gen == gen && k.state&(connOpen|connAdded) == connOpen {
		p.Close(0, directBase+int(idx)) // nobody wanted it
	}
	p.armAccepts(a.listener)
}

// entered begins the life of a connection in an entry of the table.
func (p *Uring) entered(idx uint32) (gen uint16) {
	for len(p.conns) <= int(idx) {
		p.conns = append(p.conns, uringConn{})
	}
	gen = p.conns[idx].gen + 1
	p.conns[idx] = uringConn{gen: gen, state: connTaken | connOpen}
	return gen
}

func (p *Uring) acceptFailed(index int, e syscall.Errno, h Handler) {
	switch e {
	case sys.ECANCELED: // by SetAccepting, which may have changed its mind
		p.armAccepts(index)
	case sys.EINTR, sys.EAGAIN, sys.ECONNABORTED, sys.EPROTO, sys.ENETDOWN, sys.ENETUNREACH, sys.EHOSTDOWN, sys.EHOSTUNREACH:
		// That one is lost, the next may not be (accept(2)).
		p.armAccepts(index)
	default:
		if !p.listeners[index].paused {
			h.AcceptFailed(index, e)
		}
	}
}
