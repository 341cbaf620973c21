package app

import (
	"context"
	"fmt"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/observe"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/protocol/mercure"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// protocols are those of other servers that this one speaks, and what they share:
// the nodes, and who is where.
type protocols struct {
	// Fixed at New.
	centrifugeFormats centrifuge.Formats
	pusherFormat      hub.Format
	// request sends a request to a NATS subject; nil: there is no NATS.
	request func(ctx context.Context, subject string, data []byte) ([]byte, error)

	observe.Protocols
}

// addFormats makes the protocols' frames known, before the hub is made.
func (p *protocols) addFormats(cfg *config.Config, f *wire.Formats) {
	if cfg.Centrifuge.Enabled {
		p.centrifugeFormats = centrifuge.AddFormats(f.Add)
	}
	if cfg.Pusher.Enabled {
		p.pusherFormat = pusher.AddFormat(f, cfg.Pusher)
	}
}

// start makes the front speak what is configured. The hub has started, and
// the loops have not: no client is served yet.
func (p *protocols) start(a *App, parts *group, ctx context.Context) error { //nolint:revive // the context is the parts', not this call's
	cfg := a.cfg
	spoken := cfg.Centrifuge.Enabled || cfg.Pusher.Enabled || cfg.Mercure.Enabled
	if !spoken && !sharesBroker(cfg.Broker) {
		return nil // there can be no other node, and nothing that needs to know
	}
	cfg.Cluster.Version = a.opt.Version
	var err error
	if p.Cluster, err = cluster.New(cfg.Cluster, a.hub.Bus(), a.log); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	p.Cluster.Describe(a.room.describe)
	if !spoken {
		parts.run(func() error { return p.Cluster.Run(ctx) })
		return nil
	}
	if p.Presence, err = presence.New(cfg.Presence, p.Cluster, a.hub.Bus(), a.log); err != nil {
		return fmt.Errorf("presence: %w", err)
	}
	// A part that runs is ended by ctx, also when a later one cannot be made.
	defer func() {
		parts.run(func() error { return p.Cluster.Run(ctx) })
		parts.run(func() error { return p.Presence.Run(ctx) })
	}()
	for _, start := range []func(*App, *group, context.Context) error{p.startMercure, p.startCentrifuge, p.startPusher} {
		if err := start(a, parts, ctx); err != nil {
			return err
		}
	}
	p.Started.Store(true)
	return nil
}

// sharesBroker reports whether there can be other nodes: on an external NATS, or embedded
// ones that are a cluster.
func sharesBroker(b config.Broker) bool {
	return b.Kind == config.BrokerNATS && (b.NATS.URL != "" || b.NATS.Cluster.Name != "")
}

func (p *protocols) startMercure(a *App, parts *group, ctx context.Context) error { //nolint:revive // see start
	if !a.cfg.Mercure.Enabled {
		return nil
	}
	s, err := mercure.New(a.cfg.Mercure, mercure.Deps{Hub: a.hub, Auth: a.auth, KeySets: a.keySets, Access: a.access, Cluster: p.Cluster, Presence: p.Presence, Log: a.log})
	if err != nil {
		return fmt.Errorf("mercure: %w", err)
	}
	parts.run(func() error { return s.Run(ctx) })
	p.Mercure.Store(s)
	return a.front.Mount(s.Endpoints())
}

func (p *protocols) startCentrifuge(a *App, _ *group, _ context.Context) error { //nolint:revive // see start
	if !a.cfg.Centrifuge.Enabled {
		return nil
	}
	s, err := centrifuge.New(a.cfg.Centrifuge, centrifuge.Deps{
		Hub: a.hub, Formats: p.centrifugeFormats, Auth: a.auth, KeySets: a.keySets, Access: a.access, Presence: p.Presence, Cluster: p.Cluster,
		Version: a.opt.Version, Name: a.cfg.Cluster.Name, Request: p.request, Log: a.log,
	})
	if err != nil {
		return fmt.Errorf("centrifuge: %w", err)
	}
	p.Centrifuge = s // closed with the app, after the loops
	if err := s.Start(); err != nil {
		return fmt.Errorf("centrifuge: %w", err)
	}
	return a.front.Mount(s.Endpoints())
}

func (p *protocols) startPusher(a *App, parts *group, ctx context.Context) error { //nolint:revive // see start
	if !a.cfg.Pusher.Enabled {
		return nil
	}
	s, err := pusher.New(a.cfg.Pusher, pusher.Deps{
		Hub: a.hub, Format: p.pusherFormat, Access: a.access, Cluster: p.Cluster, Presence: p.Presence, Ready: a.push.Ready, Log: a.log,
		Revoked: func(user string) bool { return a.revocations.list.RefuseUser(user, auth.TokenID{}) != nil },
	})
	if err != nil {
		return fmt.Errorf("pusher: %w", err)
	}
	p.Pusher = s
	parts.run(func() error { return s.Run(ctx) })
	return a.front.Mount(s.Endpoints())
}

// readers read the sessions of protocols that come from another process.
func (p *protocols) readers() map[string]socket.Reader {
	list := map[string]socket.Reader{}
	if p.Centrifuge != nil {
		list["centrifuge"] = p.Centrifuge.ReadState
	}
	if p.Pusher != nil {
		list["pusher"] = p.Pusher.ReadState
	}
	return list
}

// streamReaders read protocols' streams of events that come from another process.
func (p *protocols) streamReaders() map[string]socket.SubscriptionReader {
	list := map[string]socket.SubscriptionReader{}
	if s := p.Mercure.Load(); s != nil {
		list["mercure"] = s.ReadState
	}
	return list
}

// mercureLink is the Link field of routes that announce the hub. Any goroutine.
func (p *protocols) mercureLink() string {
	if s := p.Mercure.Load(); s != nil {
		return s.Link("")
	}
	return ""
}

// close ends what the loops may have used until they ended.
func (p *protocols) close() error {
	if s := p.Centrifuge; s != nil {
		return s.Close()
	}
	return nil
}
