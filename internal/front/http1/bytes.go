package http1

import (
	"encoding/binary"
	"math/bits"
)

// Byte classes. A byte may be in several.
const (
	isToken  = 1 << iota // tchar, RFC 9110 §5.6.2
	isTarget             // allowed in a request target: VCHAR but "#"
	isHost               // allowed in a host name, see validHost
	isDigit
	isHex
	isValue // allowed in a field value: VCHAR, obs-text, SP, HTAB, RFC 9110 §5.5
)

// class holds the classes of each byte.
var class = classes()

func classes() (t [256]uint8) {
	mark := func(set string, c uint8) {
		for i := range len(set) {
			t[set[i]] |= c
		}
	}
	const digits = "0123456789"
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	mark(digits, isToken|isHost|isDigit|isHex)
	mark("abcdefABCDEF", isHex)
	mark(letters, isToken|isHost)
	mark("!#$%&'*+-.^_`|~", isToken)
	mark("-._~", isHost)
	for c := 0x21; c < 0x7f; c++ {
		t[c] |= isTarget
	}
	t['#'] &^= isTarget
	for c := 0x20; c < 0x100; c++ {
		t[c] |= isValue
	}
	t['\t'] |= isValue
	t[0x7f] &^= isValue
	return t
}

// lower maps A-Z to a-z and every other byte to itself.
var lower = lowers()

func lowers() (t [256]byte) {
	for i := range t {
		t[i] = byte(i)
	}
	for c := 'A'; c <= 'Z'; c++ {
		t[c] = byte(c) + 'a' - 'A'
	}
	return t
}

// EqualFold reports whether b and s are equal but for ASCII case, which is how
// field names and most of HTTP's tokens are compared.
func EqualFold[S ~string | ~[]byte](b []byte, s S) bool {
	if len(b) != len(s) {
		return false
	}
	for i := range len(b) {
		if lower[b[i]] != lower[s[i]] {
			return false
		}
	}
	return true
}

// HasToken reports whether the comma-separated list has token as an element,
// compared without case: HasToken("keep-alive, Upgrade", "upgrade").
func HasToken(list []byte, token string) bool {
	for len(list) > 0 {
		var e []byte
		e, list = nextElement(list)
		if EqualFold(e, token) {
			return true
		}
	}
	return false
}

// nextElement cuts the first element, trimmed, off a comma-separated list.
func nextElement(list []byte) (e, rest []byte) {
	for i, c := range list {
		if c == ',' {
			return trimSpace(list[:i]), list[i+1:]
		}
	}
	return trimSpace(list), nil
}

// trimSpace removes SP and HTAB from both ends (OWS, RFC 9110 §5.6.3).
func trimSpace(b []byte) []byte {
	for len(b) > 0 && isSpace(b[0]) {
		b = b[1:]
	}
	for len(b) > 0 && isSpace(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' }

// tokens reports whether b is one or more token bytes.
func tokens[S ~string | ~[]byte](b S) bool {
	for i := range len(b) {
		if class[b[i]]&isToken == 0 {
			return false
		}
	}
	return len(b) > 0
}

// valueEnd returns the index of the first byte in b[i:] that may not appear in a
// field value, or len(b). It looks at eight bytes at a time: a byte below 0x20
// borrows when 0x20 is taken from it, and 0x7f becomes the only zero byte.
func valueEnd(b []byte, i int) int {
	const (
		ones = 0x0101010101010101
		high = 0x8080808080808080
	)
	for len(b)-i >= 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		y := x ^ ones*0x7f
		m := ((x-ones*0x20)&^x | (y-ones)&^y) & high
		if m == 0 {
			i += 8
			continue
		}
		// The lowest mark is exact; a borrow only disturbs marks above it.
		i += bits.TrailingZeros64(m) / 8
		if b[i] != '\t' {
			return i
		}
		i++
	}
	for i < len(b) && class[b[i]]&isValue != 0 {
		i++
	}
	return i
}
