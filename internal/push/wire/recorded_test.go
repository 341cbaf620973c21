package wire

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/sse"
)

func ptr[T any](v T) *T { return &v }

func TestRecordedBlockIsTheUpstreamsUnderOurID(t *testing.T) {
	f := func(r Record, want string) {
		t.Helper()
		m := &hub.Message{Channel: "llm:x", Data: AppendRecord(nil, &r), Epoch: "e", Offset: 7}
		if got := string(appendRecorded(nil, m)); got != want {
			t.Errorf("%s: got %q, want %q", m.Data, got, want)
		}
		if EndsRecording(m.Data) != (r.Mark != "") {
			t.Errorf("%s: EndsRecording is %v", m.Data, EndsRecording(m.Data))
		}
		if !json.Valid(appendEnvelope(nil, m)) {
			t.Errorf("%s: the envelope is not JSON", m.Data)
		}
	}
	f(Record{Data: ptr("hello")}, "id: e-7\ndata: hello\n\n")
	f(Record{Data: ptr("")}, "id: e-7\ndata: \n\n")
	f(Record{Event: "delta", Data: ptr("a\nb\n")}, "id: e-7\nevent: delta\ndata: a\ndata: b\ndata: \n\n")
	f(Record{ID: ptr("42"), Data: ptr("x")}, "id: e-7\nupstream-id: 42\ndata: x\n\n")
	f(Record{ID: ptr(""), Data: ptr("x")}, "id: e-7\nupstream-id: \ndata: x\n\n")
	f(Record{ID: ptr("a\nb"), Data: ptr("x")}, "id: e-7\ndata: x\n\n")
	f(Record{Retry: ptr(0)}, "id: e-7\nretry: 0\n\n")
	f(Record{Event: "<&>", Data: ptr("<&>\u2028\u00e4")}, "id: e-7\nevent: <&>\ndata: <&>\u2028\u00e4\n\n")
	f(Record{Mark: MarkEnd}, "id: e-7\n\n")
	f(Record{Mark: MarkBroken, Code: 502, Cause: "truncated", Reason: `it "broke"`},
		"id: e-7\nevent: error\ndata: "+`{"truncated":true,"code":502,"cause":"truncated","reason":"it \"broke\""}`+"\n\n")
}

func TestForeignMessageInARecordingIsStillAnEvent(t *testing.T) {
	f := func(data, want string) {
		t.Helper()
		if got := string(appendRecorded(nil, &hub.Message{Data: []byte(data), Epoch: "e", Offset: 1})); got != want {
			t.Errorf("%s: got %q, want %q", data, got, want)
		}
	}
	f("not json\nid: 9", "id: e-1\ndata: not json\ndata: id: 9\n\n")
	f(`[1]`, "id: e-1\ndata: [1]\n\n")
}

func FuzzRecordRoundTrip(f *testing.F) {
	f.Add("delta", "7", "line one\nline two", true)
	f.Add("", "", "", false)
	f.Add("a", "b\nc", "data: x\r\nid: 1\r\n\r\n", true)
	f.Fuzz(func(t *testing.T, event, id, data string, has bool) {
		if !valid(event) || !valid(id) || !valid(data) || sse.CheckField(event) != nil {
			return // a parser of UTF-8 gives no such event
		}
		r := Record{Event: event, ID: &id}
		if has {
			r.Data = &data
		}
		text := appendRecorded(nil, &hub.Message{Data: AppendRecord(nil, &r), Epoch: "e", Offset: 3})
		var got []sse.Event
		var p sse.Parser
		err := p.Feed(text, func(e sse.Event) {
			if string(e.ID) != "e-3" || has && (string(e.Type) != event || string(e.Data) != lines(data)) || e.HasData != has {
				t.Errorf("%+v of %q", e, text)
			}
			got = append(got, e)
		})
		if err != nil || len(got) != 1 {
			t.Errorf("%d events, %v of %q", len(got), err, text)
		}
	})
}

func valid(s string) bool { return strings.ToValidUTF8(s, "") == s }

func lines(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
}
