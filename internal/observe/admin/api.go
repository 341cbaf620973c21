package admin

import (
	"encoding/json"
	"time"

	"github.com/weir-gateway/weir/internal/observe/governor"
)

// A Snapshot is everything the dashboard, `weir top` and expvar show of one instant:
// GET /api/snapshot, and each event of GET /api/live. Rates are per second over
// Interval; durations are in seconds.
type Snapshot struct {
	Time     time.Time `json:"time"`
	Interval float64   `json:"interval_seconds"`
	Process  Process   `json:"process"`
	Traffic  Traffic   `json:"traffic"`
	// Connections by what they do.
	Connections Connected `json:"connections"`
	// Lag is how far subscribers are behind now, Slowest the 20 with most of it.
	Lag     Lag          `json:"lag"`
	Slowest []Connection `json:"slowest"`
	Loops   []Loop       `json:"loops"`
	// Channels with the highest rates; Count is how many there are.
	Channels ChannelsNow `json:"channels"`
	// Governor is what the governor sees: runtime, machine, loops, latency, the broker, the
	// state of the load with its timeline, evidence bundles, distance to the knee. With
	// the governor off, "enabled" is false in it and the rest zero.
	Governor *governor.Snapshot `json:"governor"`
	// Heat are the governor's heat maps: two minutes of columns in a snapshot that was
	// requested, the last three seconds in an event of /api/live (columns that were
	// there before come again, whole).
	Heat []governor.HeatMap `json:"heat_maps"`
	// Admission by class, in the order of priority; empty when nothing is admitted by
	// class.
	Admission []Admission `json:"admission"`
	// Upstreams are the clusters, splits with their canaries, and drift monitors, as
	// /api/upstreams.
	Upstreams any  `json:"upstreams"`
	Self      Self `json:"self"`
	// Degraded are the degraded modes that the node is in; empty while it serves everything.
	Degraded []Degradation `json:"degraded"`
	// Drain is absent before the clients start to leave.
	Drain *Drain `json:"drain,omitempty"`
	// Revocations are the revoked subjects and tokens that are in force on the node.
	Revocations RevocationsNow `json:"revocations"`
}

// RevocationsNow counts revoked subjects and tokens, and what came of them since the start.
type RevocationsNow struct {
	Subjects int    `json:"subjects"`
	Tokens   int    `json:"tokens"`
	InForce  int    `json:"in_force"` // both together
	Refused  uint64 `json:"refused"`  // tokens and clients
	Closed   uint64 `json:"closed"`   // connections and proxied requests
}

// A Drain is how the clients of a node leave: the plan, which is a straight line from
// Streams to none over Over, and what has become of it.
type Drain struct {
	Began   time.Time `json:"began"` // the first close
	Over    float64   `json:"over_seconds"`
	Streams int64     `json:"streams"` // at the beginning
	// Planned and Left are the streams that are to be there now, and those that are.
	Planned int64 `json:"planned"`
	Left    int64 `json:"left"`
}

