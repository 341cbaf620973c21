package upstream

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// An SRV is one record of a service (RFC 2782).
type SRV struct {
	Target                 string
	Port, Priority, Weight uint16
}

// A lookup is one question, lookups are those that were answered.
type lookup struct {
	name string
	srv  bool // for records of a service, not for addresses
	dns  DNSConfig
}

type answer struct {
	addrs []netip.Addr
	srv   []SRV
}

type lookups map[lookup]answer

// lookup returns the addresses, or records, that q queries, sorted.
func (s *Set) lookup(ctx context.Context, q lookup) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(q.dns.Timeout))
	defer cancel()
	resolve, resolveSRV := s.opts.Resolve, s.opts.ResolveSRV
	if q.dns.Server != "" {
		r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, q.dns.Server)
		}}
		resolve, resolveSRV = resolveBy(r), resolveSRVBy(r)
	}
	if q.srv {
		if a.srv, err = resolveSRV(ctx, q.name); err != nil {
			return a, fmt.Errorf("resolve SRV %s: %w", q.name, err)
		}
		a.srv = s.sorted(q.name, a.srv)
		return a, nil
	}
	all, err := resolve(ctx, q.name)
	if err != nil {
		return a, fmt.Errorf("resolve %s: %w", q.name, err)
	}
	if a.addrs = pickFamily(all, q.dns.Family); len(a.addrs) == 0 {
		return a, fmt.Errorf("resolve %s: no address of family %s", q.name, q.dns.Family)
	}
	return a, nil
}

// resolveBy queries r for a whole name: the system's search list is not for other servers.
func resolveBy(r *net.Resolver) func(context.Context, string) ([]netip.Addr, error) {
	return func(ctx context.Context, host string) ([]netip.Addr, error) {
		return r.LookupNetIP(ctx, "ip", strings.TrimSuffix(host, ".")+".")
	}
}

func resolveSRVBy(r *net.Resolver) func(context.Context, string) ([]SRV, error) {
	return func(ctx context.Context, name string) ([]SRV, error) {
		return lookupSRV(ctx, r, strings.TrimSuffix(name, ".")+".")
	}
}

func lookupSRV(ctx context.Context, r *net.Resolver, name string) ([]SRV, error) {
	_, records, err := r.LookupSRV(ctx, "", "", name)
	if err != nil && len(records) == 0 {
		return nil, err
	}
	all := make([]SRV, len(records))
	for i, rr := range records {
		all[i] = SRV{rr.Target, rr.Port, rr.Priority, rr.Weight}
	}
	return all, nil
}

// maxRecords bounds the records of one service.
const maxRecords = 1000

