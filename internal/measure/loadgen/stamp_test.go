package loadgen

import (
	"bytes"
	"encoding/json"
	"testing"
)

var sample = stamp{run: 0xdeadbeef, publisher: 17, channel: 0x123456, seq: 987654321, intended: 1700000000123456789, late: 42}

func TestStampIsFoundInAnything(t *testing.T) {
	p := newPayload(200)
	sample.put(p)
	quoted, err := json.Marshal(string(p))
	if err != nil || len(quoted) != len(p)+2 {
		t.Fatalf("a payload needs no quoting in JSON: %s, %v", quoted, err)
	}
	f := func(name string, b []byte) {
		t.Helper()
		if s, _, ok := nextStamp(b); !ok || s != sample {
			t.Errorf("%s: %+v, %v", name, s, ok)
		}
	}
	f("bare", p)
	f("in an envelope", append([]byte(`{"channel":"a","data":`), quoted...))
	f("after what looks like one", append([]byte("wl1:wl1:00000000.wl1:"), p...))
	f("shortest", p[:stampLen])
	if _, _, ok := nextStamp(p[:stampLen-1]); ok {
		t.Error("a stamp that is cut off was taken")
	}
	two := append(bytes.Clone(p), p...)
	_, rest, _ := nextStamp(two)
	if s, _, ok := nextStamp(rest); !ok || s != sample {
		t.Error("the second stamp of a message was not found")
	}
}

func TestStampWithABadDigitIsNone(t *testing.T) {
	p := make([]byte, stampLen)
	sample.put(p)
	for i := range p {
		for _, c := range []byte{'G', '/', ':', '`', 'g', 0, 0xff, 'A'} {
			b := bytes.Clone(p)
			if b[i] == c {
				continue
			}
			b[i] = c
			if _, _, ok := nextStamp(b); ok {
				t.Errorf("%q was taken", b)
			}
		}
	}
}

func FuzzStamp(f *testing.F) {
	p := make([]byte, stampLen)
	sample.put(p)
	f.Add(p, uint8(0))
	f.Add(append([]byte("data: xx"), p...), uint8(3))
	f.Add([]byte("wl1:wl1:wl1:----"), uint8(9))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		s, rest, ok := nextStamp(b)
		if !ok {
			return
		}
		out := make([]byte, stampLen)
		s.put(out)
		at := len(b) - len(rest) - stampLen
		if !bytes.Equal(out, b[at:at+stampLen]) {
			t.Fatalf("%q was read as %+v, which is written %q", b, s, out)
		}
		// What precedes a stamp does not hide it, unless it makes another.
		prefix := bytes.Repeat([]byte{'w'}, int(cut))
		if again, _, ok := nextStamp(append(prefix, b...)); !ok || again != s {
			t.Fatalf("with %d bytes before it: %+v", cut, again)
		}
	})
}
