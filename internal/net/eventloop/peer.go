package eventloop

import "net/netip"

// SetPeer reports who is really at the other end, where a trusted proxy reported it. Only
// before anyone else has seen c; loop only.
func (c *Conn) SetPeer(addr netip.AddrPort) { c.peerIP, c.peerPort = addr.Addr().As16(), addr.Port() }