// sorted returns the records that can be used, each place once, those of the lowest
// priority first. A target of "." says that there is no such service (RFC 2782).
func (s *Set) sorted(name string, all []SRV) []SRV {
	var good []SRV
	seen := map[SRV]bool{}
	for i := range all {
		all[i].Target = strings.ToLower(strings.TrimSuffix(all[i].Target, "."))
	}
	slices.SortFunc(all, func(a, b SRV) int {
		if c := int(a.Priority) - int(b.Priority); c != 0 {
			return c
		}
		if c := strings.Compare(a.Target, b.Target); c != 0 {
			return c
		}
		if c := int(a.Port) - int(b.Port); c != 0 {
			return c
		}
		return int(b.Weight) - int(a.Weight)
	})
	for _, r := range all {
		if r.Target == "" {
			continue
		}
		if err := checkHost(r.Target); err != nil || r.Port == 0 {
			s.opts.Log.Warn("SRV record left out", "name", name, "target", r.Target, "port", r.Port)
			continue
		}
		if place := (SRV{Target: r.Target, Port: r.Port}); !seen[place] && len(good) < maxRecords {
			seen[place] = true
			good = append(good, r)
		}
	}
	return good
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

// lookupAll queries in parallel; what fails is missing in the answer.
func (s *Set) lookupAll(ctx context.Context, ask map[lookup]bool) lookups {
	found := make(lookups, len(ask))
	var mu sync.Mutex
	var wg sync.WaitGroup
	slot := make(chan struct{}, maxLookups)
	for q := range ask {
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			a, err := s.lookup(ctx, q)
			if err != nil {
				if ctx.Err() == nil {
					s.opts.Log.Warn("name not resolved; what was known stays", "err", err)
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			found[q] = a
		})
	}
	wg.Wait()
	return found
}

// resolveAhead resolves the names of clusters that nothing is known of: first the
// records, then the hosts that are named in them and in peers.
func (s *Set) resolveAhead(ctx context.Context, clusters []Config) lookups {
	old := s.current.Load().clusters
	unknown := map[lookup]bool{}
	for _, cfg := range clusters {
		cfg = cfg.WithDefaults()
		if cfg.SRV != "" && !s.knowsRecords(old[cfg.Name], cfg.SRV) {
			unknown[lookup{cfg.SRV, true, cfg.DNS}] = true
		}
	}
	records := s.lookupAll(ctx, unknown)
	clear(unknown)
	s.mu.Lock()
	for _, cfg := range clusters {
		cfg = cfg.WithDefaults()
		var known map[string][]netip.Addr
		if c := old[cfg.Name]; c != nil && c.members.config.DNS.Family == cfg.DNS.Family {
			known = c.members.addrs
		}
		for _, src := range sourcesOf(&cfg, records[lookup{cfg.SRV, true, cfg.DNS}].srv) {
			if src.host != "" && len(known[src.host]) == 0 {
				unknown[lookup{src.host, false, cfg.DNS}] = true
			}
		}
	}
	s.mu.Unlock()
	found := s.lookupAll(ctx, unknown)
	maps.Copy(found, records)
	return found
}

func (s *Set) knowsRecords(c *Cluster, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c != nil && c.members.config.SRV == name && c.members.recorded
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
// rebuilds its peers if the answers changed. It reports whether all are known.
func (s *Set) resolveCluster(ctx context.Context, c *Cluster, unknown bool) bool {
	s.mu.Lock()
	m := &c.members
	cfg := m.config
	records, fresh := m.records, false
	question := lookup{cfg.SRV, true, cfg.DNS}
	wanted := cfg.SRV != "" && (!unknown || !m.recorded)
	s.mu.Unlock()
	if wanted {
		var a answer
		if a, fresh = s.lookupAll(ctx, map[lookup]bool{question: true})[question]; fresh {
			records = a.srv
		}
	}
	ask := map[lookup]bool{}
	s.mu.Lock()
	sources := sourcesOf(&cfg, records)
	for _, src := range sources {
		if src.host != "" && (!unknown || len(m.addrs[src.host]) == 0) {
			ask[lookup{src.host, false, cfg.DNS}] = true
		}
	}
	s.mu.Unlock()
	found := s.lookupAll(ctx, ask)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil || m.config.SRV != cfg.SRV || m.config.DNS != cfg.DNS {
		return true // another goroutine resolves now
	}
	changed := false
	if fresh && (!m.recorded || !slices.Equal(records, m.records)) {
		m.records, m.recorded, changed = records, true, true
		s.opts.Log.Info("SRV records resolved", "cluster", c.name, "name", cfg.SRV, "records", len(records))
		m.arrange()
	}
	for h, was := range m.addrs {
		if now, ok := found[lookup{h, false, cfg.DNS}]; ok && !slices.Equal(now.addrs, was) {
			m.addrs[h] = now.addrs
			changed = true
			s.opts.Log.Info("name resolved", "cluster", c.name, "name", h, "addresses", len(now.addrs))
		}
	}
	if changed {
		s.rebuild(c)
		s.tend(c)
	}
	return m.resolved()
}

// Unresolved returns the names of which nothing is known, sorted. Any goroutine.
func (s *Set) Unresolved() []string {
	unknown := map[string]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.current.Load().clusters {
		m := &c.members
		if m.config.SRV != "" && !m.recorded {
			unknown[m.config.SRV] = true
		}
		for host, addrs := range m.addrs {
			if len(addrs) == 0 {
				unknown[host] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(unknown))
}

// resolved reports whether all of m's names are known.
func (m *members) resolved() bool {
	all := m.config.SRV == "" || m.recorded
	for _, addrs := range m.addrs {
		all = all && len(addrs) > 0
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
	names := m.names()
	if r.stop != nil && slices.Equal(r.names, names) && r.dns == m.config.DNS {
		return
	}
	if r.stop != nil {
		r.stop()
		r.stop = nil
	}
	if len(names) == 0 {
		return
	}
	ctx, stop := context.WithCancel(s.running)
	*r = resolving{stop: stop, names: names, dns: m.config.DNS}
	known := m.resolved()
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
			if !sleep(ctx, wait, nil) {
				return
			}
			known = s.resolveCluster(ctx, c, false)
		}
	})
}
