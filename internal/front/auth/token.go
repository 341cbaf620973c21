package auth

import "bytes"

// A TokenSource reports where a token came from.
type TokenSource uint8

// Where a token can come from.
const (
	NoToken    TokenSource = iota
	FromHeader             // Authorization: Bearer
	FromQuery              // ?token=
	// FromCookie: the browser added it by itself, whichever page asked. It counts
	// only if OriginAccess says OriginTrusted.
	FromCookie
)

// Token picks the token of a request. authorization and cookie are the values of
// these headers, query the decoded query parameter "token"; nil means absent. A
// request that repeats Authorization should have been refused before.
//
// What the client set on purpose wins: header, then query, then cookie. A
// "Bearer" without token is an empty token and not a reason to look further.
func (a *ruleSet) Token(authorization, cookie, query []byte) (string, TokenSource) {
	t, from := a.TokenBytes(authorization, cookie, query)
	return string(t), from
}

// TokenBytes is Token without a copy: what it returns is a part of what it was given.
func (a *ruleSet) TokenBytes(authorization, cookie, query []byte) ([]byte, TokenSource) {
	if t, ok := bearer(authorization); ok {
		return t, FromHeader
	}
	cfg := &a.rules.Load().cfg
	if len(query) > 0 && cfg.QueryToken.On() {
		return query, FromQuery
	}
	if t := cookieValue(cookie, cfg.Cookie); len(t) > 0 {
		return t, FromCookie
	}
	return nil, NoToken
}

// bearer returns the credentials of the Bearer scheme (RFC 6750 §2.1); the
// scheme's name has no case (RFC 9110 §11.1).
func bearer(authorization []byte) ([]byte, bool) {
	const scheme = "bearer"
	if len(authorization) < len(scheme) || !equalFold(authorization[:len(scheme)], []byte(scheme)) {
		return nil, false
	}
	rest := authorization[len(scheme):]
	if len(rest) > 0 && rest[0] != ' ' {
		return nil, false
	}
	return bytes.Trim(rest, " "), true
}

// cookieValue returns the first cookie called name (RFC 6265 §4.2.1; browsers
// send the more specific path first).
func cookieValue(header []byte, name string) []byte {
	for len(header) > 0 {
		var pair []byte
		pair, header, _ = bytes.Cut(header, []byte(";"))
		k, v, ok := bytes.Cut(bytes.Trim(pair, " \t"), []byte("="))
		if !ok || string(k) != name {
			continue
		}
		if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
			v = v[1 : len(v)-1]
		}
		return v
	}
	return nil
}

// validCookieName reports whether s is a token of RFC 9110 §5.6.2.
func validCookieName(s string) bool {
	return s != "" && all([]byte(s), func(c byte) bool {
		return isAlpha(c) || isDigit(c) || bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) >= 0
	})
}
