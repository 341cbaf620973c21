package acme

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/mholt/acmez/v3"
	lib "github.com/mholt/acmez/v3/acme"
)

// Protocol is the ALPN protocol of TLS-ALPN-01 (RFC 8737 §6.2).
const Protocol = acmez.ACMETLS1Protocol

// HTTPPath is the prefix of the path of HTTP-01 challenges; a token follows (RFC 8555 §8.3).
const HTTPPath = "/.well-known/acme-challenge/"

const (
	// lookupTimeout bounds a search for another node's challenge, maxLookups how many run:
	// anyone can send requests for challenges.
	lookupTimeout = 3 * time.Second
	maxLookups    = 16
	maxToken      = 128
)

// challenges are those that are pending. The node that a validation request reaches may be
// another than the one that ordered, so they are in the store as well.
type challenges struct {
	m       *Manager
	lookups chan struct{} // as many as may run

	mu sync.Mutex
	// http has key authorizations by token, alpn challenges by the SNI that the CA sends.
	http map[string]string
	alpn map[string]lib.Challenge
}

func newChallenges(m *Manager) *challenges {
	return &challenges{m: m, lookups: make(chan struct{}, maxLookups), http: map[string]string{}, alpn: map[string]lib.Challenge{}}
}

// solvers returns the solvers of the configured types.
func (c *challenges) solvers(types []string) map[string]acmez.Solver {
	all := map[string]acmez.Solver{}
	for _, t := range types {
		if t == http01 {
			all[t] = &httpSolver{c}
		} else {
			all[t] = &alpnSolver{c}
		}
	}
	return all
}

// httpSolver solves HTTP-01 (RFC 8555 §8.3).
type httpSolver struct{ c *challenges }

var (
	_ acmez.Solver = (*httpSolver)(nil)
	_ acmez.Solver = (*alpnSolver)(nil)
)

// Present implements acmez.Solver.
func (s *httpSolver) Present(ctx context.Context, ch lib.Challenge) error {
	if !validToken(ch.Token) {
		return fmt.Errorf("the CA sent an invalid token %.40q", ch.Token)
	}
	s.c.mu.Lock()
	s.c.http[ch.Token] = ch.KeyAuthorization
	s.c.mu.Unlock()
	return save(ctx, s.c.m.stores.current(), s.c.m.stores.keyOf("http-01", ch.Token), ch.KeyAuthorization)
}

// CleanUp implements acmez.Solver.
func (s *httpSolver) CleanUp(ctx context.Context, ch lib.Challenge) error {
	s.c.mu.Lock()
	delete(s.c.http, ch.Token)
	s.c.mu.Unlock()
	return s.c.m.stores.current().Delete(context.WithoutCancel(ctx), s.c.m.stores.keyOf("http-01", ch.Token))
}

// alpnSolver solves TLS-ALPN-01 (RFC 8737).
type alpnSolver struct{ c *challenges }

// Present implements acmez.Solver.
func (s *alpnSolver) Present(ctx context.Context, ch lib.Challenge) error {
	sni := sniOf(ch.Identifier.Value)
	s.c.mu.Lock()
	s.c.alpn[sni] = ch
	s.c.mu.Unlock()
	return save(ctx, s.c.m.stores.current(), s.c.m.stores.keyOf("tls-alpn-01", sni), ch)
}

// CleanUp implements acmez.Solver.
func (s *alpnSolver) CleanUp(ctx context.Context, ch lib.Challenge) error {
	sni := sniOf(ch.Identifier.Value)
	s.c.mu.Lock()
	delete(s.c.alpn, sni)
	s.c.mu.Unlock()
	return s.c.m.stores.current().Delete(context.WithoutCancel(ctx), s.c.m.stores.keyOf("tls-alpn-01", sni))
}

// KeyAuthorization returns the answer to the HTTP-01 challenge with token, if this node has
// presented it. It does not block.
func (m *Manager) KeyAuthorization(token string) (answer string, ok bool) {
	m.challenges.mu.Lock()
	defer m.challenges.mu.Unlock()
	answer, ok = m.challenges.http[token]
	return answer, ok
}

// FindKeyAuthorization is KeyAuthorization for the challenges of all nodes. It may block for some
// seconds.
func (m *Manager) FindKeyAuthorization(ctx context.Context, token string) (answer string, ok bool) {
	if answer, ok = m.KeyAuthorization(token); ok || !m.stores.shares() || !validToken(token) {
		return answer, ok
	}
	ok = m.challenges.find(ctx, m.stores.keyOf("http-01", token), &answer)
	return answer, ok
}

// find loads a challenge of another node.
func (c *challenges) find(ctx context.Context, key string, v any) bool {
	select {
	case c.lookups <- struct{}{}:
	default:
		return false
	}
	defer func() { <-c.lookups }()
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ok, err := load(ctx, c.m.stores.current(), key, v)
	if err != nil {
		c.m.log.Debug("find challenge", "key", key, "err", err)
	}
	return ok
}

// ChallengeCertificate returns the certificate that proves control over a server name in a
// handshake with Protocol (RFC 8737 §3), an error if no challenge is pending for it. It may block
// for some seconds.
func (m *Manager) ChallengeCertificate(ctx context.Context, serverName string) (*tls.Certificate, error) {
	sni := strings.ToLower(strings.TrimSuffix(serverName, "."))
	c := m.challenges
	c.mu.Lock()
	ch, ok := c.alpn[sni]
	c.mu.Unlock()
	if !ok && m.stores.shares() && m.serves(sni) {
		ok = c.find(ctx, m.stores.keyOf("tls-alpn-01", sni), &ch)
	}
	if !ok {
		return nil, fmt.Errorf("no TLS-ALPN-01 challenge is pending for %.80q", serverName)
	}
	return acmez.TLSALPN01ChallengeCert(ch)
}

// serves reports whether sni is that of a configured name.
func (m *Manager) serves(sni string) bool {
	for _, name := range m.cfg.Names {
		if sniOf(name) == sni {
			return true
		}
	}
	return false
}

// sniOf returns the server name of validation requests for an identifier: that of an IP address
// is its name for reverse look-ups (RFC 8738 §6).
func sniOf(identifier string) string {
	ip, err := netip.ParseAddr(identifier)
	if err != nil {
		return identifier
	}
	var b strings.Builder
	if ip.Is4() {
		a := ip.As4()
		for i := len(a) - 1; i >= 0; i-- {
			fmt.Fprintf(&b, "%d.", a[i])
		}
		return b.String() + "in-addr.arpa"
	}
	a := ip.As16()
	for i := len(a) - 1; i >= 0; i-- {
		fmt.Fprintf(&b, "%x.%x.", a[i]&15, a[i]>>4)
	}
	return b.String() + "ip6.arpa"
}

// validToken reports whether s is base64url, as tokens are (RFC 8555 §8.1).
func validToken(s string) bool {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return s != "" && len(s) <= maxToken && strings.Trim(s, alphabet) == ""
}
