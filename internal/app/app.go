// Package app is the composition root: it builds every part from one
// configuration, starts and stops them in order, and is the only place that
// sees them all.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/extension/callout"
	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/front/h3"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/net/systemd"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/observe"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// Options are what the caller adds to the configuration.
type Options struct {
	// Version is what /api/info says.
	Version string
	// Files are static replies of the public listener, by path.
	Files map[string]downstream.Static
	// Load reads the configuration again, for Reload; nil means that it cannot be.
	Load func() (config.Config, error)
	// File is watched for changes (config.Reload); empty means none.
	File string
	// Program and Args start this program anew, for Upgrade; empty: it cannot.
	Program string
	Args    []string
	// Takeover is the process that this one takes over from; nil: none.
	Takeover *takeover.Parent
	// Service is the process as a service manager sees it; nil means that there is none.
	Service *systemd.Service
	// Dial opens the hook of an extension, and returns what closes it; nil means a server that
	// is called by gRPC.
	Dial func(extension.Config) (hook extension.Hook, end func(), err error)
	// Log gets everything; nil discards.
	Log *slog.Logger
	// Level is the lowest level that Log writes, which a reload sets; nil: it cannot be.
	Level *slog.LevelVar
	// LogDropped is how many lines of Log were not written; nil: none.
	LogDropped func() uint64
}

// An App is a gateway that is ready to run: all its parts, put together.
type App struct {
	// Fixed at New.
	cfg        config.Config // as it was at New; see reloads.now
	opt        Options
	log        *slog.Logger
	started    time.Time
	auth       *auth.Authenticator
	hub        *hub.Hub
	formats    *wire.Formats
	access     *access.Model
	extensions *extension.Extensions
	loops      *eventloop.Group
	push       *push.Push
	front      *downstream.Server
	nats       *nats.Broker        // nil with another broker
	memory     *memory.Broker      // nil with another broker
	tls        *tlsterm.Terminator // nil: plaintext
	http2      *h2.Server          // nil: HTTP/1 only
	http3      *h3.Server          // nil: no HTTP/3
	accept     func(*eventloop.Conn) eventloop.Handler
	wing       wing
	protocol   protocols

	admission    *admission
	revocations  revocations
	limits       sharedLimits
	certificates certificates
	watching     watching
	room         room
	listeners    listeners
	service      notifier

	// Owned by the start, and by reloads from then on.
	keySets  auth.KeySets // further keys, for protocols that name them
	runLater func(run func(context.Context) error)

	// Any goroutine.
	sources   atomic.Pointer[ingest.Set] // nil until the hub has started, and without channels
	reload    reloads
	upgrade   upgrade
	leaving   atomic.Bool                 // a drain has started
	drain     atomic.Pointer[admin.Drain] // its plan, from the first close on
	startTook atomic.Int64                // nanoseconds from New to ready
}

// undo are what New has opened, to be closed after an error, the last first.
type undo []func()

func (u *undo) add(f func()) { *u = append(*u, f) }

func (u *undo) all() {
	for i := len(*u) - 1; i >= 0; i-- {
		(*u)[i]()
	}
}

// New builds the parts and opens the listeners; nothing runs yet and no request is
// answered. After an error nothing is left open.
func New(cfg config.Config, opt Options) (_ *App, err error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.LogDropped == nil {
		opt.LogDropped = func() uint64 { return 0 }
	}
	if opt.Dial == nil {
		opt.Dial = callout.Dial
	}
	a := &App{cfg: cfg, opt: opt, log: opt.Log, started: time.Now()}
	a.reload.app, a.reload.loaded = a, stampOf(opt.File)
	a.upgrade.over = make(chan struct{})
	a.upgrade.state.Store(&admin.Upgrade{})
	a.reload.inForce.Store(&cfg)
	a.reload.waiting.Store(&[]string{})
	var opened undo
	defer func() {
		if err != nil {
			opened.all()
		}
	}()
	for _, build := range []func(*undo) error{a.buildKeys, a.buildHub, a.buildLoops, a.buildFront} {
		if err := build(&opened); err != nil {
			return nil, err
		}
	}
	if err = a.watching.build(a); err != nil {
		return nil, err
	}
	if err = a.listeners.open(a); err != nil {
		return nil, err
	}
	if err = a.listenHTTP3(); err != nil {
		return nil, err
	}
	return a, nil
}

// buildKeys makes what tokens and addresses are checked by, and the extensions.
func (a *App) buildKeys(opened *undo) (err error) {
	if a.auth, err = auth.New(a.cfg.Auth, a.log); err != nil {
		return err
	}
	opened.add(func() { _ = a.auth.Close() })
	a.revocations.build(a)
	a.revocations.list.ShareWith(a.auth)
	if a.keySets, err = auth.NewKeySets(a.cfg.Auth, a.cfg.KeySets, a.log); err != nil {
		return err
	}
	opened.add(func() { _ = a.keySets.Close() })
	for _, k := range a.keySets {
		a.revocations.list.ShareWith(k)
	}
	if a.wing.trust, err = limit.NewTrust(a.cfg.Trusted); err != nil {
		return fmt.Errorf("trusted: %w", err)
	}
	a.extensions = extension.New(extension.Options{MayChange: policy.MayChange, Log: a.log})
	opened.add(a.extensions.Close)
	c, err := a.extensions.Prepare(a.cfg.Extensions, a.opt.Dial)
	if err != nil {
		return err
	}
	c.Commit()
	return nil
}

