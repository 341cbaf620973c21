package policy

import (
	"context"
	"errors"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
)

// How x's identity was presented: what Forward removes from the request.
type presented uint8

const (
	byNothing presented = iota
	byHeader
	byQuery
	byCookie
	byKey
)

// The challenges of RFC 6750 §3: an error code only for a token that was sent.
const (
	challenge      = "WWW-Authenticate: Bearer\r\n"
	challengeToken = "WWW-Authenticate: Bearer error=\"invalid_token\"\r\n"
	challengeScope = "WWW-Authenticate: Bearer error=\"insufficient_scope\"\r\n"
)

// identity finds who makes the request, as far as that needs no waiting.
func (r *admission) identity(x *Exchange, now int64) Verdict {
	a := r.deps.Auth
	for _, name := range [...]string{"Authorization", "Cookie", "X-API-Key"} {
		if x.Fields.Count(name) > 1 {
			return r.refuse(x, 400, "a field with credentials is repeated", "send Authorization, Cookie and X-API-Key once")
		}
	}
	if key := x.Fields.Get("X-API-Key"); key != nil && r.cfg.Auth.APIKeys {
		id, ok := a.APIKey(key)
		if !ok {
			return r.refuse(x, 401, "unknown API key", "")
		}
		x.presented = byKey
		return r.AdmitIdentity(x, id, nil, now)
	}
	query, _ := http1.QueryValue(x.Query, "token")
	token, source := a.TokenBytes(x.Fields.Get("Authorization"), x.Fields.Get("Cookie"), query)
	switch source {
	case auth.FromHeader:
		x.presented = byHeader
	case auth.FromQuery:
		x.presented = byQuery
	case auth.FromCookie:
		// The browser added it by itself: whichever page asked must be one that may.
		if a.OriginAccess(auth.Page{Origin: x.origin, Host: x.Host, TLS: x.TLS}) == auth.OriginTrusted || r.cors.trusts(x.origin) {
			x.presented = byCookie
		}
	}
	if x.presented == byNothing {
		if r.required {
			v := r.refuse(x, 401, "a token is required", "send Authorization: Bearer")
			return x.with(v, challenge)
		}
		x.Identity = auth.Anonymous
		return r.admitted(x, now)
	}
	if id, ok := a.CachedBytes(token); ok {
		return r.AdmitIdentity(x, id, nil, now)
	}
	return Verdict{Action: Identify, Token: string(token)}
}

// with adds field lines to those of v.
func (x *Exchange) with(v Verdict, lines string) Verdict {
	x.lines = append(x.lines, lines...)
	v.Fields = x.lines
	return v
}

// notVerified answers what a token's verification failed with.
func (r *admission) notVerified(x *Exchange, err error) Verdict {
	const hint = "get a new token and come with that"
	switch {
	case errors.Is(err, auth.ErrKeysUnavailable), errors.Is(err, context.Canceled):
		v := r.refuse(x, 503, "the keys to verify tokens are not available", "wait as long as Retry-After says")
		v.RetryAfter = 2
		return v
	case errors.Is(err, auth.ErrExpired):
		return x.with(r.refuse(x, 401, "token expired", hint), challengeToken)
	case errors.Is(err, auth.ErrRevoked):
		return x.with(r.refuse(x, 401, "token revoked", "log in again"), challengeToken)
	}
	return x.with(r.refuse(x, 401, "token refused", hint), challengeToken)
}

// entitled reports whether x's identity has the scopes and claims of the route.
func (r *admission) entitled(x *Exchange) (Verdict, bool) {
	if r.required && x.Identity.By == "" {
		return x.with(r.refuse(x, 401, "a token is required", "send Authorization: Bearer"), challenge), false
	}
	if r.required && x.Identity.Subject == "" {
		return x.with(r.refuse(x, 401, "the token names no subject", "get a token with sub"), challengeToken), false
	}
	for _, scope := range r.cfg.Auth.Scopes {
		if !x.Identity.HasScope(scope) {
			return x.with(r.refuse(x, 403, "the token lacks a scope", "the route requires "+scope), challengeScope), false
		}
	}
	for name, value := range r.cfg.Auth.Claims {
		if !x.Identity.HasClaim(name, value) {
			return x.with(r.refuse(x, 403, "the token lacks a claim", "the route requires a value of "+name), challengeScope), false
		}
	}
	return Verdict{}, true
}

// tenantKey returns the bucket of a tenant. Keys and tokens are two worlds: a
// token's subject cannot use up the bucket of a key of that name.
func (r *admission) tenantKey(t *limit.Table, id *auth.Identity) uint64 {
	scope := r.tenantScope
	if id.By == auth.ByAPIKey {
		scope += 1 << 32
	}
	if r.cfg.Limits.TenantClaim != "" {
		if v := id.Claim(r.cfg.Limits.TenantClaim); v != "" {
			return t.KeyString(scope+2<<32, v)
		}
	}
	return t.KeyString(scope, id.Subject)
}
