package eventloop

import (
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/poller"
)

// Moving two connections as one: what is relayed between a client and a backend is in neither of them alone, so the
// state of the client's connection has that of the backend's. One record is taken or refused, and both continue where it is.

// A Companion handles a connection that this process opened, whose state is a part of another's.
type Companion interface {
	Handler
	// Principal returns the connection of the same loop whose handler's AppendState calls
	// CompanionState; nil: neither moves now.
	Principal() *Conn
}

// A companion is a connection that was lent with its principal.
type companion struct {
	conn, principal *Conn
	loan            poller.Loan
}

// canAccompany reports whether c can move in the state of another connection, which has a socket that can be sent.
func canAccompany(c *Conn) bool {
	if c.listener != noListener || c.fd < 0 || c.Connecting() || !isMovable(c) {
		return false
	}
	h, ok := c.Handler().(Companion)
	if !ok {
		return false
	}
	p := h.Principal()
	return p != nil && p.loop == c.loop && p.Socket().fd >= 0
}

// CompanionState returns the state of c for that of the connection that is being exported. ok is false if c cannot
// move now. Nothing changes. Only AppendState of the handler of c's principal may call it.
func CompanionState(c *Conn) (s takeover.State, ok bool) {
	b := c.loop.exporting
	if b == nil || !canAccompany(c) {
		return nil, false
	}
	loans := []poller.Loan{loanOf(c)}
	c.loop.poller.Lend(loans)
	if loans[0].File < 0 {
		return nil, false
	}
	b.lent = append(b.lent, loans[0])
	b.pending = append(b.pending, companion{conn: c, principal: c.Handler().(Companion).Principal().Socket(), loan: loans[0]})
	return appendSocket(c.appendOwn(nil, nil, 0), c, &loans[0])
}

// LeaveCompanion ends c here because it moved to another process with its principal, whose handler's Moved calls it.
// Loop only.
func LeaveCompanion(c *Conn) { c.leave() }

// ImportCompanion is Import for what CompanionState returned. Arrive makes it a connection.
func ImportCompanion(s takeover.State) (*Moving, error) { return importConn(s) }

// restoreOthers reads again from those of list that are not exported.
func (e *Exported) restoreOthers(list []*Conn) {
	if len(list) == 0 {
		return
	}
	exported := make(map[*Conn]bool, len(e.companions))
	for _, x := range e.companions {
		exported[x.conn] = true
	}
	for _, c := range list {
		if !exported[c] {
			c.restoreReading()
		}
	}
}

// keepCompanions takes those companions back whose principal is no longer exported.
func (e *Exported) keepCompanions() {
	if len(e.companions) == 0 {
		return
	}
	exported := make(map[*Conn]bool, len(e.conns))
	for _, c := range e.conns {
		exported[c] = true
	}
	left := e.companions[:0]
	for _, x := range e.companions {
		if exported[x.principal] {
			left = append(left, x)
		} else {
			x.conn.restoreReading()
		}
	}
	clear(e.companions[len(left):])
	e.companions = left
}
