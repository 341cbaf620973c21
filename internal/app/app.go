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

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/access"
	"github.com/weir-gateway/weir/internal/admin"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/config"
	"github.com/weir-gateway/weir/internal/downstream"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/governor"
	"github.com/weir-gateway/weir/internal/h2"
	"github.com/weir-gateway/weir/internal/h3"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/systemd"
	"github.com/weir-gateway/weir/internal/takeover"
	"github.com/weir-gateway/weir/internal/telemetry"
	"github.com/weir-gateway/weir/internal/tlsterm"
	"github.com/weir-gateway/weir/internal/wire"
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
	// Log gets everything; nil discards.
	Log *slog.Logger
	// Level is the lowest level that Log writes, which a reload sets; nil: it cannot be.
	Level *slog.LevelVar
}

// An App is a gateway that is ready to run.
type App struct {
	// Fixed at New.
	cfg       config.Config // as it was at New; see inForce
	opt       Options
	log       *slog.Logger
	auth      *auth.Authenticator
	hub       *hub.Hub
	formats   *wire.Formats
	access    *access.Model
	loops     *eventloop.Group
	push      *push.Push
	front     *downstream.Server
	nats      *nats.Broker        // nil with another broker
	memory    *memory.Broker      // nil with another broker
	tls       *tlsterm.Terminator // nil: plaintext
	accept    func(*eventloop.Conn) eventloop.Handler
	admin     *admin.Server
	addr      netip.AddrPort
	kept      int // listening sockets of addr that the service manager keeps while no process has them
	started   time.Time
	wing      wing
	protocol  protocols
	http2     *h2.Server // nil: HTTP/1 only
	http3     *h3.Server // nil: no HTTP/3
	admission admission

	// What watches.
	probe      *probe
	governor   *governor.Governor
	silence    silence
	reconnects reconnectCost
	telemetry  *telemetry.Telemetry // nil: none
	pusher     *telemetry.Pusher    // nil: none
	registry   *prometheus.Registry
	snapshots  *snapshots
	sockets    socketInfo
	tracer     *tracer
	live       *live // nil: no admin listener

	// Owned by the start, and by reloads from then on.
	keySets   auth.KeySets // further keys, for protocols that name them
	runLater  func(run func(context.Context) error)
	adminRuns bool

	// Any goroutine.
	reload    reloads
	upgrade   upgrade
	leaving   atomic.Bool   // a drain has begun
	startTook atomic.Int64  // nanoseconds from New to ready
	byHand    atomic.Uint64 // subscribers that the operator disconnected
}

