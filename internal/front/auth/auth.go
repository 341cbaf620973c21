// Package auth turns tokens, API keys and origins into an identity and what it
// may do.
//
//	a, err := auth.New(cfg, log)             // reads keys, checks them, fetches nothing
//	go a.Run(ctx)                            // keeps the JWKS fresh; the owner starts and stops it
//	token, from := a.Token(header, cookie, query)
//	id, ok := a.Cached(token)                // on a loop: never waits
//	id, err := a.Verify(ctx, token, now)     // on a goroutine: may fetch keys
//	id.CanSubscribe("orders.42")
//
// # Claims
//
// A token is a JWS compact JWT (RFC 7519) with sub, exp, nbf, iat, iss, aud and
//
//	"weir": {"subscribe": ["orders.*"], "publish": ["orders.**"]}
//
// No weir claim means no grants of its own. exp is required unless
// Config.RequireExpiry is off. Match says how patterns read. A token that has the claims of
// another protocol in place of weir is for that protocol alone: see Purpose.
//
// # What decides which key verifies
//
// The configuration, never the token. Each key carries the algorithms it may
// verify: a secret HS*, an RSA key RS* and PS*, an EC key the one of its curve,
// an Ed25519 key EdDSA. The token's alg and kid only choose among those, so
// "none" fits no key and a public key is never an HMAC secret (RFC 8725 §2.1,
// §3.1). jku, jwk, x5u and x5c headers are not read, crit is refused (RFC 7515
// §4.1.11), and claims are looked at only after the signature held, so the
// answer reveals nothing to a forger.
package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/golang-jwt/jwt/v5"
)

// An Authenticator verifies. Its configuration may be replaced: see Change. All its
// methods may be called by any goroutine; only Verify and Run wait.
type Authenticator struct {
	ruleSet

	// Fixed by New.
	parser *jwt.Parser

	// Any goroutine.
	replaced  chan struct{} // holds one: Run is to look at rules again
	done      chan struct{}
	closeOnce sync.Once
}

// A ruleSet is the rules in force, with what is decided by them alone: API keys, where a
// request has its token, and the origins of pages. Any goroutine.
type ruleSet struct {
	// Fixed by New.
	log     *slog.Logger
	now     func() time.Time
	revoked *Revocations // its own, or ShareWith's

	rules  atomic.Pointer[rules]
	pages  refusedPages
	counts struct{ verified, hits, refused, origins, fetches, failures atomic.Uint64 }
}

// rules are a compiled Config. Each call of an Authenticator uses one of them throughout.
type rules struct {
	// Immutable.
	cfg     Config // with defaults
	algs    map[string]bool
	static  []*key
	apiKeys []apiKey
	origins origins
	jwks    *jwks // nil without jwks_url

	// Any goroutine.
	cache *cache
}

