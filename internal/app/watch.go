package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/weir-gateway/weir/dashboard"
	"github.com/weir-gateway/weir/internal/telemetry"
	"github.com/weir-gateway/weir/internal/wire"
)

// buildTelemetry makes what sends to others; the fronts tell it of traces.
func (a *App) buildTelemetry() (err error) {
	a.registry = prometheus.NewRegistry()
	a.telemetry, err = telemetry.New(a.cfg.Telemetry, telemetry.Process{Version: a.opt.Version, Loops: len(a.loops.Loops())}, a.registry, a.log)
	if err != nil {
		return fmt.Errorf("telemetry: %w", err)
	}
	a.probe.telemetry = a.telemetry
	if a.telemetry.Traces() {
		a.front.UseTraces(a.tracePublish)
	}
	if a.pusher, err = telemetry.NewPusher(a.cfg.Metrics.Pushgateway, a.registry, a.log); err != nil {
		return fmt.Errorf("metrics: pushgateway: %w", err)
	}
	return nil
}

// buildWatch makes what looks at the rest: the governor, metrics, what the admin
// listener shows.
func (a *App) buildWatch(formats *wire.Formats) (err error) {
	if err = a.buildGovernor(); err != nil {
		return err
	}
	for _, c := range a.collectors(&catalog{}, a.tls != nil, a.nats != nil) {
		if err = a.registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	a.snapshots = &snapshots{app: a}
	a.tracer = &tracer{hub: a.hub, probe: a.probe}
	if a.cfg.Admin.Enabled() {
		a.live, err = newLive(a, a.cfg.Admin.LiveRate, formats)
	}
	return err
}

// collectors are all metrics there are; c gets to know those of our own.
func (a *App) collectors(c *catalog, withTLS, withNATS bool) []prometheus.Collector {
	list := []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newMetrics(a, c, withTLS), newHistograms(a, c, a.cfg.Metrics.NativeHistograms), newLagMetrics(a, c), newWingMetrics(a, c), newRecordMetrics(a, c),
		newGovernorMetrics(c, a.governor), newAdmissionMetrics(a, c), newProtocolMetrics(a, c),
	}
	if withNATS {
		list = append(list, newBrokerMetrics(a, c))
	}
	return list
}

// runWatch runs it until ctx is done.
func (a *App) runWatch(parts *group, ctx context.Context) error { //nolint:revive // the context is the parts', not this call's
	parts.run(func() error { return a.governor.Run(ctx) })
	parts.run(func() error { return a.guard(ctx) })
	parts.run(func() error { a.measureReconnects(ctx); return nil })
	if a.telemetry != nil {
		parts.run(func() error { return a.telemetry.Run(ctx) })
	}
	if a.pusher != nil {
		parts.run(func() error { return a.pusher.Run(ctx) })
	}
	if a.admin == nil {
		return nil
	}
	return a.live.run(ctx, parts)
}

func (a *App) closeWatch() error {
	err := a.sockets.close()
	if a.live == nil {
		return err
	}
	return errors.Join(err, a.live.close())
}

// page is the dashboard.
func page() fs.FS { return dashboard.Files() }
