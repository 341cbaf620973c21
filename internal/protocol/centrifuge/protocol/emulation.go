package protocol

import (
	"fmt"
	"unicode/utf8"
)

// An Emulation carries commands of a client whose transport goes one way only.
type Emulation struct {
	Node    string
	Session string
	// Data are the commands, in the encoding of the session.
	Data []byte
}

// ParseEmulation decodes the body of an emulation request. In JSON the commands are
// a string.
func ParseEmulation(b []byte, e Encoding) (*Emulation, error) {
	r := &Emulation{}
	if e == Protobuf {
		return r, each(b, func(f field) error {
			switch f.num {
			case 1:
				return f.str(&r.Node)
			case 2:
				return f.str(&r.Session)
			case 3:
				return f.bytes(&r.Data)
			}
			return nil
		})
	}
	s := scanner{jsonScanner{b: b}}
	err := s.object(func(name []byte) (err error) {
		switch string(name) {
		case "node":
			return s.str(&r.Node)
		case "session":
			return s.str(&r.Session)
		case "data":
			if s.peek() == '"' {
				r.Data, err = s.stringBytes()
				return err
			}
			return s.data(&r.Data) // an object as it is, from a lenient client
		}
		return s.skip()
	})
	switch s.peek(); {
	case err != nil:
		return nil, err
	case s.i != len(b):
		return nil, s.fail("more than one object")
	case !utf8.Valid(b):
		return nil, fmt.Errorf("%w: it is not UTF-8", ErrMalformed)
	}
	return r, nil
}

// AppendTo appends r as the body of a request.
func (r *Emulation) AppendTo(dst []byte, e Encoding) []byte {
	if e == Protobuf { // without its length
		return r.fields(writer{b: dst, e: e}).b
	}
	return appendObject(dst, e, r.fields)
}

func (r *Emulation) fields(w writer) writer {
	w = w.str("node", 1, r.Node).str("session", 2, r.Session)
	if len(r.Data) > 0 {
		w = w.text("data", 3, r.Data)
	}
	return w
}
