package batch

import "bytes"

// maxDepth bounds how deep values may be nested.
const maxDepth = 256

// A scanner validates JSON (RFC 8259) and finds where values start and end. It stops at the
// first byte that may not be there: bad is set then, for good.
type scanner struct {
	b   []byte
	at  int
	bad bool
}

// space skips white space and returns the next byte, 0 at the end.
func (s *scanner) space() byte {
	for s.at < len(s.b) {
		switch c := s.b[s.at]; c {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

// expect skips white space and c, which has to be there.
func (s *scanner) expect(c byte) {
	if s.space() != c {
		s.bad = true
		return
	}
	s.at++
}

// end reports whether nothing but white space follows what was read, and all was valid.
func (s *scanner) end() bool { return s.space() == 0 && s.at == len(s.b) && !s.bad }

// value skips one value and returns its bytes.
func (s *scanner) value(depth int) []byte {
	c, from := s.space(), s.at
	switch {
	case s.bad || depth > maxDepth:
		s.bad = true
	case c == '{':
		s.object(func(key) { s.value(depth + 1) })
	case c == '[':
		s.array(func() { s.value(depth + 1) })
	case c == '"':
		s.text()
	case c == 't':
		s.word("true")
	case c == 'f':
		s.word("false")
	case c == 'n':
		s.word("null")
	default:
		s.number()
	}
	if s.bad {
		return nil
	}
	return s.b[from:s.at]
}

// A key is a member's name as it was written.
type key struct {
	name    []byte // between the quotes
	escaped bool
}

// object skips an object; f has to skip the value of each of its members.
func (s *scanner) object(f func(key)) {
	s.expect('{')
	if s.space() == '}' {
		s.at++
		return
	}
	for !s.bad {
		if s.space() != '"' {
			s.bad = true
			return
		}
		name, escaped := s.text()
		s.expect(':')
		if s.bad {
			return
		}
		f(key{name, escaped})
		if s.more('}') {
			continue
		}
		return
	}
}

// array skips an array; f has to skip each of its values.
func (s *scanner) array(f func()) {
	s.expect('[')
	if s.space() == ']' {
		s.at++
		return
	}
	for !s.bad {
		f()
		if !s.more(']') {
			return
		}
	}
}

// more skips a comma, and reports that, or last, behind which nothing follows.
func (s *scanner) more(last byte) bool {
	if s.bad {
		return false
	}
	switch s.space() {
	case ',':
		s.at++
		return true
	case last:
		s.at++
	default:
		s.bad = true
	}
	return false
}

func (s *scanner) word(w string) {
	if !bytes.HasPrefix(s.b[s.at:], []byte(w)) {
		s.bad = true
		return
	}
	s.at += len(w)
}

// text skips a string and returns what is between its quotes, and whether there are escapes.
func (s *scanner) text() (inner []byte, escaped bool) {
	s.at++
	from := s.at
	for s.at < len(s.b) {
		switch c := s.b[s.at]; {
		case c == '"':
			s.at++
			return s.b[from : s.at-1], escaped
		case c == '\\':
			escaped = true
			s.escape()
			if s.bad {
				return nil, escaped
			}
		case c < 0x20:
			s.bad = true
			return nil, escaped
		default:
			s.at++
		}
	}
	s.bad = true
	return nil, escaped
}

// escape skips one escape of a string.
func (s *scanner) escape() {
	s.at++
	if s.at >= len(s.b) {
		s.bad = true
		return
	}
	c := s.b[s.at]
	s.at++
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
	case 'u':
		for range 4 {
			if s.at >= len(s.b) || !hex(s.b[s.at]) {
				s.bad = true
				return
			}
			s.at++
		}
	default:
		s.bad = true
	}
}

func hex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

// number skips a number.
func (s *scanner) number() {
	if s.at < len(s.b) && s.b[s.at] == '-' {
		s.at++
	}
	if s.at < len(s.b) && s.b[s.at] == '0' {
		s.at++
	} else {
		s.digits()
	}
	if s.at < len(s.b) && s.b[s.at] == '.' {
		s.at++
		s.digits()
	}
	if s.at < len(s.b) && s.b[s.at]|0x20 == 'e' {
		s.at++
		if s.at < len(s.b) && (s.b[s.at] == '+' || s.b[s.at] == '-') {
			s.at++
		}
		s.digits()
	}
}

// digits skips one or more digits.
func (s *scanner) digits() {
	from := s.at
	for s.at < len(s.b) && '0' <= s.b[s.at] && s.b[s.at] <= '9' {
		s.at++
	}
	s.bad = s.bad || s.at == from
}

// natural returns a value that is an integer of at most limit, written in digits alone.
func natural(b []byte, limit int) (n int, ok bool) {
	if len(b) == 0 || len(b) > 9 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, n <= limit
}

// appendCompact appends valid JSON, or a piece of it that starts and ends outside of strings,
// without white space.
func appendCompact(dst, b []byte) []byte {
	inside := false
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch {
		case c == '\\' && inside:
			dst = append(dst, c)
			i++
			c = b[i]
		case c == '"':
			inside = !inside
		case !inside && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			continue
		}
		dst = append(dst, c)
	}
	return dst
}
