package upstream

import "net/netip"

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

// A KeySource says what of a request is hashed.
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

// Of returns the key of r; ok is false when r has none.
func (k KeySource) Of(r Request) (key uint64, ok bool) { return 0, false }

// HashBytes is the hash of keys: the same on every node and in every version.
func HashBytes(b []byte) uint64 { return 0 }

// HashString is HashBytes of s.
func HashString(s string) uint64 { return 0 }
