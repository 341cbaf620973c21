package redact

import (
	"bytes"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// AppendQuery appends a query, without its "?", in which the values of secrets are
// replaced. more are further names of secrets. A pair that cannot be decoded is left out as
// a whole: its name is not known.
func AppendQuery(dst, query []byte, more []string) []byte {
	for rest := query; rest != nil; {
		var pair []byte
		pair, rest, _ = bytes.Cut(rest, []byte("&")) // rest is nil behind the last
		dst = appendPair(dst, pair, more)
		if rest != nil {
			dst = append(dst, '&')
		}
	}
	return dst
}

func appendPair(dst, pair []byte, more []string) []byte {
	for p, err := range http1.Query(pair) {
		switch {
		case err != nil:
			return append(dst, Mark...)
		case secretValue(p.Name):
			return append(dst, Mark...) // a token where a name should be
		case secretParameter(p.Name, more), secretValue(p.Value):
			name, _, _ := bytes.Cut(pair, []byte("="))
			return append(append(append(dst, name...), '='), Mark...)
		}
	}
	return append(dst, pair...)
}

// maxDecoded bounds how often a name is decoded: a backend may decode once more.
const maxDecoded = 3

func secretParameter(name []byte, more []string) bool {
	for range maxDecoded {
		if Parameter(name) {
			return true
		}
		for _, s := range more {
			if http1.EqualFold(name, s) {
				return true
			}
		}
		next, ok := unescape(name)
		if !ok {
			return false
		}
		name = next
	}
	return false
}

// unescape decodes name once more. ok is false if there is nothing to decode.
func unescape(name []byte) (decoded []byte, ok bool) {
	if bytes.IndexByte(name, '%') < 0 {
		return nil, false
	}
	for p, err := range http1.Query(name) {
		if err != nil {
			return nil, false
		}
		return p.Name, true
	}
	return nil, false
}

// secretValue reports whether a value, decoded, is or holds a secret whatever its name.
func secretValue(v []byte) bool {
	for range maxDecoded {
		if !mayHold(v) {
			return false
		}
		if _, end := JWT(v); end > 0 {
			return true
		}
		if t := Text(string(v)); t != string(v) {
			return true
		}
		next, ok := unescape(v)
		if !ok {
			return false
		}
		v = next
	}
	return false
}

// AppendPath appends a path in which JSON Web Tokens are replaced.
func AppendPath(dst, path []byte) []byte {
	for {
		start, end := JWT(path)
		if end == 0 {
			return append(dst, path...)
		}
		dst = append(append(dst, path[:start]...), Mark...)
		path = path[end:]
	}
}
