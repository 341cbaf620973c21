// Package protocol is the forms, selectors, claims and documents of the Mercure
// protocol. It is pure: bytes in, values out.
//
// There are two dialects. Draft 07 is what deployed clients speak (hubs of versions
// 0.x); draft 08, of version 1.0, is incompatible on purpose. One hub serves both:
// the request shows which it speaks.
package protocol

import (
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"
)

// A Dialect is a version of the protocol.
type Dialect uint8

// The dialects.
const (
	Draft07 Dialect = iota
	Draft08
)

// String names the draft.
func (d Dialect) String() string {
	if d == Draft08 {
		return "draft-08"
	}
	return "draft-07"
}

// An Error is a refusal: a status and the text for the client.
type Error struct {
	Status  int
	Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

func bad(format string, args ...any) *Error {
	return &Error{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// Bounds of what clients send.
const (
	// MaxTopics07 bounds the selectors of a subscription of draft 07.
	MaxTopics07 = 1000
	// MaxMatchers bounds those of draft 08.
	MaxMatchers = 100
	// MaxSelector bounds a selector, and a topic, in bytes.
	MaxSelector = 4096
	// MaxID bounds an update's id and its type in bytes.
	MaxID = 255
	// maxPairs bounds the fields of a form.
	maxPairs = 4096
)

// A Pair is a field of a form or query.
type Pair struct{ Name, Value string }

// ParseForm reads application/x-www-form-urlencoded, in order. A query is one too.
func ParseForm(s string) ([]Pair, *Error) {
	var out []Pair
	for part := range strings.SplitSeq(s, "&") {
		if part == "" {
			continue
		}
		if len(out) == maxPairs {
			return nil, bad("more than %d fields", maxPairs)
		}
		name, value, _ := strings.Cut(part, "=")
		n, ok1 := unescapeForm(name)
		v, ok2 := unescapeForm(value)
		if !ok1 || !ok2 {
			return nil, bad("%.60q has a percent sign without two hexadecimal digits", part)
		}
		out = append(out, Pair{n, v})
	}
	return out, nil
}

func unescapeForm(s string) (string, bool) {
	if !strings.ContainsAny(s, "%+") {
		return s, true
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '+':
			b = append(b, ' ')
		case '%':
			v, ok := hexPair(s[i+1:])
			if !ok {
				return "", false
			}
			b = append(b, v)
			i += 2
		default:
			b = append(b, c)
		}
	}
	return string(b), true
}

// hexPair reads the two hexadecimal digits that s starts with.
func hexPair(s string) (byte, bool) {
	if len(s) < 2 {
		return 0, false
	}
	h, ok1 := hexDigit(s[0])
	l, ok2 := hexDigit(s[1])
	return h<<4 | l, ok1 && ok2
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// isText reports whether s is UTF-8 without control characters.
func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, isControl)
}

func isControl(r rune) bool { return r < ' ' || (r >= 0x7f && r < 0xa0) }

// Get returns the first value of name.
func Get(pairs []Pair, name string) (value string, ok bool) {
	for _, p := range pairs {
		if p.Name == name {
			return p.Value, true
		}
	}
	return "", false
}

// Cookie returns the value of the cookie called name of a Cookie field, the first of
// several; "" without one.
func Cookie(field, name string) string {
	for part := range strings.SplitSeq(field, ";") {
		n, v, ok := strings.Cut(strings.Trim(part, " \t"), "=")
		if !ok || n != name {
			continue
		}
		if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
			v = v[1 : len(v)-1]
		}
		return v
	}
	return ""
}

// Bearer returns the token of an Authorization field. has reports whether the field
// is of that scheme at all.
func Bearer(field string) (token string, has bool) {
	const scheme = "bearer"
	if len(field) < len(scheme) || !strings.EqualFold(field[:len(scheme)], scheme) {
		return "", false
	}
	rest := field[len(scheme):]
	if rest != "" && rest[0] != ' ' {
		return "", false
	}
	return strings.Trim(rest, " "), true
}
