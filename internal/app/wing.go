package app

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/record"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// wing is the second wing: routes, and the backends that they lead to.
type wing struct {
	front     *downstream.Server // nil: the routes are checked only
	auth      *auth.Authenticator
	extend    *extension.Extensions
	link      func() string                                          // Mercure's
	span      func(*policy.Exchange, policy.Outcome, []byte, []byte) // nil: no traces
	log       *slog.Logger
	upstreams *upstream.Set
	clock     func() int64 // of the loops, for limits and upstreams
	proxy     *proxy.Proxy
	state     *policy.State
	trust     *limit.Trust
	access    *policy.AccessLog
	recorder  *record.Recorder
	logs      accessFile // where access goes
}

// build makes the parts that stay through reloads.
func (w *wing) build(a *App) (err error) {
	w.auth, w.extend, w.link, w.log = a.auth, a.extensions, a.protocol.mercureLink, a.log
	if w.logs, err = openAccessFile(a.cfg.AccessLog); err != nil {
		return err
	}
	w.access = policy.NewAccessLog(w.logs.w, 0, a.log)
	w.state = policy.NewState(0)
	w.clock = proxy.Clock(a.loops.Loops()[0])
	w.upstreams, err = upstream.New(a.cfg.Clusters, a.cfg.Splits, upstream.Options{Now: w.clock, Log: a.log})
	if err != nil {
		return err
	}
	if w.proxy, err = proxy.New(a.cfg.Proxy, a.loops.Loops(), a.log); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	w.recorder = record.New(record.Options{Hub: a.hub, Prefix: a.cfg.Downstream.BuiltinPrefix, Alone: alone(a.cfg.Broker), Log: a.log})
	return nil
}

// start sets the first routes.
func (w *wing) start(front *downstream.Server, cfg config.Config) error {
	w.front = front
	set, err := w.routes(cfg)
	if err != nil {
		return err
	}
	set.Watch(w.upstreams)
	return w.setRoutes(set)
}

// setRoutes gives the routes to the front.
func (w *wing) setRoutes(set *policy.Set) error { return w.front.SetRoutes(set, w.upstreams) }

// alone reports whether no other node can write into the logs.
func alone(b config.Broker) bool {
	return b.Kind != config.BrokerNATS || b.NATS.URL == "" && b.NATS.Cluster.Name == ""
}

// routes compiles the routes of cfg, or returns nil if there are none.
func (w *wing) routes(cfg config.Config) (*policy.Set, error) {
	if len(cfg.Routes) == 0 {
		return nil, nil
	}
	known := func(name string) bool {
		return slices.ContainsFunc(cfg.Clusters, func(c upstream.Config) bool { return c.Name == name }) ||
			slices.ContainsFunc(cfg.Splits, func(s upstream.SplitConfig) bool { return s.Name == name })
	}
	deps := policy.Deps{Link: w.link, Span: w.span, State: w.state, Auth: w.auth, Extensions: w.extend, Trust: w.trust, Cluster: known, Log: w.log}
	if cfg.AccessLog.File != "" {
		deps.AccessLog = w.access
	}
	return policy.New(cfg.Routes, deps)
}

// An accessFile is what the access log is written to. The zero value is nothing.
type accessFile struct {
	w    io.Writer
	file io.Closer // opened here; nil: none
}

func openAccessFile(cfg config.AccessLog) (accessFile, error) {
	switch cfg.File {
	case "":
		return accessFile{}, nil
	case "stdout":
		return accessFile{w: os.Stdout}, nil
	case "stderr":
		return accessFile{w: os.Stderr}, nil
	}
	f, err := os.OpenFile(cfg.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return accessFile{}, config.WithHint(fmt.Errorf("access log: %w", err), "name a file in a directory that exists and may be written to")
	}
	return accessFile{f, f}, nil
}

func (f accessFile) close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

func (w *wing) close() error {
	w.proxy.Close()
	return w.logs.close()
}
