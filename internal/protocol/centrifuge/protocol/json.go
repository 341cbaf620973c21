package protocol

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// jsonScanner reads JSON (RFC 8259) from left to right. Values that are passed on as
// they are, are checked in full: they end up in the frames of others.
type jsonScanner struct {
	b     []byte
	i     int
	depth int
}

// scanner reads what clients send.
type scanner struct{ jsonScanner }

// maxDepth bounds how deep values may nest.
const maxDepth = 128

func (s *jsonScanner) fail(format string, a ...any) error {
	return fmt.Errorf("%w: %s at byte %d", ErrMalformed, fmt.Sprintf(format, a...), s.i)
}

func (s *jsonScanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// peek returns the next byte that is not space, 0 at the end.
func (s *jsonScanner) peek() byte {
	s.space()
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// object reads an object and calls field for each name; field reads the value. A
// value that is null is as if it were not there.
func (s *jsonScanner) object(field func(name []byte) error) error {
	if s.peek() != '{' {
		return s.fail("want an object")
	}
	if s.depth++; s.depth > maxDepth {
		return s.fail("nested too deep")
	}
	s.i++
	if s.peek() == '}' {
		s.i++
		s.depth--
		return nil
	}
	for {
		if s.peek() != '"' {
			return s.fail("want a name")
		}
		name, err := s.stringBytes()
		if err != nil {
			return err
		}
		if s.peek() != ':' {
			return s.fail("want a colon")
		}
		s.i++
		if s.peek() == 'n' {
			err = s.skip()
		} else {
			err = field(name)
		}
		if err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.i++
		case '}':
			s.i++
			s.depth--
			return nil
		default:
			return s.fail("want a comma or a brace")
		}
	}
}

// array reads an array and calls element before each value, which it reads.
func (s *jsonScanner) array(element func() error) error {
	if s.peek() != '[' {
		return s.fail("want an array")
	}
	if s.depth++; s.depth > maxDepth {
		return s.fail("nested too deep")
	}
	s.i++
	if s.peek() == ']' {
		s.i++
		s.depth--
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.i++
		case ']':
			s.i++
			s.depth--
			return nil
		default:
			return s.fail("want a comma or a bracket")
		}
	}
}

// raw reads any value and returns its bytes.
func (s *jsonScanner) raw() ([]byte, error) {
	s.space()
	from := s.i
	err := s.skip()
	return s.b[from:s.i:s.i], err
}

// skip reads any value and forgets it.
func (s *jsonScanner) skip() error {
	switch c := s.peek(); {
	case c == '"':
		_, _, err := s.rawString()
		return err
	case c == '{':
		return s.object(func([]byte) error { return s.skip() })
	case c == '[':
		return s.array(s.skip)
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	default:
		return s.fail("want a value")
	}
}

func (s *jsonScanner) word(w string) error {
	if !bytes.HasPrefix(s.b[s.i:], []byte(w)) {
		return s.fail("want a value")
	}
	s.i += len(w)
	return nil
}

// number reads what RFC 8259 §6 allows.
func (s *jsonScanner) number() error {
	digits := func() bool {
		from := s.i
		for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
			s.i++
		}
		return s.i > from
	}
	at := func(set string) bool {
		return s.i < len(s.b) && bytes.IndexByte([]byte(set), s.b[s.i]) >= 0
	}
	if at("-") {
		s.i++
	}
	if at("0") {
		s.i++
	} else if !digits() {
		return s.fail("bad number")
	}
	if at(".") {
		if s.i++; !digits() {
			return s.fail("bad number")
		}
	}
	if at("eE") {
		if s.i++; at("+-") {
			s.i++
		}
		if !digits() {
			return s.fail("bad number")
		}
	}
	return nil
}

// rawString reads a string and returns what is between the quotes.
func (s *jsonScanner) rawString() (text []byte, escaped bool, err error) {
	s.i++ // the quote
	from := s.i
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return s.b[from : s.i-1], escaped, nil
		case c == '\\':
			escaped = true
			n, ok := escapeLength(s.b[s.i:])
			if !ok {
				return nil, false, s.fail("bad escape")
			}
			s.i += n
		case c < ' ':
			return nil, false, s.fail("control character in a string")
		default:
			s.i++
		}
	}
	return nil, false, s.fail("a string without an end")
}

