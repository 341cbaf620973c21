package protocol

import (
	"encoding/binary"
	"strconv"

	"github.com/weir-gateway/weir/internal/protocol/jsontext"
)

// A writer writes the fields of a message in one of the encodings. A field has a name in JSON and a
// number in Protobuf; one that is zero is left out, but for those of the methods that say otherwise.
type writer struct {
	b    []byte
	e    Encoding
	some bool // of JSON: the object has a field
}

// appendObject appends a message: in Protobuf with its length in front.
func appendObject(dst []byte, e Encoding, fields func(writer) writer) []byte {
	return writer{b: dst, e: e}.object(fields).b
}

// object writes a message that is not a field.
func (w writer) object(fields func(writer) writer) writer {
	if w.e == JSON {
		w.b, w.some = append(w.b, '{'), false
		w = fields(w)
		w.b, w.some = append(w.b, '}'), true
		return w
	}
	at := len(w.b)
	w.b = append(w.b, 0) // most are short
	w = fields(w)
	size := len(w.b) - at - 1
	extra := varintSize(uint64(size)) - 1
	if extra > 0 {
		var pad [binary.MaxVarintLen64]byte
		w.b = append(w.b, pad[:extra]...)
		copy(w.b[at+1+extra:], w.b[at+1:at+1+size])
	}
	binary.PutUvarint(w.b[at:at+1+extra], uint64(size))
	return w
}

func varintSize(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}

// begin writes a field's name, which needs no escapes, or its tag.
func (w writer) begin(name string, num, wire int) writer {
	if w.e == Protobuf {
		w.b = binary.AppendUvarint(w.b, uint64(num)<<3|uint64(wire))
		return w
	}
	if w.some {
		w.b = append(w.b, ',')
	}
	w.some = true
	w.b = append(append(append(w.b, '"'), name...), '"', ':')
	return w
}

func (w writer) str(name string, num int, v string) writer {
	if v == "" {
		return w
	}
	return w.always(name, num, v)
}

// always is str that JSON has also if it is empty.
func (w writer) always(name string, num int, v string) writer {
	if w.e == Protobuf {
		if v == "" {
			return w
		}
		w = w.begin("", num, wireBytes)
		w.b = append(binary.AppendUvarint(w.b, uint64(len(v))), v...)
		return w
	}
	w = w.begin(name, 0, 0)
	w.b = jsontext.AppendString(w.b, v)
	return w
}

func (w writer) uint(name string, num int, v uint64) writer {
	if v == 0 {
		return w
	}
	return w.alwaysUint(name, num, v)
}

// alwaysUint is uint that JSON has also if it is 0.
func (w writer) alwaysUint(name string, num int, v uint64) writer {
	if w.e == JSON {
		w = w.begin(name, 0, 0)
		w.b = strconv.AppendUint(w.b, v, 10)
	} else if v != 0 {
		w = w.begin("", num, wireVarint)
		w.b = binary.AppendUvarint(w.b, v)
	}
	return w
}

func (w writer) int(name string, num int, v int64) writer {
	if v == 0 || w.e == Protobuf {
		return w.uint("", num, uint64(v))
	}
	w = w.begin(name, 0, 0)
	w.b = strconv.AppendInt(w.b, v, 10)
	return w
}

func (w writer) boolean(name string, num int, v bool) writer {
	if !v {
		return w
	}
	if w = w.begin(name, num, wireVarint); w.e == JSON {
		w.b = append(w.b, "true"...)
	} else {
		w.b = append(w.b, 1)
	}
	return w
}

// data writes bytes, which are JSON in JSON.
func (w writer) data(name string, num int, v []byte) writer {
	if len(v) == 0 {
		return w
	}
	if w = w.begin(name, num, wireBytes); w.e == JSON {
		w.b = AppendRaw(w.b, v)
	} else {
		w.b = append(binary.AppendUvarint(w.b, uint64(len(v))), v...)
	}
	return w
}

// text writes bytes, which are a string in JSON, there also if they are empty.
func (w writer) text(name string, num int, v []byte) writer {
	if w.e == Protobuf {
		return w.data("", num, v)
	}
	w = w.begin(name, 0, 0)
	w.b = jsontext.AppendString(w.b, v)
	return w
}

// message writes a field that is a message, also if it is empty.
func (w writer) message(name string, num int, fields func(writer) writer) writer {
	return w.begin(name, num, wireBytes).object(fields)
}

// entries writes a map, in the order of keys. value writes the value of key, as the field 2 in Protobuf, as
// the field called name in JSON.
func (w writer) entries(name string, num int, keys []string, value func(w writer, name, key string) writer) writer {
	if w.e == JSON {
		return w.message(name, num, func(w writer) writer {
			for _, k := range keys {
				quoted := string(jsontext.AppendString(nil, k))
				w = value(w, quoted[1:len(quoted)-1], k)
			}
			return w
		})
	}
	for _, k := range keys {
		w = w.message("", num, func(w writer) writer { return value(w.str("", 1, k), "", k) })
	}
	return w
}

// list writes a list of n elements, which JSON has also if it is empty. element writes one without a name;
// in Protobuf its tag is written before.
func (w writer) list(name string, num, n int, element func(w writer, i int) writer) writer {
	if w.e == JSON {
		w = w.begin(name, 0, 0)
		w.b = append(w.b, '[')
	}
	for i := range n {
		if w.e == Protobuf {
			w = w.begin("", num, wireBytes)
		} else if i > 0 {
			w.b = append(w.b, ',')
		}
		w = element(w, i)
	}
	if w.e == JSON {
		w.b, w.some = append(w.b, ']'), true
	}
	return w
}

// AppendRaw appends a JSON text without its line breaks, which can only be space
// and would end the line.
func AppendRaw(dst, text []byte) []byte {
	from := 0
	for i, c := range text {
		if c == '\n' || c == '\r' {
			dst = append(dst, text[from:i]...)
			from = i + 1
		}
	}
	return append(dst, text[from:]...)
}
