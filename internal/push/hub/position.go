package hub

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Position is a place in a namespace's log: everything up to and including
// Offset has been seen. The epoch changes when the log was lost, so that a new
// log never looks like the continuation of an old one. The check finds out where
// that went unnoticed; see Check.
type Position struct {
	Epoch  string
	Offset uint64
	Check  Check // 0 means that there is none
}

// ErrBadPosition is returned for a token that is not a position.
var ErrBadPosition = errors.New("bad position")

// IsZero reports whether p names no place at all.
func (p Position) IsZero() bool { return p.Epoch == "" && p.Offset == 0 }

// Same reports whether p and q name the same place, whatever proves it.
func (p Position) Same(q Position) bool { return p.Epoch == q.Epoch && p.Offset == q.Offset }

// String returns the wire token, "<epoch>-<offset>.<check>" or "<epoch>-<offset>".
func (p Position) String() string {
	var room [64]byte // more than one takes
	return string(p.AppendTo(room[:0]))
}

// AppendTo appends the wire token of p to dst.
func (p Position) AppendTo(dst []byte) []byte {
	dst = append(dst, p.Epoch...)
	dst = append(dst, '-')
	dst = strconv.AppendUint(dst, p.Offset, 10)
	if !p.Check.onWire() {
		return dst
	}
	return p.Check.appendTo(append(dst, '.'))
}

// maxEpoch bounds an epoch's length: brokers make short ones.
const maxEpoch = 32

// ParsePosition reads "<epoch>-<offset>.<check>", where "." and the check may be
// missing. The epoch is 1 to 32 bytes of A-Za-z0-9._, the offset a decimal without
// sign or leading zero, the check 6 bytes of 0-9A-Za-z, or 7 of which the first is 1.
func ParsePosition(s string) (Position, error) {
	epoch, rest, ok := strings.Cut(s, "-")
	if !ok || epoch == "" || len(epoch) > maxEpoch {
		return Position{}, fmt.Errorf("%w: %.40q: want <epoch>-<offset>.<check>", ErrBadPosition, s)
	}
	for j := range len(epoch) {
		if !epochByte(epoch[j]) {
			return Position{}, fmt.Errorf("%w: %.40q: byte %q in the epoch", ErrBadPosition, s, epoch[j])
		}
	}
	digits, check, checked := strings.Cut(rest, ".")
	if digits == "" || digits[0] == '+' || (digits[0] == '0' && len(digits) > 1) {
		return Position{}, fmt.Errorf("%w: %.40q: bad offset", ErrBadPosition, s)
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return Position{}, fmt.Errorf("%w: %.40q: bad offset", ErrBadPosition, s)
	}
	p := Position{Epoch: epoch, Offset: n}
	if checked {
		if p.Check, ok = parseCheck(check); !ok {
			return Position{}, fmt.Errorf("%w: %.40q: bad check", ErrBadPosition, s)
		}
	}
	return p, nil
}

func epochByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '_'
}

// Positions is the position of a stream over one or more namespaces, one position
// per namespace. The order does not matter: an epoch belongs to one log.
type Positions []Position

// AppendTo appends the wire token: the positions joined by "~".
func (ps Positions) AppendTo(dst []byte) []byte {
	for i, p := range ps {
		if i > 0 {
			dst = append(dst, '~')
		}
		dst = p.AppendTo(dst)
	}
	return dst
}

// MaxPositions bounds the positions in one token.
const MaxPositions = 16

// ParsePositions reads positions joined by "~".
func ParsePositions(s string) (Positions, error) {
	if strings.Count(s, "~") >= MaxPositions {
		return nil, fmt.Errorf("%w: more than %d positions", ErrBadPosition, MaxPositions)
	}
	var ps Positions
	for part := range strings.SplitSeq(s, "~") {
		p, err := ParsePosition(part)
		if err != nil {
			return nil, err
		}
		ps = append(ps, p)
	}
	return ps, nil
}
