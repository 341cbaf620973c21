package http1

import (
	"iter"
	"math"
)

// A Field is one field line. The slices point into the parsed input; the value
// is without the white space around it.
type Field struct{ Name, Value []byte }

// Fields are the field lines of a head.
type Fields []Field

// Get returns the value of the first field called name, without regard to case,
// or nil. A field that is present and empty gives an empty slice, not nil.
func (fields Fields) Get(name string) []byte {
	for i := range fields {
		if len(fields[i].Name) == len(name) && EqualFold(fields[i].Name, name) {
			return fields[i].Value
		}
	}
	return nil
}

// Count returns how many field lines are called name.
func (fields Fields) Count(name string) (n int) {
	for i := range fields {
		if len(fields[i].Name) == len(name) && EqualFold(fields[i].Name, name) {
			n++
		}
	}
	return n
}

// Values returns the values of all field lines called name, in order.
func (fields Fields) Values(name string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range fields {
			if len(fields[i].Name) == len(name) && EqualFold(fields[i].Name, name) && !yield(fields[i].Value) {
				return
			}
		}
	}
}

// cutField reads one field line at b[i:] and returns where the next one starts.
// A nil name with next > 0 is the empty line that ends the head. next == 0
// without an error means that b ends before the line does.
func cutField(b []byte, i int) (name, value []byte, next int, err *Error) {
	j := i
	for j < len(b) && class[b[j]]&isToken != 0 {
		j++
	}
	if j == len(b) {
		return nil, nil, 0, nil
	}
	if b[j] != ':' || j == i {
		next, err = endOfHead(b, i, j)
		return nil, nil, next, err
	}
	name = b[i:j:j]
	j++
	for j < len(b) && isSpace(b[j]) {
		j++
	}
	start := j
	j = valueEnd(b, j)
	next, err = lineEnd(b, j, errValueByte)
	if next == 0 {
		return nil, nil, 0, err
	}
	for j > start && isSpace(b[j-1]) {
		j--
	}
	return name, b[start:j:j], next, nil
}

// endOfHead checks a line whose name part b[i:j] is empty or not ended by a colon.
func endOfHead(b []byte, i, j int) (next int, err *Error) {
	c := b[j]
	switch {
	case j > i && isSpace(c):
		return 0, errNameSpace
	case j > i && (c == '\r' || c == '\n'):
		return 0, errNameColon
	case j > i:
		return 0, errNameByte
	case c == ':':
		return 0, errNameEmpty
	case isSpace(c):
		// Obsolete folding, or white space after the start line: RFC 9112 §2.2 and §5.2.
		return 0, errObsFold
	}
	return lineEnd(b, j, errNameByte)
}

// lineEnd returns the index after the CRLF at b[j:], 0 if b ends before, or why
// it is none: other is returned for any byte that is not a line end.
func lineEnd(b []byte, j int, other *Error) (next int, err *Error) {
	switch {
	case j >= len(b):
		return 0, nil
	case b[j] == '\n':
		return 0, errBareLF
	case b[j] != '\r':
		return 0, other
	case j+1 == len(b):
		return 0, nil
	case b[j+1] != '\n':
		return 0, errBareCR
	}
	return j + 2, nil
}

// Options that a Connection field may list.
const (
	optionClose = 1 << iota
	optionKeepAlive
	optionUpgrade
)

// connectionOptions returns the known options of one Connection field. Other
// options name fields for this hop only; they are the proxy's business.
func connectionOptions(list []byte) (options uint8) {
	for len(list) > 0 {
		var e []byte
		e, list = nextElement(list)
		switch len(e) {
		case len("close"):
			if EqualFold(e, "close") {
				options |= optionClose
			}
		case len("upgrade"):
			if EqualFold(e, "upgrade") {
				options |= optionUpgrade
			}
		case len("keep-alive"):
			if EqualFold(e, "keep-alive") {
				options |= optionKeepAlive
			}
		}
	}
	return options
}

// framing collects the fields that say how long a body is and what becomes of
// the connection. They mean the same in requests and responses.
type framing struct {
	length  int64 // -1: no Content-Length
	chunked bool
	options uint8 // of all Connection fields
	upgrade []byte
}

// readField looks whether a field is one of them. All their names differ in length.
func (f *framing) readField(name, value []byte, minor uint8) *Error {
	switch len(name) {
	case len("Upgrade"):
		if f.upgrade == nil && EqualFold(name, "upgrade") {
			f.upgrade = value
		}
	case len("Connection"):
		if EqualFold(name, "connection") {
			f.options |= connectionOptions(value)
		}
	case len("Content-Length"):
		if EqualFold(name, "content-length") {
			return f.contentLength(value)
		}
	case len("Transfer-Encoding"):
		if EqualFold(name, "transfer-encoding") {
			return f.transferEncoding(value, minor)
		}
	}
	return nil
}

// keepAlive reports whether the connection outlives the exchange (RFC 9112 §9.3).
func (f *framing) keepAlive(minor uint8) bool {
	if f.options&optionClose != 0 {
		return false
	}
	return minor > 0 || f.options&optionKeepAlive != 0
}

// upgraded returns the Upgrade field where it counts: HTTP/1.0 has none, and a
// connection option must announce it (RFC 9110 §7.8).
func (f *framing) upgraded(minor uint8) []byte {
	if minor == 0 || f.options&optionUpgrade == 0 {
		return nil
	}
	return f.upgrade
}

// contentLength takes a Content-Length of digits only, once, and alone. A list
// of equal values, which RFC 9110 §8.6 lets a recipient accept, is refused: it
// is a sign that two parsers have read the message before us.
func (f *framing) contentLength(v []byte) *Error {
	if f.length >= 0 {
		return errLengthTwice
	}
	if f.chunked {
		return errLengthAndTE
	}
	if len(v) == 0 || len(v) > 19 {
		return errLength
	}
	var n uint64
	for _, c := range v {
		if class[c]&isDigit == 0 {
			return errLength
		}
		n = n*10 + uint64(c-'0') // 19 digits do not overflow 64 bits
	}
	if n > math.MaxInt64 {
		return errLength
	}
	f.length = int64(n)
	return nil
}

// transferEncoding takes exactly "chunked" (RFC 9112 §6.1). A coding that we do
// not know before a final "chunked" is 501; everything else leaves the length
// of the body to guesswork and is 400 (§6.3).
func (f *framing) transferEncoding(v []byte, minor uint8) *Error {
	switch {
	case minor == 0:
		return errTEOldVersion
	case f.chunked:
		return errTETwice
	case f.length >= 0:
		return errLengthAndTE
	case EqualFold(v, "chunked"):
		f.chunked = true
		return nil
	}
	var last []byte
	for {
		if EqualFold(last, "chunked") {
			return errTE // chunked, and then something
		}
		last, v = nextElement(v)
		if !tokens(last) {
			return errTE
		}
		if v == nil {
			break
		}
	}
	if EqualFold(last, "chunked") {
		return errTEUnknown
	}
	return errTE
}
