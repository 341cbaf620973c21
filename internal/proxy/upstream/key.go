package upstream

import (
	"fmt"
	"net/netip"
	"strings"
)

// A KeyKind is where a key comes from.
type KeyKind uint8

// The kinds of KeySource.
const (
	KeyNone KeyKind = iota
	KeyHeader
	KeyCookie
	KeyPath
	KeyAddress
)

// A KeySource reports what of a request is hashed.
type KeySource struct {
	Kind KeyKind
	Name string // of the header or cookie
}

// Request is what routing rules and keys read of a request. Values are read during
// the call only; nil means absent. A pointer implements it, so that the call
// allocates nothing.
type Request interface {
	Header(name string) []byte // the first field of that name, in any case
	Cookie(name string) []byte
	Path() []byte
	Address() netip.Addr // the client's
}

// parseKeySource reads "header:X", "cookie:name", "path" and "address"; empty is
// KeyNone.
func parseKeySource(s string) (KeySource, error) {
	kind, name, named := strings.Cut(s, ":")
	k := KeySource{Name: name}
	switch kind {
	case "":
	case "header":
		k.Kind = KeyHeader
	case "cookie":
		k.Kind = KeyCookie
	case "path":
		k.Kind = KeyPath
	case "address":
		k.Kind = KeyAddress
	default:
		return KeySource{}, fmt.Errorf("%q is not a key; write header:X, cookie:name, path or address", s)
	}
	if wants := k.Kind == KeyHeader || k.Kind == KeyCookie; wants != named {
		if wants {
			return KeySource{}, fmt.Errorf("%q names no %s; write %s:name", s, kind, kind)
		}
		return KeySource{}, fmt.Errorf("%q: only header and cookie have a name", s)
	}
	if named && !isToken(name) {
		return KeySource{}, fmt.Errorf("%q is not a name of a %s", name, kind)
	}
	return k, nil
}

// isToken is RFC 9110 §5.6.2.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return s != ""
}

// Of returns the key of r; ok is false when r has none.
func (k KeySource) Of(r Request) (key uint64, ok bool) {
	var b []byte
	switch k.Kind {
	case KeyHeader:
		b = r.Header(k.Name)
	case KeyCookie:
		b = r.Cookie(k.Name)
	case KeyPath:
		b = r.Path()
	case KeyAddress:
		a := r.Address()
		if !a.IsValid() {
			return 0, false
		}
		ip := a.Unmap().As16()
		return HashBytes(ip[:]), true
	}
	if b == nil {
		return 0, false
	}
	return HashBytes(b), true
}

// HashBytes is the hash of keys: the same on every node and in every version. It is
// FNV-1a, whose high bits are weak for short keys, with the finish of MurmurHash3.
func HashBytes(b []byte) uint64 {
	h := uint64(fnvOffset)
	for _, c := range b {
		h = (h ^ uint64(c)) * fnvPrime
	}
	return mix(h)
}

// HashString is HashBytes of s.
func HashString(s string) uint64 {
	h := uint64(fnvOffset)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return mix(h)
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
	// golden is 2⁶⁴ divided by the golden ratio: multiples of it spread evenly.
	golden = 0x9e3779b97f4a7c15
)

// mix spreads every bit of h over all (the finaliser of MurmurHash3).
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// unit is h as a number in [0, 1).
func unit(h uint64) float64 { return float64(h>>11) / (1 << 53) }
