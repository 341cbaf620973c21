package eventloop

import "github.com/weir-gateway/weir/internal/app/takeover"

// Moving carried connections: they have no descriptor, so their states are a part of the
// state of the connection that carries them.

// State returns the state of v for another process, valid until the next call on that loop; ok is false if v cannot
// move now. Nothing changes. Loop only.
func (v *Carried) State() (s takeover.State, ok bool) {
	if !v.canMove() {
		return nil, false
	}
	b := v.loop.exporting
	if b == nil {
		b = &batch{} // the state alone is wanted
	}
	handler, kind := v.Handler().(Mover).AppendState(&v.Conn, b.carriedHandler[:0])
	if b.carriedHandler = handler; kind == 0 {
		return nil, false
	}
	b.carried = v.appendOwn(b.carried[:0], handler, kind)
	return b.carried, true
}

// Leave ends v here because it moved to another process: its handler's last call is Moved,
// and the carrier is not called. Loop only.
func (v *Carried) Leave() { v.leave() }

// ArriveCarried makes v, which comes from another process as m says, a connection carried by
// on. handler makes its handler. first is Carry's. After an error v is closed, of which the
// carrier was notified unless on's loop has ended. Loop only.
func ArriveCarried(v *Carried, on *Conn, carrier Carrier, m *Moving, first bool, handler func(*Conn) (Handler, error)) error {
	l := on.loop
	if on.isClosed() || l.ended {
		return ErrStopped
	}
	if !first {
		l.shared.open.Add(1)
	}
	v.carrier = carrier
	v.Conn = Conn{
		socket:   socket{loop: l, fd: carried, listener: on.listener, peerIP: on.peerIP, peerPort: on.peerPort},
		accepted: l.now - m.age,
	}
	v.socket, v.first = on, first
	v.enter()
	return l.settleIn(&v.Conn, m, nil, handler)
}
