package limit

import "net/netip"

// A ProxyHeader is what a PROXY protocol header says (haproxy's proxy-protocol.txt).
type ProxyHeader struct {
	// Version is 1 or 2.
	Version uint8
	// Local: the proxy speaks for itself (LOCAL, UNKNOWN, or a family that is not
	// TCP or UDP over IP): the connection's own addresses count.
	Local bool
	// Source is the client, Destination what it connected to.
	Source, Destination netip.AddrPort
}

// A ProxyError says why a PROXY header was refused; the connection must be closed.
type ProxyError struct{ Reason string }

// Error returns the reason.
func (e *ProxyError) Error() string { return "PROXY header: " + e.Reason }
