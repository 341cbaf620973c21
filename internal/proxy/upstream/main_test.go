package upstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

// peers are configured addresses of weight 1.
func peers(addresses ...string) []PeerConfig {
	var all []PeerConfig
	for _, a := range addresses {
		all = append(all, PeerConfig{Address: a})
	}
	return all
}

// weighted are peers 10.0.0.1:80 and so on of the weights.
func weighted(weights ...int) []PeerConfig {
	var all []PeerConfig
	for i, w := range weights {
		ip := netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(i%250 + 1)})
		all = append(all, PeerConfig{Address: netip.AddrPortFrom(ip, 80).String(), Weight: w})
	}
	return all
}

// equal are n peers of weight 1.
func equal(n int) []PeerConfig { return weighted(make([]int, n)...) }

func newTestSet(t testing.TB, o Options, clusters ...Config) *Set {
	t.Helper()
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Now == nil {
		o.Now = func() int64 { return 0 }
	}
	s, err := New(clusters, nil, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newTestCluster is a cluster whose time is what the test passes.
func newTestCluster(t testing.TB, cfg Config) *Cluster {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "test"
	}
	return newTestSet(t, Options{}, cfg).Cluster(cfg.Name)
}

func mustPick(t testing.TB, c *Cluster, now int64, key uint64, tried *Tried) *Peer {
	t.Helper()
	p, err := c.Pick(now, key, tried)
	if err != nil {
		t.Fatalf("Pick at %s: %v", time.Duration(now), err)
	}
	return p
}

// request makes one request that takes as long as said.
func request(t testing.TB, c *Cluster, now, latency int64, status int) *Peer {
	t.Helper()
	p := mustPick(t, c, now, rand.Uint64(), nil)
	c.Done(p, Outcome{Status: status, Start: now, FirstByte: now + latency, End: now + latency})
	return p
}

func ok(start, end int64) Outcome {
	return Outcome{Status: 200, Start: start, FirstByte: end, End: end}
}

func failed(k Kind, at int64) Outcome { return Outcome{Kind: k, Start: at, End: at} }

// tally counts picks by peer; each is done at once.
func tally(t testing.TB, c *Cluster, n int) map[string]int {
	t.Helper()
	m := map[string]int{}
	for i := range n {
		p := mustPick(t, c, 0, mix(uint64(i)), nil)
		m[p.Address().String()]++
		c.Done(p, Outcome{Kind: Canceled})
	}
	return m
}

func peerAt(t testing.TB, c *Cluster, address string) *Peer {
	t.Helper()
	for _, mb := range c.members.known {
		if mb.peer.address.String() == address {
			return mb.peer
		}
	}
	t.Fatalf("no peer %s", address)
	return nil
}

func d(v time.Duration) hub.Duration { return hub.Duration(v) }

// world is a resolver and backends that can be switched off.
type world struct {
	names  atomic.Pointer[map[string][]netip.Addr]
	down   atomic.Bool
	checks atomic.Int64
	looked atomic.Int64
}

var errDown = errors.New("connection refused")

func (w *world) resolve(_ context.Context, host string) ([]netip.Addr, error) {
	w.looked.Add(1)
	if m := w.names.Load(); m != nil && (*m)[host] != nil {
		return (*m)[host], nil
	}
	return nil, errors.New("no such host")
}

func (w *world) name(host string, addrs ...string) {
	m := map[string][]netip.Addr{}
	if old := w.names.Load(); old != nil {
		for k, v := range *old {
			m[k] = v
		}
	}
	m[host] = nil
	for _, a := range addrs {
		m[host] = append(m[host], netip.MustParseAddr(a))
	}
	w.names.Store(&m)
}

func (w *world) check(context.Context, Address, HealthConfig) error {
	w.checks.Add(1)
	if w.down.Load() {
		return errDown
	}
	return nil
}
