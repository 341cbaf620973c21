package limit

import (
	"errors"
	"fmt"
)

// A Mark is how packets are marked. The zero value leaves them as eventloop.sockets has them.
type Mark struct {
	// DSCP is the code point for routers and for queues of this machine, 0 to 63 (RFC 2474;
	// IP_TOS and IPV6_TCLASS).
	DSCP int `json:"dscp"`
	// Priority is the packets' in this machine's queues (SO_PRIORITY), 0 to 6; 0 leaves it to
	// the one that Linux derives from dscp.
	Priority int `json:"priority"`
}

// Marks are the marks of packets by class. A connection has one for all that it is sent: that of
// the least important class among its subscriptions, and none with a subscription of no class.
type Marks struct {
	// Control is for class control.
	Control Mark `json:"control"`
	// Order is for class order.
	Order Mark `json:"order"`
	// Account is for class account.
	Account Mark `json:"account"`
	// Market is for class market.
	Market Mark `json:"market"`
	// Replay is for class replay.
	Replay Mark `json:"replay"`
}

// Of returns the mark of a class; Unclassed has none.
func (m Marks) Of(c Class) Mark {
	return [Classes]Mark{{}, m.Control, m.Order, m.Account, m.Market, m.Replay}[c]
}

// Validate returns all that is wrong with m, joined.
func (m Marks) Validate() error {
	var errs []error
	for c := Control; c < Classes; c++ {
		if v := m.Of(c).DSCP; v < 0 || v > 63 {
			errs = append(errs, fmt.Errorf("%s: dscp: %d is not within 0..63", c, v))
		}
		if v := m.Of(c).Priority; v < 0 || v > 6 {
			errs = append(errs, fmt.Errorf("%s: priority: %d is not within 0..6", c, v))
		}
	}
	return errors.Join(errs...)
}

// Less reports whether c is less important than d. Nothing is less important than Unclassed:
// what has no class must not pass for what has one.
func (c Class) Less(d Class) bool { return c != d && d != Unclassed && (c == Unclassed || c > d) }
