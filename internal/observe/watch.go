package observe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/admin/login"
	"github.com/weir-gateway/weir/internal/observe/alert"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/push/ingest"
)

// Config of a Watch.
type Config struct {
	// Governor samples the process.
	Governor governor.Config
	// CapacityReport is a report of `weir knee` to compare with; empty: none.
	CapacityReport string
	// Admin reports that there is an admin listener, which gets LiveRate snapshots a second.
	Admin    bool
	LiveRate int
	// OIDC is the login of the admin listener through an OpenID provider.
	OIDC login.Config
	// Alerts is where alerts are posted.
	Alerts alert.Config
	// Registry gets the metrics.
	Registry *prometheus.Registry
	// Reload and Preview are what the admin API's calls of these names do.
	Reload  func(context.Context) (any, error)
	Preview func(ctx context.Context, text []byte) (any, error)
	// Upgrade and UpgradeState are those of the admin API.
	Upgrade      func(context.Context) (admin.Upgrade, error)
	UpgradeState func() admin.Upgrade
	// Revoke, Unrevoke and Revocations are those of the admin API.
	Revoke      func(context.Context, auth.Revocation) (auth.Revocation, error)
	Unrevoke    func(ctx context.Context, kind, name string) error
	Revocations func() []auth.Revocation
	// PauseSource is that of the admin API.
	PauseSource func(name string, paused bool) (ingest.State, error)
}

// A Watch is what looks at a node: the governor, the metrics, and what the admin listener
// shows.
type Watch struct {
	*Node
	*clients
	cfg       Config
	snapshots *snapshots
	tracer    *tracer
	degraded  *degraded
	load      load
	live      *live         // nil: no admin listener
	login     *login.OIDC   // nil: no login by OpenID Connect
	alerts    *alert.Alerts // nil: no webhook
}

// New makes the governor, which it puts into the node, and registers the metrics.
func New(n *Node, cfg Config) (*Watch, error) {
	w := &Watch{Node: n, cfg: cfg, clients: &clients{Node: n}, tracer: &tracer{hub: n.Hub, probe: n.Probe}}
	w.degraded = &degraded{Node: n, active: map[string]admin.Degradation{}}
	knee, err := readKnee(cfg.CapacityReport)
	if err != nil {
		return nil, err
	}
	s := &samples{Node: n, clients: w.clients, knee: knee}
	if n.Governor, err = governor.New(cfg.Governor, s.sources(), n.Log); err != nil {
		return nil, err
	}
	if cfg.Admin {
		if w.login, err = login.New(cfg.OIDC, n.Log); err != nil {
			return nil, fmt.Errorf("admin: oidc: %w", err)
		}
	}
	if w.alerts, err = alert.New(cfg.Alerts, w.alertSource(), n.Log); err != nil {
		return nil, fmt.Errorf("alerts: %w", err)
	}
	w.snapshots = &snapshots{Node: n, clients: w.clients, degraded: w.degraded}
	for _, c := range w.collectors(&catalog{}, false) {
		if err := cfg.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	if cfg.Admin {
		w.live, err = newLive(n, w.snapshots, cfg.LiveRate)
	}
	return w, err
}

// collectors are all metrics there are of this node, or of any; c gets to know those of our own.
func (w *Watch) collectors(c *catalog, all bool) []prometheus.Collector {
	n := w.Node
	list := []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newConnectionMetrics(n, c), newMessageMetrics(w, c), newRequestMetrics(n, c), newLoopMetrics(n, c), newHistograms(n, c), newLagMetrics(n, c),
		newUpstreamMetrics(n, c), newPeerMetrics(n, c), newPolicyMetrics(n, c), newExtensionMetrics(n, c), newRecordMetrics(n, c), newBatchMetrics(n, c),
		newGovernorMetrics(c, n.Governor), newDegradedMetrics(w.degraded, c), newAdmissionMetrics(n, c), newLimitMetrics(n, c), newProtocolMetrics(n, c), newSourceMetrics(n, c),
		newLoginMetrics(w.login, c), newRevocationMetrics(n, c), newSharedLimitMetrics(n, c), newAlertMetrics(w.alerts, c), newConntrackMetrics(conntrackDir, c),
	}
	if all || n.TLS != nil {
		list = append(list, newTLSMetrics(n, c))
	}
	if all || n.ACME != nil {
		list = append(list, newACMEMetrics(n, c))
	}
	if all || n.HTTP3 != nil {
		list = append(list, newHTTP3Metrics(n, c))
	}
	if all || n.NATS != nil {
		list = append(list, newBrokerMetrics(n, c), newSiteMetrics(n, c))
	}
	return list
}

// Sources is what the admin listener shows of this process, and does to it. There is one if
// Config.Admin says so.
func (w *Watch) Sources() admin.Sources { return (&operatorCalls{Watch: w, cfg: w.cfg}).sources() }

// Listeners is the number of clients that follow the snapshots.
func (w *Watch) Listeners() int { return int(w.snapshots.listeners.Load()) }

// Run starts what runs until ctx is done, each part by a call of start.
func (w *Watch) Run(ctx context.Context, start func(func() error)) error {
	start(func() error { return w.Governor.Run(ctx) })
	start(func() error { return w.degraded.run(ctx) })
	if w.alerts != nil {
		start(func() error { return w.alerts.Run(ctx) })
	}
	if w.login != nil {
		start(func() error { return w.login.Run(ctx) })
	}
	if w.live == nil {
		return nil
	}
	return w.live.run(ctx, start)
}

// Close frees what New and the looks since have opened.
func (w *Watch) Close() error {
	err := w.clients.sockets.close()
	if w.live == nil {
		return err
	}
	return errors.Join(err, w.live.close())
}

// loopPatience is how long the loops are waited for: they may have much to do.
const loopPatience = 2 * time.Second
