package wire

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
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

func TestFormsOfAMessage(t *testing.T) {
	f := func(enc hub.Encoder, m *hub.Message, want string) {
		t.Helper()
		m.Channel, m.Epoch, m.Offset, m.Time = "a", "e", 7, 12
		if got := string(enc(nil, m)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	data := []byte(`{"x":1}`)
	text := &hub.Attributes{Payload: hub.Text}
	binary := &hub.Attributes{Payload: hub.Binary}

	f(appendSSE, &hub.Message{Data: data}, "id: e-7\ndata: {\"x\":1}\n\n")
	f(appendSSE, &hub.Message{Data: []byte("one\r\ntwo\n"), Attributes: text}, "id: e-7\ndata: one\ndata: two\ndata: \n\n")
	f(appendSSE, &hub.Message{Data: []byte{0xff, 0, 1}, Attributes: binary}, "id: e-7\ndata: /wAB\n\n")
	f(appendSSE, &hub.Message{Data: data, Attributes: &hub.Attributes{ID: "own", Event: "tick", Retry: 5}}, "id: e-7\nevent: tick\ndata: {\"x\":1}\n\n")
	for _, ours := range []string{"gap", "end", "open", "error", "message", "a\nid: 0"} {
		f(appendSSE, &hub.Message{Data: data, Attributes: &hub.Attributes{Event: ours}}, "id: e-7\ndata: {\"x\":1}\n\n")
	}

	f(appendMercure, &hub.Message{Data: []byte("x")}, "id: e-7\ndata: x\n\n")
	f(appendMercure, &hub.Message{Data: []byte("x\ny"), Attributes: &hub.Attributes{ID: "urn:1", Event: "end", Retry: 5, Payload: hub.Text}},
		"event: end\nretry: 5\nid: urn:1\ndata: x\ndata: y\n\n")
	f(appendMercure, &hub.Message{Data: nil, Attributes: &hub.Attributes{ID: "urn:\n1", Event: "e\rvent", Payload: hub.Text}}, "id: e-7\ndata: \n\n")

	const begin = `{"channel":"a","id":"e-7","offset":7,"time":12`
	f(appendEnvelope, &hub.Message{Data: data}, begin+`,"data":{"x":1}}`)
	f(appendEnvelope, &hub.Message{}, begin+`,"data":null}`)
	f(appendEnvelope, &hub.Message{Attributes: text}, begin+`,"data":""}`)
	f(appendEnvelope, &hub.Message{Data: []byte("a \"b\"\né"), Attributes: text}, begin+`,"data":"a \"b\"\né"}`)
	f(appendEnvelope, &hub.Message{Data: []byte("a\xffb"), Attributes: text}, begin+`,"data":"a�b"}`)
	f(appendEnvelope, &hub.Message{Data: []byte{0xff, 0, 1}, Attributes: binary}, begin+`,"data":"/wAB"}`)
	f(appendEnvelope, &hub.Message{Key: "k", Data: data, Attributes: &hub.Attributes{ID: "i", Event: "e\n", Tags: map[string]string{"z": "1", "a": "\"", "m": ""}}},
		begin+`,"key":"k","message_id":"i","event":"e\n","tags":{"a":"\"","m":"","z":"1"},"data":{"x":1}}`)
}

func TestRowsOfFormats(t *testing.T) {
	for _, c := range []Coding{Plain, Gzip, Zstd} {
		for _, f := range []hub.Format{SSE, SSEEnvelope, SSEData, Mercure} {
			if got := c.In(f); CodingOf(got) != c || got >= Recorded || IsFrame(got) {
				t.Errorf("format %d in %v is %d, in %v", f, c, got, CodingOf(got))
			}
		}
	}
	f, err := NewFormats(nil)
	if err != nil {
		t.Fatal(err)
	}
	one := f.Add(func(dst []byte, _ *hub.Message) []byte { return append(dst, "one"...) })
	two := f.Add(func(dst []byte, _ *hub.Message) []byte { return append(dst, "two"...) })
	list := f.Encoders()
	if len(list) > hub.MaxFormats {
		t.Errorf("%d formats, the hub has room for %d", len(list), hub.MaxFormats)
	}
	for i, enc := range list {
		if enc == nil {
			t.Errorf("format %d has no encoder", i)
		}
	}
	if got := string(list[one](nil, nil)) + string(list[two](nil, nil)); got != "onetwo" || Gzip.In(two) != two || CodingOf(two) != Plain || IsFrame(two) {
		t.Errorf("the formats %d and %d that were added say %q", one, two, got)
	}
}

func BenchmarkEnvelopeFrame(b *testing.B) {
	m := &hub.Message{Channel: "orders:42", Epoch: "wOlPYPEM", Offset: 123456, Time: 1700000000000, Data: bytes.Repeat([]byte("1"), 128)}
	b.ReportAllocs()
	for b.Loop() {
		appendWS(nil, m)
	}
}
