package upstream

// A Peer is one backend at one address. It keeps its state as long as it is
// configured, or resolved, without a pause of more than five minutes.
type Peer struct {
	// Fixed.
	address Address
	name    string
}

// Address is where to connect.
func (p *Peer) Address() Address { return p.address }

// Name is the address as configured: the host name, if it was one.
func (p *Peer) Name() string { return p.name }

// Draining reports that the peer gets no new requests: it was removed, or is
// configured so. Its idle connections may be closed.
func (p *Peer) Draining() bool { return false }

// Reserve counts one more connection to the peer, of all loops; false means that
// there are as many as may be.
func (p *Peer) Reserve() bool { return true }

// Release ends what Reserve began.
func (p *Peer) Release() {}
