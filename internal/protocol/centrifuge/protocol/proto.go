package protocol

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
)

// The wire types of Protobuf that occur.
const (
	wireVarint = 0
	wireI64    = 1
	wireBytes  = 2
	wireI32    = 5
)

// A field is one field of a Protobuf message: a number, or bytes.
type field struct {
	num  int
	wire int
	n    uint64
	b    []byte
}

// nextField reads the first field of b and returns what follows.
func nextField(b []byte) (field, []byte, error) {
	tag, n := binary.Uvarint(b)
	if n <= 0 || tag>>3 == 0 || tag>>3 > math.MaxInt32>>2 {
		return field{}, nil, fmt.Errorf("%w: bad tag", ErrMalformed)
	}
	f := field{num: int(tag >> 3), wire: int(tag & 7)}
	b = b[n:]
	switch f.wire {
	case wireVarint:
		if f.n, n = binary.Uvarint(b); n <= 0 {
			return f, nil, fmt.Errorf("%w: bad number in field %d", ErrMalformed, f.num)
		}
		return f, b[n:], nil
	case wireBytes:
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return f, nil, fmt.Errorf("%w: field %d does not fit", ErrMalformed, f.num)
		}
		end := n + int(size)
		f.b = b[n:end:end]
		return f, b[end:], nil
	case wireI64, wireI32:
		size := 8
		if f.wire == wireI32 {
			size = 4
		}
		if len(b) < size {
			return f, nil, fmt.Errorf("%w: field %d does not fit", ErrMalformed, f.num)
		}
		return f, b[size:], nil
	}
	return f, nil, fmt.Errorf("%w: wire type %d", ErrMalformed, f.wire)
}

// each calls got for every field of b.
func each(b []byte, got func(f field) error) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		if err := got(f); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func (f *field) wrong() error {
	return fmt.Errorf("%w: wire type %d in field %d", ErrMalformed, f.wire, f.num)
}

// bytes takes the field's bytes; nil is kept for what is empty.
func (f *field) bytes(to *[]byte) error {
	if f.wire != wireBytes {
		return f.wrong()
	}
	*to = nil
	if len(f.b) > 0 {
		*to = f.b
	}
	return nil
}

func (f *field) str(to *string) error {
	if f.wire != wireBytes {
		return f.wrong()
	}
	if !utf8.Valid(f.b) {
		return fmt.Errorf("%w: field %d is not UTF-8", ErrMalformed, f.num)
	}
	*to = string(f.b)
	return nil
}

func (f *field) boolean(to *bool) error {
	if f.wire != wireVarint {
		return f.wrong()
	}
	*to = f.n != 0
	return nil
}

func (f *field) uint64(to *uint64) error {
	if f.wire != wireVarint {
		return f.wrong()
	}
	*to = f.n
	return nil
}

func (f *field) int64(to *int64) error {
	if f.wire != wireVarint {
		return f.wrong()
	}
	*to = int64(f.n)
	return nil
}

// int32 and uint32 take the low bits, as Protobuf has it.
func (f *field) int32(to *int32) error {
	if f.wire != wireVarint {
		return f.wrong()
	}
	*to = int32(f.n)
	return nil
}

func (f *field) uint32(to *uint32) error {
	if f.wire != wireVarint {
		return f.wrong()
	}
	*to = uint32(f.n)
	return nil
}

// message calls got for the fields of the field.
func (f *field) message(got func(field) error) error {
	if f.wire != wireBytes {
		return f.wrong()
	}
	return each(f.b, got)
}

// entry reads a map's entry: key in field 1, value in field 2.
func (f *field) entry(key *string, value func(field) error) error {
	return f.message(func(x field) error {
		switch x.num {
		case 1:
			return x.str(key)
		case 2:
			return value(x)
		}
		return nil
	})
}
