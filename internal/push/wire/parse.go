package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Body is the body of an API call. Data is a slice of the body: the
// payload as it was written, checked to be one JSON value. With IsText it is what the
// field "text" says.
type Body struct {
	Channel        string
	HasChannel     bool
	Channels       []string
	HasChannels    bool
	Data           []byte
	IsText         bool
	Key            string
	IdempotencyKey string
	// What goes into hub.Attributes.
	ID, Event string
	Private   bool
	Tags      map[string]string
}

// The fields, as bits of what has been seen.
const (
	seenChannel = 1 << iota
	seenChannels
	seenData
	seenKey
	seenIdempotencyKey
	seenText
	seenID
	seenEvent
	seenPrivate
	seenTags
)

const (
	// maxNesting bounds how deep arrays and objects of a payload may appear in
	// each other: anyone who reads them should not have to be careful.
	maxNesting = 512

	fieldsHint = "fields are channel (or channels), data (or text), key, idempotency_key, id, event, private and tags"
)

// ParseBody reads the one flat object of an API call (RFC 8259), once and from
// left to right. It is stricter than encoding/json where that would have to
// choose: a field twice, a field in other case, null for text. Only the payload
// may be of any form; it is checked and not decoded.
func ParseBody(body []byte) (*Body, *Error) {
	in := &Body{}
	if bad := in.parse(body); bad != nil {
		return nil, bad
	}
	return in, nil
}

// parse is ParseBody into in, which is empty.
func (in *Body) parse(body []byte) *Error {
	bad := func(msg string, hint string) *Error {
		return &Error{http.StatusBadRequest, msg, hint}
	}
	if !utf8.Valid(body) {
		return bad("the body is not UTF-8", "")
	}
	s := scanner{b: body}
	if msg := s.object(in); msg != "" {
		return bad("the body is not the expected JSON: "+msg, fieldsHint)
	}
	if s.space(); s.i < len(body) {
		return bad("something follows the JSON object", "")
	}
	if in.Data == nil {
		return bad(`"data" is missing`, `any JSON value will do, null included; or "text", a string`)
	}
	return nil
}

