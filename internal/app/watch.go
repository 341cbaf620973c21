package app

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/observe"
	"github.com/weir-gateway/weir/internal/observe/telemetry"
)

// watching is what looks at the rest and sends to others.
type watching struct {
	probe     *observe.Probe
	watch     *observe.Watch
	telemetry *telemetry.Telemetry // nil: none
	pusher    *telemetry.Pusher    // nil: none
	registry  *prometheus.Registry
	warden    *warden
}

// buildTelemetry makes what sends to others. It comes before the front, which reports the
// traces of publications.
func (w *watching) buildTelemetry(a *App) (err error) {
	w.registry = prometheus.NewRegistry()
	w.telemetry, err = telemetry.New(a.cfg.Telemetry, telemetry.Process{Version: a.opt.Version, Loops: len(a.loops.Loops())}, w.registry, a.log)
	if err != nil {
		return fmt.Errorf("telemetry: %w", err)
	}
	if w.pusher, err = telemetry.NewPusher(a.cfg.Metrics.Pushgateway, w.registry, a.log); err != nil {
		return fmt.Errorf("metrics: pushgateway: %w", err)
	}
	w.probe.Attach(a.loops.Loops(), a.push.Shards(), w.telemetry)
	return nil
}

// build makes the governor, metrics and what the admin listener shows.
func (w *watching) build(a *App) (err error) {
	cfg := a.cfg.Governor
	cfg.Evidence.Dir = evidenceDir(&a.cfg)
	w.watch, err = observe.New(a.node(), observe.Config{
		Governor: cfg, CapacityReport: a.cfg.Admin.CapacityReport, Admin: a.cfg.Admin.Enabled(), LiveRate: a.cfg.Admin.LiveRate, OIDC: a.cfg.Admin.OIDC, Alerts: a.cfg.Alerts, Registry: w.registry,
		Reload:  func(ctx context.Context) (any, error) { return a.Reload(ctx) },
		Upgrade: a.Upgrade, UpgradeState: a.UpgradeState, PauseSource: a.pauseSource,
		Revoke: a.revocations.Add, Unrevoke: a.revocations.Remove, Revocations: a.revocations.list.List,
		Preview: func(ctx context.Context, text []byte) (any, error) { return a.Preview(ctx, text) },
	})
	if err != nil {
		return err
	}
	w.warden = &warden{
		governor: w.watch.Governor, push: a.push, tls: a.tls, admission: a.admission, classed: func() bool { return classed(a.reload.now()) },
		guard: guard{bound: time.Duration(a.cfg.Admission.WithDefaults().Guard), scale: 1}, log: a.log,
	}
	return nil
}

// run runs it until ctx is done.
func (w *watching) run(parts *group, ctx context.Context) error { //nolint:revive // the context is the parts', not this call's
	parts.run(func() error { return w.warden.run(ctx) })
	if w.telemetry != nil {
		parts.run(func() error { return w.telemetry.Run(ctx) })
	}
	if w.pusher != nil {
		parts.run(func() error { return w.pusher.Run(ctx) })
	}
	return w.watch.Run(ctx, parts.run)
}

func (w *watching) close() error {
	if w.watch == nil {
		return nil
	}
	return w.watch.Close()
}

// node is what there is to look at.
func (a *App) node() *observe.Node {
	return &observe.Node{
		Version: a.opt.Version, Started: a.started, Broker: a.cfg.Broker.Kind, Pushes: a.cfg.Pushes(), NativeHistograms: a.cfg.Metrics.NativeHistograms, Log: a.log,
		Hub: a.hub, Formats: a.formats, Auth: a.auth, Loops: a.loops, Push: a.push, Front: a.front, HTTP2: a.http2, HTTP3: a.http3, NATS: a.nats, Memory: a.memory, TLS: a.tls, ACME: a.certificates.manager,
		Upstreams: a.wing.upstreams, Proxy: a.wing.proxy, State: a.wing.state, Clock: a.wing.clock, AccessLog: a.wing.access, Extensions: a.extensions, Recorder: a.wing.recorder,
		Protocols: &a.protocol.Protocols, Limits: a.admission.front, Refusals: &a.admission.refusals, Upgrades: &a.upgrade.counts, Probe: a.watching.probe, Telemetry: a.watching.telemetry,
		Addr:        a.Addr,
		Ingest:      a.sourceStates,
		Revocations: a.revocations.state, SharedLimits: a.limits.state,
		Starting: func() bool { return a.startTook.Load() == 0 },
		Namespaces: func() (names []string) {
			for _, n := range a.reload.now().Namespaces {
				names = append(names, n.Name)
			}
			return names
		},
		Classed:       func() bool { return classed(a.reload.now()) },
		LogsAccess:    func() bool { return a.reload.now().AccessLog.File != "" },
		RestartNeeded: func() []string { return *a.reload.waiting.Load() },
		Reloads:       a.reload.done.Load,
		LogDropped:    a.opt.LogDropped,
		Drain:         a.drained,
		ReconnectRate: a.room.rateNow,
		ReconnectCost: a.room.cost,
	}
}

// evidenceDir is where bundles go: beside what the embedded broker stores, unless the
// configuration specifies otherwise.
func evidenceDir(cfg *config.Config) string {
	switch dir, n := cfg.Governor.Evidence.Dir, cfg.Broker.NATS; {
	case dir == "off":
		return ""
	case dir != "" || cfg.Broker.Kind != config.BrokerNATS || n.URL != "" || n.Dir == "":
		return dir
	default:
		return filepath.Join(n.Dir, "evidence")
	}
}
