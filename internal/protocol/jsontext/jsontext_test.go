package jsontext_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/protocol/jsontext"
)

func TestEscapesWhatMustBe(t *testing.T) {
	for in, want := range map[string]string{
		"":                 `""`,
		"plain":            `"plain"`,
		"a\"b\\c":          `"a\"b\\c"`,
		"\n\r\t\x00\x1f":   `"\n\r\t\u0000\u001f"`,
		"\x7f":             `"\u007f"`,
		"<a href='x'>&":    `"<a href='x'>&"`,
		"Zürich 東京 😀":      `"Zürich 東京 😀"`,
		"\xff":             `"` + "\ufffd" + `"`,
		"a\xe6\x9d":        `"a` + "\ufffd\ufffd" + `"`,
		"\xed\xa0\x80":     `"` + "\ufffd\ufffd\ufffd" + `"`,
		"\u2028\ufffd\x20": `"` + "\u2028\ufffd" + ` "`,
	} {
		if got := string(jsontext.AppendString(nil, in)); got != want {
			t.Errorf("AppendString(%q) = %s, want %s", in, got, want)
		}
		if got := string(jsontext.AppendString([]byte("x"), []byte(in))); got != "x"+want {
			t.Errorf("AppendString(x, []byte(%q)) = %s, want x%s", in, got, want)
		}
	}
}

func TestDoesNotAllocate(t *testing.T) {
	dst := make([]byte, 0, 4096)
	s := strings.Repeat("plain \"quoted\" Zürich \xff\n", 40)
	if n := testing.AllocsPerRun(100, func() { jsontext.AppendString(dst, s) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzAppendString holds that encoding/json reads what was written, as it reads what it wrote itself.
func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\\n\x00\x7f", "東京\xff\xe6\x9d", "\xed\xa0\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b := jsontext.AppendString(nil, s)
		if !json.Valid(b) {
			t.Fatalf("%q became %s, which is not JSON", s, b)
		}
		var got string
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if utf8.ValidString(s) && got != s {
			t.Fatalf("%q reads back as %q", s, got)
		}
		if want := strings.ToValidUTF8(s, ""); strings.ReplaceAll(got, "\ufffd", "") != strings.ReplaceAll(want, "\ufffd", "") {
			t.Fatalf("%q reads back as %q", s, got)
		}
	})
}
