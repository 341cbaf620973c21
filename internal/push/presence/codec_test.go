package presence

import (
	"bytes"
	"reflect"
	"testing"
)

// FuzzParse holds the codec to: nothing panics, and what was read is written as it
// was meant.
func FuzzParse(f *testing.F) {
	ops := []op{
		{code: opSet, channel: "room", Member: Member{Client: "1", User: "u", Info: []byte("{}"), ChanInfo: []byte("x")}},
		{code: opDelete, channel: "room", Member: Member{Client: "1"}},
		{code: opCount, channel: "", kind: Pusher, n: 300},
	}
	for kind := msgDelta; kind <= msgWhole; kind++ {
		b := appendHeader(nil, header{kind: kind, seq: 1 << 40, sync: 7, part: 300, last: kind == msgWhole})
		f.Add(b)
		for i := range ops {
			b = appendOp(b, &ops[i])
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, rest, err := parseHeader(data)
		if err != nil {
			return
		}
		var got []op
		if parseOps(rest, func(o *op) { got = append(got, *o) }) != nil {
			return
		}
		again := appendHeader(nil, h)
		for i := range got {
			again = appendOp(again, &got[i])
		}
		h2, rest2, err := parseHeader(again)
		var got2 []op
		if err == nil {
			err = parseOps(rest2, func(o *op) { got2 = append(got2, *o) })
		}
		if err != nil || h2 != h || !reflect.DeepEqual(got, got2) {
			t.Fatalf("%x read as %+v %+v, written as %x, read as %+v %+v (%v)", data, h, got, again, h2, got2, err)
		}
		if len(again) <= len(data) && !bytes.HasPrefix(data, again[:2]) {
			t.Fatalf("%x written as %x", data, again)
		}
	})
}
