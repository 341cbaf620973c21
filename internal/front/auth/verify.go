package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/golang-jwt/jwt/v5"
)

const (
	maxSubjectBytes = 255
	// maxTries bounds the signatures tried for one token; more than one is only
	// needed when the token has no kid, or keys have none.
	maxTries = 16
	// maxDate is the last second of the year 9999, past which times stop being
	// comparable.
	maxDate = 253402300799
)

// parsed is a token whose form is right. Nothing in it is proved.
type parsed struct {
	method    jwt.SigningMethod
	alg, kid  string
	signed    string // what the signature is over
	signature []byte
	claims    jwt.MapClaims
}

// parse reads the form of a token and refuses what no key could make good.
func (a *Authenticator) parse(r *rules, token string) (*parsed, error) {
	if !compactForm(token) {
		return nil, bad("not three base64url segments")
	}
	t, parts, err := a.parser.ParseUnverified(token, jwt.MapClaims{})
	if err != nil {
		// The library's text can quote the token; its kind cannot.
		if errors.Is(err, jwt.ErrTokenUnverifiable) {
			return nil, bad("alg is missing or unknown")
		}
		return nil, bad("malformed header, claims or signature")
	}
	p := &parsed{
		method:    t.Method,
		alg:       t.Method.Alg(),
		signed:    parts[0] + "." + parts[1],
		signature: t.Signature,
		claims:    t.Claims.(jwt.MapClaims),
	}
	if !r.algs[p.alg] {
		return nil, bad("alg " + p.alg + " is not allowed")
	}
	if _, ok := t.Header["crit"]; ok {
		return nil, bad("crit names extensions, none is known")
	}
	if v, ok := t.Header["kid"]; ok {
		if p.kid, ok = v.(string); !ok {
			return nil, bad("kid is not a string")
		}
	}
	if v, ok := t.Header["typ"]; ok && !accessTokenType(v) {
		return nil, bad("typ is not of an access token")
	}
	return p, nil
}

// compactForm reports whether token is three non-empty base64url segments. The
// decoder alone would skip line breaks, and so give one token many spellings.
func compactForm(token string) bool {
	dots, run := 0, 0
	for i := range len(token) {
		c := token[i]
		switch {
		case c == '.':
			if run == 0 {
				return false
			}
			dots, run = dots+1, 0
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			run++
		default:
			return false
		}
	}
	return dots == 2 && run > 0
}

// accessTokenType distinguishes tokens that grant access from others of the same issuer,
// such as logout tokens (RFC 8725 §3.11): JWT, or at+jwt of RFC 9068.
func accessTokenType(v any) bool {
	s, ok := v.(string)
	if !ok {
		return false
	}
	s = strings.TrimPrefix(strings.ToLower(s), "application/")
	return s == "jwt" || s == "at+jwt"
}

// signer returns the key that signed t. Keys at hand come first; a kid that
// is unknown makes the JWKS be fetched, if it was not just now.
func (r *rules) signer(ctx context.Context, t *parsed) (*key, error) {
	var set *keySet
	if r.jwks != nil {
		set = r.jwks.current.Load()
	}
	k, err := r.try(t, set)
	if k != nil || r.jwks == nil || strings.HasPrefix(t.alg, "HS") {
		return k, err
	}
	if set != nil && (t.kid == "" || set.knows(t.kid)) {
		return nil, err
	}
	fetchErr := r.jwks.refetch(ctx)
	if now := r.jwks.current.Load(); now != set {
		if k, err := r.try(t, now); k != nil || t.kid == "" || now.knows(t.kid) {
			return k, err
		}
	}
	if fetchErr != nil {
		return nil, unavailable("jwks: " + fetchErr.Error())
	}
	return nil, bad(fmt.Sprintf("no key with kid %.64q", t.kid))
}

// try returns the key among the static ones and set that signed t.
func (r *rules) try(t *parsed, set *keySet) (*key, error) {
	tries := 0
	attempt := func(keys []*key) *key {
		for _, k := range keys {
			if !k.fits(t.alg, t.kid) || tries == maxTries {
				continue
			}
			tries++
			if t.method.Verify(t.signed, t.signature, k.material) == nil {
				return k
			}
		}
		return nil
	}
	k := attempt(r.static)
	if k == nil && set != nil {
		k = attempt(set.candidates(t.kid))
	}
	switch {
	case k != nil:
		return k, nil
	case tries == 0:
		return nil, bad("no key fits alg " + t.alg + fmt.Sprintf(" and kid %.64q", t.kid))
	case tries == maxTries:
		return nil, bad(fmt.Sprintf("none of the first %d keys signed it", maxTries))
	}
	return nil, bad("signature does not hold")
}

