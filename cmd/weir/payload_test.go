package main

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

func TestPayload(t *testing.T) {
	f := func(in string, force bool, want string, isText, ok bool) {
		t.Helper()
		got, text, err := payload(in, force)
		if string(got) != want || text != isText || (err == nil) != ok {
			t.Errorf("payload(%q, %v) = %s, %v, %v", in, force, got, text, err)
		}
	}
	f(`{"a":1}`, false, `{"a":1}`, false, true)
	f(` [1, 2] `, false, `[1, 2]`, false, true)
	f(`42`, false, `42`, false, true)
	f(`42`, true, `"42"`, true, true)
	f(`null`, false, `null`, false, true)
	f(`hello`, false, `"hello"`, true, true)
	f(`it's <b>`, false, `"it's <b>"`, true, true)
	f(``, false, `""`, true, true)
	f(`{a:1}`, false, ``, false, false)
	f(` {"a":1`, false, ``, false, false)
	f(`"open`, false, ``, false, false)
	f(`[draft] hello`, false, ``, false, false)
	f(`[draft] hello`, true, `"[draft] hello"`, true, true)
	f("a\x00b", false, `"a\u0000b"`, true, true)
}

// What is published is always JSON, and a text comes back as it was.
func FuzzPayload(f *testing.F) {
	f.Add(`{"a":1}`, false)
	f.Add("plain <text> \u2028", true)
	f.Add(` [1`, false)
	f.Add("\x00\x7f", false)
	f.Fuzz(func(t *testing.T, in string, force bool) {
		data, isText, err := payload(in, force)
		if err != nil {
			return
		}
		if !json.Valid(data) {
			t.Fatalf("payload(%q) = %q is not JSON", in, data)
		}
		var back string
		if isText && (json.Unmarshal(data, &back) != nil || utf8.ValidString(in) && back != in) {
			t.Fatalf("payload(%q) = %q reads back as %q", in, data, back)
		}
	})
}