// buildHub makes the broker and the hub on it, with a probe between them.
func (a *App) buildHub(opened *undo) error {
	bytes := int64(min(governor.MemoryLimit(a.cfg.Governor.Memory), 1<<50))
	broker, err := newBroker(a.cfg.Broker, bytes/2, a.log)
	if err != nil {
		return err
	}
	if a.formats, err = wire.NewFormats(a.cfg.Namespaces); err != nil {
		return err
	}
	a.protocol.addFormats(&a.cfg, a.formats)
	if n, ok := broker.(*nats.Broker); ok {
		a.nats, a.protocol.request = n, n.Request
	}
	a.memory, _ = broker.(*memory.Broker)
	a.watching.probe, broker = observe.NewProbe(broker)
	a.hub, err = hub.New(hub.Config{Namespaces: namespaces(a.cfg), Encoders: a.formats.Encoders(), RecentBudget: bytes / 4, Log: a.log}, broker)
	if err != nil {
		return err
	}
	opened.add(func() { _ = a.hub.Close() })
	a.access = access.New(a.hub.Namespace, a.cfg.Access())
	return nil
}

// buildLoops makes the event loops, and the subscribers' part on them.
func (a *App) buildLoops(opened *undo) (err error) {
	if a.cfg.TLS.Enabled() {
		if a.tls, err = tlsterm.New(a.cfg.TLS, a.log, a.alpn()...); err != nil {
			return fmt.Errorf("tls: %w", err)
		}
		opened.add(func() { _ = a.tls.Close() })
	}
	if err := a.certificates.build(a); err != nil {
		return err
	}
	opened.add(a.certificates.close)
	accept := func(c *eventloop.Conn) eventloop.Handler { return a.accept(c) }
	if a.loops, err = eventloop.New(a.cfg.EventLoop, accept, a.log); err != nil {
		return err
	}
	opened.add(a.loops.Release)
	a.service = notifier{service: a.opt.Service, loops: a.loops, log: a.log, url: a.URL}
	a.room = room{assumed: assumedPlain, loops: a.loops, leaving: &a.leaving, idle: func() float64 { return a.watching.watch.Idle(leastIdle) },
		state: func() admin.NodeState { return a.watching.watch.State() }}
	if a.tls != nil {
		a.room.assumed = assumedTLS
	}
	if a.admission, err = newAdmission(a.cfg.Limits, a.wing.trust, a.loops.Loops()); err != nil {
		return err
	}
	a.push, err = push.New(a.cfg.Push, push.Deps{
		Formats: a.formats, Hub: a.hub, Loops: a.loops.Loops(), Access: a.access, Admission: &a.cfg.Admission, Namespaces: a.cfg.Namespaces,
		Front: a.admission.front, MaxSubscribers: a.loops.MaxConns() - reserved(a.loops.MaxConns()), Prover: a.auth, Extensions: a.extensions, Log: a.log,
	})
	if err != nil {
		return err
	}
	return a.watching.buildTelemetry(a)
}

// buildFront makes what answers requests, and the wing behind it.
func (a *App) buildFront(opened *undo) (err error) {
	cfg := a.cfg.Downstream
	cfg.RoutesOnly = !a.cfg.Pushes()
	deps := downstream.Deps{Push: a.push, Auth: a.auth, Loops: len(a.loops.Loops()), Limits: a.admission.front, Log: a.log}
	if a.watching.telemetry.Traces() {
		spans := &observe.Spans{Telemetry: a.watching.telemetry, Probe: a.watching.probe}
		deps.Traces = spans.Publish
		a.wing.span = spans.Proxied
	}
	if err = a.wing.build(a); err != nil {
		return err
	}
	opened.add(func() { _ = a.wing.close() })
	deps.Proxy, deps.Recorder, deps.HTTP2 = a.wing.proxy, a.wing.recorder, a.buildHTTP2()
	if a.front, err = downstream.New(cfg, deps); err != nil {
		return err
	}
	a.front.Handle(a.opt.Files)
	if err = a.wing.start(a.front, a.cfg); err != nil {
		return err
	}
	if a.accept = a.front.Accept; a.tls != nil {
		a.accept = a.tls.Accept(len(a.loops.Loops()), a.front.Accept)
	}
	a.accept = a.admission.fenced(a.accept)
	if a.cfg.ProxyProtocol {
		a.accept = a.front.Announced(a.wing.trust, a.accept)
	}
	a.accept = a.certificates.accept(a.accept, a.admission.fenced)
	a.buildHTTP3()
	opened.add(func() { _ = a.closeHTTP3() })
	return nil
}

