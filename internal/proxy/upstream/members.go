package upstream

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// members are a cluster's peers as the Set sees them. Its lock guards all.
type members struct {
	config  Config
	tls     *TLS     // nil: no peer is spoken to over TLS
	sources []source // of config.Peers, or of records
	// records are those of config.SRV as last resolved, if recorded.
	records  []SRV
	recorded bool
	// addrs are the addresses of host names, as last resolved; nil for those that are
	// not known.
	addrs map[string][]netip.Addr
	// known has the peers of the cluster and those that were, for a while.
	known map[Address]*member

	resolving resolving

	// hopeless is closed when the last peer that passed its checks is down; nil while
	// none does.
	hopeless chan struct{}
}

// resolving is the goroutine that resolves again.
type resolving struct {
	stop  context.CancelFunc // nil: there is none
	names []string
	dns   DNSConfig
}

// A source is where peers come from: a configured address, or an SRV record.
type source struct {
	target
	weight float64
	drain  bool
	tier   uint16 // priority: those of a higher one are queried when no other can be
}

// sourcesOf are the sources of cfg, in the order of their tiers. records are those of
// its SRV.
func sourcesOf(cfg *Config, records []SRV) []source {
	var all []source
	for _, p := range cfg.Peers {
		t, _ := parseTarget(p.Address) // validated
		all = append(all, source{target: t, weight: float64(p.Weight), drain: p.Drain})
	}
	for _, r := range records {
		t := target{host: r.Target, port: r.Port, name: net.JoinHostPort(r.Target, strconv.Itoa(int(r.Port)))}
		if cfg.TLS.Enabled {
			t.name = strings.TrimSuffix(t.name, ":443")
		}
		// A weight of 0 means a very small chance beside others (RFC 2782).
		all = append(all, source{target: t, weight: max(float64(r.Weight)*100, 1), tier: r.Priority})
	}
	return all
}

type member struct {
	peer *Peer
	// gone is when it was removed; 0: it was not.
	gone    int64
	drained bool // reported

	stop   context.CancelFunc // of its checker; nil: there is none
	health HealthConfig       // what its checker goes by

	breaker BreakerState // as last logged
	ejected bool
}

// remember is how long a peer's state outlives its removal: resolvers that give a
// part of the addresses each time must not reset those they left out.
const remember = 5 * time.Minute

// configure takes the configuration, with defaults, and answers for new names. It
// reports whether anything is different.
func (m *members) configure(cfg Config, tls *TLS, found lookups) bool {
	different := m.tls != tls || !reflect.DeepEqual(m.config, cfg)
	family := m.config.DNS.Family == cfg.DNS.Family
	if m.config.SRV != cfg.SRV {
		m.records, m.recorded = nil, false
	}
	if a, ok := found[lookup{cfg.SRV, true, cfg.DNS}]; ok && !m.recorded {
		m.records, m.recorded, different = a.srv, true, true
	}
	m.config, m.tls = cfg, tls
	m.arrange()
	for host, known := range m.addrs {
		if fresh := found[lookup{host, false, cfg.DNS}].addrs; len(fresh) > 0 && (len(known) == 0 || !family) {
			m.addrs[host], different = fresh, true
		}
	}
	return different
}

// arrange lists the sources anew, and keeps the addresses of their hosts.
func (m *members) arrange() {
	m.sources = sourcesOf(&m.config, m.records)
	addrs := map[string][]netip.Addr{}
	for _, src := range m.sources {
		if src.host != "" {
			addrs[src.host] = m.addrs[src.host]
		}
	}
	m.addrs = addrs
}

// names are what needs resolving, each once; with SRV the hosts come from that.
func (m *members) names() []string {
	if m.config.SRV != "" {
		return []string{m.config.SRV}
	}
	return slices.Sorted(maps.Keys(m.addrs))
}

