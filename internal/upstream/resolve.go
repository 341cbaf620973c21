package upstream

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A lookup is one question, lookups are those that were answered.
type lookup struct {
	host string
	dns  DNSConfig
}

type lookups map[lookup][]netip.Addr

// lookup returns the addresses that q asks for, sorted.
func (s *Set) lookup(ctx context.Context, q lookup) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(q.dns.Timeout))
	defer cancel()
	all, err := s.opts.Resolve(ctx, q.host)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", q.host, err)
	}
	all = pickFamily(all, q.dns.Family)
	if len(all) == 0 {
		return nil, fmt.Errorf("resolve %s: no address of family %s", q.host, q.dns.Family)
	}
	return all, nil
}

func pickFamily(all []netip.Addr, family string) []netip.Addr {
	var v4, v6 []netip.Addr
	for _, a := range all {
		switch a = a.Unmap(); {
		case a.Is4():
			v4 = append(v4, a)
		case a.Is6():
			v6 = append(v6, a)
		}
	}
	var picked []netip.Addr
	switch {
	case family == "ipv4", family == "auto" && len(v4) > 0:
		picked = v4
	case family == "ipv6", family == "auto":
		picked = v6
	default:
		picked = append(v4, v6...)
	}
	slices.SortFunc(picked, netip.Addr.Compare)
	return slices.Compact(picked)
}

// maxLookups bounds the lookups at a time of one round.
const maxLookups = 16

// lookupAll asks side by side; what fails is missing in the answer.
func (s *Set) lookupAll(ctx context.Context, ask map[lookup]bool) lookups {
	found := make(lookups, len(ask))
	var mu sync.Mutex
	var wg sync.WaitGroup
	slot := make(chan struct{}, maxLookups)
	for q := range ask {
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			addrs, err := s.lookup(ctx, q)
			if err != nil {
				if ctx.Err() == nil {
					s.opts.Log.Warn("name not resolved; what was known stays", "err", err)
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			found[q] = addrs
		})
	}
	wg.Wait()
	return found
}

// resolveAhead resolves the names of clusters that nothing is known of.
func (s *Set) resolveAhead(ctx context.Context, clusters []Config) lookups {
	unknown := map[lookup]bool{}
	s.mu.Lock()
	old := s.current.Load().clusters
	for _, cfg := range clusters {
		cfg = cfg.WithDefaults()
		var known map[string][]netip.Addr
		if c := old[cfg.Name]; c != nil && c.members.config.DNS.Family == cfg.DNS.Family {
			known = c.members.addrs
		}
		for _, p := range cfg.Peers {
			if t, _ := parseTarget(p.Address); t.host != "" && len(known[t.host]) == 0 {
				unknown[lookup{t.host, cfg.DNS}] = true
			}
		}
	}
	s.mu.Unlock()
	return s.lookupAll(ctx, unknown)
}

// resolveNew resolves the names of clusters that nothing is known of yet.
func (s *Set) resolveNew(ctx context.Context, clusters map[string]*Cluster) {
	var wg sync.WaitGroup
	for _, c := range clusters {
		wg.Go(func() { s.resolveCluster(ctx, c, true) })
	}
	wg.Wait()
}

// resolveCluster resolves c's names, only the unknown ones if unknown is set, and
// rebuilds its peers if the addresses changed. It reports whether all are known.
func (s *Set) resolveCluster(ctx context.Context, c *Cluster, unknown bool) bool {
	ask := map[lookup]bool{}
	s.mu.Lock()
	m := &c.members
	dns := m.config.DNS
	for _, h := range m.hosts() {
		if !unknown || len(m.addrs[h]) == 0 {
			ask[lookup{h, dns}] = true
		}
	}
	s.mu.Unlock()
	found := s.lookupAll(ctx, ask)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return true
	}
	changed, all := false, true
	for h, was := range m.addrs {
		if now, ok := found[lookup{h, dns}]; ok && !slices.Equal(now, was) {
			m.addrs[h] = now
			changed = true
			s.opts.Log.Info("name resolved", "cluster", c.name, "name", h, "addresses", len(now))
		}
		all = all && len(m.addrs[h]) > 0
	}
	if changed {
		s.rebuild(c)
		s.tend(c)
	}
	return all
}

// retryUnresolved is how soon a name is tried again that has no address at all;
// then after twice that, and so on up to the interval.
const retryUnresolved = time.Second

// tendResolving has c's names resolved again and again. The caller holds mu.
func (s *Set) tendResolving(c *Cluster) {
	m := &c.members
	r := &m.resolving
	hosts := m.hosts()
	if r.stop != nil && slices.Equal(r.hosts, hosts) && r.dns == m.config.DNS {
		return
	}
	if r.stop != nil {
		r.stop()
		r.stop = nil
	}
	if len(hosts) == 0 {
		return
	}
	ctx, stop := context.WithCancel(s.running)
	*r = resolving{stop: stop, hosts: hosts, dns: m.config.DNS}
	known := true
	for _, h := range hosts {
		known = known && len(m.addrs[h]) > 0
	}
	interval := time.Duration(m.config.DNS.Interval)
	s.wg.Go(func() {
		for again := retryUnresolved; ; again *= 2 {
			wait := interval
			if known {
				again = retryUnresolved
			} else {
				again = min(again, interval)
				wait = again
			}
			if !sleep(ctx, wait) {
				return
			}
			known = s.resolveCluster(ctx, c, false)
		}
	})
}
