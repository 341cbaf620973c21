package redact

import (
	"strings"
)

// Text returns s, which may be anything, with the secrets in it replaced that can be
// recognised: user information in URLs, values in queries and in data source names,
// JSON Web Tokens, the credentials of an Authorization field, JSON strings under names of
// secrets. Text without any is returned as it is.
func Text(s string) string {
	if !mayHold(s) {
		return s
	}
	s = userInfo(s)
	s = dataSource(s)
	s = pairs(s)
	s = members(s)
	s = schemes(s)
	if at := strings.Index(s, invalidPort); at >= 0 { // package net/url quotes a part of a password
		at += len(invalidPort)
		s = s[:at] + Mark + s[at+strings.IndexByte(s[at:]+`"`, '"'):]
	}
	for {
		start, end := JWT(s)
		if end == 0 {
			return s
		}
		s = s[:start] + Mark + s[end:]
	}
}

// Args returns the arguments of a command line without secrets: those in Text, and what
// follows a flag with the name of a secret.
func Args(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = Text(a)
		if i > 0 && strings.HasPrefix(args[i-1], "-") && !strings.Contains(args[i-1], "=") && !strings.HasPrefix(a, "-") && Name(args[i-1]) {
			out[i] = Mark
		}
	}
	return out
}

const invalidPort = `invalid port "`

// mayHold reports whether s has any byte that a secret is recognised by.
func mayHold[S ~string | ~[]byte](s S) bool {
	for i := range len(s) {
		switch s[i] {
		case '@', '=', '%':
			return true
		case ':':
			if i > 0 && s[i-1] == '"' || i+1 < len(s) && (s[i+1] == '"' || s[i+1] == ' ' && i+2 < len(s) && s[i+2] == '"') {
				return true
			}
		case ' ':
			if i > 4 && (s[i-1]|0x20 == 'r' || s[i-1]|0x20 == 'c') {
				return true
			}
		case '.':
			if i > 2 {
				return true
			}
		}
	}
	return false
}

// endOfToken returns the index in s of the first byte at or after i that ends a word of a
// text: white space, a quote or an angle bracket.
func endOfToken(s string, i int) int {
	if n := strings.IndexAny(s[i:], " \t\r\n\"'`<>"); n >= 0 {
		return i + n
	}
	return len(s)
}

// userInfo replaces the user information of the URLs in s. A user's name stays if there is
// a password besides: alone it may be a token.
func userInfo(s string) string {
	var b strings.Builder
	for {
		i := strings.Index(s, "://")
		if i < 0 {
			break
		}
		start := i + len("://")
		end := endOfToken(s, start)
		at := userInfoEnd(s[start:end])
		b.WriteString(s[:start])
		if at >= 0 {
			if user, _, ok := strings.Cut(s[start:start+at], ":"); ok && user != "" {
				b.WriteString(user + ":")
			}
			b.WriteString(Mark)
			start += at
		}
		s = s[start:]
	}
	if b.Len() == 0 {
		return s
	}
	b.WriteString(s)
	return b.String()
}

// userInfoEnd returns the index of the "@" that ends the user information of a URL without
// its scheme, or -1. A password with a slash makes the URL invalid, and is a secret still.
func userInfoEnd(s string) int {
	authority := s
	if n := strings.IndexAny(s, "/?#"); n >= 0 {
		authority = s[:n]
	}
	// A list of servers may follow in the same word.
	if n := strings.Index(authority, ","); n >= 0 && strings.Contains(authority[:n], "@") {
		authority = authority[:n]
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		return at
	}
	if _, port, ok := strings.Cut(authority, ":"); ok && strings.Trim(port, "0123456789") != "" {
		if n := strings.Index(s, "://"); n >= 0 {
			s = s[:n]
		}
		return strings.LastIndexByte(s, '@')
	}
	return -1
}

// dataSource replaces the password of a data source name such as user:password@tcp(host)/db.
func dataSource(s string) string {
	for at := strings.Index(s, "@"); at >= 0; {
		if next := strings.IndexByte(s[at+1:], '('); next > 0 && strings.Trim(s[at+1:at+1+next], "abcdefghijklmnopqrstuvwxyz0123456789") == "" {
			start := strings.LastIndexAny(s[:at], " \t\r\n\"'`<>=") + 1
			if colon := strings.IndexByte(s[start:at], ':'); colon >= 0 && !strings.Contains(s[start:at], "://") {
				s = s[:start+colon+1] + Mark + s[at:]
				at = start + colon + 1 + len(Mark)
			}
		}
		n := strings.Index(s[at+1:], "@")
		if n < 0 {
			break
		}
		at += 1 + n
	}
	return s
}

