package upstream

import (
	"context"
	"net/netip"
	"reflect"
	"slices"
	"time"
)

// members are a cluster's peers as the Set sees them. Its lock guards all.
type members struct {
	config  Config
	tls     *TLS     // nil: no peer is spoken to over TLS
	targets []target // of config.Peers
	// addrs are the addresses of host names, as last resolved.
	addrs map[string][]netip.Addr
	// known has the peers of the cluster and those that were, for a while.
	known map[Address]*member

	resolving resolving
}

// resolving is the goroutine that resolves again.
type resolving struct {
	stop  context.CancelFunc // nil: there is none
	hosts []string
	dns   DNSConfig
}

type member struct {
	peer *Peer
	// gone is when it was removed; 0: it was not.
	gone    int64
	drained bool // told

	stop   context.CancelFunc // of its checker; nil: there is none
	health HealthConfig       // what its checker goes by

	breaker BreakerState // as last logged
	ejected bool
}

// remember is how long a peer's state outlives its removal: resolvers that give a
// part of the addresses each time must not reset those they left out.
const remember = 5 * time.Minute

// configure takes the configuration, with defaults, and addresses of new names. It
// reports whether anything is different.
func (m *members) configure(cfg Config, tls *TLS, found lookups) bool {
	family := m.config.DNS.Family == cfg.DNS.Family
	addrs := map[string][]netip.Addr{}
	targets := make([]target, len(cfg.Peers))
	different := m.tls != tls || !reflect.DeepEqual(m.config, cfg)
	for i, p := range cfg.Peers {
		t, _ := parseTarget(p.Address) // validated
		targets[i] = t
		if t.host == "" {
			continue
		}
		known, fresh := m.addrs[t.host], found[lookup{t.host, cfg.DNS}]
		if len(fresh) > 0 && (len(known) == 0 || !family) {
			known, different = fresh, true
		}
		addrs[t.host] = known
	}
	m.config, m.tls, m.targets, m.addrs = cfg, tls, targets, addrs
	return different
}

