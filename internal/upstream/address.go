package upstream

import (
	"net/netip"
)

// An Address is where a peer is reached.
type Address struct {
	IP   netip.AddrPort // valid unless Unix is set
	Unix string         // path of a Unix socket; empty: TCP
}

// IsUnix reports whether a is a Unix socket.
func (a Address) IsUnix() bool { return a.Unix != "" }

// String is "ip:port" or "unix:/path".
func (a Address) String() string {
	if a.Unix != "" {
		return "unix:" + a.Unix
	}
	return a.IP.String()
}
