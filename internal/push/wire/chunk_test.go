package wire

import (
	"bytes"
	"io"
	"net/http/httputil"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// In chunks a format's messages are what they are without, whatever they are appended to.
func TestEveryFormatInChunks(t *testing.T) {
	f, err := NewFormats([]hub.Namespace{{Name: "default", Compress: true, CompressMinBytes: 100}})
	if err != nil {
		t.Fatal(err)
	}
	f.Add(func(dst []byte, m *hub.Message) []byte { return append(dst, m.Data...) })
	list := f.Encoders()
	for whole := range int(builtinFormats) + 1 {
		w := hub.Format(whole)
		c := InChunks(w)
		if IsChunked(w) || !IsChunked(c) || CodingOf(c) != CodingOf(w) {
			t.Errorf("format %d: in chunks %d, codings %v and %v", w, c, CodingOf(w), CodingOf(c))
		}
		for _, size := range []int{0, 1, 15, 16, 200, 255, 4095, 4096, 70_000} {
			m := &hub.Message{Channel: "news", Epoch: "e", Offset: 7, Data: bytes.Repeat([]byte("1"), size)}
			var want []byte
			var got []byte
			for range 3 {
				want = append(want, list[w](nil, m)...)
				got = list[c](got, m)
			}
			body, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(append(bytes.Clone(got), "0\r\n\r\n"...))))
			if err != nil || !bytes.Equal(body, want) {
				t.Fatalf("format %d, %d bytes: %q, %v instead of %q", w, size, body, err, want)
			}
			if alone := list[c](nil, m); len(alone) > 0 && !bytes.HasPrefix(got, alone) {
				t.Errorf("format %d, %d bytes: alone it is %q", w, size, alone)
			}
		}
	}
}

func BenchmarkSSEFrameInChunks(b *testing.B) {
	m := &hub.Message{Channel: "orders:42", Epoch: "wOlPYPEM", Offset: 123456, Time: 1700000000000, Data: bytes.Repeat([]byte("1"), 128)}
	for _, enc := range []struct {
		name string
		enc  hub.Encoder
	}{{"whole", appendSSE}, {"chunk", inChunks(appendSSE)}} {
		b.Run(enc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				enc.enc(nil, m)
			}
		})
	}
}
