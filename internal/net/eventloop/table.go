package eventloop

import "github.com/weir-gateway/weir/internal/net/poller"

// A connTable is the open connections of a loop. A connection's key is its slot and the
// slot's generation, so that an event that comes late finds nothing.
type connTable struct {
	conns []*Conn
	gens  []uint32
	free  []uint32
	open  int
}

// add gives c a slot and returns its key.
func (t *connTable) add(c *Conn) poller.Key {
	var slot uint32
	if n := len(t.free); n > 0 {
		slot = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		slot = uint32(len(t.conns))
		t.conns = append(t.conns, nil)
		t.gens = append(t.gens, 0)
	}
	t.conns[slot] = c
	t.open++
	return poller.Key(uint64(t.gens[slot])<<32 | uint64(slot))
}

// remove frees the slot of k; its next user gets another generation. 30 bits of it
// are used: the top two mark the poller's own keys.
func (t *connTable) remove(k poller.Key) {
	slot := k.Slot()
	t.conns[slot] = nil
	t.gens[slot] = (t.gens[slot] + 1) & (1<<30 - 1)
	t.free = append(t.free, slot)
	t.open--
}

// at returns the connection in a slot, or nil.
func (t *connTable) at(slot uint32) *Conn {
	if int(slot) >= len(t.conns) {
		return nil
	}
	return t.conns[slot]
}

// find returns the connection of k, or nil.
func (t *connTable) find(k poller.Key) *Conn {
	if c := t.at(k.Slot()); c != nil && c.key == k {
		return c
	}
	return nil
}

// Conns calls f for every open connection until f returns false. Loop only.
func (l *Loop) Conns(f func(*Conn) bool) {
	for _, c := range l.table.conns {
		if c != nil && !f(c) {
			return
		}
	}
}

// Find returns the open connection with that ID, or nil. Loop only.
func (l *Loop) Find(id uint64) *Conn {
	if id>>56 != uint64(l.id) {
		return nil
	}
	if c := l.table.at(uint32(id)); c != nil && c.ID() == id && !c.isClosed() {
		return c
	}
	return nil
}