// pairs replaces the values of name=value under names of secrets: in queries, and in data
// source names ("host=db password=x").
func pairs(s string) string {
	var b strings.Builder
	for {
		eq := strings.IndexByte(s, '=')
		if eq < 0 {
			break
		}
		start := eq
		for start > 0 && nameByte(s[start-1]) {
			start--
		}
		inQuery := start > 0 && (s[start-1] == '?' || s[start-1] == '&')
		b.WriteString(s[:eq+1])
		secret := Name(s[start:eq])
		if inQuery {
			secret = secretParameter([]byte(decoded(s[start:eq])), nil)
		}
		s = s[eq+1:]
		if end := endOfValue(s); secret && end > 0 && !strings.HasPrefix(s, Mark) {
			b.WriteString(Mark)
			s = s[end:]
		}
	}
	if b.Len() == 0 {
		return s
	}
	b.WriteString(s)
	return b.String()
}

func decoded(name string) string {
	if d, ok := unescape([]byte(name)); ok {
		return string(d)
	}
	return name
}

func nameByte(c byte) bool { return base64url(c) || c == '.' || c == '%' || c == '[' || c == ']' }

// endOfValue returns how long the value at the start of s is: quoted, or up to what
// separates it from the next.
func endOfValue(s string) int {
	if s == "" {
		return 0
	}
	if q := s[0]; q == '"' || q == '\'' {
		for i := 1; i < len(s); i++ {
			switch s[i] {
			case '\\':
				i++
			case q:
				return i + 1
			}
		}
		return len(s)
	}
	if n := strings.IndexAny(s, "& \t\r\n\"'`<>;,)"); n >= 0 {
		return n
	}
	return len(s)
}

// members replaces the strings of "name":"value" in JSON under names of secrets, and those
// of YAML's quoted ones.
func members(s string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, ':')
		if i < 0 {
			break
		}
		end := i
		if end > 0 && s[end-1] == '"' {
			end--
			if end > 0 && s[end-1] == '\\' {
				end-- // JSON within JSON
			}
		}
		start := end
		for start > 0 && nameByte(s[start-1]) {
			start--
		}
		b.WriteString(s[:i+1])
		secret := Name(s[start:end])
		s = s[i+1:]
		n := 0
		for n < len(s) && s[n] == ' ' {
			n++
		}
		if !secret || n == len(s) || s[n] != '"' && !strings.HasPrefix(s[n:], `\"`) || end == i && s[n] != '"' {
			continue
		}
		b.WriteString(s[:n])
		s = s[n:]
		if s[0] == '\\' {
			b.WriteString(`\"` + Mark)
			if to := strings.Index(s[2:], `\"`); to >= 0 {
				s = s[2+to:]
			} else {
				s = ""
			}
			continue
		}
		b.WriteString(`"` + Mark + `"`)
		s = s[endOfValue(s):]
	}
	if b.Len() == 0 {
		return s
	}
	b.WriteString(s)
	return b.String()
}

// minCredentials is the least length of what is treated as credentials behind the name of a
// scheme: shorter words are text.
const minCredentials = 8

// schemes replaces what follows Bearer, Basic and ApiKey.
func schemes(s string) string {
	for _, scheme := range []string{"bearer ", "basic ", "apikey "} {
		for from := 0; ; {
			i := indexFold(s[from:], scheme)
			if i < 0 {
				break
			}
			start := from + i + len(scheme)
			end := start
			for end < len(s) && (base64url(s[end]) || strings.IndexByte(".~+/=", s[end]) >= 0) {
				end++
			}
			if end-start >= minCredentials && !word(s[start:end]) {
				s = s[:start] + Mark + s[end:]
			}
			from = start
		}
	}
	return s
}

// word reports whether t is a plain word in lower case, as in "a bearer authentication".
func word(t string) bool { return strings.Trim(t, "abcdefghijklmnopqrstuvwxyz.") == "" }

// indexFold is strings.Index without regard to the case of ASCII letters. sub is in lower case.
func indexFold(s, sub string) int {
	for i := 0; i+len(sub) <= len(s); i++ {
		if strings.EqualFold(s[i:i+len(sub)], sub) {
			return i
		}
	}
	return -1
}
