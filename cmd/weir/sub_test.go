package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/weir-gateway/weir/client"
)

func TestMessageLines(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.Local)
	f := func(m client.Message, human, asJSON string) {
		t.Helper()
		if got := string(humanLine(&m)); got != human+"\n" {
			t.Errorf("human: %q, want %q", got, human)
		}
		got := jsonLine(&m)
		if string(got) != asJSON+"\n" || !json.Valid(got) {
			t.Errorf("json: %s, want %s", got, asJSON)
		}
	}
	f(client.Message{Channel: "news", Position: client.Position{Epoch: "e1", Offset: 5}, Time: at, Data: json.RawMessage(`{"a": "<b>"}`)},
		`03:04:05.006 news e1-5 {"a":"<b>"}`,
		`{"channel":"news","id":"e1-5","offset":5,"time":`+itoa(at.UnixMilli())+`,"data":{"a":"<b>"}}`)
	f(client.Message{Channel: "n", Key: "k", Data: json.RawMessage("[1,\n2]")},
		`- n - [1,2]`,
		`{"channel":"n","key":"k","data":[1,2]}`)
	f(client.Message{Channel: "n", Data: json.RawMessage("\"\u009b31m\u007f\"")},
		`- n - "\u009b31m\u007f"`,
		"{\"channel\":\"n\",\"data\":\"\u009b31m\u007f\"}")
	f(client.Message{Channel: "a b\n", Data: json.RawMessage("1")},
		`- "a b\n" - 1`,
		`{"channel":"a b\n","data":1}`)
}

func itoa(n int64) string {
	b, _ := json.Marshal(n)
	return string(b)
}
