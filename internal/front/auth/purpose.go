package auth

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// A Purpose is the kind of endpoint that a token was issued for, read from its claims.
// A token with the claims of several kinds is good for each of them.
//
// Issuers often sign all of these with one key. Without purposes, a token that a page
// gets for one channel would log its holder in everywhere (RFC 8725 §3.12).
type Purpose uint8

// The purposes of tokens.
const (
	// ForClient identifies a client: Weir's own endpoints, routes and Centrifuge
	// connections accept it. It has a weir claim, or none of the claims below.
	ForClient Purpose = 1 << iota
	// ForSubscription allows one subscription of the Centrifuge protocol: it has a
	// channel claim.
	ForSubscription
	// ForMercure is for a Mercure hub: it has a mercure or https://mercure.rocks/ claim,
	// or authorization_details of Mercure's type.
	ForMercure
)

// ForAny accepts every purpose; the caller checks by itself what the token is for.
const ForAny = ForClient | ForSubscription | ForMercure

// mercureDetail is the type of authorization details for a Mercure hub (draft 08).
const mercureDetail = "https://mercure.rocks/authorization-detail"

// purposeOf reads the purposes of a token from its claims.
func purposeOf(c jwt.MapClaims) (p Purpose) {
	if ch, ok := c["channel"].(string); ok && ch != "" {
		p |= ForSubscription
	}
	if c["mercure"] != nil || c["https://mercure.rocks/"] != nil || hasMercureDetail(c["authorization_details"]) {
		p |= ForMercure
	}
	if _, ok := c["weir"]; ok || p == 0 {
		p |= ForClient
	}
	return p
}

func hasMercureDetail(v any) bool {
	list, _ := v.([]any)
	for _, e := range list {
		if m, ok := e.(map[string]any); ok && m["type"] == mercureDetail {
			return true
		}
	}
	return false
}

// checkPurpose returns why a token with purposes have is not accepted for want.
func checkPurpose(have, want Purpose) error {
	if have&want != 0 {
		return nil
	}
	switch {
	case want == ForSubscription:
		return bad("no channel claim, which a subscription token has")
	case want == ForMercure:
		return bad("no mercure claim, which a token for a Mercure hub has")
	case have&ForSubscription != 0:
		return bad("a channel claim makes it a Centrifuge subscription token; add a weir claim if it is for clients too")
	}
	return bad("a mercure claim makes it a token for a Mercure hub; add a weir claim if it is for clients too")
}

// Verify returns the identity of a client's token at time now: VerifyFor with ForClient.
func (a *Authenticator) Verify(ctx context.Context, token string, now time.Time) (*Identity, error) {
	return a.VerifyFor(ctx, ForClient, token, now)
}

// Cached returns the identity of a client's token that was verified before and is
// still valid. It never waits, so a loop may call it; on false the loop passes the
// token to a goroutine that calls Verify.
func (a *Authenticator) Cached(token string) (*Identity, bool) { return a.CachedBytes([]byte(token)) }

// CachedBytes is Cached for a token that TokenBytes returned. It allocates nothing.
func (a *Authenticator) CachedBytes(token []byte) (*Identity, bool) {
	return a.CachedFor(ForClient, token)
}

// CachedFor is CachedBytes for a token that is accepted if it has one of the purposes want.
func (a *Authenticator) CachedFor(want Purpose, token []byte) (*Identity, bool) {
	r := a.rules.Load()
	if len(token) == 0 || len(token) > r.cfg.MaxTokenBytes {
		return nil, false
	}
	id, ok := r.cache.get(sha256.Sum256(token), a.now())
	if !ok || id.purpose&want == 0 || a.revoked.RevokesIdentity(id, a.now()) { // Verify reports why
		return nil, false
	}
	a.counts.hits.Add(1)
	return id, true
}
