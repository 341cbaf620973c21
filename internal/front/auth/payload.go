package auth

import (
	"context"
	"encoding/base64"
	"strings"
	"time"
)

// A Payload is what a token says that holds, for protocols whose claims are not Weir's.
type Payload struct {
	// Claims are as they were written: numbers and the order of members are as the issuer
	// chose them.
	Claims []byte
	// Expires is exp without leeway, zero if there is none.
	Expires time.Time
	// Proof is what the token holds by.
	Proof Proof
	// Token distinguishes it from others of its subject.
	Token TokenID
}

// Payload verifies a token as VerifyFor does and returns its claims. Nothing is cached.
// The error is as for Verify.
//
// It may wait for the JWKS, at most jwks_timeout, so a loop must not call it.
func (a *Authenticator) Payload(ctx context.Context, want Purpose, token string, now time.Time) (p Payload, err error) {
	r := a.rules.Load()
	switch {
	case token == "":
		return p, ErrNoToken
	case len(token) > r.cfg.MaxTokenBytes:
		return p, a.refuse(bad("longer than max_token_bytes"))
	}
	t, err := a.parse(r, token)
	if err != nil {
		return p, a.refuse(err)
	}
	r, k, err := a.signedBy(ctx, r, t)
	if err != nil {
		return p, a.refuse(err)
	}
	return a.payload(r, t, k, want, now)
}

// PayloadNow is Payload for a loop: it does not wait, and does no more than microseconds
// of work. It answers for tokens signed with a secret (HS256 and its kin) only; for all
// others ok is false, and Payload is to be called.
func (a *Authenticator) PayloadNow(want Purpose, token string, now time.Time) (p Payload, ok bool, err error) {
	r := a.rules.Load()
	if token == "" || len(token) > r.cfg.MaxTokenBytes {
		return p, false, nil
	}
	t, err := a.parse(r, token)
	if err != nil || !strings.HasPrefix(t.alg, "HS") {
		return p, false, nil
	}
	k, err := r.try(t, nil)
	if err != nil {
		return p, true, a.refuse(err)
	}
	p, err = a.payload(r, t, k, want, now)
	return p, true, err
}

// payload reads the claims of a token whose signature holds.
func (a *Authenticator) payload(r *rules, t *parsed, k *key, want Purpose, now time.Time) (p Payload, err error) {
	id, _, err := r.identity(t.claims, now)
	if err == nil {
		err = accepts(a.revoked, id, want)
	}
	if err != nil {
		return p, a.refuse(err)
	}
	_, segment, _ := strings.Cut(t.signed, ".")
	if p.Claims, err = base64.RawURLEncoding.DecodeString(segment); err != nil {
		return p, a.refuse(bad("malformed claims"))
	}
	if exp, state := date(t.claims, "exp"); state == dateSet {
		p.Expires = exp
	}
	p.Proof, p.Token = t.proof(a, k), id.token
	a.counts.verified.Add(1)
	return p, nil
}
