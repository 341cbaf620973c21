package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/config"
	"github.com/weir-gateway/weir/internal/limit"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/record"
	"github.com/weir-gateway/weir/internal/upstream"
)

// wing is the second wing: routes, and the backends that they lead to.
type wing struct {
	upstreams *upstream.Set
	clock     func() int64 // of the loops, for limits and upstreams
	proxy     *proxy.Proxy
	state     *policy.State
	trust     *limit.Trust
	access    *policy.AccessLog // nil: none
	recorder  *record.Recorder
	file      io.Closer // the access log's own; nil: none
}

// buildWing makes the parts that stay through reloads and sets the first routes.
func (a *App) buildWing() (err error) {
	w := &a.wing
	if w.trust, err = limit.NewTrust(a.cfg.Trusted); err != nil {
		return fmt.Errorf("trusted: %w", err)
	}
	if err = w.openAccessLog(a.cfg.AccessLog, a.log); err != nil {
		return err
	}
	w.state = policy.NewState(0)
	w.clock = proxy.Clock(a.loops.Loops()[0])
	w.upstreams, err = upstream.New(a.cfg.Clusters, a.cfg.Splits, upstream.Options{Now: w.clock, Log: a.log})
	if err != nil {
		return err
	}
	if w.proxy, err = proxy.New(a.cfg.Proxy, a.loops.Loops(), a.log); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	a.front.UseProxy(w.proxy)
	w.recorder = record.New(record.Options{Hub: a.hub, Alone: alone(a.cfg.Broker), Log: a.log})
	a.front.UseRecorder(w.recorder)
	set, err := a.routes(a.cfg)
	if err != nil {
		return err
	}
	set.Watch(w.upstreams)
	return a.setRoutes(set)
}

// setRoutes gives the routes to both fronts.
func (a *App) setRoutes(set *policy.Set) error {
	if err := a.front.SetRoutes(set, a.wing.upstreams); err != nil {
		return err
	}
	a.http2.routes(set)
	return nil
}

// alone reports whether no other node can write into the logs.
func alone(b config.Broker) bool {
	return b.Kind == config.BrokerMemory || b.NATS.URL == "" && b.NATS.Cluster.Name == ""
}

// routes compiles the routes of cfg, or returns nil if there are none.
func (a *App) routes(cfg config.Config) (*policy.Set, error) {
	if len(cfg.Routes) == 0 {
		return nil, nil
	}
	known := func(name string) bool {
		return slices.ContainsFunc(cfg.Clusters, func(c upstream.Config) bool { return c.Name == name }) ||
			slices.ContainsFunc(cfg.Splits, func(s upstream.SplitConfig) bool { return s.Name == name })
	}
	var span func(*policy.Exchange, policy.Outcome, []byte, []byte)
	if a.telemetry.Traces() {
		span = a.proxySpan
	}
	return policy.New(cfg.Routes, policy.Deps{
		Link: a.mercureLink, Span: span, State: a.wing.state, Auth: a.auth, Trust: a.wing.trust, Cluster: known, AccessLog: a.wing.access, Log: a.log,
	})
}

func (w *wing) openAccessLog(cfg config.AccessLog, log *slog.Logger) error {
	var to io.Writer
	switch cfg.File {
	case "":
		return nil
	case "stdout":
		to = os.Stdout
	case "stderr":
		to = os.Stderr
	default:
		f, err := os.OpenFile(cfg.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
		if err != nil {
			return config.WithHint(fmt.Errorf("access log: %w", err), "name a file in a directory that exists and may be written to")
		}
		to, w.file = f, f
	}
	w.access = policy.NewAccessLog(to, 0, log)
	return nil
}

func (w *wing) close() error {
	w.proxy.Close()
	if w.file == nil {
		return nil
	}
	return w.file.Close()
}

// Reloaded says what a reload did.
type Reloaded struct {
	// Applied are the sections that took effect, Waiting those that changed and
	// wait for a restart.
	Applied []string `json:"applied"`
	Waiting []string `json:"waiting_for_restart"`
}

// Reload reads the configuration and the certificates again and applies what can be
// applied to a running server, without touching a connection. After an error
// everything is as it was. Any goroutine.
func (a *App) Reload(ctx context.Context) (Reloaded, error) {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	var done Reloaded
	cfg, err := a.cfg, error(nil)
	if a.opt.Load != nil {
		if cfg, err = a.opt.Load(); err != nil {
			return done, err
		}
	}
	set, err := a.routes(cfg)
	if err != nil {
		return done, err
	}
	if a.tls != nil {
		if err := a.tls.Reload(); err != nil {
			return done, fmt.Errorf("tls: %w", err)
		}
	}
	done.Applied, done.Waiting = config.Changed(a.cfg, cfg)
	// Clusters first: the new routes must find theirs. Those that are gone go on
	// serving the old routes until these are. Where nothing was written anew the files
	// of their certificates may have been.
	if err := a.wing.upstreams.Replace(ctx, cfg.Clusters, cfg.Splits); err != nil {
		return Reloaded{}, err
	}
	if len(done.Applied) > 0 {
		set.Watch(a.wing.upstreams)
		if err := a.setRoutes(set); err != nil {
			return Reloaded{}, errors.Join(err, a.wing.upstreams.Replace(ctx, a.cfg.Clusters, a.cfg.Splits))
		}
		// What waits is compared with what runs, every time.
		a.cfg.Routes, a.cfg.Clusters, a.cfg.Splits = cfg.Routes, cfg.Clusters, cfg.Splits
	}
	a.reloads.Add(1)
	a.log.Info("configuration reloaded", "applied", done.Applied, "waiting_for_restart", done.Waiting)
	return done, nil
}

// watch reloads when the configuration's file has changed and then rests for a
// look: a file that is being written is not read half.
func (a *App) watch(ctx context.Context) error {
	every := time.Duration(a.cfg.Reload.Watch)
	if a.opt.File == "" || every < 0 {
		return nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	applied := stampOf(a.opt.File)
	seen := applied
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := stampOf(a.opt.File)
		settled := now == seen
		seen = now
		if !settled || now == applied || now == (stamp{}) {
			continue
		}
		applied = now
		if _, err := a.Reload(ctx); err != nil {
			a.log.Error("the changed configuration is not applied, everything stays as it was", "file", a.opt.File, "err", err)
		}
	}
}

// stamp tells one state of a file from another.
type stamp struct {
	modified time.Time
	size     int64
}

// stampOf follows links: a mounted configuration is replaced by turning one.
func stampOf(path string) stamp {
	fi, err := os.Stat(path)
	if err != nil {
		return stamp{} // being replaced: there will be another look
	}
	return stamp{fi.ModTime(), fi.Size()}
}