// A scanner walks over JSON text. Its methods return what is wrong in words, or "".
type scanner struct {
	b []byte
	i int
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// accept passes over white space and then c, if c is there.
func (s *scanner) accept(c byte) bool {
	s.space()
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

// bad reports where the text ceased to be what was wanted.
func (s *scanner) bad(want string) string {
	if s.i >= len(s.b) {
		return "it ends where " + want + " should be"
	}
	return fmt.Sprintf("byte %d is not %s", s.i, want)
}

func (s *scanner) object(in *Body) string {
	if !s.accept('{') {
		return s.bad("an object")
	}
	if s.accept('}') {
		return ""
	}
	seen := 0
	for {
		s.space()
		name, msg := s.name()
		if msg != "" {
			return msg
		}
		if !s.accept(':') {
			return s.bad("a colon")
		}
		s.space()
		if msg := s.field(in, name, &seen); msg != "" {
			return msg
		}
		switch {
		case s.accept(','):
		case s.accept('}'):
			return ""
		default:
			return s.bad("a comma or the end of the object")
		}
	}
}

// name reads a field's name. Without escapes it is a slice of the body.
func (s *scanner) name() (name []byte, msg string) {
	start := s.i
	escaped, msg := s.skipString("a field name")
	switch {
	case msg != "":
		return nil, msg
	case !escaped:
		return s.b[start+1 : s.i-1], ""
	}
	s.i = start
	t, msg := s.text("a field name")
	return []byte(t), msg
}

// field reads the value of the field called name.
func (s *scanner) field(in *Body, name []byte, seen *int) (msg string) {
	bit := 0
	switch string(name) {
	case "channel":
		bit, in.HasChannel = seenChannel, true
		in.Channel, msg = s.text("text")
	case "channels":
		bit, in.HasChannels = seenChannels, true
		in.Channels, msg = s.texts()
	case "data":
		bit = seenData
		start := s.i
		msg = s.value(0)
		in.Data = s.b[start:s.i:s.i]
	case "key":
		bit = seenKey
		in.Key, msg = s.text("text")
	case "idempotency_key":
		bit = seenIdempotencyKey
		in.IdempotencyKey, msg = s.text("text")
	default:
		bit, msg = s.attribute(in, name)
		if bit == 0 {
			return fmt.Sprintf("unknown field %q", Printable(string(name), 40))
		}
	}
	if msg == "" && *seen&bit != 0 {
		return fmt.Sprintf("duplicate field %q", name)
	}
	if *seen |= bit; msg == "" && *seen&(seenData|seenText) == seenData|seenText {
		return `"data" and "text" stand there both`
	}
	return msg
}

// attribute is field for those that few calls have; bit is 0 if there is none of that
// name.
func (s *scanner) attribute(in *Body, name []byte) (bit int, msg string) {
	switch string(name) {
	case "text":
		var t string
		bit = seenText
		t, msg = s.text("text")
		in.Data, in.IsText = []byte(t), true
	case "id":
		bit = seenID
		in.ID, msg = s.text("text")
	case "event":
		bit = seenEvent
		in.Event, msg = s.text("text")
	case "private":
		bit = seenPrivate
		in.Private, msg = s.flag()
	case "tags":
		bit = seenTags
		in.Tags, msg = s.pairs()
	}
	return bit, msg
}

// flag reads true or false.
func (s *scanner) flag() (bool, string) {
	for _, word := range [...]string{"true", "false"} {
		if bytes.HasPrefix(s.b[s.i:], []byte(word)) {
			s.i += len(word)
			return word == "true", ""
		}
	}
	return false, s.bad("true or false")
}

// pairs reads an object of strings.
func (s *scanner) pairs() (map[string]string, string) {
	if !s.accept('{') {
		return nil, s.bad("an object")
	}
	pairs := map[string]string{}
	if s.accept('}') {
		return pairs, ""
	}
	for {
		s.space()
		name, msg := s.text("a tag's name")
		if msg != "" {
			return nil, msg
		}
		if !s.accept(':') {
			return nil, s.bad("a colon")
		}
		s.space()
		value, msg := s.text("a tag's text")
		if msg != "" {
			return nil, msg
		}
		if _, twice := pairs[name]; twice {
			return nil, fmt.Sprintf("duplicate tag %q", Printable(name, 40))
		}
		if pairs[name] = value; len(pairs) > hub.MaxTags {
			return nil, fmt.Sprintf("there are more than %d tags", hub.MaxTags)
		}
		switch {
		case s.accept(','):
		case s.accept('}'):
			return pairs, ""
		default:
			return nil, s.bad("a comma or the end of the object")
		}
	}
}

// texts reads a list of strings. They share their memory: anyone who keeps one for long copies it.
func (s *scanner) texts() ([]string, string) {
	if !s.accept('[') {
		return nil, s.bad("a list")
	}
	if s.accept(']') {
		return nil, ""
	}
	start, rest := s.i, s.b[s.i:]
	if i := bytes.IndexByte(rest, ']'); i >= 0 {
		rest = rest[:i]
	}
	all := string(rest[:min(len(rest), maxShared)])
	list := make([]string, 0, min(bytes.Count(rest, []byte(","))+1, MaxBroadcast+1))
	for {
		s.space()
		from := s.i
		escaped, msg := s.skipString("text")
		if msg != "" {
			return nil, msg
		}
		t := ""
		if to := s.i - 1 - start; !escaped && to <= len(all) {
			t = all[from+1-start : to]
		} else {
			s.i = from
			if t, msg = s.text("text"); msg != "" {
				return nil, msg
			}
		}
		if len(list) > MaxBroadcast { // one too many is enough to refuse it
			list = list[:MaxBroadcast]
		}
		list = append(list, t)
		switch {
		case s.accept(','):
		case s.accept(']'):
			return list, ""
		default:
			return nil, s.bad("a comma or the end of the list")
		}
	}
}

// maxShared bounds what the strings of a list share, in bytes.
const maxShared = 64 << 10

// text reads a string and decodes it.
func (s *scanner) text(want string) (string, string) {
	start := s.i
	escaped, msg := s.skipString(want)
	if msg != "" {
		return "", msg
	}
	if !escaped {
		return string(s.b[start+1 : s.i-1]), ""
	}
	var t string
	if err := json.Unmarshal(s.b[start:s.i], &t); err != nil {
		return "", "a string is not JSON"
	}
	return t, ""
}

// skipString passes over a string and reports whether it has escapes.
func (s *scanner) skipString(want string) (escaped bool, msg string) {
	if s.i >= len(s.b) || s.b[s.i] != '"' {
		return false, s.bad(want)
	}
	for i := s.i + 1; i < len(s.b); i++ {
		switch c := s.b[i]; {
		case c == '"':
			s.i = i + 1
			return escaped, ""
		case c < ' ':
			s.i = i
			return false, s.bad("part of a string")
		case c == '\\':
			escaped = true
			n := escape(s.b[i+1:])
			if n == 0 {
				s.i = i
				return false, s.bad("an escape")
			}
			i += n
		}
	}
	s.i = len(s.b)
	return false, s.bad("the end of a string")
}

// escape returns the length of the escape that b starts with, its backslash not
// counted, or 0.
func escape(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch b[0] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 1
	case 'u':
		if len(b) < 5 {
			return 0
		}
		for _, c := range b[1:5] {
			if l := c | 0x20; (c < '0' || c > '9') && (l < 'a' || l > 'f') {
				return 0
			}
		}
		return 5
	}
	return 0
}

// value passes over any value; depth is its nesting.
func (s *scanner) value(depth int) string {
	if s.i >= len(s.b) {
		return s.bad("a value")
	}
	switch c := s.b[s.i]; {
	case c == '"':
		_, msg := s.skipString("a string")
		return msg
	case c == '{' || c == '[':
		if depth >= maxNesting {
			return fmt.Sprintf("it is nested deeper than %d", maxNesting)
		}
		return s.composite(c, depth+1)
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if bytes.HasPrefix(s.b[s.i:], []byte(word)) {
			s.i += len(word)
			return ""
		}
	}
	return s.bad("a value")
}

// composite passes over an object or an array.
func (s *scanner) composite(open byte, depth int) string {
	end := open + 2 // ']' and '}' in ASCII
	s.i++
	if s.accept(end) {
		return ""
	}
	for {
		s.space()
		if open == '{' {
			if _, msg := s.skipString("a field name"); msg != "" {
				return msg
			}
			if !s.accept(':') {
				return s.bad("a colon")
			}
			s.space()
		}
		if msg := s.value(depth); msg != "" {
			return msg
		}
		switch {
		case s.accept(','):
		case s.accept(end):
			return ""
		default:
			return s.bad("a comma or " + string(rune(end)))
		}
	}
}

// number passes over -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?.
func (s *scanner) number() string {
	if s.b[s.i] == '-' {
		s.i++
	}
	if s.i < len(s.b) && s.b[s.i] == '0' {
		s.i++
	} else if !s.digits() {
		return s.bad("a digit")
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			return s.bad("a digit")
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !s.digits() {
			return s.bad("a digit")
		}
	}
	return ""
}

// digits passes over one or more digits.
func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > start
}
