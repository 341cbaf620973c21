package app

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/redirect"
	"github.com/weir-gateway/weir/internal/net/acme"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// certificates are what obtains certificates by ACME, and the plaintext listener that belongs to it.
type certificates struct {
	// Fixed at New.
	manager  *acme.Manager    // nil: none
	plain    *redirect.Server // nil: no plaintext listener
	listener int              // its index among the addresses; -1 before it is open
}

// build makes the manager, which has the certificates that were obtained before, and has TLS use them.
func (m *certificates) build(a *App) (err error) {
	m.listener = -1
	cfg := a.cfg.TLS.ACME
	if !cfg.Enabled() {
		return nil
	}
	if m.manager, err = acme.New(cfg, acmeDir(a.cfg.Broker), a.log); err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	m.manager.OnChange(func() {
		if err := a.tls.Reload(); err != nil {
			a.log.Error("certificates stay as they were", "err", err)
		}
	})
	if err := a.tls.Manage(m.manager); err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	if cfg.HTTPListen == "" {
		return nil
	}
	d := a.cfg.Downstream
	m.plain = redirect.New(redirect.Config{
		HeadTimeout: time.Duration(d.HeadTimeout), KeepAlive: time.Duration(d.KeepAlive),
		Head:   http1.Limits{MaxLine: d.MaxLine, MaxHead: d.MaxHead, MaxFields: d.MaxFields},
		Prefix: acme.HTTPPath, Port: func() uint16 { return a.Addr().Port() },
		Answer: m.manager.KeyAuthorization, Find: m.manager.FindKeyAuthorization,
	})
	return nil
}

// acmeDir is where certificates are kept unless the configuration specifies otherwise.
func acmeDir(b config.Broker) string {
	dir := b.NATS.Dir
	if dir == "" {
		dir = "weir-data"
	}
	return filepath.Join(dir, "acme")
}

// accept serves the connections of the plaintext listener, behind fence; others are public's.
func (m *certificates) accept(public func(*eventloop.Conn) eventloop.Handler, fence func(func(*eventloop.Conn) eventloop.Handler) func(*eventloop.Conn) eventloop.Handler) func(*eventloop.Conn) eventloop.Handler {
	if m.plain == nil {
		return public
	}
	plain := fence(m.plain.Accept)
	return func(c *eventloop.Conn) eventloop.Handler {
		if c.Listener() == m.listener {
			return plain(c)
		}
		return public(c)
	}
}

// listenPlain opens the plaintext listener, behind the public one.
func (l *listeners) listenPlain(a *App, addr netip.AddrPort, passed []*passedSocket) error {
	if !addr.IsValid() {
		return nil
	}
	fds, err := duplicates(passed, addr)
	if err != nil {
		return err
	}
	if len(fds) > 0 {
		l.plain, err = l.loops.ListenOn(fds)
	} else {
		l.plain, err = l.loops.Listen(addr)
	}
	if err != nil {
		return config.WithHint(fmt.Errorf("tls.acme.http_listen: %w", err), "free the address, or grant cap_net_bind_service for a port below 1024")
	}
	a.certificates.listener = 1
	l.log.Info("redirecting to https", "listen", l.plain)
	return nil
}

// run obtains and renews certificates until ctx is done. The broker has started.
func (m *certificates) run(a *App, ctx context.Context) error { //nolint:revive // the context is the parts', not this call's
	if m.manager == nil {
		return nil
	}
	if a.nats == nil || !sharesBroker(a.cfg.Broker) {
		return m.manager.Run(ctx, nil)
	}
	for {
		kv, err := a.nats.OpenKeyValue(ctx, "certificates", replicasOf(&a.cfg))
		if err == nil {
			err = m.manager.Run(ctx, sharedStore{kv})
			if err := kv.Close(); err != nil {
				a.log.Debug("certificates: close the store of the cluster", "err", err) // the broker may be gone before
			}
			return err
		}
		if ctx.Err() == nil {
			a.log.Warn("certificates: the store of the cluster is not available", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(storeRetry):
		}
	}
}

// storeRetry is how long the cluster's store is left alone after it could not be opened.
const storeRetry = 2 * time.Second

// replicasOf is how often the cluster keeps what it cannot do without: as often as a namespace.
func replicasOf(cfg *config.Config) int {
	n := 1
	for _, ns := range cfg.Namespaces {
		n = max(n, ns.Replicas)
	}
	return n
}

// sharedStore is the store of all nodes.
type sharedStore struct{ *nats.KeyValue }

var _ acme.Store = sharedStore{}

// Lock implements acme.Store.
func (s sharedStore) Lock(ctx context.Context, key string) (context.Context, func(), error) {
	held, unlock, err := s.KeyValue.Lock(ctx, key)
	if nats.LockHeld(err) {
		err = fmt.Errorf("%w: %w", acme.ErrLocked, err)
	}
	return held, unlock, err
}

func (m *certificates) close() {
	if m.plain != nil {
		m.plain.Close()
	}
}
