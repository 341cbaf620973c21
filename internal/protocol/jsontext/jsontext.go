// Package jsontext appends JSON strings without allocating, for everything that writes JSON once per
// message or request. What encoding/json does as well is left to it.
package jsontext

import "unicode/utf8"

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string (RFC 8259 §7) and returns the longer slice. Control characters, the
// quotation mark and the reverse solidus are escaped, bytes that are not UTF-8 become U+FFFD, and everything
// else goes as it is: the text is for JSON readers, not for HTML. s is not kept.
func AppendString[S ~string | ~[]byte](dst []byte, s S) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c != 0x7f && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			if n := runeLen(s[i:]); n > 0 {
				i += n
				continue
			}
		}
		dst = append(dst, s[from:i]...)
		dst = appendEscape(dst, c)
		i++
		from = i
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

// appendEscape appends the escape of c: a character that JSON or a terminal cannot have as it is, or a
// byte that is not UTF-8.
func appendEscape(dst []byte, c byte) []byte {
	switch {
	case c == '"' || c == '\\':
		return append(dst, '\\', c)
	case c == '\n':
		return append(dst, '\\', 'n')
	case c == '\r':
		return append(dst, '\\', 'r')
	case c == '\t':
		return append(dst, '\\', 't')
	case c < utf8.RuneSelf:
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
	return append(dst, "\ufffd"...)
}

// runeLen returns the length of the character that s starts with, 0 if that is not UTF-8.
func runeLen[S ~string | ~[]byte](s S) int {
	var b [utf8.UTFMax]byte
	r, n := utf8.DecodeRune(b[:copy(b[:], s)])
	if r == utf8.RuneError && n <= 1 {
		return 0
	}
	return n
}