// New reads the key files that cfg names and checks all of it; it fetches
// nothing. A nil log discards. The caller runs Run when it wants the JWKS kept
// fresh, and calls Close at the end.
func New(cfg Config, log *slog.Logger) (*Authenticator, error) {
	cfg = cfg.WithDefaults()
	l, err := cfg.load()
	if err != nil {
		return nil, err
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	a := &Authenticator{
		ruleSet:  ruleSet{log: log, now: time.Now, revoked: NewRevocations()},
		parser:   jwt.NewParser(jwt.WithStrictDecoding(), jwt.WithoutClaimsValidation()),
		replaced: make(chan struct{}, 1),
		done:     make(chan struct{}),
	}
	r := &rules{cfg: cfg, algs: l.algs, static: l.keys, apiKeys: l.apiKeys, origins: l.origins, cache: newCache(cfg.TokenCache)}
	if cfg.JWKSURL != "" {
		r.jwks = newJWKS(cfg, log)
		r.warn(log)
	}
	r.bindKeys(a)
	a.rules.Store(r)
	return a, nil
}

// bindKeys makes the API keys of r those of a.
func (r *rules) bindKeys(a *Authenticator) {
	for i := range r.apiKeys {
		r.apiKeys[i].id.proof = unique.Make(proof{by: a, sum: r.apiKeys[i].sum})
	}
}

func (r *rules) warn(log *slog.Logger) {
	if r.cfg.JWKSURL != "" && len(r.cfg.Audience) == 0 {
		log.Warn("jwks_url without audience: tokens the issuer made for other services are accepted too")
	}
}

// Config returns the configuration now, with defaults.
func (a *ruleSet) Config() Config { return a.rules.Load().cfg }

// Run keeps the JWKS fresh until ctx ends or Close is called. Without a JWKS it
// only waits. One call at a time.
func (a *Authenticator) Run(ctx context.Context) error {
	for {
		if j := a.rules.Load().jwks; j != nil {
			j.run(ctx, a.done)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.done:
			return nil
		case <-a.replaced:
		}
	}
}

// Close ends Run and any fetch, and waits for the fetch. What is in the caches
// still answers; a token that needs a fetch gets ErrKeysUnavailable.
func (a *Authenticator) Close() error {
	a.closeOnce.Do(func() {
		close(a.done)
		a.rules.Load().close()
	})
	return nil
}

// HasKeys reports whether anything configured can let someone in. Without, only
// anonymous namespaces are reachable and no client may publish.
func (a *ruleSet) HasKeys() bool {
	r := a.rules.Load()
	return len(r.static) > 0 || r.jwks != nil || len(r.apiKeys) > 0
}

// VerifyFor returns the identity that token proves at time now, if the token has one of
// the purposes want. The error is an *Error of kind ErrNoToken, ErrBadToken, ErrExpired,
// ErrRevoked or ErrKeysUnavailable; a token for another purpose is an ErrBadToken.
//
// It may wait for the JWKS, at most jwks_timeout, so a loop must not call it.
func (a *Authenticator) VerifyFor(ctx context.Context, want Purpose, token string, now time.Time) (*Identity, error) {
	if token == "" {
		return nil, ErrNoToken
	}
	r := a.rules.Load()
	if len(token) > r.cfg.MaxTokenBytes {
		return nil, a.refuse(bad("longer than max_token_bytes"))
	}
	sum := sha256.Sum256([]byte(token))
	if id, ok := r.cache.get(sum, now); ok {
		if err := accepts(a.revoked, id, want); err != nil {
			return nil, a.refuse(err)
		}
		a.counts.hits.Add(1)
		return id, nil
	}
	t, err := a.parse(r, token)
	if err != nil {
		return nil, a.refuse(err)
	}
	r, k, err := a.signedBy(ctx, r, t)
	if err != nil {
		return nil, a.refuse(err)
	}
	id, notBefore, err := r.identity(t.claims, now)
	if err != nil {
		return nil, a.refuse(err)
	}
	id.proof = t.proof(a, k)
	a.counts.verified.Add(1)
	r.cache.put(sum, &entry{id: id, key: k, notBefore: notBefore})
	if err := accepts(a.revoked, id, want); err != nil {
		return nil, a.refuse(err)
	}
	return id, nil
}

// accepts returns why a proved identity is not accepted for want.
func accepts(v *Revocations, id *Identity, want Purpose) error {
	if err := checkPurpose(id.purpose, want); err != nil {
		return err
	}
	return v.Refuse(id)
}

// signedBy returns the key that signed t, and the rules by which: they may have been
// replaced while it waited for keys.
func (a *Authenticator) signedBy(ctx context.Context, r *rules, t *parsed) (*rules, *key, error) {
	k, err := r.signer(ctx, t)
	latest := a.rules.Load()
	if latest == r {
		return r, k, err
	}
	if !latest.algs[t.alg] {
		return latest, nil, bad("alg " + t.alg + " is not allowed")
	}
	k, err = latest.signer(ctx, t)
	return latest, k, err
}

func (a *Authenticator) refuse(err error) error {
	if !errors.Is(err, ErrKeysUnavailable) {
		a.counts.refused.Add(1)
	}
	return err
}

// APIKey returns the identity of an API key. Its time depends on the length of
// key and the number of keys, not on their contents. It never waits.
func (a *ruleSet) APIKey(key []byte) (*Identity, bool) {
	if len(key) == 0 || len(key) > maxAPIKeyBytes {
		return nil, false
	}
	sum := sha256.Sum256(key)
	r, found := a.rules.Load(), -1
	for i := range r.apiKeys {
		eq := subtle.ConstantTimeCompare(sum[:], r.apiKeys[i].sum[:])
		found = subtle.ConstantTimeSelect(eq, i, found)
	}
	if found < 0 {
		return nil, false
	}
	return r.apiKeys[found].id, true
}

// Stats are running totals, for metrics.
type Stats struct {
	Verified     uint64 // tokens whose signature and claims were checked and held
	CacheHits    uint64 // tokens answered from the cache
	Refused      uint64 // tokens refused, expired ones included
	Origins      uint64 // requests refused for the origin of their page
	KeyFetches   uint64 // JWKS requests made
	KeyFetchErrs uint64 // of these, those that brought no key set
	Keys         int    // keys of the JWKS in use now
}

// Stats returns the totals so far.
func (a *Authenticator) Stats() Stats {
	s := Stats{
		Verified:  a.counts.verified.Load(),
		CacheHits: a.counts.hits.Load(),
		Refused:   a.counts.refused.Load(),
		Origins:   a.counts.origins.Load(),
	}
	s.KeyFetches, s.KeyFetchErrs = a.counts.fetches.Load(), a.counts.failures.Load()
	if j := a.rules.Load().jwks; j != nil {
		s.KeyFetches, s.KeyFetchErrs = s.KeyFetches+j.fetches.Load(), s.KeyFetchErrs+j.failures.Load()
		if set := j.current.Load(); set != nil {
			s.Keys = len(set.all)
		}
	}
	return s
}
