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
	first  int // its slots
}

// An acceptSlot is one accept. peer does not move: it is reached by pointer.
type acceptSlot struct {
	listener int
	armed    bool
	peer     *sys.PeerAddress
}

// accepting is the listeners of p and the accepts in flight for them.
type accepting struct {
	p         *Uring
	listeners []uringListener
	slots     []acceptSlot
}

// Listen implements Poller.
func (a *accepting) Listen(index, fd int) error {
	for len(a.listeners) <= index {
		a.listeners = append(a.listeners, uringListener{fd: -1})
	}
	a.listeners[index] = uringListener{fd: fd, first: len(a.slots)}
	peers := make([]sys.PeerAddress, acceptsInFlight)
	for i := range peers {
		a.slots = append(a.slots, acceptSlot{listener: index, peer: &peers[i]})
	}
	if a.p.locked {
		a.armAccepts(index)
	}
	return nil
}

// SetAccepting implements Poller.
func (a *accepting) SetAccepting(index int, on bool) {
	l := &a.listeners[index]
	if l.paused == !on {
		return
	}
	l.paused = !on
	if !a.p.locked {
		return
	}
	if on {
		a.armAccepts(index)
		return
	}
	for i := l.first; i < l.first+acceptsInFlight; i++ {
		if a.slots[i].armed {
			s := a.p.request()
			s.PrepCancel(opAccept | uint64(i))
			s.UserData = opIgnore
		}
	}
}

// armAccepts requests as many connections as there is room for in the table. The
// kernel would accept and drop one that finds no room.
func (a *accepting) armAccepts(index int) {
	l := &a.listeners[index]
	if l.fd < 0 || l.paused {
		return
	}
	for i := l.first; i < l.first+acceptsInFlight && a.p.used < a.p.files; i++ {
		slot := &a.slots[i]
		if slot.armed {
			continue
		}
		slot.armed = true
		l.armed++
		a.p.used++
		s := a.p.request()
		s.PrepAccept(l.fd, slot.peer)
		s.UserData = opAccept | uint64(i)
	}
	if l.armed == 0 {
		a.p.notes = append(a.p.notes, note{kind: noteFull, idx: uint32(index), err: sys.ENFILE})
	}
}

// accepted is called with the result of an accept.
func (a *accepting) accepted(c sys.CQE, h Handler) {
	slot := &a.slots[uint32(c.UserData)]
	l := &a.listeners[slot.listener]
	peer := slot.peer.AddrPort()
	slot.armed = false
	l.armed--
	if e := c.Errno(); e != 0 {
		a.p.used--
		a.acceptFailed(slot.listener, e, h)
		return
	}
	idx := uint32(c.Res)
	gen := a.p.conns.enter(idx)
	h.Accepted(slot.listener, directBase+int(idx), peer)
	if k := &a.p.conns[idx]; k.gen == gen && k.state&(connOpen|connAdded) == connOpen {
		a.p.Close(0, directBase+int(idx)) // it has no handler
	}
	a.armAccepts(slot.listener)
}

func (a *accepting) acceptFailed(index int, e syscall.Errno, h Handler) {
	switch e {
	case sys.ECANCELED: // by SetAccepting, which may have changed its mind
		a.armAccepts(index)
	case sys.EINTR, sys.EAGAIN, sys.ECONNABORTED, sys.EPROTO, sys.ENETDOWN, sys.ENETUNREACH, sys.EHOSTDOWN, sys.EHOSTUNREACH:
		// That one is lost, the next may not be (accept(2)).
		a.armAccepts(index)
	default:
		if !a.listeners[index].paused {
			h.AcceptFailed(index, e)
		}
	}
}