// New builds the parts and opens the listeners; nothing runs yet and nobody is
// answered. After an error nothing is left open.
func New(cfg config.Config, opt Options) (_ *App, err error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	a := &App{cfg: cfg, opt: opt, log: opt.Log, started: time.Now()}
	a.upgrade.over = make(chan struct{})
	a.upgrade.state.Store(&admin.Upgrade{})
	a.reload.inForce.Store(&cfg)
	a.reload.waiting.Store(&[]string{})
	var undo []func()
	defer func() {
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
		}
	}()
	if a.auth, err = auth.New(cfg.Auth, a.log); err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = a.auth.Close() })
	if a.keySets, err = auth.NewKeySets(cfg.Auth, cfg.KeySets, a.log); err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = a.keySets.Close() })
	limit := int64(min(governor.MemoryLimit(cfg.Governor.Memory), 1<<50))
	broker, err := newBroker(cfg.Broker, limit/2, a.log)
	if err != nil {
		return nil, err
	}
	formats, err := wire.NewFormats(cfg.Namespaces)
	if err != nil {
		return nil, err
	}
	a.formats = formats
	a.addFormats(formats)
	if n, ok := broker.(*nats.Broker); ok {
		a.nats, a.protocol.request = n, n.Request
	}
	a.memory, _ = broker.(*memory.Broker)
	a.probe, broker = newProbe(broker)
	a.hub, err = hub.New(hub.Config{Namespaces: namespaces(cfg), Encoders: formats.Encoders(), RecentBudget: limit / 4, Log: a.log}, broker)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = a.hub.Close() })
	if cfg.TLS.Enabled() {
		if a.tls, err = tlsterm.New(cfg.TLS, a.log, a.protocols()...); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		undo = append(undo, func() { _ = a.tls.Close() })
	}
	accept := func(c *eventloop.Conn) eventloop.Handler { return a.accept(c) }
	if a.loops, err = eventloop.New(cfg.EventLoop, accept, a.log); err != nil {
		return nil, err
	}
	undo = append(undo, a.loops.Release)
	a.access = access.New(a.hub.Namespace, cfg.Access())
	if err = a.buildAdmission(); err != nil {
		return nil, err
	}
	a.push, err = push.New(cfg.Push, push.Deps{
		Formats: formats, Hub: a.hub, Loops: a.loops.Loops(), Access: a.access, Admission: &cfg.Admission, Namespaces: cfg.Namespaces,
		Front: a.admission.front, MaxSubscribers: a.loops.MaxConns() - reserved(a.loops.MaxConns()), Prover: a.auth, Log: a.log,
	})
	if err != nil {
		return nil, err
	}
	a.probe.attach(a.loops.Loops(), a.push.Shards())
	cfg.Downstream.RoutesOnly = !cfg.Pushes()
	if a.front, err = downstream.New(cfg.Downstream, a.push, a.auth, len(a.loops.Loops()), a.log); err != nil {
		return nil, err
	}
	a.front.Handle(opt.Files)
	if err = a.buildTelemetry(); err != nil {
		return nil, err
	}
	if err = a.buildWing(); err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = a.wing.close() })
	a.front.UseFront(a.admission.front)
	if a.accept = a.front.Accept; a.tls != nil {
		a.accept = a.tls.Accept(len(a.loops.Loops()), a.front.Accept)
	}
	a.accept = a.fenced(a.accept)
	if cfg.ProxyProtocol {
		a.accept = a.front.Announced(a.wing.trust, a.accept)
	}
	a.buildHTTP2()
	a.buildHTTP3()
	undo = append(undo, func() { _ = a.closeHTTP3() })
	if err = a.buildWatch(formats); err != nil {
		return nil, err
	}
	if err = a.listen(); err != nil {
		return nil, err
	}
	if err = a.listenHTTP3(); err != nil {
		return nil, err
	}
	return a, nil
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
func (a *App) Addr() netip.AddrPort { return a.addr }

// URL is where clients find the public listener.
func (a *App) URL() string {
	if a.tls != nil {
		return "https://" + a.addr.String()
	}
	return "http://" + a.addr.String()
}

// AdminAddr is the admin listener's address, or nil without one.
func (a *App) AdminAddr() net.Addr {
	if a.admin == nil {
		return nil
	}
	return a.admin.Addr()
}

// Run starts everything and serves until ctx is done; then it drains: clients
// are sent away over the configured time, and the broker stops after the last
// of them. A done hard ends the draining at once. It is called once.
func (a *App) Run(ctx, hard context.Context, ready func()) (err error) {
	background, stop := context.WithCancel(context.Background())
	defer stop()
	parts := newGroup(stop)
	// The loops end first: nothing may call the hub, or begin to verify a token,
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
	if err := a.takeLog(); err != nil {
		a.loops.Release()
		return err
	}
	if err := a.startBroker(parts, ctx, background); err != nil {
		a.loops.Release()
		return fmt.Errorf("start the broker: %w", err)
	}
	if err := a.startProtocols(parts, background); err != nil {
		a.loops.Release()
		return err
	}
	parts.run(func() error { return a.loops.Run(background) })
	if err := a.takeOver(parts); err != nil {
		return err
	}
	a.runAdmin(parts, background)
	a.runHTTP3(parts, background)
	parts.run(func() error { return newTrimmer(a.activity).run(background) })
	parts.run(func() error { return a.wing.upstreams.Run(background) })
	if err := a.runWatch(parts, background); err != nil {
		return err
	}
	parts.run(func() error { return a.wing.access.Run(background) })
	a.startTook.Store(int64(time.Since(a.started)))
	parts.run(func() error { return a.watch(background) })
	a.notifyReady(parts, background)
	if ready != nil {
		ready()
	}
	select {
	case <-ctx.Done():
	case <-a.upgrade.over:
		a.follow(hard)
		return nil
	case <-background.Done(): // a part has failed
		return nil
	}
	a.drain(hard)
	return nil
}

func (a *App) close() error {
	ended := a.closeHTTP3()
	a.front.Close()
	a.wing.recorder.Close()
	err := errors.Join(ended, a.closeProtocols(), a.hub.Close())
	if a.admin != nil {
		_ = a.admin.Close()
	}
	if a.tls != nil {
		_ = a.tls.Close()
	}
	return errors.Join(err, a.auth.Close(), a.keySets.Close(), a.wing.close(), a.closeWatch())
}
