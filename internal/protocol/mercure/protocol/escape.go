package protocol

import "strings"

const upperHex = "0123456789ABCDEF"

// Escape encodes a variable of a path, as RFC 6570 §3.2.2 expands it: all but
// unreserved characters, once.
func Escape(s string) string {
	b := make([]byte, 0, len(s)+16)
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b = append(b, c)
		} else {
			b = AppendEscape(b, c)
		}
	}
	return string(b)
}

// AppendEscape appends %XX for c.
func AppendEscape(b []byte, c byte) []byte {
	return append(b, '%', upperHex[c>>4], upperHex[c&15])
}

// UnescapeLax decodes what is an escape and keeps the rest as it is.
func UnescapeLax(s string) string {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' {
			if v, ok := hexPair(s[i+1:]); ok {
				b = append(b, v)
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

// Unescape reads what Escape wrote, with "+" as itself.
func Unescape(s string) (string, bool) {
	if !strings.Contains(s, "%") {
		return s, true
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		v, ok := hexPair(s[i+1:])
		if !ok {
			return "", false
		}
		b = append(b, v)
		i += 2
	}
	return string(b), true
}
