package presence

import (
	"encoding/binary"
	"errors"

	"github.com/weir-gateway/weir/internal/push/hub"
)

const (
	topic = "presence"

	// maxFrame keeps a message well under what the bus carries.
	maxFrame = 256 << 10

	version = 1
)

// The messages that nodes send each other.
const (
	msgDelta byte = iota + 1 // what changed: number, then ops
	msgAt                    // nothing changed since: number of the last delta
	msgWant                  // send me your whole: id of the wish
	msgWhole                 // part of it: number of the last delta, id of the wish, part, last part?, ops
)

// What ops do. Each says how something is, not how it changed: doing one twice does
// no harm.
const (
	opSet byte = iota + 1
	opDelete
	opCount
)

type op struct {
	code    byte
	channel string
	Member
	kind Kind
	n    int
}

// A header starts every message.
type header struct {
	kind byte
	seq  uint64 // msgDelta, msgAt, msgWhole
	sync uint64 // msgWant, msgWhole
	part uint64 // msgWhole
	last bool   // msgWhole
}

var errMalformed = errors.New("malformed message")

func appendHeader(b []byte, h header) []byte {
	b = append(b, version, h.kind)
	b = binary.AppendUvarint(b, h.seq)
	b = binary.AppendUvarint(b, h.sync)
	b = binary.AppendUvarint(b, h.part)
	if h.last {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendOp(b []byte, o *op) []byte {
	b = append(b, o.code)
	b = appendString(b, o.channel)
	switch o.code {
	case opSet:
		b = appendString(b, o.Client)
		b = appendString(b, o.User)
		b = appendString(b, string(o.Info))
		b = appendString(b, string(o.ChanInfo))
	case opDelete:
		b = appendString(b, o.Client)
	case opCount:
		b = append(b, byte(o.kind))
		b = binary.AppendUvarint(b, uint64(max(o.n, 0)))
	}
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// A reader takes a message apart. After an error everything is zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) string() string {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

// bytes returns nil for none.
func (r *reader) bytes() []byte {
	if s := r.string(); s != "" {
		return []byte(s)
	}
	return nil
}

func parseHeader(data []byte) (h header, rest []byte, err error) {
	r := reader{b: data}
	if r.byte() != version {
		return h, nil, errMalformed
	}
	h.kind, h.seq, h.sync, h.part = r.byte(), r.uvarint(), r.uvarint(), r.uvarint()
	last := r.byte()
	h.last = last == 1
	if r.bad || h.kind < msgDelta || h.kind > msgWhole || last > 1 {
		return header{}, nil, errMalformed
	}
	return h, r.b, nil
}

// parseOps calls each for the ops of a message, up to what makes no sense.
func parseOps(data []byte, each func(*op)) error {
	r := reader{b: data}
	for len(r.b) > 0 {
		o := op{code: r.byte(), channel: r.string()}
		switch o.code {
		case opSet:
			o.Client, o.User, o.Info, o.ChanInfo = r.string(), r.string(), r.bytes(), r.bytes()
		case opDelete:
			o.Client = r.string()
		case opCount:
			o.kind = Kind(r.byte())
			n := r.uvarint()
			o.n = int(n)
			if o.kind >= Kinds || n > 1<<40 {
				return errMalformed
			}
		default:
			return errMalformed
		}
		if r.bad || len(o.channel) > hub.MaxChannelName {
			return errMalformed
		}
		each(&o)
	}
	return nil
}
