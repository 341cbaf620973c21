package http1

import (
	"bytes"
	"iter"
)

// A Pair is one name and value of a query string or form.
type Pair struct{ Name, Value []byte }

var errQueryEscape = &Error{400, "bad percent-encoding in the query"}

// Query hands out the decoded pairs of a query string or an
// application/x-www-form-urlencoded body in order (WHATWG URL §5.1): "&"
// separates, "+" is a space, a name without "=" has an empty value, empty
// pieces are passed over. A bad escape ends it with an *Error of status 400,
// where a browser would take the "%" as it is: what a client meant to subscribe
// to is not guessed.
//
// Names and values without escapes point into query, others are allocated.
func Query(query []byte) iter.Seq2[Pair, error] {
	return func(yield func(Pair, error) bool) {
		for rest := query; len(rest) > 0; {
			var name, value []byte
			name, value, rest = cutPair(rest)
			if name == nil {
				continue
			}
			n, ok1 := unescape(name)
			v, ok2 := unescape(value)
			if !ok1 || !ok2 {
				yield(Pair{}, errQueryEscape)
				return
			}
			if !yield(Pair{n, v}, nil) {
				return
			}
		}
	}
}

// QueryValue returns the decoded value of the first pair called name. It
// allocates only if name or value is escaped. A pair with a bad escape is not
// there; a caller that must distinguish that from absence uses Query.
func QueryValue(query []byte, name string) (value []byte, ok bool) {
	for len(query) > 0 {
		var n, v []byte
		n, v, query = cutPair(query)
		if n == nil {
			continue
		}
		if string(n) != name {
			// Escaping never makes a name shorter.
			if len(n) < len(name) {
				continue
			}
			if n, ok = unescape(n); !ok || string(n) != name {
				continue
			}
		}
		if v, ok = unescape(v); ok {
			return v, true
		}
	}
	return nil, false
}

// cutPair cuts the first pair, still escaped, off a query. The name is nil for
// an empty piece and only then; the value is never nil otherwise.
func cutPair(query []byte) (name, value, rest []byte) {
	pair := query
	if i := bytes.IndexByte(query, '&'); i >= 0 {
		pair, rest = query[:i:i], query[i+1:]
	}
	if len(pair) == 0 {
		return nil, nil, rest
	}
	if i := bytes.IndexByte(pair, '='); i >= 0 {
		return pair[:i:i], pair[i+1:], rest
	}
	return pair, pair[len(pair):], rest
}

// unescape decodes b, which it returns itself when there is nothing to decode.
func unescape(b []byte) (decoded []byte, ok bool) {
	i := 0
	for i < len(b) && b[i] != '%' && b[i] != '+' {
		i++
	}
	if i == len(b) {
		return b, true
	}
	decoded = append(make([]byte, 0, len(b)), b[:i]...)
	for ; i < len(b); i++ {
		switch c := b[i]; c {
		case '+':
			decoded = append(decoded, ' ')
		case '%':
			if len(b)-i < 3 || class[b[i+1]]&isHex == 0 || class[b[i+2]]&isHex == 0 {
				return nil, false
			}
			decoded = append(decoded, hexDigit(b[i+1])<<4|hexDigit(b[i+2]))
			i += 2
		default:
			decoded = append(decoded, c)
		}
	}
	return decoded, true
}

// hexDigit returns the value of a byte of class isHex.
func hexDigit(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return lower[c] - 'a' + 10
}
