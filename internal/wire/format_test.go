package wire

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/websocket"
)

func TestEnvelopeFrameEqualsTheCodecs(t *testing.T) {
	empty := len(appendEnvelope(nil, &hub.Message{Channel: "a", Epoch: "e", Offset: 7, Time: 1700000000000, Data: []byte(`""`)}))
	f := func(envelope int) {
		t.Helper()
		m := &hub.Message{Channel: "a", Epoch: "e", Offset: 7, Time: 1700000000000,
			Data: []byte(`"` + strings.Repeat("x", envelope-empty) + `"`)}
		env := appendEnvelope(nil, m)
		if len(env) != envelope {
			t.Fatalf("envelope of %d bytes, want %d", len(env), envelope)
		}
		want := websocket.AppendFrame(nil, websocket.OpText, env)
		if got := appendWS(nil, m); !bytes.Equal(got, want) {
			t.Errorf("%d bytes: frame alone differs", envelope)
		}
		before := []byte("the frame before")
		if got := appendWS(bytes.Clone(before), m); !bytes.Equal(got, append(before, want...)) {
			t.Errorf("%d bytes: frame after another differs", envelope)
		}
	}
	for _, n := range []int{empty, 125, 126, 127, 4096, 65535, 65536, 70000} {
		f(n)
	}
}

func BenchmarkEnvelopeFrame(b *testing.B) {
	m := &hub.Message{Channel: "orders:42", Epoch: "wOlPYPEM", Offset: 123456, Time: 1700000000000, Data: bytes.Repeat([]byte("1"), 128)}
	b.ReportAllocs()
	for b.Loop() {
		appendWS(nil, m)
	}
}
