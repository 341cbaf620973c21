// Package fossiltest reads deltas of the Fossil format, as clients do. It shares nothing with what
// writes them. Only tests import it.
package fossiltest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// errDelta is returned, wrapped in what is wrong, by Apply.
var errDelta = errors.New("bad delta")

// Apply returns the target that delta makes out of source, at most maxLength bytes.
func Apply(source, delta []byte, maxLength int) ([]byte, error) {
	r := reader{b: delta}
	size, err := r.number('\n')
	if err != nil {
		return nil, err
	}
	if size > uint64(max(maxLength, 0)) {
		return nil, fmt.Errorf("%w: a target of %d bytes, at most %d", errDelta, size, maxLength)
	}
	var out []byte
	for {
		n, op, err := r.next()
		if err != nil {
			return nil, err
		}
		switch op {
		case ';':
			if uint64(len(out)) != size || n != uint64(checksum(out)) {
				return nil, fmt.Errorf("%w: the target is not what it should be", errDelta)
			}
			return out, nil
		case ',', '\n':
			return nil, fmt.Errorf("%w: byte %q", errDelta, op)
		}
		if n > size-uint64(len(out)) {
			return nil, fmt.Errorf("%w: more than %d bytes", errDelta, size)
		}
		from := r.b
		if op == '@' {
			at, err := r.number(',')
			if err != nil {
				return nil, err
			}
			if at > uint64(len(source)) {
				return nil, fmt.Errorf("%w: a copy from %d of %d bytes", errDelta, at, len(source))
			}
			from = source[at:]
		}
		if n > uint64(len(from)) {
			return nil, fmt.Errorf("%w: %d bytes of %d", errDelta, n, len(from))
		}
		out = append(out, from[:n]...)
		if op == ':' {
			r.b = r.b[n:]
		}
	}
}

type reader struct{ b []byte }

// next reads a number and the operator after it.
func (r *reader) next() (uint64, byte, error) {
	var v uint64
	for i, c := range r.b {
		d := digitValue(c)
		if d < 0 {
			if i == 0 || c != '@' && c != ':' && c != ';' && c != ',' && c != '\n' {
				return 0, 0, fmt.Errorf("%w: byte %q", errDelta, c)
			}
			r.b = r.b[i+1:]
			return v, c, nil
		}
		if v = v<<6 | uint64(d); v > math.MaxUint32 {
			return 0, 0, fmt.Errorf("%w: a number past 32 bits", errDelta)
		}
	}
	return 0, 0, fmt.Errorf("%w: it has no end", errDelta)
}

// number reads a number that ends with end.
func (r *reader) number(end byte) (uint64, error) {
	v, op, err := r.next()
	if err == nil && op != end {
		err = fmt.Errorf("%w: %q in place of %q", errDelta, op, end)
	}
	return v, err
}

func digitValue(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'Z':
		return int(c-'A') + 10
	case c == '_':
		return 36
	case c >= 'a' && c <= 'z':
		return int(c-'a') + 37
	case c == '~':
		return 63
	}
	return -1
}

// checksum adds up the bytes as words of 32 bits, the highest byte first; what is
// missing of the last word is zero.
func checksum(b []byte) uint32 {
	var sum uint32
	for ; len(b) >= 4; b = b[4:] {
		sum += binary.BigEndian.Uint32(b)
	}
	for i, c := range b {
		sum += uint32(c) << (24 - 8*i)
	}
	return sum
}