// A Degradation is a mode in which a node serves only a part of what it could.
type Degradation struct {
	// Mode is broker-away, disk-full, disk-read-only, descriptors or memory.
	Mode   string    `json:"mode"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
	// Alert has its runbook: docs/runbooks/<alert>.md.
	Alert string `json:"alert"`
}

// Process is which program this is.
type Process struct {
	Version string    `json:"version"`
	Go      string    `json:"go"`
	PID     int       `json:"pid"`
	Node    string    `json:"node,omitempty"`
	Started time.Time `json:"started"`
	Uptime  float64   `json:"uptime_seconds"`
	Listen  string    `json:"listen"`
	Engine  string    `json:"engine"`
	Broker  string    `json:"broker"`
	Ready   string    `json:"ready"` // "yes" or why not
}

// Traffic is what goes through. Names without per_second are totals since the start.
type Traffic struct {
	Published     uint64 `json:"published"`
	PublishErrors uint64 `json:"publish_errors"`
	Delivered     uint64 `json:"delivered"`
	Replayed      uint64 `json:"replayed"`
	Encoded       uint64 `json:"encoded"`
	Requests      uint64 `json:"requests"`
	Accepted      uint64 `json:"accepted"`
	BytesIn       uint64 `json:"bytes_in"`
	BytesOut      uint64 `json:"bytes_out"`
	Sends         uint64 `json:"sends"`
	Stalls        uint64 `json:"stalls"`
	Gaps          uint64 `json:"gaps"`
	Dropped       uint64 `json:"dropped"`
	Conflated     uint64 `json:"conflated"`
	Disconnected  uint64 `json:"disconnected"` // by this side: too slow, expired, drained, by hand …

	PublishedRate float64 `json:"published_per_second"`
	ErrorRate     float64 `json:"publish_errors_per_second"`
	DeliveredRate float64 `json:"delivered_per_second"`
	RequestRate   float64 `json:"requests_per_second"`
	AcceptRate    float64 `json:"accepted_per_second"`
	InRate        float64 `json:"bytes_in_per_second"`
	OutRate       float64 `json:"bytes_out_per_second"`
	SendRate      float64 `json:"sends_per_second"`
	StallRate     float64 `json:"stalls_per_second"`
	// FanOut is messages delivered per one published, EncodesPerMessage how often one
	// was written in a wire format, BytesPerSend what a system call took; 0 when
	// nothing was.
	FanOut            float64 `json:"fan_out"`
	EncodesPerMessage float64 `json:"encodes_per_message"`
	BytesPerSend      float64 `json:"bytes_per_send"`
}

// Connected is who is connected.
type Connected struct {
	Open       int              `json:"open"`
	Max        int              `json:"max"`
	ByProtocol map[string]int64 `json:"by_protocol"`
	// Suites are the TLS handshakes finished since the start, by protocol and cipher suite;
	// empty without TLS.
	Suites []Suite `json:"suites"`
}

// A Suite is what a TLS handshake agreed on.
type Suite struct {
	Protocol   string `json:"protocol"` // TLS 1.2, TLS 1.3 or TLCP
	Suite      string `json:"suite"`
	Handshakes uint64 `json:"handshakes"`
}

// Lag is how subscribers lag now, as histograms over them: counts[i] lag by at most
// bounds[i] and more than the bound before; the last count is for what exceeds all.
type Lag struct {
	Messages Spread `json:"messages"`
	Bytes    Spread `json:"bytes"`
	Seconds  Spread `json:"seconds"`
	// Subscribers looked at, and of those the ones with something waiting here.
	Subscribers uint64 `json:"subscribers"`
	Lagging     uint64 `json:"lagging"`
}

// A Spread is how many fall between bounds.
type Spread struct {
	Bounds []float64 `json:"bounds"`
	Counts []uint64  `json:"counts"`
	Sum    float64   `json:"sum"`
}

// A Loop is an event loop's share of the work.
type Loop struct {
	Loop        int    `json:"loop"`
	Connections uint64 `json:"connections"`
	// Delivered messages, bytes and ticks per second.
	Messages float64 `json:"messages_per_second"`
	BytesIn  float64 `json:"bytes_in_per_second"`
	BytesOut float64 `json:"bytes_out_per_second"`
	Sends    float64 `json:"sends_per_second"`
	Ticks    float64 `json:"ticks_per_second"`
	// Busy is the share of the time spent in ticks, 0 to 1.
	Busy    float64 `json:"busy"`
	TickP50 float64 `json:"tick_p50_seconds"`
	TickP99 float64 `json:"tick_p99_seconds"`
	// Current is how long the tick under way has taken; one that grows is stuck.
	Current float64 `json:"current_tick_seconds"`
	// Inbox is functions, Queue messages that wait for the loop.
	Inbox int   `json:"inbox"`
	Queue int64 `json:"queue"`
}

// ChannelsNow are the busiest channels.
type ChannelsNow struct {
	Count int64     `json:"count"`
	Top   []Channel `json:"top"`
}

// A Channel is one with subscribers on this node.
type Channel struct {
	Name        string  `json:"name"`
	Subscribers int64   `json:"subscribers"`
	Messages    uint64  `json:"messages"`
	Rate        float64 `json:"messages_per_second"`
}

// Channels is what GET /api/channels answers.
type Channels struct {
	Total    int64     `json:"total"`
	Sort     string    `json:"sort"`
	Channels []Channel `json:"channels"`
}

// Admission is one class of work.
type Admission struct {
	Class    string `json:"class"`
	Offered  uint64 `json:"offered"`
	Admitted uint64 `json:"admitted"`
	Rejected uint64 `json:"rejected"`
	// Rates per second, and the delay that the class sees.
	OfferedRate  float64 `json:"offered_per_second"`
	AdmittedRate float64 `json:"admitted_per_second"`
	RejectedRate float64 `json:"rejected_per_second"`
	DelayP50     float64 `json:"delay_p50_seconds"`
	DelayP95     float64 `json:"delay_p95_seconds"`
	DelayP99     float64 `json:"delay_p99_seconds"`
}

// Self is what watching costs.
type Self struct {
	// Listeners of /api/live now, and events sent to them.
	Listeners int    `json:"listeners"`
	Events    uint64 `json:"events"`
	// SnapshotSeconds is how long making the last snapshot took.
	SnapshotSeconds float64 `json:"snapshot_seconds"`
	SnapshotBytes   int     `json:"snapshot_bytes"`
	SpansDropped    uint64  `json:"spans_dropped"`
	SpansExported   uint64  `json:"spans_exported"`
}

// A Connection is one subscriber and how far it is behind.
type Connection struct {
	// ID is what /api/connections/{id} takes; a string, for it has 64 bits.
	ID   string `json:"id"`
	Conn uint64 `json:"conn"`
	// Loop that the connection belongs to; -1: none.
	Loop int    `json:"loop"`
	Peer string `json:"peer"`
	// Transport is sse, websocket or stream, Protocol what a protocol's endpoint speaks
	// on it; absent: Weir's own.
	Transport string `json:"transport"`
	Protocol  string `json:"protocol,omitempty"`
	// HTTP2: it is a stream of HTTP/2. Several of them may share a connection.
	HTTP2 bool `json:"http2,omitempty"`
	// HTTP3: it is a stream of HTTP/3.
	HTTP3    bool      `json:"http3,omitempty"`
	Subject  string    `json:"subject,omitempty"`
	Channels []string  `json:"channels"`
	Since    time.Time `json:"connected_at"`
	Messages int       `json:"lag_messages"`
	Bytes    int       `json:"lag_bytes"`
	// Kernel is what the kernel has not sent, or seen acknowledged; of a stream of HTTP/2
	// what its whole connection has under way.
	Kernel int     `json:"kernel_bytes"`
	Age    float64 `json:"lag_seconds"`
}

// Connections is what GET /api/connections answers.
type Connections struct {
	Total int    `json:"total"`
	Sort  string `json:"sort"`
	// Missing are loops that did not answer in time.
	Missing     []int        `json:"loops_not_answering,omitempty"`
	Connections []Connection `json:"connections"`
}

// ConnectionDetail is what GET /api/connections/{id} answers.
type ConnectionDetail struct {
	Connection
	Open float64 `json:"age_seconds"`
	// Stalled: the socket takes nothing more currently.
	Stalled bool `json:"stalled"`
	// TCP is what the kernel knows of the connection; null when it says nothing.
	TCP *TCP `json:"tcp"`
}

// TCP is the kernel's TCP_INFO of a socket, the part that shows why writes wait.
type TCP struct {
	RTT         float64 `json:"rtt_seconds"`
	Unsent      uint32  `json:"unsent_bytes"`
	Unacked     uint32  `json:"unacked_segments"`
	Segments    uint32  `json:"data_segments_sent"`
	Retransmits uint32  `json:"retransmits"`
	// Busy is the time in which there was something to send, the others the parts of it
	// that waited for the peer's window and for our own send buffer.
	Busy          float64 `json:"busy_seconds"`
	WindowLimited float64 `json:"receive_window_limited_seconds"`
	BufferLimited float64 `json:"send_buffer_limited_seconds"`
}

// Messages is what GET /api/channels/{name}/messages answers: the newest, oldest first.
type Messages struct {
	Channel string `json:"channel"`
	// Position is the top of the namespace's log.
	Position string    `json:"position,omitempty"`
	Messages []Message `json:"messages"`
}

// A Message is one of a channel.
type Message struct {
	ID     string    `json:"id,omitempty"`
	Offset uint64    `json:"offset,omitempty"`
	Time   time.Time `json:"time"`
	Key    string    `json:"key,omitempty"`
	// Data is the payload: JSON as it is, text and others as a string; Payload says
	// which: json, text or binary (base64).
	Data    json.RawMessage `json:"data"`
	Payload string          `json:"payload"`
	Size    int             `json:"size_bytes"`
	// Attributes the publisher gave, null without.
	Attributes any `json:"attributes,omitempty"`
	// Truncated: the payload is longer than what is shown.
	Truncated bool `json:"truncated,omitempty"`
}

// TraceRequest is the body of POST /api/trace.
type TraceRequest struct {
	Channel string `json:"channel"`
	// Data is published; absent: the next publication on the channel is followed.
	Data json.RawMessage `json:"data,omitempty"`
	// Timeout in seconds; 0 means 10, at most 60.
	Timeout float64 `json:"timeout_seconds,omitempty"`
}

// States of a Trace.
const (
	TraceWaiting = "waiting" // for a publication
	TraceRunning = "running" // it is on its way
	TraceDone    = "done"
	TraceExpired = "expired" // nothing came, or not all of it, in time
	TraceFailed  = "failed"  // the broker refused it: see error
)

// A Trace is one message followed from its publish to the sockets: the answer of POST
// /api/trace and of GET /api/trace/{id}. All times are seconds since it was accepted.
type Trace struct {
	ID       string    `json:"id"`
	Channel  string    `json:"channel"`
	State    string    `json:"state"`
	Started  time.Time `json:"begun"`
	Accepted time.Time `json:"accepted,omitzero"`
	Bytes    int       `json:"bytes"`
	Position string    `json:"position,omitempty"`
	Error    string    `json:"error,omitempty"`
	// Stored is when the broker had answered the publisher, Delivered when it brought
	// the message to the hub, Queued when every shard with interest had it in its
	// queue, Done when the last loop had handed it to its sockets. 0: not yet.
	Stored    float64 `json:"stored_seconds"`
	Delivered float64 `json:"delivered_seconds"`
	Queued    float64 `json:"queued_seconds"`
	Done      float64 `json:"done_seconds"`
	// Shards are the loops that took part, by number.
	Shards []TraceShard `json:"shards"`
}

// TraceShard is one loop's part of a Trace.
type TraceShard struct {
	Loop int `json:"loop"`
	// Woken is when the shard began with the message, Written when its tick had ended
	// and everything was handed to the kernel.
	Woken   float64 `json:"woken_seconds"`
	Written float64 `json:"written_seconds"`
	// Subscribers that the shard delivered to in that tick, and the send calls and
	// bytes of it. A busy loop does other work in the same tick.
	Delivered uint64 `json:"delivered"`
	Sends     uint64 `json:"sends"`
	Bytes     uint64 `json:"sent_bytes"`
}

// Bundles is what GET /api/bundles answers: the evidence on disk, newest first.
type Bundles = governor.Evidence

// PublishRequest is the body of POST /api/publish on the admin listener, as on the
// public one.
type PublishRequest struct {
	Channel        string          `json:"channel"`
	Data           json.RawMessage `json:"data"`
	Key            string          `json:"key,omitempty"`
	IdempotencyKey string          `json:"idempotency_key,omitempty"`
}

// Error is the body of every answer that is not a success.
type Error struct {
	Error struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Hint    string `json:"hint,omitempty"`
	} `json:"error"`
}
