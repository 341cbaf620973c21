package protocol

import "testing"

func BenchmarkPublication(b *testing.B) {
	p := &Publication{Data: []byte(`{"bid":1.08,"ask":1.09,"time":1700000000000}`), Offset: 12345}
	for _, e := range []Encoding{JSON, Protobuf} {
		b.Run(e.String(), func(b *testing.B) {
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				dst = AppendPush(dst[:0], e, false, "quotes:EURUSD", p)
			}
		})
	}
}

func BenchmarkSubscribeCommand(b *testing.B) {
	c := &Command{ID: 5, Kind: Subscribe, Sub: SubscribeRequest{Channel: "quotes:EURUSD", Recover: true, Epoch: "xcf3", Offset: 12345, Flag: 1}}
	for _, e := range []Encoding{JSON, Protobuf} {
		b.Run(e.String(), func(b *testing.B) {
			b.ReportAllocs()
			text := AppendCommand(nil, e, c)
			var got Command
			for b.Loop() {
				if _, err := Next(text, e, &got); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDelta(b *testing.B) {
	var before, after []byte
	for i := range 100 {
		before = append(before, `{"id":1,"price":10.5},`...)
		after = append(after, `{"id":1,"price":10.`...)
		after = append(after, "56789"[i/20], '}', ',')
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(after)))
	var dst []byte
	for b.Loop() {
		dst = AppendDelta(dst[:0], before, after)
	}
}
