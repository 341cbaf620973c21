package policy

import (
	"fmt"
	"strings"
)

// A template is a text with places: parameters of a route's path, and in
// redirects path, query and host. The zero value is empty.
type template []piece

// A piece is a literal, or what is put in.
type piece struct {
	literal string
	param   int // >= 0: a parameter
	what    place
}

type place uint8

const (
	literalPlace place = iota
	paramPlace
	restPlace
	pathPlace
	queryPlace
	hostPlace
)

// parseTemplate compiles text. param finds a parameter by name. Places that start
// with "$" are for redirects.
func parseTemplate(text string, param func(string) int, redirect bool) (template, error) {
	var t template
	rest := text
	for rest != "" {
		i := strings.IndexAny(rest, "{$")
		if i < 0 {
			t = append(t, piece{literal: rest})
			break
		}
		if i > 0 {
			t = append(t, piece{literal: rest[:i]})
			rest = rest[i:]
		}
		p, n, err := parsePlace(rest, param, redirect)
		if err != nil {
			return nil, err
		}
		t = append(t, p)
		rest = rest[n:]
	}
	if redirect {
		return t, t.checkTarget(text)
	}
	if !strings.HasPrefix(text, "/") {
		return nil, fmt.Errorf("%q does not start with a slash", text)
	}
	return t, nil
}

func parsePlace(s string, param func(string) int, redirect bool) (p piece, n int, err error) {
	if s[0] == '$' {
		for name, what := range map[string]place{"$path": pathPlace, "$query": queryPlace, "$host": hostPlace} {
			if strings.HasPrefix(s, name) && redirect {
				return piece{what: what}, len(name), nil
			}
		}
		if redirect {
			return p, 0, fmt.Errorf("%q: there are $path, $query and $host", s)
		}
		return piece{literal: "$"}, 1, nil
	}
	end := strings.IndexByte(s, '}')
	if end < 0 {
		return p, 0, fmt.Errorf("%q has no closing brace", s)
	}
	name := s[1:end]
	if name == "*" {
		return piece{what: restPlace}, end + 1, nil
	}
	i := param(name)
	if i < 0 {
		return p, 0, fmt.Errorf("the route's path has no parameter {%s}", name)
	}
	return piece{what: paramPlace, param: i}, end + 1, nil
}

// checkTarget refuses a redirect whose authority a client could choose: what
// is between the scheme and the first slash is literal, or $host alone.
func (t template) checkTarget(text string) error {
	scheme, rest, absolute := strings.Cut(text, "://")
	switch {
	case !absolute && (strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "//") || strings.HasPrefix(text, "$path")):
		return nil
	case !absolute || scheme != "http" && scheme != "https":
		return fmt.Errorf("%q is neither a path nor an http or https URL", text)
	}
	rest = strings.TrimPrefix(rest, "$host")
	for i := range len(rest) {
		switch {
		case rest[i] == '/' || strings.HasPrefix(rest[i:], "$path"):
			return nil
		case rest[i] == '{' || rest[i] == '$' || rest[i] == '@':
			return fmt.Errorf("%q: a slash or $path must follow the host, or a client could choose where it ends", text)
		}
	}
	return nil
}

// expand appends the template filled in from x.
func (t template) expand(dst []byte, x *Exchange) []byte {
	for _, p := range t {
		switch p.what {
		case literalPlace:
			dst = append(dst, p.literal...)
		case paramPlace:
			dst = append(dst, x.params.Value(x.path, p.param)...)
		case restPlace:
			dst = append(dst, x.params.Rest(x.path)...)
		case pathPlace:
			dst = append(dst, x.path...)
		case queryPlace:
			if len(x.Query) > 0 {
				dst = append(dst, '?')
				dst = appendQuery(dst, x.Query)
			}
		case hostPlace:
			dst = appendHost(dst, hostName(x.Host))
		}
	}
	return dst
}

func (t template) has(what place) bool {
	for _, p := range t {
		if p.what == what {
			return true
		}
	}
	return false
}
