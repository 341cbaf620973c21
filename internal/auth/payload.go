package auth

import (
	"context"
	"encoding/base64"
	"strings"
	"time"
)

// Payload verifies a token as VerifyFor does and returns its claims as they were
// written, for protocols whose claims are not Weir's: numbers and the order of
// members are as the issuer chose them. expires is exp without leeway, zero if there
// is none. Nothing is cached. The error is as for Verify.
//
// It may wait for the JWKS, at most jwks_timeout, so a loop must not call it.
func (a *Authenticator) Payload(ctx context.Context, want Purpose, token string, now time.Time) (claims []byte, expires time.Time, err error) {
	switch {
	case token == "":
		return nil, expires, ErrNoToken
	case len(token) > a.cfg.MaxTokenBytes:
		return nil, expires, a.refuse(bad("longer than max_token_bytes"))
	}
	t, err := a.parse(token)
	if err == nil {
		_, err = a.signer(ctx, t)
	}
	if err != nil {
		return nil, expires, a.refuse(err)
	}
	return a.payload(t, want, now)
}

// PayloadNow is Payload for a loop: it does not wait, and does no more than microseconds
// of work. It answers for tokens signed with a secret (HS256 and its kin) only; for all
// others ok is false, and Payload is to be called.
func (a *Authenticator) PayloadNow(want Purpose, token string, now time.Time) (claims []byte, expires time.Time, ok bool, err error) {
	if token == "" || len(token) > a.cfg.MaxTokenBytes {
		return nil, expires, false, nil
	}
	t, err := a.parse(token)
	if err != nil || !strings.HasPrefix(t.alg, "HS") {
		return nil, expires, false, nil
	}
	if _, err = a.try(t, nil); err != nil {
		return nil, expires, true, a.refuse(err)
	}
	claims, expires, err = a.payload(t, want, now)
	return claims, expires, true, err
}

// payload reads the claims of a token whose signature holds.
func (a *Authenticator) payload(t *parsed, want Purpose, now time.Time) (claims []byte, expires time.Time, err error) {
	id, _, err := a.identity(t.claims, now)
	if err == nil {
		err = checkPurpose(id.purpose, want)
	}
	if err != nil {
		return nil, expires, a.refuse(err)
	}
	if exp, state := date(t.claims, "exp"); state == dateSet {
		expires = exp
	}
	_, segment, _ := strings.Cut(t.signed, ".")
	if claims, err = base64.RawURLEncoding.DecodeString(segment); err != nil {
		return nil, expires, a.refuse(bad("malformed claims"))
	}
	a.counts.verified.Add(1)
	return claims, expires, nil
}
