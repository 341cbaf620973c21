package limit

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/http1"
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
	// Connections is how many may be open at a time, one more is closed at accept; 0
	// means no limit.
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

// A Front holds clients to FrontConfig. All methods are for any goroutine. A nil Front
// lets everybody through.
type Front struct {
	// Fixed.
	connections                           int
	connect                               Quota
	addrPublish, addrSubscribe            Quota
	idPublish, idSubscribe                Quota
	exempt                                *Addresses
	trust                                 *Trust
	table                                 *Table
	byRate, byNumber, publish, subscribed atomic.Uint64

	open [64]openConns
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

// NewFront compiles c; nil if it limits nothing.
func NewFront(c FrontConfig, trust *Trust) (*Front, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	a, id := c.PerAddress, c.PerIdentity
	f := &Front{
		connections: a.Connections, connect: a.ConnectRate.Quota(), addrPublish: a.PublishRate.Quota(), addrSubscribe: a.SubscribeRate.Quota(),
		idPublish: id.PublishRate.Quota(), idSubscribe: id.SubscribeRate.Quota(), trust: trust,
	}
	if f.connections == 0 && !f.connect.Limited() && !f.addrPublish.Limited() && !f.addrSubscribe.Limited() && !f.idPublish.Limited() && !f.idSubscribe.Limited() {
		return nil, nil
	}
	if len(c.Exempt) > 0 {
		f.exempt = &Addresses{}
		for _, text := range c.Exempt {
			p, err := ParseNetwork(text)
			if err != nil {
				return nil, err
			}
			f.exempt.add(p, true)
		}
	}
	f.table = NewTable(c.Buckets)
	for i := range f.open {
		f.open[i].n = map[netip.Addr]int{}
	}
	return f, nil
}

// free reports whether addr has no limits of its own.
func (f *Front) free(addr netip.Addr) bool {
	return !addr.IsValid() || f.exempt != nil && f.exempt.Allowed(addr)
}

// Connect counts a new connection of addr in, unless there may be no more. Each that
// was counted is for Disconnect once; counted is false for those without limits too.
func (f *Front) Connect(addr netip.Addr, now int64) (counted, ok bool) {
	if f == nil || f.trust.Trusts(addr) || f.free(addr) {
		return false, true
	}
	if f.connect.Limited() {
		if _, ok := f.table.Take(f.table.KeyAddr(scopeConnect, addr, 0), f.connect, now); !ok {
			f.byRate.Add(1)
			return false, false
		}
	}
	if f.connections == 0 {
		return false, true
	}
	addr = Network(addr, 0)
	o := f.openOf(addr)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n[addr] >= f.connections {
		f.byNumber.Add(1)
		return false, false
	}
	o.n[addr]++
	return true, true
}

// Disconnect counts a connection that Connect has counted out.
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
	return &f.open[f.table.KeyAddr(0, addr, 0)%uint64(len(f.open))]
}

// Client is who asks: peer, or whom it speaks for if it is a trusted proxy. The zero
// address is nobody's.
func (f *Front) Client(peer netip.Addr, fields []http1.Field) netip.Addr {
	if f == nil {
		return netip.Addr{}
	}
	return f.trust.Client(peer, fields)
}

// Peer is Client where there are no fields: a proxy speaks for nobody then.
func (f *Front) Peer(peer netip.Addr) netip.Addr {
	if f == nil || f.trust.Trusts(peer.Unmap()) {
		return netip.Addr{}
	}
	return peer
}

// Publish takes what a publication costs. identity "" is nobody's. If there is too
// little, wait is how long until there is enough.
func (f *Front) Publish(client netip.Addr, identity string, now int64) (wait time.Duration, ok bool) {
	if f == nil {
		return 0, true
	}
	if wait, ok = f.take(client, f.addrPublish, scopeAddrPublish, identity, f.idPublish, scopeIDPublish, now); !ok {
		f.publish.Add(1)
	}
	return wait, ok
}

// Subscribe is Publish for a subscription.
func (f *Front) Subscribe(client netip.Addr, identity string, now int64) (wait time.Duration, ok bool) {
	if f == nil {
		return 0, true
	}
	if wait, ok = f.take(client, f.addrSubscribe, scopeAddrSubscribe, identity, f.idSubscribe, scopeIDSubscribe, now); !ok {
		f.subscribed.Add(1)
	}
	return wait, ok
}

func (f *Front) take(client netip.Addr, byAddr Quota, addrScope uint64, identity string, byID Quota, idScope uint64, now int64) (time.Duration, bool) {
	if byAddr.Limited() && !f.free(client) {
		if wait, ok := f.table.Take(f.table.KeyAddr(addrScope, client, 0), byAddr, now); !ok {
			return wait, false
		}
	}
	if identity != "" {
		return f.table.Take(f.table.KeyString(idScope, identity), byID, now)
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
