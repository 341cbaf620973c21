package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Options are what a Set uses of the world. The zero value is the real one.
type Options struct {
	// Resolve returns the addresses of host. nil means net.DefaultResolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// ResolveSRV returns the SRV records of name. nil means net.DefaultResolver.
	ResolveSRV func(ctx context.Context, name string) ([]SRV, error)
	// Check reports whether a peer is healthy. nil means Checker.Check.
	Check func(ctx context.Context, a Address, h HealthConfig) error
	// Now is the clock that the loops' now comes from: time.Since(loop.Time(0)).
	// nil means nanoseconds since the Set was made.
	Now func() int64
	// Log gets changes of peers' and releases' states. nil discards them.
	Log *slog.Logger
	// Drained is called once a removed peer's last request is done, from a
	// goroutine of Run. nil: not.
	Drained func(cluster string, p *Peer)
	// Seed of what is random; 0 means a random one.
	Seed uint64
}

func (o Options) withDefaults() Options {
	if o.Resolve == nil {
		o.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if o.ResolveSRV == nil {
		o.ResolveSRV = func(ctx context.Context, name string) ([]SRV, error) {
			return lookupSRV(ctx, net.DefaultResolver, name)
		}
	}
	if o.Check == nil {
		o.Check = Checker{}.Check
	}
	if o.Now == nil {
		start := time.Now()
		o.Now = func() int64 { return int64(time.Since(start)) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	return o
}

// A Set is all clusters and splits.
type Set struct {
	opts  Options
	ready chan struct{}

	// Any goroutine.
	current atomic.Pointer[tables]

	// replacing makes one Replace at a time; it is held while names are resolved.
	replacing sync.Mutex

	mu sync.Mutex
	// All below, and every cluster's members.
	running context.Context // nil before Run and after
	wg      sync.WaitGroup
	leaving []*Cluster // removed, with requests in flight
	drifts  map[string]*Drift
}

// tables are what is configured; immutable.
type tables struct {
	clusters map[string]*Cluster
	splits   map[string]*Split
}

// New makes a Set. It resolves nothing yet: host names have no peers until Run did.
func New(clusters []Config, splits []SplitConfig, o Options) (*Set, error) {
	s := &Set{opts: o.withDefaults(), ready: make(chan struct{}), drifts: map[string]*Drift{}}
	s.current.Store(&tables{})
	if err := validateAll(clusters, splits); err != nil {
		return nil, err
	}
	shelf, err := s.shelve(clusters)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apply(clusters, splits, shelf, nil)
	return s, nil
}

// Cluster returns the cluster of that name, or nil. Any goroutine may call it.
func (s *Set) Cluster(name string) *Cluster { return s.current.Load().clusters[name] }

// Split returns the split of that name, or nil. Any goroutine may call it.
func (s *Set) Split(name string) *Split { return s.current.Load().splits[name] }

// Drift returns the drift monitor of that name, made with cfg if there is none
// yet. Routes ask when they are built; [DriftConfig.Validate] comes before.
func (s *Set) Drift(name string, cfg DriftConfig) *Drift {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.drifts[name]
	if d == nil || d.cfg != cfg.WithDefaults() {
		d = newDrift(name, cfg, s.opts.Now(), mix(s.opts.Seed^HashString(name)))
		s.drifts[name] = d
	}
	return d
}

// KeepDrifts forgets the monitors of routes that are no more.
func (s *Set) KeepDrifts(keep func(name string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.drifts, func(name string, _ *Drift) bool { return !keep(name) })
}

// Ready is closed when Run has tried every host name once.
func (s *Set) Ready() <-chan struct{} { return s.ready }

// housekeeping is the interval of the periodic work.
const housekeeping = time.Second

// Run resolves, checks and evaluates until ctx ends, and returns nil when all its
// goroutines have. It is called once.
func (s *Set) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	if s.running != nil {
		s.mu.Unlock()
		cancel()
		return errors.New("upstream: Run was called before")
	}
	s.running = ctx
	s.mu.Unlock()
	defer func() {
		cancel()
		// Replace starts goroutines under the lock only while ctx lives.
		s.mu.Lock()
		s.mu.Unlock() //nolint:staticcheck // waits for a Replace that is starting some
		s.wg.Wait()
	}()

	s.resolveNew(ctx, s.current.Load().clusters)
	s.mu.Lock()
	for _, c := range s.current.Load().clusters {
		s.rebuild(c)
		s.tend(c)
	}
	s.mu.Unlock()
	close(s.ready)

	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.maintain(s.opts.Now())
			if n%renewEvery == 0 {
				s.renew()
			}
		}
	}
}

// Replace applies a new configuration: validated first, nothing changes on an
// error. The files of certificates are read anew. Peers that stay keep their state, clusters that stay keep their identity,
// and a canary whose configuration stays continues where it was. Host names not
// known yet are resolved first, within ctx and their DNS timeout; one that does
// not resolve is tried again later and fails nothing here.
//
// A cluster that is gone continues serving those who still hold it, unchecked, so
// that the order of this call and the swap of routes does not matter.
func (s *Set) Replace(ctx context.Context, clusters []Config, splits []SplitConfig) error {
	if err := validateAll(clusters, splits); err != nil {
		return err
	}
	s.replacing.Lock()
	defer s.replacing.Unlock()
	shelf, err := s.shelve(clusters)
	if err != nil {
		return err
	}
	found := s.resolveAhead(ctx, clusters)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apply(clusters, splits, shelf, found)
	return nil
}

func validateAll(clusters []Config, splits []SplitConfig) error {
	var errs []error
	names := map[string]string{}
	claim := func(kind, name string) {
		if was := names[name]; was != "" && name != "" {
			errs = append(errs, fmt.Errorf("%s %q: a %s has that name already", kind, name, was))
		}
		names[name] = kind
	}
	known := map[string]bool{}
	for _, c := range clusters {
		errs = append(errs, c.Validate())
		claim("cluster", c.Name)
		known[c.Name] = true
	}
	for _, sp := range splits {
		errs = append(errs, sp.Validate())
		claim("split", sp.Name)
		for name := range sp.clusters() {
			if !known[name] {
				errs = append(errs, fmt.Errorf("split %s: there is no cluster %q", strconv.Quote(sp.Name), name))
			}
		}
	}
	return errors.Join(errs...)
}

// apply swaps the tables. The caller holds mu; found are addresses of new names.
func (s *Set) apply(clusters []Config, splits []SplitConfig, shelf map[string]*TLS, found lookups) {
	old := s.current.Load()
	next := &tables{clusters: make(map[string]*Cluster, len(clusters)), splits: make(map[string]*Split, len(splits))}
	for _, cfg := range clusters {
		cfg = cfg.WithDefaults()
		c := old.clusters[cfg.Name]
		if c == nil {
			c = &Cluster{name: cfg.Name, log: s.opts.Log}
			c.seed.Store(mix(s.opts.Seed ^ HashString(cfg.Name)))
			c.members.known = map[Address]*member{}
		}
		if c.members.configure(cfg, shelf[cfg.Name], found) {
			s.rebuild(c)
		}
		next.clusters[cfg.Name] = c
	}
	for _, cfg := range splits {
		next.splits[cfg.Name] = newSplit(cfg, next.clusters, old.splits[cfg.Name], s.opts.Now())
	}
	s.current.Store(next)
	for name, c := range old.clusters {
		if next.clusters[name] == nil {
			s.retire(c)
		}
	}
	for _, c := range next.clusters {
		s.tend(c)
	}
}
