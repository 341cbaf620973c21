package proxy

import (
	"bytes"
	"testing"

	"github.com/weir-gateway/weir/websocket"
)

// FuzzFrames cuts a WebSocket's stream at any places: the ends of its frames are found,
// whatever the cuts.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 5, 125}, []byte{1, 2, 3}, true)
	f.Add([]byte{126, 255, 200, 1}, []byte{255, 7}, false)
	f.Fuzz(func(t *testing.T, sizes, cuts []byte, masked bool) {
		var wire []byte
		ends := map[int]bool{}
		for i, n := range sizes[:min(len(sizes), 20)] {
			payload := bytes.Repeat([]byte{0x88}, int(n)*(1+i*100))
			if masked {
				wire = websocket.AppendMaskedFrame(wire, websocket.OpText, payload, [4]byte{1, 2, 3, 4})
			} else {
				wire = websocket.AppendFrame(wire, websocket.OpBinary, payload)
			}
			ends[len(wire)] = true
		}
		var whole, piece frames
		if n := whole.advance(wire, false); n != len(wire) || !whole.between() || whole.closing {
			t.Fatalf("%d of %d taken, between %v, closing %v", n, len(wire), whole.between(), whole.closing)
		}
		at := 0
		for i := 0; at < len(wire); i++ {
			n := len(wire) - at
			if len(cuts) > 0 {
				n = min(n, 1+int(cuts[i%len(cuts)])*7)
			}
			took := piece.advance(wire[at:at+n], true)
			at += took
			if took == 0 || piece.between() != ends[at] {
				t.Fatalf("at %d: took %d, between %v, want %v", at, took, piece.between(), ends[at])
			}
		}
		piece.advance(websocket.AppendFrame(nil, websocket.OpClose, nil), true)
		if !piece.closing {
			t.Error("a close frame was not seen")
		}
	})
}
