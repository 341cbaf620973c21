package login

import (
	"slices"
	"strings"
)

// A Role is what a caller of the admin listener may do.
type Role int

// The roles: None nothing, Reader reads numbers, Operator everything.
const (
	None Role = iota
	Reader
	Operator
)

// String returns the role's name in logs.
func (r Role) String() string {
	return [...]string{"none", "reader", "operator"}[r]
}

// roleOf returns the role that claims give, and whether they have the claim, or it does
// not matter: "*" in a list is every user.
func (c *Config) roleOf(claims map[string]any) (role Role, has bool) {
	values, has := lookup(claims, c.RolesClaim)
	if c.RolesClaim == "email" && !verified(claims["email_verified"]) {
		values = nil
	}
	named := func(s string) bool { return s != "*" }
	has = has || !slices.ContainsFunc(c.Operators, named) && !slices.ContainsFunc(c.Readers, named)
	matches := func(list []string) bool {
		return slices.Contains(list, "*") || slices.ContainsFunc(list, func(s string) bool { return slices.Contains(values, s) })
	}
	switch {
	case matches(c.Operators):
		return Operator, has
	case matches(c.Readers):
		return Reader, has
	}
	return None, has
}

// lookup returns the texts of the claim at path. A claim whose own name has dots, such as
// https://example.com/groups, comes before the path that the dots describe.
func lookup(claims map[string]any, path string) (values []string, has bool) {
	v, has := claims[path]
	if !has {
		head, rest, dotted := strings.Cut(path, ".")
		inner, ok := claims[head].(map[string]any)
		if !dotted || !ok {
			return nil, false
		}
		return lookup(inner, rest)
	}
	switch v := v.(type) {
	case string:
		values = []string{v}
	case []any:
		for _, e := range v {
			if s, ok := e.(string); ok {
				values = append(values, s)
			}
		}
	}
	return slices.DeleteFunc(values, func(s string) bool { return s == "" }), true
}

// verified reports whether email_verified is true; some providers send it as a text.
func verified(v any) bool { return v == true || v == "true" }

// nameOf is how the user is called in logs: never empty if there is a subject.
func nameOf(claims map[string]any) string {
	for _, k := range []string{"preferred_username", "email", "name", "sub"} {
		if s, ok := claims[k].(string); ok && s != "" {
			return s[:min(len(s), 128)]
		}
	}
	return ""
}
