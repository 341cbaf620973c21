package upstream

// Leases are the connections in use of one loop, by when they last did something:
// what is too old has leaked. Only the loop that owns it calls it.
//
// The zero value is ready.
type Leases struct{}

// A Lease is one connection in use; the zero value is none.
type Lease struct{ index int32 }

// Checkout records that a connection to p is in use.
func (l *Leases) Checkout(now int64, p *Peer) Lease { return Lease{} }

// Touch records that it did something.
func (l *Leases) Touch(now int64, x Lease) {}

// Return records that it is in use no more.
func (l *Leases) Return(x Lease) {}

// Overdue calls report for each lease untouched for longer than its cluster's
// LeakAfter, once per lease and touch, oldest first. A tick calls it now and then.
func (l *Leases) Overdue(now int64, report func(p *Peer, idle int64)) {}
