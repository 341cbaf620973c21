package eventloop

// Find returns the open connection with that ID, or nil. Loop only.
func (l *Loop) Find(id uint64) *Conn {
	slot := uint32(id)
	if id>>56 != uint64(l.id) || int(slot) >= len(l.conns) {
		return nil
	}
	if c := l.conns[slot]; c != nil && c.ID() == id && !c.isClosed() {
		return c
	}
	return nil
}
