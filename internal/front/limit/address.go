package limit

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Lists say which addresses may come, as they stand in the config file. The zero
// value lets all come.
type Lists struct {
	// Allow are networks ("10.0.0.0/8", "2001:db8::/32") or addresses. If there are
	// any, others are refused. Empty means all.
	Allow []string `json:"allow"`
	// Deny are networks or addresses that are refused. Of an allowed and a denied
	// network around one address the smaller one counts.
	Deny []string `json:"deny"`
}

// Validate returns all that is wrong with l, joined.
func (l Lists) Validate() error {
	_, err := NewAddresses(l)
	return err
}

// Addresses are compiled Lists: the longest prefix that holds an address decides.
// Immutable; a nil *Addresses lets all come.
type Addresses struct {
	v4, v6 networks
	rest   bool // what no network holds is allowed
}

// networks are looked up by length, the longest first: a list has few different
// lengths, and each costs one look-up.
type networks struct {
	lengths []int
	allowed map[netip.Prefix]bool
}

// NewAddresses compiles l; nil if l is empty.
func NewAddresses(l Lists) (*Addresses, error) {
	if len(l.Allow)+len(l.Deny) == 0 {
		return nil, nil
	}
	a := &Addresses{rest: len(l.Allow) == 0}
	var errs []error
	for _, list := range []struct {
		key     string
		entries []string
		allowed bool
	}{{"allow", l.Allow, true}, {"deny", l.Deny, false}} {
		for _, text := range list.entries {
			p, err := ParseNetwork(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", list.key, err))
				continue
			}
			if !a.add(p, list.allowed) {
				errs = append(errs, fmt.Errorf("deny: %s is in allow as well", text))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Addresses) add(p netip.Prefix, allowed bool) bool {
	n := &a.v6
	if p.Addr().Is4() {
		n = &a.v4
	}
	if was, ok := n.allowed[p]; ok {
		return was == allowed
	}
	if n.allowed == nil {
		n.allowed = map[netip.Prefix]bool{}
	}
	n.allowed[p] = allowed
	if !slices.Contains(n.lengths, p.Bits()) {
		n.lengths = append(n.lengths, p.Bits())
		slices.SortFunc(n.lengths, func(x, y int) int { return y - x })
	}
	return true
}

// Allowed reports whether addr may come. An address that is not valid may not,
// unless a is nil. It allocates nothing.
func (a *Addresses) Allowed(addr netip.Addr) bool {
	if a == nil {
		return true
	}
	if !addr.IsValid() {
		return false
	}
	if allowed, ok := a.find(addr); ok {
		return allowed
	}
	return a.rest
}

// find returns what the longest prefix around addr says.
func (a *Addresses) find(addr netip.Addr) (allowed, ok bool) {
	addr = addr.Unmap().WithZone("")
	n := &a.v6
	if addr.Is4() {
		n = &a.v4
	}
	for _, bits := range n.lengths {
		p, err := addr.Prefix(bits)
		if err != nil {
			continue // lengths were valid for this family when they came in
		}
		if allowed, ok := n.allowed[p]; ok {
			return allowed, true
		}
	}
	return false, false
}

// ParseNetwork reads a network or a single address. Bits after the prefix must
// be zero, since the meaning of others is unclear. IPv4-mapped networks are
// the IPv4 networks.
func ParseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		if addr.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q: an address here has no zone", text)
		}
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%q is not a network: write 10.0.0.0/8, 2001:db8::/32 or an address", text)
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return p, fmt.Errorf("%q: an IPv4-mapped network has at least 96 bits", text)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if m := p.Masked(); m != p {
		return p, fmt.Errorf("%q has bits after its prefix: write %s", text, m)
	}
	return p, nil
}
