package limit

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// FrontConfig bounds what one client may take of Weir's own endpoints. Routes have
// their own limits. The zero value bounds nothing.
type FrontConfig struct {
	// PerAddress bounds clients by their address; of IPv6 the first 64 bits count.
	PerAddress AddressLimits `json:"per_address"`
	// PerIdentity bounds clients by the subject of their token, or by their API key.
	PerIdentity IdentityLimits `json:"per_identity"`
	// Exempt are networks ("10.0.0.0/8") or addresses without limits per address.
	// Connections of trusted proxies have none either: of what they pass on the
	// client's address counts.
	Exempt []string `json:"exempt"`
	// Buckets is how many addresses and identities are remembered at a time, 16 bytes
	// each; 0 means 65,536.
	Buckets int `json:"buckets"`
}

// AddressLimits are bounds for one address.
type AddressLimits struct {
	// Connections is how many may be open at a time on a node, one more is closed at accept;
	// 0 means no limit.
	Connections int `json:"connections"`
	// ConnectRate bounds new connections; more are closed at accept. Zero: no limit.
	ConnectRate Rate `json:"connect_rate"`
	// PublishRate bounds publications, a broadcast counts for one; more are answered
	// 429. Zero: no limit.
	PublishRate Rate `json:"publish_rate"`
	// SubscribeRate bounds requests for /sse and /ws; more are asked to come again
	// later. Zero: no limit.
	SubscribeRate Rate `json:"subscribe_rate"`
}

// IdentityLimits are bounds for one identity. Anonymous clients have none.
type IdentityLimits struct {
	// PublishRate bounds publications, a broadcast counts for one; more are answered
	// 429. Zero: no limit.
	PublishRate Rate `json:"publish_rate"`
	// SubscribeRate bounds requests for /sse and /ws; more are asked to come again
	// later. Zero: no limit.
	SubscribeRate Rate `json:"subscribe_rate"`
}

// Validate returns all that is wrong with c, joined.
func (c FrontConfig) Validate() error {
	var errs []error
	for _, r := range []struct {
		key string
		r   Rate
	}{
		{"per_address.connect_rate", c.PerAddress.ConnectRate}, {"per_address.publish_rate", c.PerAddress.PublishRate},
		{"per_address.subscribe_rate", c.PerAddress.SubscribeRate},
		{"per_identity.publish_rate", c.PerIdentity.PublishRate}, {"per_identity.subscribe_rate", c.PerIdentity.SubscribeRate},
	} {
		if err := r.r.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s.%w", r.key, err))
		}
	}
	if c.PerAddress.Connections < 0 {
		errs = append(errs, fmt.Errorf("per_address.connections: %d is negative", c.PerAddress.Connections))
	}
	if c.Buckets < 0 || c.Buckets > 1<<26 {
		errs = append(errs, fmt.Errorf("buckets: %d is not within 1..%d", c.Buckets, 1<<26))
	}
	for _, text := range c.Exempt {
		if _, err := ParseNetwork(text); err != nil {
			errs = append(errs, fmt.Errorf("exempt: %w", err))
		}
	}
	return errors.Join(errs...)
}

// A Front holds clients to FrontConfig, which may be replaced while it runs. All methods are
// for any goroutine. A nil Front lets everybody through.
type Front struct {
	// Fixed.
	trust *Trust
	seed  maphash.Seed // of open

	// Any goroutine.
	bounds                                atomic.Pointer[bounds] // nil: there are none
	byRate, byNumber, publish, subscribed atomic.Uint64

	open [64]openConns
}

// bounds are a compiled FrontConfig. Immutable.
type bounds struct {
	cfg                        FrontConfig
	connections                int
	connect                    Quota
	addrPublish, addrSubscribe Quota
	idPublish, idSubscribe     Quota
	exempt                     *Addresses
	size                       int // FrontConfig.Buckets
	table                      *Table
}

// openConns are the open connections of some addresses.
type openConns struct {
	mu sync.Mutex
	n  map[netip.Addr]int
}

// Scopes of the Table.
const (
	scopeConnect uint64 = iota + 1
	scopeAddrPublish
	scopeAddrSubscribe
	scopeIDPublish
	scopeIDSubscribe
)

// NewFront returns a Front with the bounds of c.
func NewFront(c FrontConfig, trust *Trust) (*Front, error) {
	f := &Front{trust: trust, seed: maphash.MakeSeed()}
	for i := range f.open {
		f.open[i].n = map[netip.Addr]int{}
	}
	replace, err := f.Prepare(c)
	if err != nil {
		return nil, err
	}
	replace()
	return f, nil
}

// Prepare compiles c and returns what puts it in place of the bounds until now. What clients
// have used of their rates stays used, unless c has another number of buckets.
func (f *Front) Prepare(c FrontConfig) (replace func(), err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	a, id := c.PerAddress, c.PerIdentity
	b := &bounds{
		cfg: c, connections: a.Connections, connect: a.ConnectRate.Quota(), addrPublish: a.PublishRate.Quota(), addrSubscribe: a.SubscribeRate.Quota(),
		idPublish: id.PublishRate.Quota(), idSubscribe: id.SubscribeRate.Quota(), size: c.Buckets,
	}
	if b.connections == 0 && !b.connect.Limited() && !b.addrPublish.Limited() && !b.addrSubscribe.Limited() && !b.idPublish.Limited() && !b.idSubscribe.Limited() {
		return func() { f.bounds.Store(nil) }, nil
	}
	if len(c.Exempt) > 0 {
		b.exempt = &Addresses{}
		for _, text := range c.Exempt {
			p, err := ParseNetwork(text)
			if err != nil {
				return nil, err
			}
			b.exempt.add(p, true)
		}
	}
	if was := f.bounds.Load(); was != nil && was.size == b.size {
		b.table = was.table
	} else {
		b.table = NewTable(b.size)
	}
	return func() { f.bounds.Store(b) }, nil
}

