package upstream

// Reserve counts one more connection to the peer, of all loops; false means that
// there are as many as may be. Any goroutine may call it.
func (p *Peer) Reserve() bool {
	if n := p.conns.Add(1); n > p.maxConns.Load() {
		p.conns.Add(-1)
		p.counts.full.Add(1)
		return false
	}
	return true
}

// Release ends what Reserve began.
func (p *Peer) Release() { p.conns.Add(-1) }

// Leases are the connections in use of one loop, by when they last did something:
// what is too old has leaked. Only the loop that owns it calls it.
//
// The zero value is ready. It grows to the most connections that were in use at a
// time and allocates nothing after.
type Leases struct {
	slots []lease // slots[0] is the list's head and of no lease
	free  int32   // first free slot; 0: none
	inUse int
	least int64 // least LeakAfter seen; what is younger is not overdue
}

// lease is one connection in use, in a list by touched, or free.
type lease struct {
	peer       *Peer
	touched    int64
	prev, next int32
	generation uint32
	reported   bool
}

// A Lease is one connection in use; the zero value is none.
type Lease struct {
	index      int32
	generation uint32
}

// Len is how many connections are in use.
func (l *Leases) Len() int { return l.inUse }

// Checkout records that a connection to p is in use.
func (l *Leases) Checkout(now int64, p *Peer) Lease {
	if len(l.slots) == 0 {
		l.slots = make([]lease, 1, 16)
	}
	i := l.free
	if i == 0 {
		i = int32(len(l.slots))
		l.slots = append(l.slots, lease{})
	} else {
		l.free = l.slots[i].next
	}
	s := &l.slots[i]
	s.peer, s.touched, s.reported = p, now, false
	s.generation++
	l.inUse++
	if after := p.leakAfter.Load(); l.least == 0 || after < l.least {
		l.least = after
	}
	l.append(i)
	return Lease{i, s.generation}
}

// Touch records that it did something.
func (l *Leases) Touch(now int64, x Lease) {
	if s := l.slot(x); s != nil {
		s.touched, s.reported = now, false
		l.unlink(x.index)
		l.append(x.index)
	}
}

// Return records that it is in use no more. A second time does nothing.
func (l *Leases) Return(x Lease) {
	s := l.slot(x)
	if s == nil {
		return
	}
	l.unlink(x.index)
	s.peer = nil
	s.generation++
	s.next, l.free = l.free, x.index
	l.inUse--
}

// Overdue calls report for each lease untouched for longer than its cluster's
// LeakAfter, once per lease and touch, oldest first. A tick calls it now and then.
// report must not call l.
func (l *Leases) Overdue(now int64, report func(p *Peer, idle int64)) {
	if len(l.slots) == 0 {
		return
	}
	for i := l.slots[0].next; i != 0; i = l.slots[i].next {
		s := &l.slots[i]
		idle := now - s.touched
		if idle <= l.least {
			return
		}
		if !s.reported && idle > s.peer.leakAfter.Load() {
			s.reported = true
			s.peer.counts.leaked.Add(1)
			report(s.peer, idle)
		}
	}
}

func (l *Leases) slot(x Lease) *lease {
	if x.index <= 0 || int(x.index) >= len(l.slots) || l.slots[x.index].generation != x.generation {
		return nil
	}
	return &l.slots[x.index]
}

func (l *Leases) append(i int32) {
	last := l.slots[0].prev
	l.slots[i].prev, l.slots[i].next = last, 0
	l.slots[last].next = i
	l.slots[0].prev = i
}

func (l *Leases) unlink(i int32) {
	s := &l.slots[i]
	l.slots[s.prev].next = s.next
	l.slots[s.next].prev = s.prev
}
