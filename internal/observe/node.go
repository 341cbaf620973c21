// Package observe looks at a running gateway: it follows publications from the call to the
// sockets (Probe), makes the state of everything for the dashboard and the admin API, the
// metrics, the spans of traces and what the governor samples. It changes nothing by looking;
// what an operator does to a client or publishes by hand is here as well. The parts are
// given to it by internal/app and know nothing of it.
package observe

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/front/h3"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/acme"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/observe/metrics"
	"github.com/weir-gateway/weir/internal/observe/telemetry"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/protocol/mercure"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/record"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
	"github.com/weir-gateway/weir/internal/push/presence"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// A Node is the parts of a process that are looked at. The functions may be called from any
// goroutine.
type Node struct {
	Version string
	Started time.Time
	Broker  string // its kind
	// Pushes reports that there are channels, and not only routes.
	Pushes bool
	// NativeHistograms has histograms shown as native ones.
	NativeHistograms bool
	Log              *slog.Logger

	Hub     *hub.Hub
	Formats *wire.Formats
	Auth    *auth.Authenticator
	Loops   *eventloop.Group
	Push    *push.Push
	Front   *downstream.Server
	HTTP2   *h2.Server          // nil: HTTP/1 only
	HTTP3   *h3.Server          // nil: no HTTP/3
	NATS    *nats.Broker        // nil with another broker
	Memory  *memory.Broker      // nil with another broker
	TLS     *tlsterm.Terminator // nil: plaintext
	ACME    *acme.Manager       // nil: certificates are in files

	Upstreams  *upstream.Set
	Proxy      *proxy.Proxy
	State      *policy.State
	Clock      func() int64 // of the loops, for limits and upstreams
	AccessLog  *policy.AccessLog
	Extensions *extension.Extensions
	Recorder   *record.Recorder
	Protocols  *Protocols

	Limits    *limit.Front
	Refusals  *Refusals
	Upgrades  *Upgrades
	Probe     *Probe
	Telemetry *telemetry.Telemetry

	// Governor is set by New.
	Governor *governor.Governor

	// Addr is the public listener's address.
	Addr func() netip.AddrPort
	// Starting reports whether the node does not serve yet.
	Starting func() bool
	// Ingest is what the configured sources do.
	Ingest func() []ingest.State
	// Revocations are those in force.
	Revocations func() RevocationState
	// SharedLimits is what the node shares of rates with others; nil: there can be none.
	SharedLimits func() *limit.ShareStats
	// Namespaces are the names of those in force; Classed reports whether anything has a
	// class, LogsAccess whether there is an access log.
	Namespaces func() []string
	Classed    func() bool
	LogsAccess func() bool
	// RestartNeeded are the configuration keys that wait for a restart, Reloads how many
	// configurations were applied.
	RestartNeeded func() []string
	Reloads       func() uint64
	// LogDropped is how many lines of the log were not written.
	LogDropped func() uint64
	// Drain is how clients leave; nil before they do.
	Drain func() *admin.Drain
	// ReconnectRate is how many clients a second this node takes on, ReconnectCost the
	// processor time of one and whether it was measured.
	ReconnectRate func() float64
	ReconnectCost func() (cost time.Duration, measured bool)
}

// Protocols are those of other servers that a node speaks, and what they share. All but
// Mercure are fixed when Started is set; nil: not spoken.
type Protocols struct {
	Cluster    *cluster.Cluster
	Presence   *presence.Presence
	Centrifuge *centrifuge.Server
	Pusher     *pusher.Server

	// Any goroutine.
	Mercure atomic.Pointer[mercure.Server] // nil until the broker has started
	Started atomic.Bool                    // the fields above are fixed, and something is spoken
}

// Refusals are what was refused for want of something. Any goroutine.
type Refusals struct {
	Memory, Files atomic.Uint64 // connections, by the budget that was used up
	Scale         atomic.Int64  // thousandths that are left of the budgets of the least important classes
}

// Upgrades count what moved between this process and others that took over. Any goroutine.
type Upgrades struct {
	Done, Failed            atomic.Uint64 // upgrades that this process began
	Moved, Arrived, Refused atomic.Uint64 // connections
	Paused                  atomic.Int64  // nanoseconds of the last pause, on either side
}

// Activity sums what the loops did for clients. It stops when nothing happens.
func (a *Node) Activity() uint64 {
	var n uint64
	for _, l := range a.Loops.Loops() {
		s := l.Stats()
		n += s.Accepted + s.Closed + s.Reads
	}
	return n + a.Hub.Stats().Delivered
}

// Idle is the share of the machine's processor time that is not used, by this process or
// another; unknown is what it is before it was measured.
func (a *Node) Idle(unknown float64) float64 {
	if s := a.Governor.Snapshot(); s != nil {
		return 1 - max(s.CPU.Share, s.Host.Busy)
	}
	return unknown
}

// byTransport is who is connected, by transport.
func (a *Node) byTransport() map[string]int64 {
	p := a.Push.Stats()
	all := map[string]int64{
		"sse": p.SSE - p.SSEOverHTTP2 - p.SSEOverHTTP3, "websocket": p.WebSocket - p.WebSocketOverHTTP2 - p.WebSocketOverHTTP3,
		"http2_sse": p.SSEOverHTTP2, "http2_websocket": p.WebSocketOverHTTP2, "http": max(int64(a.Loops.Open())-p.SSE-p.WebSocket, 0),
	}
	if a.HTTP3 != nil {
		all["http3_sse"], all["http3_websocket"] = p.SSEOverHTTP3, p.WebSocketOverHTTP3
	}
	return all
}

// lagHistograms queries every loop how its subscribers lag; one that does not answer in time
// is missing from the counts.
func (a *Node) lagHistograms() (all push.LagHistograms) {
	n := a.Push.Loops()
	answers := make(chan push.LagHistograms, n)
	a.Push.Histograms(func(h push.LagHistograms) { answers <- h })
	ctx, cancel := context.WithTimeout(context.Background(), lagPatience)
	defer cancel()
	for waiting := n; waiting > 0; waiting-- {
		select {
		case h := <-answers:
			all.Messages.Merge(h.Messages)
			all.Bytes.Merge(h.Bytes)
			all.Seconds.Merge(h.Seconds)
		case <-ctx.Done():
			return all
		}
	}
	return all
}

// ticksOf sums the loops' ticks up.
func (a *Node) ticksOf() (all metrics.Counts) {
	for _, l := range a.Loops.Loops() {
		t := l.Ticks()
		all.Add(&t.Times)
	}
	return all
}
