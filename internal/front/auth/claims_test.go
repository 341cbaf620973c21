package auth

import (
	"slices"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

func TestARouteCanAskForScopesAndClaims(t *testing.T) {
	id := &Identity{}
	id.keepClaims(jwt.MapClaims{
		"scope": "read write", "scp": []any{"admin", "a b"}, "sub": "me", "exp": 1e9, "org": "acme", "roles": []any{"ops", "dev"},
		"level": 3.0, "staff": true, "mixed": []any{"a", 1.0}, "nested": map[string]any{"a": "b"}, "none": nil, "empty": []any{},
	})
	if got := id.Scopes(); !slices.Equal(got, []string{"read", "write", "admin", "a", "b"}) {
		t.Errorf("scopes %q", got)
	}
	f := func(name, value string, want bool) {
		t.Helper()
		if got := id.HasClaim(name, value); got != want {
			t.Errorf("HasClaim(%q, %q) = %v", name, value, got)
		}
	}
	f("org", "acme", true)
	f("org", "acm", false)
	f("roles", "dev", true)
	f("roles", "root", false)
	f("level", "3", true)
	f("staff", "true", true)
	f("mixed", "a", false) // a list that is not of strings has no text form
	f("nested", "b", false)
	f("none", "", false)
	f("empty", "", false)
	f("exp", "1000000000", false)
	if id.Claim("roles") != "ops" || id.Claim("org") != "acme" || id.Claim("x") != "" {
		t.Errorf("Claim: %q %q %q", id.Claim("roles"), id.Claim("org"), id.Claim("x"))
	}
	if !id.HasScope("write") || id.HasScope("rea") || Anonymous.HasScope("read") {
		t.Error("HasScope")
	}
}