// escapeLength returns how long the escape is that b starts with.
func escapeLength(b []byte) (int, bool) {
	if len(b) < 2 {
		return 0, false
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, true
	case 'u':
		_, ok := hex4(b[2:])
		return 6, ok
	}
	return 0, false
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		r <<= 4
		switch {
		case c >= '0' && c <= '9':
			r |= rune(c - '0')
		case c >= 'a' && c <= 'f':
			r |= rune(c-'a') + 10
		case c >= 'A' && c <= 'F':
			r |= rune(c-'A') + 10
		default:
			return 0, false
		}
	}
	return r, true
}

// stringBytes reads a string; without escapes it is a part of the input.
func (s *jsonScanner) stringBytes() ([]byte, error) {
	text, escaped, err := s.rawString()
	if err != nil || !escaped {
		return text, err
	}
	return unescape(text), nil
}

// unescape resolves the escapes of text, which rawString has checked. A surrogate
// without its other half becomes U+FFFD, as everywhere in Go.
func unescape(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		if text[i] != '\\' {
			out = append(out, text[i])
			i++
			continue
		}
		n := 2
		switch c := text[i+1]; c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			var r rune
			r, n = unescapeRune(text[i:])
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, c)
		}
		i += n
	}
	return out
}

// unescapeRune reads one \u escape, or a pair of surrogates.
func unescapeRune(b []byte) (rune, int) {
	r, _ := hex4(b[2:])
	switch {
	case r < 0xd800 || r > 0xdfff:
		return r, 6
	case r < 0xdc00 && len(b) >= 12 && b[6] == '\\' && b[7] == 'u':
		if low, _ := hex4(b[8:]); low >= 0xdc00 && low <= 0xdfff {
			return 0x10000 + (r-0xd800)<<10 + (low - 0xdc00), 12
		}
	}
	return utf8.RuneError, 6
}

// str reads a string as a copy.
func (s *jsonScanner) str(to *string) error {
	if s.peek() != '"' {
		return s.fail("want a string")
	}
	b, err := s.stringBytes()
	*to = string(b)
	return err
}

func (s *jsonScanner) boolean(to *bool) error {
	switch s.peek() {
	case 't':
		*to = true
		return s.word("true")
	case 'f':
		*to = false
		return s.word("false")
	}
	return s.fail("want true or false")
}

// digits reads an integer's text.
func (s *jsonScanner) digits() (string, error) {
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		return "", s.fail("want a number")
	}
	from := s.i
	err := s.number()
	return string(s.b[from:s.i]), err
}

func (s *jsonScanner) uint(to *uint64, bits int) error {
	text, err := s.digits()
	if err != nil {
		return err
	}
	if *to, err = strconv.ParseUint(text, 10, bits); err != nil {
		return s.fail("%.30q is no whole number of %d bits", text, bits)
	}
	return nil
}

func (s *jsonScanner) int(to *int64, bits int) error {
	text, err := s.digits()
	if err != nil {
		return err
	}
	if *to, err = strconv.ParseInt(text, 10, bits); err != nil {
		return s.fail("%.30q is no whole number of %d bits", text, bits)
	}
	return nil
}

func (s *jsonScanner) uint32(to *uint32) error {
	var v uint64
	err := s.uint(&v, 32)
	*to = uint32(v)
	return err
}

func (s *jsonScanner) int32(to *int32) error {
	var v int64
	err := s.int(&v, 32)
	*to = int32(v)
	return err
}

// stringMap reads an object of strings.
func (s *jsonScanner) stringMap(to *map[string]string) error {
	m := map[string]string{}
	*to = m
	return s.object(func(name []byte) error {
		var v string
		err := s.str(&v)
		m[string(name)] = v
		return err
	})
}

// Valid reports whether b is one JSON value in UTF-8 that may be embedded.
func Valid(b []byte) bool {
	s := scanner{jsonScanner{b: b}}
	if s.skip() != nil || s.peek() != 0 || s.i != len(b) {
		return false
	}
	return utf8.Valid(b)
}
