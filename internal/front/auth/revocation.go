package auth

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/golang-jwt/jwt/v5"
)

// Kinds of Revocation.
const (
	RevokedSubject = "subject" // every token of a subject
	RevokedToken   = "token"   // one token, by its jti
)

// Bounds of Revocations.
const (
	// MaxRevocations bounds those that Check accepts. One more is refused: to forget another
	// in its place would accept a token again.
	MaxRevocations = 100_000
	// MaxRevocationTime is how far in the future Until may be.
	MaxRevocationTime = 366 * 24 * time.Hour

	maxRevoked       = 2 * MaxRevocations // also with those of other nodes
	maxRevokedName   = 255
	maxRevokedReason = 255
)

// ErrTooManyRevocations is for one more than MaxRevocations.
var ErrTooManyRevocations = errors.New("too many revocations")

// A Revocation refuses tokens before they expire. A subject, or a jti, that two issuers use is one
// name.
type Revocation struct {
	// Kind is RevokedSubject or RevokedToken.
	Kind string `json:"kind"`
	// Name is the sub, or the jti, of 1 to 255 bytes without control characters.
	Name string `json:"name"`
	// Until is when it ends. A token that is still valid then is accepted again.
	Until time.Time `json:"until"`
	// IssuedBefore limits a subject's to tokens whose iat is earlier, or missing; zero: all.
	IssuedBefore time.Time `json:"issued_before,omitzero"`
	// Reason is for operators, of up to 255 bytes; empty: none was given.
	Reason string `json:"reason,omitempty"`
	// Made is when it was made.
	Made time.Time `json:"made"`
}

// Validate returns what is wrong with r at time now.
func (r *Revocation) Validate(now time.Time) error {
	control := func(s string) bool { return slices.ContainsFunc([]rune(s), unicode.IsControl) }
	switch {
	case r.Kind != RevokedSubject && r.Kind != RevokedToken:
		return fmt.Errorf("kind: invalid %.40q: want %s or %s", r.Kind, RevokedSubject, RevokedToken)
	case r.Name == "" || len(r.Name) > maxRevokedName || control(r.Name):
		return fmt.Errorf("name: invalid %.40q: want 1 to %d bytes without control characters", r.Name, maxRevokedName)
	case len(r.Reason) > maxRevokedReason || control(r.Reason):
		return fmt.Errorf("reason: invalid %.40q: want at most %d bytes without control characters", r.Reason, maxRevokedReason)
	case !r.IssuedBefore.IsZero() && r.Kind != RevokedSubject:
		return errors.New("issued_before: only for a subject: a token is issued once")
	case !r.Until.After(now) || r.Until.Sub(now) > MaxRevocationTime:
		return fmt.Errorf("until: invalid %s: want a time in the next %d days", r.Until.UTC().Format(time.RFC3339), MaxRevocationTime/(24*time.Hour))
	}
	return nil
}

// A TokenID distinguishes a token among those of its subject. The zero value has nothing that
// does.
type TokenID struct {
	JTI    string
	Issued int64 // iat, in Unix milliseconds; 0: none
}

// tokenIDOf reads proved claims. A jti that is not a string (RFC 7519 §4.1.7), or longer than
// 255 bytes, is none.
func tokenIDOf(c jwt.MapClaims) (t TokenID) {
	if s, ok := c["jti"].(string); ok && len(s) <= maxRevokedName {
		t.JTI = s
	}
	if at, state := date(c, "iat"); state == dateSet {
		t.Issued = at.UnixMilli()
	}
	return t
}

// Revocations are those in force on this node. Authenticators that share them refuse what they
// revoke. Any goroutine may call the methods; a nil *Revocations has none. A look-up
// costs a map access under a lock of its part for each kind, allocates nothing, and costs the
// load of a number for each kind of which there are none.
type Revocations struct {
	// Fixed.
	seed maphash.Seed

	// Any goroutine.
	refused, overflow atomic.Uint64
	subjects, tokens  revocationTable
}

// A revocationTable has those of one kind.
type revocationTable struct {
	n     atomic.Int64
	parts [64]struct {
		mu sync.RWMutex
		m  map[string]Revocation
	}
}

// find returns the one called name that is in force at now.
func (t *revocationTable) find(seed maphash.Seed, name string, now time.Time) (r Revocation, ok bool) {
	if name == "" || t.n.Load() == 0 {
		return r, false
	}
	p := &t.parts[maphash.String(seed, name)%64]
	p.mu.RLock()
	r, ok = p.m[name]
	p.mu.RUnlock()
	return r, ok && now.Before(r.Until)
}

// NewRevocations returns none.
func NewRevocations() *Revocations { return &Revocations{seed: maphash.MakeSeed()} }

func (v *Revocations) table(kind string) *revocationTable {
	if kind == RevokedToken {
		return &v.tokens
	}
	return &v.subjects
}

