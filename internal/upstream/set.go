package upstream

import (
	"context"
	"log/slog"
	"net/netip"
)

// Options are what a Set uses of the world. The zero value is the real one.
type Options struct {
	// Resolve returns the addresses of host. nil means net.DefaultResolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Check tells whether a peer is healthy. nil means Checker.Check.
	Check func(ctx context.Context, a Address, h HealthConfig) error
	// Now is the clock that the loops' now comes from. nil means nanoseconds since
	// the Set was made.
	Now func() int64
	// Log gets changes of peers' and releases' states. nil discards them.
	Log *slog.Logger
	// Drained is called once a removed peer's last request is done. nil: not.
	Drained func(cluster string, p *Peer)
	// Seed of what is random; 0 means a random one.
	Seed uint64
}

// A Set is all clusters and splits.
type Set struct {
	opts Options
}

// New makes a Set. It resolves nothing yet: host names have no peers until Run did.
func New(clusters []Config, splits []SplitConfig, o Options) (*Set, error) {
	return &Set{opts: o}, nil
}

// Run resolves, checks and evaluates until ctx ends, and returns when all its
// goroutines have. It is called once.
func (s *Set) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Ready is closed when Run has tried every host name once.
func (s *Set) Ready() <-chan struct{} { return nil }

// Replace applies a new configuration: validated first, nothing changes on an
// error. Peers that stay keep their state, clusters that stay keep their identity.
// Host names not known yet are resolved first, within ctx and their DNS timeout.
//
// A cluster that is gone goes on serving those who still hold it, unchecked, so
// that the order of this call and the swap of routes does not matter.
func (s *Set) Replace(ctx context.Context, clusters []Config, splits []SplitConfig) error { return nil }

// Cluster returns the cluster of that name, or nil. Any goroutine may call it.
func (s *Set) Cluster(name string) *Cluster { return nil }

// Split returns the split of that name, or nil. Any goroutine may call it.
func (s *Set) Split(name string) *Split { return nil }

// Drift returns the drift monitor of that name, made with cfg if there is none
// yet. Routes ask when they are built.
func (s *Set) Drift(name string, cfg DriftConfig) *Drift { return nil }
