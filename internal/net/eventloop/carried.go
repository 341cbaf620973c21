package eventloop

import "net/netip"

// A Carrier moves the bytes of connections that have no socket of their own: HTTP/2 and
// HTTP/3 do, for their streams. There is one for each such connection. Its methods are called on the
// loop's goroutine.
type Carrier interface {
	// Send takes as much of b as may leave now and returns how much that is. It does not
	// keep b. When it takes less than all, it calls Carried.Writable once there is room.
	Send(b []byte) int
	// Reading reports whether input is wanted. While it is not, what comes is kept, up to the
	// bound of unconsumed input: the carrier is to hold the peer back before that.
	Reading(on bool)
	// Shutdown reports that nothing is sent after what Send took. All input until Close is
	// still wanted.
	Shutdown()
	// Close is the last call. orderly says that the peer may take what it got for whole: all
	// was sent, and nothing went wrong.
	Close(err error, orderly bool)
}

// A Carried is a connection that shares the socket of another one. To its handler,
// it is a Conn like any: it has its timer, its queue with bounds and the policy for slow
// readers, and it is counted among the connections of its loop.
//
// It is the first field of what its carrier keeps for it, so that both are one allocation.
type Carried struct {
	Conn

	// Fixed by Carry.
	carrier Carrier
	socket  *Conn
	// first: its socket, which counts, carried no other when it began.
	first bool
}

// Carry makes v a connection on on's loop, which speaks for on's peer. carrier moves its
// bytes and h handles them. first says that on carries no other: a connection and its first
// stream count as one. It returns false when as many connections are open as may be; h is
// not called then. Loop only.
func Carry(v *Carried, on *Conn, carrier Carrier, h Handler, first bool) bool {
	return CarryFrom(v, on, on.Peer(), carrier, h, first)
}

// CarryFrom is Carry for a peer that may have another address now than when on was
// accepted: QUIC lets clients move.
func CarryFrom(v *Carried, on *Conn, peer netip.AddrPort, carrier Carrier, h Handler, first bool) bool {
	if on.isClosed() || !on.loop.carry(v, carrier, !first) {
		return false
	}
	v.Conn = Conn{
		socket:   socket{loop: on.loop, fd: carried, listener: on.listener, peerIP: peer.Addr().As16(), peerPort: peer.Port()},
		accepted: on.loop.now, handler: h,
	}
	v.socket, v.first = on, first
	v.enter()
	on.loop.n.carried++
	return true
}

// CarryRoot makes v a connection on l whose socket is none of l's, and which carries others:
// that of a client of QUIC. It is counted among the accepted ones, as the first listener's.
// It returns false as Carry does. Loop only.
func (l *Loop) CarryRoot(v *Carried, peer netip.AddrPort, carrier Carrier, h Handler) bool {
	if !l.carry(v, carrier, true) {
		return false
	}
	v.Conn = Conn{socket: socket{loop: l, fd: carried, peerIP: peer.Addr().As16(), peerPort: peer.Port()}, accepted: l.now, handler: h}
	v.socket = &v.Conn
	v.enter()
	l.n.accepted++
	return true
}

// carry finds out whether one more connection may be open, and counts it if counts.
func (l *Loop) carry(v *Carried, carrier Carrier, counts bool) bool {
	if l.ended {
		return false
	}
	if counts && l.shared.open.Add(1) > l.limits.maxConns+l.limits.burst {
		l.shared.open.Add(-1)
		l.n.refused++
		return false
	}
	v.carrier = carrier
	return true
}

// enter gives v its place on its loop.
func (v *Carried) enter() {
	v.timer.Owner = &v.Conn
	v.key = v.loop.table.add(&v.Conn)
}

// Arrived shows b, which the carrier got for v, to the handler. b is valid until Arrived
// returns and may be changed in place.
func (v *Carried) Arrived(b []byte) {
	if !v.isClosed() && len(b) > 0 {
		v.received(b)
	}
}

// Ended reports that v's peer sends no more.
func (v *Carried) Ended() {
	if v.flags&(flagClosed|flagEOF) == 0 {
		v.endOfStream()
	}
}

// Writable reports that Send may take more.
func (v *Carried) Writable() { v.flush() }

// Unread returns how many bytes of input wait for the handler.
func (v *Carried) Unread() int {
	if v.parked == nil {
		return 0
	}
	return len(v.parked.b)
}

// Socket returns the connection whose socket carries c: c itself, mostly. It is c as well
// where CarryRoot made it.
func (c *Conn) Socket() *Conn {
	if v := c.carrying(); v != nil {
		return v.socket
	}
	return c
}

// A Flusher has something to do at the end of a tick.
type Flusher interface{ Flush() }

// FlushAtTickEnd has f called at the end of the tick, after everything that connections wrote
// has gone to what carries it and before the loop sleeps. Loop only.
func (l *Loop) FlushAtTickEnd(f Flusher) { l.flushers = append(l.flushers, f) }

// runFlushers calls what waits for the end of the tick. What they write leaves with it.
func (l *Loop) runFlushers() {
	for i := 0; i < len(l.flushers); {
		l.guard(nil, func() { // again after a panic only
			for i < len(l.flushers) {
				f := l.flushers[i]
				l.flushers[i] = nil
				i++
				f.Flush()
			}
		})
	}
	l.flushers = l.flushers[:0]
}
