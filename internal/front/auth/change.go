package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unique"
)

// A Proof is what a token or an API key holds by, besides time: the key, and what the
// configuration wants of tokens. The zero value rests on nothing that could go. Equal
// proofs of many clients are one.
type Proof = unique.Handle[proof]

type proof struct {
	by *Authenticator
	// Of a token.
	key           *key
	alg, iss, aud string // aud: the values, separated by zero bytes
	expires       bool
	// Of an API key.
	sum [sha256.Size]byte
}

const audSeparator = "\x00"

// proof is what t holds by, which k of a signed.
func (t *parsed) proof(a *Authenticator, k *key) Proof {
	p := proof{by: a, key: k, alg: t.alg}
	p.iss, _ = t.claims["iss"].(string)
	switch aud := t.claims["aud"].(type) {
	case string:
		p.aud = aud
	default:
		list, _ := stringList(aud)
		p.aud = strings.Join(list, audSeparator)
	}
	_, state := date(t.claims, "exp")
	p.expires = state == dateSet
	return unique.Make(p)
}

// accepts reports whether r would accept what p proves.
func (r *rules) accepts(p *proof) bool {
	if p.key == nil {
		return r.apiKey(p.sum) != nil
	}
	return r.has(p.key) && r.algs[p.alg] && (r.cfg.Issuer == "" || r.cfg.Issuer == p.iss) &&
		(len(r.cfg.Audience) == 0 || r.isAudience(p.aud)) &&
		(p.expires || !r.cfg.RequireExpiry.On())
}

func (r *rules) isAudience(aud string) bool {
	for s := range strings.SplitSeq(aud, audSeparator) {
		if slices.Contains(r.cfg.Audience, s) {
			return true
		}
	}
	return false
}

func (r *rules) has(k *key) bool {
	if slices.Contains(r.static, k) {
		return true
	}
	if r.jwks == nil {
		return false
	}
	set := r.jwks.current.Load()
	return set != nil && slices.Contains(set.all, k)
}

// apiKey returns the identity of the key with that hash; nil: there is none. The hash is
// one that was found before, so that timing reveals nothing.
func (r *rules) apiKey(sum [sha256.Size]byte) *Identity {
	for i := range r.apiKeys {
		if r.apiKeys[i].sum == sum {
			return r.apiKeys[i].id
		}
	}
	return nil
}

// keys are all keys at hand.
func (r *rules) keys() []*key {
	list := r.static
	if r.jwks != nil {
		if set := r.jwks.current.Load(); set != nil {
			list = slices.Concat(list, set.all)
		}
	}
	return list
}

func (r *rules) close() {
	if r.jwks != nil {
		r.jwks.close()
	}
}

// A Change is new configurations of Authenticators: prepared first, when all errors show,
// and then put in force by Commit. Until then it shows what would be.
//
//	c := auth.NewChange()
//	err := c.Set(ctx, a, cfg)          // may fetch keys
//	id, ok := c.Identity(id)           // who would that be?
//	c.Commit()                         // or c.Drop()
type Change struct {
	to   map[*Authenticator]*rules
	list []*Authenticator // in the order of Set
}

// NewChange returns a Change that changes nothing.
func NewChange() *Change { return &Change{to: map[*Authenticator]*rules{}} }

// Set prepares cfg for a: it reads the files that cfg names. Keys that were there before
// stay the same keys, and what they verified stays verified. If jwks_url is another one its
// keys are fetched, and an error means that they cannot be: otherwise the tokens of its
// issuer would be refused until they can.
func (c *Change) Set(ctx context.Context, a *Authenticator, cfg Config) error {
	cfg = cfg.WithDefaults()
	l, err := cfg.load()
	if err != nil {
		return err
	}
	was := a.rules.Load()
	r := &rules{cfg: cfg, algs: l.algs, static: l.keys, apiKeys: l.apiKeys, origins: l.origins, cache: was.cache}
	if !sameDemands(&was.cfg, &cfg) {
		r.cache = newCache(cfg.TokenCache)
	}
	had := was.keys()
	for i, k := range r.static {
		r.static[i] = sameKey(had, k)
	}
	if err := r.keepJWKS(ctx, was, a, had); err != nil {
		return err
	}
	r.bindKeys(a)
	c.put(a, r)
	return nil
}

// Remove prepares that a accepts nothing any more.
func (c *Change) Remove(a *Authenticator) {
	c.put(a, &rules{cfg: Config{}.WithDefaults(), cache: newCache(-1)})
}

func (c *Change) put(a *Authenticator, r *rules) {
	c.to[a] = r
	c.list = append(c.list, a)
}

// sameDemands reports whether a token that was accepted with one configuration is with the
// other, if its key is there.
func sameDemands(x, y *Config) bool {
	return slices.Equal(x.Algorithms, y.Algorithms) && x.Issuer == y.Issuer && slices.Equal(x.Audience, y.Audience) &&
		x.Leeway == y.Leeway && x.RequireExpiry.On() == y.RequireExpiry.On() && x.TokenCache == y.TokenCache
}

