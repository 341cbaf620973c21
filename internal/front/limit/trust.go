package limit

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// Trusted says whom to believe about where a request comes from, as in
// the config file. The zero value trusts none: the client is the peer of the
// connection.
type Trusted struct {
	// Proxies are the networks or addresses of proxies in front of us whose
	// forwarding fields, and PROXY protocol headers, are believed. Empty means none.
	Proxies []string `json:"proxies"`
	// Header is the field they write: "x-forwarded-for" or "forwarded" (RFC 7239).
	// Only this one is read, since a proxy that writes one lets the client's other
	// pass. Empty means x-forwarded-for.
	Header string `json:"header"`
	// Pass are further fields about the client that these proxies write, and that
	// backends get from them: "CF-Connecting-IP", "True-Client-IP",
	// "X-Forwarded-Client-Cert". Such fields are removed from all other requests. Name
	// only what each of the proxies replaces: what it lets through, a client can forge.
	// Empty: none.
	Pass []string `json:"pass"`
}

// The fields that Trusted.Header can name.
const (
	HeaderXForwardedFor = "x-forwarded-for"
	HeaderForwarded     = "forwarded"
)

// Validate returns all that is wrong with t, joined.
func (t Trusted) Validate() error {
	_, err := NewTrust(t)
	return err
}

// A Trust is a compiled Trusted. Immutable; a nil *Trust trusts none.
type Trust struct {
	proxies   *Addresses
	forwarded bool
	pass      []string // in lower case
}

// NewTrust compiles t; nil if it names no proxy.
func NewTrust(t Trusted) (*Trust, error) {
	var errs []error
	out := &Trust{forwarded: t.Header == HeaderForwarded}
	if t.Header != "" && t.Header != HeaderForwarded && t.Header != HeaderXForwardedFor {
		errs = append(errs, fmt.Errorf("header: %q is neither x-forwarded-for nor forwarded", t.Header))
	}
	out.proxies = &Addresses{}
	for _, text := range t.Proxies {
		p, err := ParseNetwork(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("proxies: %w", err))
			continue
		}
		out.proxies.add(p, true)
	}
	for _, name := range t.Pass {
		name = strings.ToLower(name)
		switch name {
		case "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded":
			errs = append(errs, fmt.Errorf("pass: %s is written by Weir itself, see routes[].forwarding", name))
		default:
			if !http1.ValidName(name) {
				errs = append(errs, fmt.Errorf("pass: invalid field name %q: want a name such as CF-Connecting-IP", name))
			}
		}
		out.pass = append(out.pass, name)
	}
	if len(t.Pass) > 0 && len(t.Proxies) == 0 {
		errs = append(errs, errors.New("pass: there are no proxies that are trusted: list them in proxies"))
	}
	if err := errors.Join(errs...); err != nil || len(t.Proxies) == 0 {
		return nil, err
	}
	return out, nil
}

// Trusts reports whether addr is a trusted proxy.
func (t *Trust) Trusts(addr netip.Addr) bool {
	return t != nil && t.proxies.Allowed(addr)
}

// Pass returns the names of Trusted.Pass in lower case.
func (t *Trust) Pass() []string {
	if t == nil {
		return nil
	}
	return t.pass
}

// Client returns the address of who made the request that came from peer with
// fields. The list is walked from its right end, where the nearest proxy wrote,
// for as long as the writer is trusted: the first address that is not a trusted
// proxy's is the client. What cannot be read ("unknown", an obfuscated name,
// garbage) ends the walk at the proxy that wrote it. It allocates nothing.
func (t *Trust) Client(peer netip.Addr, fields []http1.Field) netip.Addr {
	peer = peer.Unmap()
	if !t.Trusts(peer) {
		return peer
	}
	if t.forwarded {
		return t.walkForwarded(peer, fields)
	}
	return t.walkList(peer, fields)
}