// rebuild brings peers and view in line with configuration and addresses. The
// caller holds mu.
func (s *Set) rebuild(c *Cluster) {
	m, now := &c.members, s.opts.Now()
	wanted := map[Address]bool{}
	var tiers []tier
	var drain []*member
	add := func(a Address, src *source) {
		if wanted[a] || len(wanted) >= maxPeers {
			return
		}
		wanted[a] = true
		mb := m.known[a]
		if mb == nil {
			mb = &member{peer: newPeer(a, src.name)}
			m.known[a] = mb
		}
		mb.gone, mb.drained = 0, false
		p := mb.peer
		p.name.Store(&src.name)
		p.tls.Store(m.tls)
		p.maxConns.Store(int64(m.config.Pool.MaxPerPeer))
		p.leakAfter.Store(int64(m.config.Pool.LeakAfter))
		if src.drain {
			drain = append(drain, mb)
			return
		}
		p.draining.Store(false)
		if n := len(tiers); n == 0 || tiers[n-1].priority != src.tier {
			tiers = append(tiers, tier{priority: src.tier})
		}
		last := &tiers[len(tiers)-1]
		last.entries = append(last.entries, entry{p, src.weight})
	}
	for i := range m.sources {
		src := &m.sources[i]
		if src.host == "" {
			add(src.at(netip.Addr{}, &m.config.TLS), src)
		}
		for _, ip := range m.addrs[src.host] {
			add(src.at(ip, &m.config.TLS), src)
		}
	}
	// The view first: a time in which the old peers drain and the new ones are
	// not seen would have none.
	c.view.Store(newViews(m.config, m.tls, tiers))
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
	hurried := 0    // checks since none of the cluster's peers passes
	everUp := false // p has passed one
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
		case passed > 0 && (was == HealthUnknown || passed >= h.Healthy || hurried > 0 || !everUp):
			next = HealthUp
		case failed > 0 && (was == HealthUnknown || failed >= h.Unhealthy):
			next = HealthDown
		}
		everUp = everUp || next == HealthUp
		wake, others := s.learn(ctx, c, p, next, err)
		pause := time.Duration(h.Interval)
		if wake == nil {
			hurried++
			pause = min(pause, hurry(hurried, others))
		} else {
			hurried = 0
		}
		rng += golden
		jitter := 0.9 + 0.2*unit(mix(rng))
		if !sleep(ctx, time.Duration(float64(pause)*jitter), wake) {
			return
		}
	}
}

// learn applies what a check showed unless the checker was stopped meanwhile. wake is
// closed when no peer of the cluster passes its checks any more; nil if none does now, of
// so many.
func (s *Set) learn(ctx context.Context, c *Cluster, p *Peer, h Health, err error) (wake chan struct{}, peers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil && p.checked(h, s.opts.Now(), &c.view.Load().policy) {
		if h == HealthDown {
			s.opts.Log.Warn("peer down", "cluster", c.name, "peer", p.address.String(), "err", err)
		} else {
			s.opts.Log.Info("peer up", "cluster", c.name, "peer", p.address.String())
		}
	}
	m, hope := &c.members, false
	for _, mb := range m.known {
		if mb.gone == 0 && !mb.peer.draining.Load() {
			peers++
			hope = hope || Health(mb.peer.health.Load()) != HealthDown
		}
	}
	switch {
	case hope && m.hopeless == nil:
		m.hopeless = make(chan struct{})
	case !hope && m.hopeless != nil:
		close(m.hopeless)
		m.hopeless = nil
	}
	return m.hopeless, peers
}

// While no peer of a cluster passes, checks of each come so fast.
const (
	hurriedFirst = 100 * time.Millisecond
	hurriedMost  = 500 * time.Millisecond
	hurriedEach  = 5 * time.Millisecond // times the peers, at least
)

// hurry is the pause after the n-th check of a peer since none of so many passes.
func hurry(n, peers int) time.Duration {
	return max(min(hurriedFirst<<min(n-1, 3), hurriedMost), time.Duration(peers)*hurriedEach)
}

// sleep waits for d or until wake is closed, or returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
		return true
	case <-t.C:
		return true
	}
}

// maintain does the periodic work.
func (s *Set) maintain(now int64) {
	type drained struct {
		cluster string
		peer    *Peer
	}
	var due []drained
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
				due = append(due, drained{c.name, mb.peer})
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
		for _, d := range due {
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

// logChanges logs what the hot path did to a peer since the last look.
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
