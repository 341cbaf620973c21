package app

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/centrifuge"
	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/config"
	"github.com/weir-gateway/weir/internal/mercure"
	"github.com/weir-gateway/weir/internal/presence"
	"github.com/weir-gateway/weir/internal/pusher"
	"github.com/weir-gateway/weir/internal/socket"
	"github.com/weir-gateway/weir/internal/wire"
)

// protocols are those of other servers that this one speaks, and what they share:
// the nodes, and who is where.
type protocols struct {
	// Fixed at New.
	centrifugeFormats centrifuge.Formats
	pusherFormat      hub.Format
	// request asks who serves a NATS subject; nil: there is no NATS.
	request func(ctx context.Context, subject string, data []byte) ([]byte, error)

	// Fixed when the broker has started; nil: not spoken.
	cluster    *cluster.Cluster
	presence   *presence.Presence
	centrifuge *centrifuge.Server
	pusher     *pusher.Server

	// Any goroutine.
	mercure atomic.Pointer[mercure.Server] // nil until the broker has started
	started atomic.Bool                    // the fields above are fixed, and something is spoken
}

// addFormats makes the protocols' frames known, before the hub is made.
func (a *App) addFormats(f *wire.Formats) {
	if a.cfg.Centrifuge.Enabled {
		a.protocol.centrifugeFormats = centrifuge.AddFormats(f.Add)
	}
	if a.cfg.Pusher.Enabled {
		a.protocol.pusherFormat = pusher.AddFormat(f, a.cfg.Pusher)
	}
}

// startProtocols makes the front speak what is configured. The hub has started, and
// the loops have not: nobody is served yet.
func (a *App) startProtocols(parts *group, ctx context.Context) error { //nolint:revive // the context is the parts', not this call's
	cfg, p := a.cfg, &a.protocol
	spoken := cfg.Centrifuge.Enabled || cfg.Pusher.Enabled || cfg.Mercure.Enabled
	if !spoken && !sharesBroker(cfg.Broker) {
		return nil // there can be no other node, and nothing that needs to know
	}
	cfg.Cluster.Version = a.opt.Version
	var err error
	if p.cluster, err = cluster.New(cfg.Cluster, a.hub.Bus(), a.log); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	p.cluster.Describe(a.describeRoom)
	if !spoken {
		parts.run(func() error { return p.cluster.Run(ctx) })
		return nil
	}
	if p.presence, err = presence.New(cfg.Presence, p.cluster, a.hub.Bus(), a.log); err != nil {
		return fmt.Errorf("presence: %w", err)
	}
	// A part that runs is ended by ctx, also when a later one cannot be made.
	defer func() {
		parts.run(func() error { return p.cluster.Run(ctx) })
		parts.run(func() error { return p.presence.Run(ctx) })
	}()
	for _, start := range []func(*group, context.Context) error{a.startMercure, a.startCentrifuge, a.startPusher} {
		if err := start(parts, ctx); err != nil {
			return err
		}
	}
	p.started.Store(true)
	return nil
}

// sharesBroker reports whether there can be other nodes: on an external NATS, or embedded
// ones that are a cluster.
func sharesBroker(b config.Broker) bool {
	return b.Kind == config.BrokerNATS && (b.NATS.URL != "" || b.NATS.Cluster.Name != "")
}

func (a *App) startMercure(parts *group, ctx context.Context) error { //nolint:revive // see startProtocols
	if !a.cfg.Mercure.Enabled {
		return nil
	}
	s, err := mercure.New(a.cfg.Mercure, mercure.Deps{Hub: a.hub, Auth: a.auth, KeySets: a.keySets, Access: a.access, Cluster: a.protocol.cluster, Presence: a.protocol.presence, Log: a.log})
	if err != nil {
		return fmt.Errorf("mercure: %w", err)
	}
	parts.run(func() error { return s.Run(ctx) })
	a.protocol.mercure.Store(s)
	return a.mount(s.Endpoints())
}

func (a *App) startCentrifuge(*group, context.Context) error { //nolint:revive // see startProtocols
	if !a.cfg.Centrifuge.Enabled {
		return nil
	}
	s, err := centrifuge.New(a.cfg.Centrifuge, centrifuge.Deps{
		Hub: a.hub, Formats: a.protocol.centrifugeFormats, Auth: a.auth, KeySets: a.keySets, Access: a.access, Presence: a.protocol.presence, Cluster: a.protocol.cluster,
		Version: a.opt.Version, Name: a.cfg.Cluster.Name, Request: a.protocol.request, Log: a.log,
	})
	if err != nil {
		return fmt.Errorf("centrifuge: %w", err)
	}
	a.protocol.centrifuge = s // closed with the app, after the loops
	if err := s.Start(); err != nil {
		return fmt.Errorf("centrifuge: %w", err)
	}
	return a.mount(s.Endpoints())
}

func (a *App) startPusher(parts *group, ctx context.Context) error { //nolint:revive // see startProtocols
	if !a.cfg.Pusher.Enabled {
		return nil
	}
	s, err := pusher.New(a.cfg.Pusher, pusher.Deps{
		Hub: a.hub, Format: a.protocol.pusherFormat, Access: a.access, Cluster: a.protocol.cluster, Presence: a.protocol.presence, Ready: a.push.Ready, Log: a.log,
	})
	if err != nil {
		return fmt.Errorf("pusher: %w", err)
	}
	a.protocol.pusher = s
	parts.run(func() error { return s.Run(ctx) })
	return a.mount(s.Endpoints())
}

// mount serves the endpoints.
func (a *App) mount(e []socket.Endpoint) error { return a.front.Mount(e) }

// mercureLink is the Link field of routes that announce the hub. Any goroutine.
func (a *App) mercureLink() string {
	if s := a.protocol.mercure.Load(); s != nil {
		return s.Link("")
	}
	return ""
}

// closeProtocols ends what the loops may have used until they ended.
func (a *App) closeProtocols() error {
	if s := a.protocol.centrifuge; s != nil {
		return s.Close()
	}
	return nil
}