func newBroker(cfg config.Broker, bytes int64, log *slog.Logger) (hub.Broker, error) {
	if cfg.Kind == config.BrokerNATS {
		return nats.New(cfg.NATS, log)
	}
	return memory.New(memory.Config{Bytes: bytes})
}

// namespaces are those of the hub. Where there are only routes it has the one that it cannot
// do without: nothing is published there, and nothing would be kept.
func namespaces(cfg config.Config) []hub.Namespace {
	if cfg.Pushes() {
		return cfg.Namespaces
	}
	return []hub.Namespace{{Name: hub.DefaultNamespace, Durability: hub.None}}
}

// Addr is the public listener's address.
func (a *App) Addr() netip.AddrPort { return a.listeners.addr }

// Reloading runs a reload that the service manager requested, and notifies it of the
// beginning and the end.
func (a *App) Reloading(reload func()) { a.service.Reloading(reload) }

// URL is where clients find the public listener.
func (a *App) URL() string {
	if a.tls != nil {
		return "https://" + a.listeners.addr.String()
	}
	return "http://" + a.listeners.addr.String()
}

// AdminAddr is the admin listener's address, or nil without one.
func (a *App) AdminAddr() net.Addr {
	if a.listeners.admin == nil {
		return nil
	}
	return a.listeners.admin.Addr()
}

// Run starts everything and serves until ctx is done; then it drains: clients
// are drained over the configured time, and the broker stops after the last
// of them. A done hard ends the draining at once. It is called once.
func (a *App) Run(ctx, hard context.Context, ready func()) (err error) {
	sys.SpareP(len(a.loops.Loops()))
	background, stop := context.WithCancel(context.Background())
	defer stop()
	parts := newGroup(stop)
	// The loops end first: nothing may call the hub, or start to verify a token,
	// once those are closed.
	defer func() {
		stop()
		err = errors.Join(err, parts.wait(), a.close())
	}()
	parts.run(func() error { return a.auth.Run(background) })
	a.runLater = func(run func(context.Context) error) { parts.run(func() error { return run(background) }) }
	for _, k := range a.keySets {
		a.runLater(k.Run)
	}
	if a.tls != nil {
		parts.run(func() error { return a.tls.Run(background) })
	}
	defer a.endTakeover(background)()
	parts.run(func() error { return a.wing.upstreams.Run(background) })
	if err := a.startHub(parts, ctx, background); err != nil {
		return err
	}
	stopSources, err := a.startSources(parts, background)
	if err != nil {
		return err
	}
	defer stopSources()
	a.listeners.run(parts, background)
	a.runHTTP3(parts, background)
	if err := afterFirstTurn(background, a, parts, func() error {
		parts.run(func() error { return newTrimmer(a.watching.watch.Activity).run(background) })
		return a.watching.run(parts, background)
	}); err != nil {
		return err
	}
	parts.run(func() error { return a.wing.access.Run(background) })
	parts.run(func() error { return a.certificates.run(a, background) })
	parts.run(func() error { a.room.measure(background); return nil })
	a.startTook.Store(int64(time.Since(a.started)))
	parts.run(func() error { return a.reload.watch(background) })
	a.service.ready(parts, background)
	if ready != nil {
		ready()
	}
	select {
	case <-ctx.Done():
	case <-a.upgrade.over:
		stopSources() // the new process reads them
		a.follow(hard)
		return nil
	case <-background.Done(): // a part has failed
		return nil
	}
	stopSources()
	(&departure{App: a, limit: time.Duration(a.cfg.Shutdown.Drain)}).run(hard)
	return nil
}

// startHub starts what serves clients, on the loops, and takes over from the old process if there is one: its
// sockets come before its log is complete, so the loops run first then.
func (a *App) startHub(parts *group, ctx, background context.Context) error { //nolint:revive // background is the parts'
	s := &succession{app: a, parent: a.opt.Takeover}
	running := s.parent != nil
	run := func() { parts.run(func() error { return a.loops.Run(background) }) }
	if running {
		run()
	}
	for _, step := range []func() error{
		s.takeLog,
		func() error {
			if err := (&waitingRoom{a}).start(parts, ctx, background); err != nil {
				return fmt.Errorf("start the broker: %w", err)
			}
			return nil
		},
		func() error { a.revocations.start(parts, background); return nil },
		func() error { return a.limits.start(a, parts, background) },
		func() error { return a.protocol.start(a, parts, background) },
	} {
		if err := step(); err != nil {
			if !running {
				a.loops.Release()
			}
			return err
		}
	}
	if running {
		return s.takeOver(parts)
	}
	run()
	return nil
}

func (a *App) close() error {
	ended := a.closeHTTP3()
	a.certificates.close()
	a.extensions.Close()
	a.front.Close()
	a.wing.recorder.Close()
	err := errors.Join(ended, a.protocol.close(), a.hub.Close())
	if a.listeners.admin != nil {
		_ = a.listeners.admin.Close()
	}
	if a.tls != nil {
		_ = a.tls.Close()
	}
	return errors.Join(err, a.auth.Close(), a.keySets.Close(), a.wing.close(), a.watching.close())
}