// Table returns the buckets; nil if there are none.
func (f *Front) Table() *Table {
	if b := f.current(); b != nil {
		return b.table
	}
	return nil
}

// Config returns the bounds now; zero if nothing is bounded.
func (f *Front) Config() FrontConfig {
	if b := f.current(); b != nil {
		return b.cfg
	}
	return FrontConfig{}
}

// Limits reports whether there are bounds at all.
func (f *Front) Limits() bool { return f.current() != nil }

// current are the bounds now; nil: none.
func (f *Front) current() *bounds {
	if f == nil {
		return nil
	}
	return f.bounds.Load()
}

// free reports whether addr has no limits of its own.
func (b *bounds) free(addr netip.Addr) bool {
	return !addr.IsValid() || b.exempt != nil && b.exempt.Allowed(addr)
}

// Connect counts a new connection of addr in, unless there may be no more. Each that
// was counted is for Disconnect once; counted is false for those without limits too.
func (f *Front) Connect(addr netip.Addr, now int64) (counted, ok bool) {
	b := f.current()
	if b == nil || f.trust.Trusts(addr) || b.free(addr) {
		return false, true
	}
	if b.connect.Limited() {
		if _, ok := b.table.Allow(b.table.KeyAddr(scopeConnect, addr, 0), b.connect, now); !ok {
			f.byRate.Add(1)
			return false, false
		}
	}
	if b.connections == 0 {
		return false, true
	}
	if !f.count(addr, b.connections) {
		f.byNumber.Add(1)
		return false, false
	}
	return true, true
}

// Join is Connect for what shares a connection that is open: a stream of HTTP/2. It counts
// as one connection more, and not for the rate of connections.
func (f *Front) Join(addr netip.Addr) (counted, ok bool) {
	b := f.current()
	if b == nil || b.connections == 0 || f.trust.Trusts(addr) || b.free(addr) {
		return false, true
	}
	if !f.count(addr, b.connections) {
		f.byNumber.Add(1)
		return false, false
	}
	return true, true
}

// Connected counts a connection that was let in before there was a bound, and reports
// whether it counts. If it does, it is for Disconnect once.
func (f *Front) Connected(addr netip.Addr) (counted bool) {
	b := f.current()
	return b != nil && b.connections > 0 && !f.trust.Trusts(addr) && !b.free(addr) && f.count(addr, math.MaxInt)
}

// count counts a connection in if there are fewer than most.
func (f *Front) count(addr netip.Addr, most int) bool {
	addr = Network(addr, 0)
	o := f.openOf(addr)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n[addr] >= most {
		return false
	}
	o.n[addr]++
	return true
}

// Disconnect counts a connection that Connect or Connected has counted out.
func (f *Front) Disconnect(addr netip.Addr) {
	addr = Network(addr, 0)
	o := f.openOf(addr)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n[addr]--; o.n[addr] <= 0 {
		delete(o.n, addr)
	}
}

func (f *Front) openOf(addr netip.Addr) *openConns {
	b := addr.As16()
	return &f.open[maphash.Bytes(f.seed, b[:])%uint64(len(f.open))]
}

// Client is the client's address: peer, or the one that it forwards for if it is a trusted proxy. The zero
// address is no client's.
func (f *Front) Client(peer netip.Addr, fields []http1.Field) netip.Addr {
	if !f.Limits() {
		return netip.Addr{}
	}
	return f.trust.Client(peer, fields)
}

// Peer is Client where there are no fields: a proxy forwards for no client then.
func (f *Front) Peer(peer netip.Addr) netip.Addr {
	if !f.Limits() || f.trust.Trusts(peer.Unmap()) {
		return netip.Addr{}
	}
	return peer
}

// Publish takes what a publication costs. identity "" is anonymous. If there is too
// little, wait is how long until there is enough.
func (f *Front) Publish(client netip.Addr, identity string, now int64) (wait time.Duration, ok bool) {
	b := f.current()
	if b == nil {
		return 0, true
	}
	if wait, ok = b.allow(client, b.addrPublish, scopeAddrPublish, identity, b.idPublish, scopeIDPublish, now); !ok {
		f.publish.Add(1)
	}
	return wait, ok
}

// Subscribe is Publish for a subscription.
func (f *Front) Subscribe(client netip.Addr, identity string, now int64) (wait time.Duration, ok bool) {
	b := f.current()
	if b == nil {
		return 0, true
	}
	if wait, ok = b.allow(client, b.addrSubscribe, scopeAddrSubscribe, identity, b.idSubscribe, scopeIDSubscribe, now); !ok {
		f.subscribed.Add(1)
	}
	return wait, ok
}

func (b *bounds) allow(client netip.Addr, byAddr Quota, addrScope uint64, identity string, byID Quota, idScope uint64, now int64) (time.Duration, bool) {
	if byAddr.Limited() && !b.free(client) {
		if wait, ok := b.table.Allow(b.table.KeyAddr(addrScope, client, 0), byAddr, now); !ok {
			return wait, false
		}
	}
	if identity != "" {
		return b.table.Allow(b.table.KeyString(idScope, identity), byID, now)
	}
	return 0, true
}

// FrontStats are running totals of what was refused.
type FrontStats struct {
	ConnectRate, Connections, Publish, Subscribe uint64
}

// Stats returns the totals so far.
func (f *Front) Stats() FrontStats {
	if f == nil {
		return FrontStats{}
	}
	return FrontStats{ConnectRate: f.byRate.Load(), Connections: f.byNumber.Load(), Publish: f.publish.Load(), Subscribe: f.subscribed.Load()}
}