// sameKey returns the key among had that is k, or k.
func sameKey(had []*key, k *key) *key {
	for _, h := range had {
		if h.id != k.id || !slices.Equal(h.algs, k.algs) {
			continue
		}
		if a, ok := h.material.([]byte); ok {
			if b, ok := k.material.([]byte); ok && bytes.Equal(a, b) {
				return h
			}
			continue
		}
		if h.print == k.print {
			return h
		}
	}
	return k
}

// keepJWKS gives r the keys of its jwks_url.
func (r *rules) keepJWKS(ctx context.Context, was *rules, a *Authenticator, had []*key) error {
	if r.cfg.JWKSURL == "" {
		return nil
	}
	x, y := &was.cfg, &r.cfg
	same := was.jwks != nil && x.JWKSURL == y.JWKSURL
	if same && x.JWKSRefreshInterval == y.JWKSRefreshInterval && x.JWKSMinRefetchInterval == y.JWKSMinRefetchInterval && x.JWKSTimeout == y.JWKSTimeout {
		r.jwks = was.jwks
		return nil
	}
	r.jwks = newJWKS(r.cfg, a.log)
	r.warn(a.log)
	if same {
		r.jwks.current.Store(was.jwks.current.Load())
		return nil
	}
	r.jwks.known = had
	if err := r.jwks.get(ctx, true); err != nil {
		r.jwks.close()
		return fmt.Errorf("auth.jwks_url: fetch keys: %w", err)
	}
	return nil
}

// after are the rules of a after the change.
func (c *Change) after(a *Authenticator) *rules {
	if r, ok := c.to[a]; ok {
		return r
	}
	return a.rules.Load()
}

// Valid reports whether p holds after the change.
func (c *Change) Valid(p Proof) bool {
	if p == (Proof{}) {
		return true
	}
	v := p.Value()
	return c.after(v.by).accepts(&v)
}

// Identity returns who id is after the change: an API key may have other grants, and what
// proved it may be gone, which is false.
func (c *Change) Identity(id *Identity) (*Identity, bool) {
	if id == nil || id.proof == (Proof{}) {
		return id, true
	}
	v := id.proof.Value()
	r := c.after(v.by)
	if v.key == nil {
		now := r.apiKey(v.sum)
		return now, now != nil
	}
	return id, r.accepts(&v) && !v.by.revoked.RevokesIdentity(id, v.by.now())
}

// Commit puts the configurations in force. It does not fail.
func (c *Change) Commit() {
	for _, a := range c.list {
		r := c.to[a]
		was := a.rules.Swap(r)
		for _, k := range was.keys() {
			if !r.has(k) {
				k.gone.Store(true)
			}
		}
		if was.jwks == nil || was.jwks == r.jwks {
			if r.jwks != was.jwks {
				a.look()
			}
			continue
		}
		was.jwks.close()
		a.counts.fetches.Add(was.jwks.fetches.Load())
		a.counts.failures.Add(was.jwks.failures.Load())
		a.look()
	}
}

// look has Run look at the rules again.
func (a *Authenticator) look() {
	select {
	case a.replaced <- struct{}{}:
	default:
	}
}

// Drop releases what was prepared.
func (c *Change) Drop() {
	for _, a := range c.list {
		if j := c.to[a].jwks; j != a.rules.Load().jwks {
			c.to[a].close()
		}
	}
}

// By returns what verified the token or key of p; nil for the zero value.
func By(p Proof) *Authenticator {
	if p == (Proof{}) {
		return nil
	}
	return p.Value().by
}

// Valid reports whether p holds now.
func Valid(p Proof) bool { return (&Change{}).Valid(p) }

// Current returns who id is now: false if what proved it is gone.
func (i *Identity) Current() (*Identity, bool) { return (&Change{}).Identity(i) }

// Proof returns what the identity rests on.
func (i *Identity) Proof() Proof { return i.proof }

// KeysOf prepares key sets: those that were there are set, new ones made, and those that
// are gone removed. The sets returned are for after Commit; added has the new ones, which
// the caller runs, and closes if the change is dropped.
func (c *Change) KeysOf(ctx context.Context, was KeySets, cfg Config, sets map[string]KeySet, make func(Config) (*Authenticator, error)) (now KeySets, added []*Authenticator, err error) {
	now = KeySets{}
	var errs []error
	for name, set := range sets {
		one := Config{KeySet: set, MaxTokenBytes: cfg.MaxTokenBytes, TokenCache: cfg.TokenCache}
		if a, ok := was[name]; ok {
			now[name] = a
			if err := c.Set(ctx, a, one); err != nil {
				errs = append(errs, fmt.Errorf("key_sets.%s: %w", name, err))
			}
			continue
		}
		a, err := make(one)
		if err != nil {
			errs = append(errs, fmt.Errorf("key_sets.%s: %w", name, err))
			continue
		}
		now[name] = a
		added = append(added, a)
	}
	for name, a := range was {
		if _, ok := sets[name]; !ok {
			c.Remove(a)
		}
	}
	return now, added, errors.Join(errs...)
}
