// Package takeover moves a running server's sockets and state to a new process of the same
// program: the messages that both sides exchange over a Unix socket, the versioned form of
// a connection's state, and the start of the new process. It knows bytes and descriptors;
// what they mean is the affair of the packages that export and import them.
package takeover

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A State is what one thing that moves is made of: fields, each with a tag, a mark and a
// number or bytes. A reader skips the unmarked fields that it does not know, and
// refuses the marked ones: that is how two versions understand each other. Append only.
//
// On the wire a field is a uvarint of tag<<2 | mark<<1 | kind; then the number as a uvarint
// (kind 0), or a uvarint of the length and the bytes (kind 1).
type State []byte

const (
	kindBytes = 1 << 0
	marked    = 1 << 1
	tagShift  = 2
	// MaxTag bounds a field's tag.
	MaxTag = 1 << 16
)

// Uint appends a number. 0 is not written: it is what a missing field means.
func (s State) Uint(tag int, v uint64) State { return s.uint(uint64(tag)<<tagShift, v) }

// MustUint is Uint for a field without which the rest would be misunderstood.
func (s State) MustUint(tag int, v uint64) State { return s.uint(uint64(tag)<<tagShift|marked, v) }

func (s State) uint(key, v uint64) State {
	if v == 0 {
		return s
	}
	return binary.AppendUvarint(binary.AppendUvarint(s, key), v)
}

// Bytes appends bytes. None are not written.
func (s State) Bytes(tag int, b []byte) State {
	return appendBytes(s, uint64(tag)<<tagShift|kindBytes, b)
}

// MustBytes is Bytes for a field without which the rest would be misunderstood.
func (s State) MustBytes(tag int, b []byte) State {
	return appendBytes(s, uint64(tag)<<tagShift|marked|kindBytes, b)
}

// String is Bytes for text.
func (s State) String(tag int, v string) State {
	return appendBytes(s, uint64(tag)<<tagShift|kindBytes, v)
}

// MustString is MustBytes for text.
func (s State) MustString(tag int, v string) State {
	return appendBytes(s, uint64(tag)<<tagShift|marked|kindBytes, v)
}

func appendBytes[T []byte | string](s State, key uint64, b T) State {
	if len(b) == 0 {
		return s
	}
	s = binary.AppendUvarint(binary.AppendUvarint(s, key), uint64(len(b)))
	return append(s, b...)
}

// A Field is one of a State. Uint is 0 for bytes, and Bytes nil for a number; Bytes lie in the
// State.
type Field struct {
	Tag   int
	Uint  uint64
	Bytes []byte
}

// ErrState reports that a State is not one, or has a field that must be understood and is not.
var ErrState = errors.New("takeover: bad state")

// Read calls known with each field in order. known reports whether it knows the field; its
// error ends the reading.
func (s State) Read(known func(Field) (bool, error)) error {
	for rest := []byte(s); len(rest) > 0; {
		key, n := binary.Uvarint(rest)
		if n <= 0 || key>>tagShift > MaxTag {
			return fmt.Errorf("%w: a field's tag at byte %d", ErrState, len(s)-len(rest))
		}
		rest = rest[n:]
		f := Field{Tag: int(key >> tagShift)}
		v, n := binary.Uvarint(rest)
		if n <= 0 {
			return fmt.Errorf("%w: field %d is cut off", ErrState, f.Tag)
		}
		rest = rest[n:]
		if key&kindBytes == 0 {
			f.Uint = v
		} else {
			if v > uint64(len(rest)) {
				return fmt.Errorf("%w: field %d has %d bytes, and %d are there", ErrState, f.Tag, v, len(rest))
			}
			f.Bytes, rest = rest[:v:v], rest[v:]
		}
		ok, err := known(f)
		switch {
		case err != nil:
			return fmt.Errorf("%w: field %d: %w", ErrState, f.Tag, err)
		case !ok && key&marked != 0:
			return fmt.Errorf("%w: field %d is not known to this version", ErrState, f.Tag)
		}
	}
	return nil
}

// Into reads each field to the place of its tag: a pointer to a number, a bool (true for all but 0), a
// string or bytes, which lie in s; to a list of strings or bytes, to which it is appended; or a function of
// the Field. A field without a place is unknown.
func (s State) Into(places []any) error {
	return s.Read(func(f Field) (bool, error) {
		if f.Tag >= len(places) {
			return false, nil
		}
		switch p := places[f.Tag].(type) {
		case nil:
			return false, nil
		case *uint64:
			*p = f.Uint
		case *bool:
			*p = f.Uint != 0
		case *string:
			*p = string(f.Bytes)
		case *[]string:
			*p = append(*p, string(f.Bytes))
		case *[]byte:
			*p = f.Bytes
		case *State:
			*p = f.Bytes
		case func(Field) error:
			return true, p(f)
		default:
			panic("takeover: a place of another type")
		}
		return true, nil
	})
}

const (
	// MaxBody bounds the body of a frame in bytes.
	MaxBody = 8 << 20
	// MaxFiles bounds the descriptors of a frame: the kernel takes 253 in a message.
	MaxFiles = 250
)

// AppendRecord appends a record to the body of a Conns frame: one connection, or one with those that move
// with it, and as many descriptors as it says, which follow those of the records before it.
func AppendRecord(body []byte, files int, s State) []byte {
	body = binary.AppendUvarint(body, uint64(files))
	body = binary.AppendUvarint(body, uint64(len(s)))
	return append(body, s...)
}