// hosts are the names that need resolving, each once.
func (m *members) hosts() []string {
	var all []string
	for _, t := range m.targets {
		if t.host != "" {
			all = append(all, t.host)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// rebuild brings peers and view in line with configuration and addresses. The
// caller holds mu.
func (s *Set) rebuild(c *Cluster) {
	m, now := &c.members, s.opts.Now()
	wanted := map[Address]bool{}
	var entries []entry
	var drain []*member
	add := func(a Address, name string, cfg PeerConfig) {
		if wanted[a] || len(wanted) >= maxPeers {
			return
		}
		wanted[a] = true
		mb := m.known[a]
		if mb == nil {
			mb = &member{peer: newPeer(a, name)}
			m.known[a] = mb
		}
		mb.gone, mb.drained = 0, false
		p := mb.peer
		p.name.Store(&name)
		p.tls.Store(m.tls)
		p.maxConns.Store(int64(m.config.Pool.MaxPerPeer))
		p.leakAfter.Store(int64(m.config.Pool.LeakAfter))
		if cfg.Drain {
			drain = append(drain, mb)
			return
		}
		p.draining.Store(false)
		entries = append(entries, entry{p, float64(cfg.Weight)})
	}
	for i, t := range m.targets {
		if t.host == "" {
			add(t.at(netip.Addr{}, &m.config.TLS), t.name, m.config.Peers[i])
		}
		for _, ip := range m.addrs[t.host] {
			add(t.at(ip, &m.config.TLS), t.name, m.config.Peers[i])
		}
	}
	// The view first: a moment in which the old peers drain and the new ones are
	// not seen would have none.
	c.view.Store(newView(m.config, m.tls, entries))
	for _, mb := range drain {
		mb.peer.draining.Store(true)
	}
	for a, mb := range m.known {
		if !wanted[a] && mb.gone == 0 {
			mb.gone = max(now, 1)
			mb.peer.draining.Store(true)
			s.opts.Log.Info("peer removed", "cluster", c.name, "peer", a.String(), "in_flight", mb.peer.inflight.Load())
		}
	}
}

// retire lets go of a cluster that is not configured any more.
func (s *Set) retire(c *Cluster) {
	m := &c.members
	if m.resolving.stop != nil {
		m.resolving.stop()
		m.resolving.stop = nil
	}
	for _, mb := range m.known {
		s.uncheck(c, mb)
		if mb.gone == 0 {
			mb.gone, mb.drained = max(s.opts.Now(), 1), false
		}
	}
	s.leaving = append(s.leaving, c)
}

// tend starts and stops the goroutines that c needs. The caller holds mu. Before
// Run and after its end there are none.
func (s *Set) tend(c *Cluster) {
	if s.running == nil || s.running.Err() != nil {
		return
	}
	s.tendResolving(c)
	for _, mb := range c.members.known {
		s.tendChecking(c, mb)
	}
}

func (s *Set) tendChecking(c *Cluster, mb *member) {
	h := c.members.config.Health
	h.ProxyProtocol = c.members.config.ProxyProtocol
	if mb.peer.address.TLS {
		h.TLS = c.members.tls
	}
	if mb.gone != 0 || h.Check == CheckNone {
		s.uncheck(c, mb)
		return
	}
	if mb.stop != nil && mb.health == h {
		return
	}
	if mb.stop != nil {
		mb.stop()
	}
	ctx, stop := context.WithCancel(s.running)
	mb.stop, mb.health = stop, h
	s.wg.Go(func() { s.check(ctx, c, mb.peer, h) })
}

// uncheck ends the checks of mb: nothing is known of it any more.
func (s *Set) uncheck(c *Cluster, mb *member) {
	if mb.stop != nil {
		mb.stop()
		mb.stop = nil
		mb.peer.checked(HealthUnknown, s.opts.Now(), &c.view.Load().policy)
	}
}

// check checks p until ctx ends.
func (s *Set) check(ctx context.Context, c *Cluster, p *Peer, h HealthConfig) {
	rng := mix(p.hash ^ s.opts.Seed)
	passed, failed := 0, 0
	for {
		attempt := h
		if attempt.Host == "" {
			attempt.Host = p.Host()
		}
		checking, cancel := context.WithTimeout(ctx, time.Duration(h.Timeout))
		err := s.opts.Check(checking, p.address, attempt)
		cancel()
		p.counts.checks.Add(1)
		if err == nil {
			passed, failed = passed+1, 0
		} else {
			p.counts.failed.Add(1)
			passed, failed = 0, failed+1
		}
		was := Health(p.health.Load())
		next := was
		switch {
		case passed > 0 && (was == HealthUnknown || passed >= h.Healthy):
			next = HealthUp
		case failed > 0 && (was == HealthUnknown || failed >= h.Unhealthy):
			next = HealthDown
		}
		s.learn(ctx, c, p, next, err)
		rng += golden
		jitter := 0.9 + 0.2*unit(mix(rng))
		if !sleep(ctx, time.Duration(float64(h.Interval)*jitter)) {
			return
		}
	}
}

// learn applies what a check showed unless the checker was stopped meanwhile.
func (s *Set) learn(ctx context.Context, c *Cluster, p *Peer, h Health, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil || !p.checked(h, s.opts.Now(), &c.view.Load().policy) {
		return
	}
	if h == HealthDown {
		s.opts.Log.Warn("peer down", "cluster", c.name, "peer", p.address.String(), "err", err)
		return
	}
	s.opts.Log.Info("peer up", "cluster", c.name, "peer", p.address.String())
}

// sleep waits for d, or returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// keepHouse does what nobody waits for.
func (s *Set) keepHouse(now int64) {
	type drained struct {
		cluster string
		peer    *Peer
	}
	var told []drained
	s.mu.Lock()
	look := func(c *Cluster) (empty bool) {
		empty = true
		for a, mb := range c.members.known {
			s.logChanges(c, mb, now)
			if mb.gone == 0 {
				empty = false
				continue
			}
			if !mb.drained && mb.peer.inflight.Load() == 0 {
				mb.drained = true
				told = append(told, drained{c.name, mb.peer})
				s.opts.Log.Info("peer drained", "cluster", c.name, "peer", a.String())
			}
			if !mb.drained {
				empty = false
			} else if now-mb.gone > int64(remember) {
				delete(c.members.known, a)
			}
		}
		return empty
	}
	t := s.current.Load()
	for _, c := range t.clusters {
		look(c)
		if p := c.view.Load().policy.hedge.percentile; p > 0 {
			if after := c.hedges.times.percentile(p); after > 0 {
				c.hedges.after.Store(after)
			}
		}
	}
	s.leaving = slices.DeleteFunc(s.leaving, look)
	drifts := make([]*Drift, 0, len(s.drifts))
	for _, d := range s.drifts {
		drifts = append(drifts, d)
	}
	s.mu.Unlock()
	if s.opts.Drained != nil {
		for _, d := range told {
			s.opts.Drained(d.cluster, d.peer)
		}
	}
	for _, sp := range t.splits {
		sp.evaluate(now, s.opts.Log)
	}
	for _, d := range drifts {
		d.evaluate(now, s.opts.Log)
	}
}

// logChanges tells what the hot path did to a peer since the last look.
func (s *Set) logChanges(c *Cluster, mb *member, now int64) {
	p := mb.peer
	if b := p.breaker.state(); b != mb.breaker {
		s.opts.Log.Warn("breaker "+b.String(), "cluster", c.name, "peer", p.address.String(), "was", mb.breaker.String())
		mb.breaker = b
	}
	if ejected := p.ejectedUntil.Load() > now; ejected != mb.ejected {
		mb.ejected = ejected
		if ejected {
			left := time.Duration(p.ejectedUntil.Load() - now)
			s.opts.Log.Warn("peer ejected", "cluster", c.name, "peer", p.address.String(), "for", left)
		} else {
			s.opts.Log.Info("peer returned", "cluster", c.name, "peer", p.address.String())
		}
	}
}
