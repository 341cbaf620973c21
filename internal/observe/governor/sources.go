package governor

import (
	"context"
	"io"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/metrics"
)

// Sources are what the process knows of itself and the governor does not. A nil
// function means unknown. Those of the first block are called by the
// sampler at 10 Hz and must not block; those of the second are called on a goroutine
// of their own, one call at a time, and may take a while (a post to each loop and
// its answer), but at most SourcePatience.
type Sources struct {
	// Loops appends every event loop's numbers to dst.
	Loops func(dst []LoopSample) []LoopSample
	// Delivery adds to h the latencies from publish to socket, counted since the start.
	Delivery func(h *metrics.Counts)
	// Delivered is how many messages were written to subscribers since the start:
	// the load that the distance to the knee is measured on.
	Delivered func() uint64
	// Published is how many messages were taken from publishers since the start.
	Published func() uint64
	// Connections is how many connections are open, those that no loop owns included.
	// Nil means the sum of Loops.
	Connections func() int
	// Roles appends the goroutines of every role that the program knows to dst.
	Roles func(dst []RoleCount) []RoleCount
	// Activity rises with everything that allocates, and stops when the
	// program is idle. Nil means that the collector's phase policy never finds it idle.
	Activity func() uint64
	// Owners are the bytes that the program accounts for; Other is not looked at. Nil
	// means that none are.
	Owners func() MemoryOwners
	// Broker returns the state of the broker's writes.
	Broker func() BrokerSample
	// Knee is the last capacity report, and false when there is none.
	Knee func() (KneeReport, bool)

	// Sockets appends the connections whose number is phase modulo of: 1 in of.
	Sockets func(dst []SocketSample, phase, of int) []SocketSample
	// Consumers returns the n connections with most lag, worst first.
	Consumers func(n int) []Consumer
	// Observe writes, as JSON, what the kernel shows of the process in a window of that length,
	// for evidence. Nil: nothing does. It may fail where the rights are missing.
	Observe func(ctx context.Context, window time.Duration, w io.Writer) error
}

// SourcePatience is how long a source that may block is waited for; after that its
// numbers are called stale until it returns.
const SourcePatience = 2 * time.Second

// A LoopSample are an event loop's numbers at an instant. Counters count since its
// start.
type LoopSample struct {
	ID int
	// Ticks ended. Tick is how long each worked, from the poller's return to its end.
	Ticks uint64
	Tick  metrics.Counts
	// LastTick is how long the last one worked, Busy how long all did, the one that has
	// not ended included.
	LastTick time.Duration
	Busy     time.Duration
	// Working is how long the tick that has not ended has been at work; 0 when the
	// loop waits for its poller.
	Working time.Duration
	// Inbox is how many functions wait to be run, Stalled how many connections wait
	// for their socket to take more.
	Inbox, Stalled int
	Conns          int
	Reads, BytesIn uint64
	// Sends are system calls or submissions.
	Sends, BytesOut uint64
	// Stalls counts the times that a socket did not accept everything.
	Stalls uint64
}

// A SocketSample is one connection as the kernel sees it.
type SocketSample struct {
	// ID stays the connection's for as long as it lives.
	ID  uint64
	TCP sys.TCPInfo
	// Queued is what waits for it in this process, in bytes.
	Queued int
}

// A RoleCount is how many goroutines do one kind of work.
type RoleCount struct {
	Role string `json:"role"`
	N    int    `json:"n"`
}

// A BrokerSample is the state of the broker's writes.
type BrokerSample struct {
	// Store counts how long publishers waited for the broker, since the start.
	Store metrics.Counts
	// Waiting is how many publishes are not answered, Oldest how long the first of
	// them has waited.
	Waiting int
	Oldest  time.Duration
	// Failed publishes since the start.
	Failed uint64
}

// A KneeReport is what a capacity report says of the load that the machine carries.
type KneeReport struct {
	// Knee is in messages delivered per second, as are its bounds and Capacity; 0
	// means not known.
	Knee     float64 `json:"knee"`
	Lo       float64 `json:"lo"`
	Hi       float64 `json:"hi"`
	Capacity float64 `json:"capacity"`
	// Connections is the knee of a ramp of connections; 0 means that the ramp was of rate.
	Connections float64   `json:"connections"`
	Time        time.Time `json:"time,omitzero"`
	// Confidence is the report's own word for how sure it is.
	Confidence string `json:"confidence"`
	// Build is the version that was measured, Machine what it ran on.
	Build   string `json:"build"`
	Machine string `json:"machine"`
}

// A Consumer is a connection and how far it is behind.
type Consumer struct {
	ID       string  `json:"id"`
	Peer     string  `json:"peer"`
	Protocol string  `json:"protocol"`
	Loop     int     `json:"loop"`
	Messages uint64  `json:"messages"`
	Bytes    uint64  `json:"bytes"`
	Seconds  float64 `json:"seconds"`
}
