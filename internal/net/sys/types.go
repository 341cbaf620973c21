package sys

import "time"

// ListenOptions are set on a listening socket; accepted sockets inherit them.
type ListenOptions struct {
	// Backlog of not yet accepted connections; 0 means 4,096. The kernel clips
	// it to net.core.somaxconn.
	Backlog int
	// ReusePort lets several sockets listen on one address, one per loop.
	ReusePort bool
	// Claim makes Listen fail if another socket listens on the address already, with
	// SO_REUSEPORT or not. Sockets opened after this one may share it.
	Claim bool
	// Settings are applied in order before the socket listens: what a connection
	// can advertise is decided when its first packet arrives. TCP_NODELAY is set
	// before them; IPv6's options are left out on an IPv4 socket.
	Settings []Setting
}

// A SocketOption is one of the kernel's, by its own name.
type SocketOption uint8

// The options, in the kernel's units. IPTOS and TrafficClass take the whole byte.
const (
	ReceiveBuffer  SocketOption = iota // bytes; the kernel doubles what it is given
	SendBuffer                         // bytes; doubled too
	NoDelay                            // 0 or 1
	KeepAlive                          // 0 or 1
	KeepIdle                           // seconds
	KeepInterval                       // seconds
	KeepCount                          // probes
	UserTimeout                        // milliseconds
	NotSentLowat                       // bytes
	BusyPoll                           // microseconds
	PreferBusyPoll                     // 0 or 1
	IPTOS                              // of IPv4; also sets Priority
	TrafficClass                       // of IPv6; IPv6 sockets only
	Priority                           // 0 to 6, more with CAP_NET_ADMIN
	Congestion                         // a name, the only one that is text
	DeferAccept                        // seconds; the kernel rounds to retransmissions
)

// A Setting is an option with the value it shall have.
type Setting struct {
	Option SocketOption
	Value  int
	Text   string // Congestion's
}

// A SettingError says in words why the kernel did not take a setting.
type SettingError struct {
	Setting Setting
	Err     error
}

// Unwrap returns the cause.
func (e *SettingError) Unwrap() error { return e.Err }

// TCPInfo is what the kernel says of a connection: the part of struct tcp_info
// (tcp(7)) that shows why writes wait.
type TCPInfo struct {
	// Busy is the time in which there was something to send; ReaderLimited and
	// BufferLimited the parts of it that waited for the peer's window and for our own
	// send buffer. All since the connection was made.
	Busy, ReaderLimited, BufferLimited time.Duration
	// Unsent bytes have not left, Unacked segments are on their way.
	Unsent, Unacked uint32
	RTT             time.Duration
	// Segments sent with data, and Retransmits of them, since the connection was made.
	Segments, Retransmits uint32
	// Acked are the bytes that the peer has acknowledged, Received those from it.
	Acked, Received uint64
}
