package auth

import (
	"slices"
	"strconv"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// A claim is a name and its values as text: one of a string, number or boolean,
// several of a list of strings.
type claim struct {
	name   string
	values []string
}

// reservedClaims are read elsewhere, or say nothing about who someone is.
var reservedClaims = []string{"sub", "exp", "nbf", "iat", "jti", "weir", "scope", "scp"}

// keepClaims takes from proved claims what a route may request: scopes from
// "scope" (a string of words, RFC 8693 §4.2) or "scp" (also a list), and every
// other claim that has a text form.
func (i *Identity) keepClaims(c jwt.MapClaims) {
	for _, name := range []string{"scope", "scp"} {
		for _, v := range claimValues(c[name]) {
			i.scopes = append(i.scopes, strings.Fields(v)...)
		}
	}
	for name, v := range c {
		if slices.Contains(reservedClaims, name) {
			continue
		}
		if values := claimValues(v); len(values) > 0 {
			i.claims = append(i.claims, claim{name, values})
		}
	}
}

func claimValues(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case bool:
		return []string{strconv.FormatBool(v)}
	case float64:
		return []string{strconv.FormatFloat(v, 'f', -1, 64)}
	}
	list, _ := stringList(v)
	return list
}

// Scopes returns the token's scopes. Not to be changed.
func (i *Identity) Scopes() []string { return i.scopes }

// HasScope reports whether the token has the scope.
func (i *Identity) HasScope(scope string) bool { return slices.Contains(i.scopes, scope) }

// HasClaim reports whether the token's claim called name is value or, as a list,
// contains it. Numbers and booleans compare as JSON writes them.
func (i *Identity) HasClaim(name, value string) bool {
	for _, c := range i.claims {
		if c.name == name {
			return slices.Contains(c.values, value)
		}
	}
	return false
}

// Claim returns the value of the token's claim called name, the first of a list;
// empty without one.
func (i *Identity) Claim(name string) string {
	for _, c := range i.claims {
		if c.name == name {
			return c.values[0]
		}
	}
	return ""
}