// Check reports why r cannot be added at time now; nil if it can.
func (v *Revocations) Check(r *Revocation, now time.Time) error {
	if err := r.Validate(now); err != nil {
		return err
	}
	if v.count() >= MaxRevocations && !v.has(r.Kind, r.Name) {
		return fmt.Errorf("%w: %d are in force, which is the most: end some, or change the signing key", ErrTooManyRevocations, MaxRevocations)
	}
	return nil
}

// count is how many there are.
func (v *Revocations) count() int64 { return v.subjects.n.Load() + v.tokens.n.Load() }

func (v *Revocations) has(kind, name string) bool {
	p := &v.table(kind).parts[maphash.String(v.seed, name)%64]
	p.mu.RLock()
	defer p.mu.RUnlock()
	_, ok := p.m[name]
	return ok
}

// Put adds a valid r, or replaces the one with its kind and name. It reports whether it may refuse something
// that was accepted before. Past twice MaxRevocations, which only nodes that add at the same
// time can reach, it is dropped and counted.
func (v *Revocations) Put(r Revocation) (more bool) {
	t := v.table(r.Kind)
	p := &t.parts[maphash.String(v.seed, r.Name)%64]
	p.mu.Lock()
	defer p.mu.Unlock()
	was, ok := p.m[r.Name]
	if !ok && v.count() >= maxRevoked {
		v.overflow.Add(1)
		return false
	}
	if p.m == nil {
		p.m = make(map[string]Revocation)
	}
	p.m[r.Name] = r
	if !ok {
		t.n.Add(1)
	}
	return !ok || was != r
}

// Remove ends a revocation and reports whether it was there.
func (v *Revocations) Remove(kind, name string) bool {
	t := v.table(kind)
	p := &t.parts[maphash.String(v.seed, name)%64]
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.m[name]; !ok {
		return false
	}
	delete(p.m, name)
	t.n.Add(-1)
	return true
}

// Expire removes those that have ended at now and returns them.
func (v *Revocations) Expire(now time.Time) (ended []Revocation) {
	v.each(func(r *Revocation) {
		if !now.Before(r.Until) {
			ended = append(ended, *r)
		}
	})
	for i := range ended {
		v.Remove(ended[i].Kind, ended[i].Name)
	}
	return ended
}

func (v *Revocations) each(f func(*Revocation)) {
	for _, t := range []*revocationTable{&v.subjects, &v.tokens} {
		for i := range t.parts {
			p := &t.parts[i]
			p.mu.RLock()
			for _, r := range p.m {
				f(&r)
			}
			p.mu.RUnlock()
		}
	}
}

// List returns all of them, by kind and name.
func (v *Revocations) List() []Revocation {
	list := make([]Revocation, 0, v.count())
	v.each(func(r *Revocation) { list = append(list, *r) })
	slices.SortFunc(list, func(a, b Revocation) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return list
}

// Revokes reports whether a token of a subject is revoked at now. An empty subject, or a token
// without a jti, is not revoked by that.
func (v *Revocations) Revokes(subject string, t TokenID, now time.Time) bool {
	if v == nil {
		return false
	}
	if r, ok := v.subjects.find(v.seed, subject, now); ok && (r.IssuedBefore.IsZero() || t.Issued == 0 || t.Issued < r.IssuedBefore.UnixMilli()) {
		return true
	}
	_, ok := v.tokens.find(v.seed, t.JTI, now)
	return ok
}

// RevokesIdentity is Revokes for who someone is. API keys are not revoked: they are removed from
// the configuration.
func (v *Revocations) RevokesIdentity(id *Identity, now time.Time) bool {
	return id != nil && id.By != ByAPIKey && v.Revokes(id.Subject, id.token, now)
}

// RevocationStats are running totals and gauges, for metrics.
type RevocationStats struct {
	Subjects, Tokens int
	Refused          uint64 // tokens and clients refused because of them
	Overflow         uint64 // of other nodes, dropped at the bound
}

// Stats returns them.
func (v *Revocations) Stats() RevocationStats {
	return RevocationStats{Subjects: int(v.subjects.n.Load()), Tokens: int(v.tokens.n.Load()), Refused: v.refused.Load(), Overflow: v.overflow.Load()}
}

// ShareWith has a refuse what v revokes, in place of revocations of its own. It is called before a is used.
func (v *Revocations) ShareWith(a *Authenticator) { a.revoked = v }

// Revoked returns what a refuses besides.
func (a *ruleSet) Revoked() *Revocations { return a.revoked }

// Refuse returns ErrRevoked if id is revoked now, whatever gave it, and counts that.
func (v *Revocations) Refuse(id *Identity) error {
	if v.RevokesIdentity(id, time.Now()) {
		v.refused.Add(1)
		return &Error{ErrRevoked, "a revocation of its subject or its jti is in force"}
	}
	return nil
}

// RefuseUser is Refuse for a protocol's user, who may have shown a token.
func (v *Revocations) RefuseUser(subject string, t TokenID) error {
	return v.Refuse(&Identity{Subject: subject, token: t})
}
