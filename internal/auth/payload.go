package auth

import (
	"context"
	"encoding/base64"
	"strings"
	"time"
)

// Payload verifies a token as Verify does and returns its claims as they were
// written, for protocols whose claims are not Weir's: numbers and the order of
// members are as the issuer chose them. expires is exp without leeway, zero if there
// is none. Nothing is cached. The error is as for Verify.
//
// It may wait for the JWKS, at most jwks_timeout, so a loop must not call it.
func (a *Authenticator) Payload(ctx context.Context, token string, now time.Time) (claims []byte, expires time.Time, err error) {
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
	if err == nil {
		_, _, err = a.identity(t.claims, now)
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

// CanVerify reports whether any key is configured that tokens can be verified with.
func (a *Authenticator) CanVerify() bool { return len(a.static) > 0 || a.jwks != nil }
