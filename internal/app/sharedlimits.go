package app

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/front/limit"
)

// sharedLimits have the nodes of a cluster use one bucket for each client. Where there can be no
// other node nothing of it runs.
type sharedLimits struct {
	// Owned by the start, and by run from then on.
	nats  *nats.Broker
	clock func() int64 // of the buckets

	// Any goroutine.
	share atomic.Pointer[limit.Share] // nil: there can be no other node, or the start is not there yet
}

const (
	shareTopic  = "limits.spent"
	shareBucket = "limits"
	// secretRetry is how long the node waits before it looks the common secret up again.
	secretRetry = 2 * time.Second
)

// start has the limits shared from then on. The broker has started, and no client is served yet.
func (l *sharedLimits) start(a *App, parts *group, ctx context.Context) error { //nolint:revive // the context is the parts', not this call's
	if !sharesBroker(a.cfg.Broker) {
		return nil
	}
	bus := a.hub.Bus()
	l.nats, l.clock = a.nats, a.wing.clock
	lease := time.Duration(a.cfg.Cluster.WithDefaults().Lease)
	s := limit.NewShare(bus.Node(), lease, func(data []byte) error { return bus.Broadcast(shareTopic, data) })
	state := a.wing.state
	s.Add(func() *limit.Table { return state.Tenants }) // the order is what other nodes have
	s.Add(func() *limit.Table { return state.Addresses })
	s.Add(a.admission.front.Table)
	stop, err := bus.Listen(shareTopic, func(from string, data []byte) { s.Receive(from, data, l.clock()) })
	if err != nil {
		return fmt.Errorf("shared limits: %w", err)
	}
	l.share.Store(s)
	replicas := replicasOf(&a.cfg)
	parts.run(func() error {
		defer stop()
		l.run(ctx, s, func() {
			if err := l.secret(ctx, s, replicas); err != nil {
				a.log.Debug("shared limits: the nodes' common secret is not available", "err", err)
			}
		})
		return nil
	})
	return nil
}

// secret looks up the secret that the nodes have in common.
func (l *sharedLimits) secret(ctx context.Context, s *limit.Share, replicas int) error {
	try, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	secret, err := nats.Secret(try, l.nats, shareBucket, replicas, limit.ShareKeyBytes)
	if err == nil {
		s.SetKey(secret)
	}
	return err
}

// run sends what is used until ctx is done. It looks the secret up, and again while nodes have
// different ones.
func (l *sharedLimits) run(ctx context.Context, s *limit.Share, lookUp func()) {
	tick := time.NewTicker(limit.ShareInterval)
	defer tick.Stop()
	looked := make(chan struct{}, 1)
	looked <- struct{}{}
	var last time.Time
	for {
		if s.KeyWanted() && time.Since(last) >= secretRetry {
			select {
			case <-looked:
				last = time.Now()
				go func() { lookUp(); looked <- struct{}{} }() // a look-up ends with ctx
			default:
			}
		}
		select {
		case <-ctx.Done():
			<-looked // or it would outlive this
			s.Leave(l.clock())
			return
		case <-tick.C:
			s.Tick(l.clock())
		}
	}
}

// state is what metrics show; nil where nothing is shared.
func (l *sharedLimits) state() *limit.ShareStats {
	if s := l.share.Load(); s != nil {
		stats := s.Stats()
		return &stats
	}
	return nil
}
