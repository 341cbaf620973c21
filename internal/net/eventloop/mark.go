package eventloop

import (
	"errors"
	"fmt"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// A Mark reports how the network, and this machine's queues, are to treat the packets of a
// connection. The zero value is what eventloop.sockets has for every connection.
type Mark struct {
	// DSCP is the code point of the packets, 0 to 63 (RFC 2474; IP_TOS, IPV6_TCLASS).
	DSCP int
	// Priority is SO_PRIORITY, 1 to 6; 0 is the one that Linux derives from DSCP.
	Priority int
}

// A Marker is a Carrier that marks packets by itself, because several connections share
// its socket. It is called on the loop's goroutine.
type Marker interface{ Mark(m Mark) error }

// SetMark marks what c's socket sends from now on: streams of HTTP/2 share one, and its mark.
// It takes two system calls. The error is a *sys.SettingError, or errors.ErrUnsupported for a
// carrier that does not mark packets. A closed connection has nothing to mark. Loop only.
func SetMark(c *Conn, m Mark) error {
	on := c.Socket()
	if on.isClosed() || on.Connecting() {
		return nil
	}
	l := on.loop
	if m == (Mark{}) {
		m = l.unmarked
	}
	if v := on.carrying(); v != nil {
		if k, ok := v.carrier.(Marker); ok {
			return k.Mark(m)
		}
		return fmt.Errorf("mark packets: %w", errors.ErrUnsupported)
	}
	for _, s := range m.settings(on) {
		if err := l.poller.SetOption(on.key, int(on.fd), s); err != nil {
			return err
		}
	}
	return nil
}

// derivedPriority is the priority that Linux derives from the lower three bits of a DSCP: those
// were the type of service once (ip_tos2prio in net/ipv4/route.c).
var derivedPriority = [8]int{0, 0, 2, 2, 6, 6, 4, 4}

// settings are the socket options of m. IP_TOS changes the priority, so that comes after; IPv6's
// option does not.
func (m Mark) settings(on *Conn) []sys.Setting {
	list := make([]sys.Setting, 0, 2)
	switch at := on.Peer().Addr(); { // the lower two bits of the byte are ECN's
	case at.Is4():
		list = append(list, sys.Setting{Option: sys.IPTOS, Value: m.DSCP << 2})
	case at.Is6():
		list = append(list, sys.Setting{Option: sys.TrafficClass, Value: m.DSCP << 2})
	}
	priority := m.Priority
	if priority == 0 {
		priority = derivedPriority[m.DSCP&7]
	}
	return append(list, sys.Setting{Option: sys.Priority, Value: priority})
}
