package hub

import "testing"

// TestOnceKeepsItsRoom has an encoder that leaves the front of what it is given unused, as
// one does that writes a header right before its payload.
func TestOnceKeepsItsRoom(t *testing.T) {
	h := &Hub{encoders: []Encoder{func(dst []byte, m *Message) []byte { return append(append(dst, "......"...), m.Data...)[6:] }}}
	scratch := make([]byte, 0, 64)
	at := &scratch
	b := &Batch{hub: h, Messages: []*Message{{Data: []byte("hello")}}, scratch: at}
	if n := testing.AllocsPerRun(1000, func() {
		if w, ok := b.Once(0); !ok || string(w) != "hello" {
			t.Fatalf("%q, %v", w, ok)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if cap(*at) != 64 {
		t.Errorf("room for %d bytes is left of 64", cap(*at))
	}
	b.Messages[0].Data = make([]byte, 1000)
	if w, _ := b.Once(0); len(w) != 1000 || cap(*at) < 1000 {
		t.Errorf("%d bytes, and room for %d", len(w), cap(*at))
	}
}
