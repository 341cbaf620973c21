package loadgen

import (
	"net/netip"
	"time"
)

// A Kind is what one arrival does and what is counted of it.
type Kind string

// The kinds of load.
const (
	// HTTP sends requests and waits for their responses.
	HTTP Kind = "http"
	// Echo sends WebSocket messages and waits for each to come back.
	Echo Kind = "echo"
	// PubSub publishes messages and follows each to every subscriber.
	PubSub Kind = "pubsub"
	// WebSocket and SSE hold streams open and count what arrives on them.
	WebSocket Kind = "ws"
	SSE       Kind = "sse"
)

// An Arrival is how the intended instants of an open model lie in time.
type Arrival string

// The arrival processes.
const (
	Poisson Arrival = "poisson" // exponential gaps: what independent users make
	Uniform Arrival = "uniform" // equal gaps
	Burst   Arrival = "burst"   // Spec.Burst arrivals at once, equal gaps between
)

// A Spec reports which load to make. It is in every result. The zero value of
// a field means what its comment says; Kind and Target are required.
type Spec struct {
	Kind Kind `json:"kind"`
	// Target is the URL of the server: http, https, ws or wss. Its path and query are
	// used as they are; "{n}" there becomes the number of the connection, "{channel}"
	// that of its channel.
	Target string `json:"target"`
	// Adapter is what the server speaks beyond the bare protocol: "plain", "weir",
	// "mercure", "nchan" or "centrifuge". Empty means plain.
	Adapter string `json:"adapter,omitempty"`
	// Headers are added to every request, "Name: value".
	Headers []string `json:"headers,omitempty"`
	// Insecure accepts any certificate.
	Insecure bool `json:"insecure,omitempty"`
	// GM dials with Chinese national cryptography: "tlcp" (GB/T 38636) or "tls13" (RFC
	// 8998). Empty: neither.
	GM string `json:"gm,omitempty"`

	// Conns is the number of connections: the subscribers with pubsub. 0 means 1.
	Conns int `json:"conns"`
	// FirstConn is the number of the first connection; Split gives each process its own.
	FirstConn int `json:"first_conn,omitempty"`
	// ConnectRate bounds new connections per second; 0 means 2,000.
	ConnectRate float64 `json:"connect_rate,omitempty"`
	// Sources are local addresses that connections are spread over, which multiplies
	// the ports there are. Empty means the system's choice, and for a loopback
	// target as many of 127.0.0.0/8 as are needed.
	Sources []netip.Addr `json:"sources,omitempty"`

	// Closed makes a closed loop: each connection starts an exchange when the one
	// before has ended, Concurrency of them at a time (0 means Conns). Otherwise the
	// model is open: arrivals come at Rate per second whatever the server does.
	Closed      bool    `json:"closed,omitempty"`
	Concurrency int     `json:"concurrency,omitempty"`
	Rate        float64 `json:"rate,omitempty"`
	Arrival     Arrival `json:"arrival,omitempty"` // empty means poisson
	Burst       int     `json:"burst,omitempty"`   // of burst; 0 means 10
	// MaxInFlight bounds what is under way; an arrival beyond it is dropped and
	// counted. 0 means 10,000.
	MaxInFlight int `json:"max_in_flight,omitempty"`
	// Timeout ends an exchange as an error; 0 means 10s.
	Timeout time.Duration `json:"timeout,omitempty"`

	// HTTP: the request. Method empty means GET, or POST with a body. Version is
	// "1.1" (empty too) or "2". Pipeline is how many requests a connection may have
	// outstanding, of HTTP/2 streams, of echo messages; 0 means 1.
	Method   string `json:"method,omitempty"`
	Body     string `json:"body,omitempty"`
	Version  string `json:"version,omitempty"`
	Pipeline int    `json:"pipeline,omitempty"`

	// Payload is the size in bytes of a message that is echoed or published; 0 means
	// 128. At least 64: stream, sequence and intended time are in it.
	Payload int `json:"payload,omitempty"`
	// Transport is how subscribers of pubsub connect, "ws" or "sse"; empty means
	// what Target's scheme says (http: sse).
	Transport string `json:"transport,omitempty"`
	// Channels is the number of channels that subscribers are spread over, and
	// publishes go round; 0 means 1.
	Channels int `json:"channels,omitempty"`
	// FirstChannel is the number of the first channel; Split gives each process its own.
	FirstChannel int `json:"first_channel,omitempty"`
	// Channel is what channels are called, "{channel}" in it becomes the number.
	// Empty means what Target's query says where the adapter has a parameter for it,
	// or else "bench-{channel}".
	Channel string `json:"channel,omitempty"`
	// Publish is the URL to publish to; empty means the adapter's on Target's host.
	Publish string `json:"publish,omitempty"`
	// Publishers is the number of connections that publish; 0 means 4.
	Publishers int `json:"publishers,omitempty"`
	// Deflate offers permessage-deflate.
	Deflate bool `json:"deflate,omitempty"`
	// Reconnect makes a stream that ends come back with its Last-Event-ID or
	// position, and counts what it missed.
	Reconnect bool `json:"reconnect,omitempty"`

	// Warmup is not counted; 0 means 1s. Duration is counted; 0 means 10s.
	Warmup   time.Duration `json:"warmup,omitempty"`
	Duration time.Duration `json:"duration,omitempty"`
	// Requests ends the run after so many exchanges (messages published, with pubsub)
	// over all connections, or after Duration, whichever comes first; exactly so many
	// are offered then. There is no warm-up. 0 means that Duration alone ends it. With
	// Requests a Duration of 0 means a day.
	Requests int `json:"requests,omitempty"`
	// Stages, when there are any, replace Rate and Duration: rate and connections
	// go linearly to each stage's over its time, each without touching the other.
	Stages []Stage `json:"stages,omitempty"`
	// Window is the length of the pieces that are reported; 0 means 1s.
	Window time.Duration `json:"window,omitempty"`
	// Seed makes the arrivals the same again; 0 means a seed from the clock, which
	// the result names.
	Seed uint64 `json:"seed,omitempty"`
	// Loops is the number of event loops; 0 means one, or one per CPU beyond 10,000
	// connections.
	Loops int `json:"loops,omitempty"`
	// Engine of the loops: "epoll", "io_uring" or "auto" (what the gateway would
	// choose); empty means epoll, which reports each arrival when it is read.
	Engine string `json:"engine,omitempty"`
}

// A Stage is a piece of a ramp.
type Stage struct {
	Duration time.Duration `json:"duration"`
	// Rate is the arrivals per second at its end; negative means unchanged.
	Rate float64 `json:"rate"`
	// Conns is the number of connections at its end; 0 means unchanged.
	Conns int `json:"conns,omitempty"`
}

// A Load is what Measure puts on the target for a while.
type Load struct {
	// Rate is arrivals per second in the open model.
	Rate float64 `json:"rate,omitempty"`
	// Concurrency, when positive, makes a closed loop of that many instead.
	Concurrency int `json:"concurrency,omitempty"`
	// Conns is the number of connections; 0 means unchanged.
	Conns int `json:"conns,omitempty"`
}