// identity reads proved claims. Expiry comes last, so that ErrExpired is said
// only of a token that was good once. notBefore is when the token starts.
func (r *rules) identity(c jwt.MapClaims, now time.Time) (id *Identity, notBefore time.Time, err error) {
	if len(c) == 0 {
		return nil, notBefore, bad("claims are no object, or an empty one")
	}
	if r.cfg.Issuer != "" && c["iss"] != any(r.cfg.Issuer) {
		return nil, notBefore, bad("iss is not the issuer")
	}
	if len(r.cfg.Audience) > 0 && !r.forUs(c["aud"]) {
		return nil, notBefore, bad("aud names someone else")
	}
	leeway := time.Duration(r.cfg.Leeway)
	for _, name := range []string{"nbf", "iat"} {
		switch at, state := date(c, name); {
		case state == dateBad:
			return nil, notBefore, bad(name + " is not a date")
		case state == dateSet && now.Before(at.Add(-leeway)):
			return nil, notBefore, bad(name + " is in the future")
		case state == dateSet && at.Add(-leeway).After(notBefore):
			notBefore = at.Add(-leeway)
		}
	}
	if id, err = grants(c); err != nil {
		return nil, notBefore, err
	}
	id.token = tokenIDOf(c)
	id.keepClaims(c)
	id.purpose = purposeOf(c)
	switch exp, state := date(c, "exp"); {
	case state == dateBad:
		return nil, notBefore, bad("exp is not a date")
	case state == dateSet:
		id.Expires = exp.Add(leeway)
	case r.cfg.RequireExpiry.On():
		return nil, notBefore, bad("exp is missing")
	}
	if id.Expired(now) {
		return nil, notBefore, expired("at " + id.Expires.UTC().Format(time.RFC3339))
	}
	return id, notBefore, nil
}

// forUs reports whether aud, a string or a list of strings (RFC 7519 §4.1.3),
// names one of the configured audiences.
func (r *rules) forUs(aud any) bool {
	if s, ok := aud.(string); ok {
		return slices.Contains(r.cfg.Audience, s)
	}
	list, ok := stringList(aud)
	return ok && slices.ContainsFunc(list, func(s string) bool { return slices.Contains(r.cfg.Audience, s) })
}

// grants reads sub and the weir claim. A pattern that cannot be right refuses the
// token: an issuer's mistake is better reported than guessed at.
func grants(c jwt.MapClaims) (*Identity, error) {
	id := &Identity{By: ByToken}
	if v, ok := c["sub"]; ok {
		if id.Subject, ok = v.(string); !ok || !validSubject(id.Subject) {
			return nil, bad("sub is not a string, too long or has control characters")
		}
	}
	v, ok := c["weir"]
	if !ok {
		return id, nil
	}
	w, ok := v.(map[string]any)
	if !ok {
		return nil, bad("weir is not an object")
	}
	for name, into := range map[string]*Patterns{"subscribe": &id.subscribe, "publish": &id.publish} {
		v, ok := w[name]
		if !ok {
			continue
		}
		list, ok := stringList(v)
		if !ok {
			return nil, bad("weir." + name + " is not a list of strings")
		}
		var err error
		if *into, err = CompilePatterns(list); err != nil {
			return nil, bad("weir." + name + ": " + err.Error())
		}
	}
	return id, nil
}

func stringList(v any) ([]string, bool) {
	list, ok := v.([]any)
	if !ok {
		return nil, false
	}
	out := make([]string, len(list))
	for i, e := range list {
		if out[i], ok = e.(string); !ok {
			return nil, false
		}
	}
	return out, true
}

type dateState uint8

const (
	dateAbsent dateState = iota
	dateSet
	dateBad
)

// date reads a NumericDate (RFC 7519 §2): a number, not a string of one.
func date(c jwt.MapClaims, name string) (time.Time, dateState) {
	v, ok := c[name]
	if !ok {
		return time.Time{}, dateAbsent
	}
	f, ok := v.(float64)
	if !ok || f < 0 || f > maxDate {
		return time.Time{}, dateBad
	}
	return time.UnixMilli(int64(f * 1000)), dateSet
}

// validSubject keeps out what could forge a log line or a header.
func validSubject(s string) bool {
	return len(s) <= maxSubjectBytes && !strings.ContainsFunc(s, unicode.IsControl)
}
