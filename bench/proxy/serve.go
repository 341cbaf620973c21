package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// serve is the gateway that is measured: one loop, a static reply at /static/hello,
// and everything else proxied to peer.
func serve(ctx context.Context, listen, peer, engine string) error {
	log := slog.New(slog.DiscardHandler)
	a, err := auth.New(auth.Config{}, log)
	if err != nil {
		return err
	}
	broker, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	formats, err := wire.NewFormats(nil)
	if err != nil {
		return err
	}
	h, err := hub.New(hub.Config{Encoders: formats.Encoders(), Log: log}, broker)
	if err != nil {
		return err
	}
	var front *downstream.Server
	group, err := eventloop.New(eventloop.Config{Loops: 1, Engine: engine}, func(c *eventloop.Conn) eventloop.Handler { return front.Accept(c) }, log)
	if err != nil {
		return err
	}
	ph, err := push.New(push.Config{}, push.Deps{Formats: formats, Hub: h, Loops: group.Loops(), Log: log})
	if err != nil {
		return err
	}
	px, err := proxy.New(proxy.Config{}, group.Loops(), log)
	if err != nil {
		return err
	}
	if front, err = downstream.New(downstream.Config{}, downstream.Deps{Push: ph, Auth: a, Loops: 1, Proxy: px, Log: log}); err != nil {
		return err
	}
	clusters, err := upstream.New([]upstream.Config{{Name: "main", Peers: []upstream.PeerConfig{{Address: peer}}, Pool: upstream.PoolConfig{MaxIdle: 512}}},
		nil, upstream.Options{Now: proxy.Clock(group.Loops()[0])})
	if err != nil {
		return err
	}
	routes, err := policy.New([]policy.RouteConfig{
		{Path: "/static/hello", Reply: policy.Reply{Status: 200, Body: "Hello, World!"}},
		{Cluster: "main"},
	}, policy.Deps{State: policy.NewState(0), Auth: a})
	if err != nil {
		return err
	}
	if err := front.SetRoutes(routes, clusters); err != nil {
		return err
	}
	at, err := netip.ParseAddrPort(listen)
	if err != nil {
		return err
	}
	if _, err = group.Listen(at); err != nil {
		return err
	}
	if err := h.Start(ctx); err != nil {
		return err
	}
	ran := make(chan error, 1)
	go func() { ran <- clusters.Run(ctx) }()
	err = group.Run(ctx)
	front.Close()
	return errors.Join(err, <-ran)
}
