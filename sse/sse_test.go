package sse

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestAppendedBytes(t *testing.T) {
	f := func(got []byte, want string) {
		t.Helper()
		if string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	f(AppendID(nil, "e1-5"), "id: e1-5\n")
	f(AppendID(nil, []byte("e1-5")), "id: e1-5\n")
	f(AppendID(nil, ""), "id: \n")
	f(AppendType(nil, "gap"), "event: gap\n")
	f(AppendRetry(nil, 2500), "retry: 2500\n")
	f(AppendRetry(nil, 0), "retry: 0\n")
	f(AppendRetry(nil, -1), "retry: 0\n")
	f(AppendComment(nil, ""), ":\n")
	f(AppendComment(nil, "hello"), ": hello\n")
	f(AppendComment(nil, "a\ndata: b\r\rid: 1"), ": a\n: data: b\n: \n: id: 1\n")
	f(AppendData(nil, `{"a":1}`), "data: {\"a\":1}\n")
	f(AppendData(nil, ""), "data: \n")
	f(AppendData(nil, "a\nb"), "data: a\ndata: b\n")
	f(AppendData(nil, "a\rb"), "data: a\ndata: b\n")
	f(AppendData(nil, "a\r\nb"), "data: a\ndata: b\n")
	f(AppendData(nil, "a\n\rb"), "data: a\ndata: \ndata: b\n")
	f(AppendData(nil, "a\r\n\r\nb\r"), "data: a\ndata: \ndata: b\ndata: \n")
	f(AppendData(nil, "\n"), "data: \ndata: \n")
	f(AppendData(nil, " x"), "data:  x\n")
	f(AppendData([]byte("id: 1\n"), "x"), "id: 1\ndata: x\n")
	f(AppendEvent(nil, &Event{}), "\n")
	f(AppendEvent(nil, &Event{HasRetry: true, Retry: 3000, HasID: true, ID: []byte("e-1")}), "retry: 3000\nid: e-1\n\n")
	f(AppendEvent(nil, &Event{HasID: true, ID: []byte("e-1"), Type: []byte("gap"), HasData: true, Data: []byte("{}")}),
		"id: e-1\nevent: gap\ndata: {}\n\n")
	f(AppendEvent(nil, &Event{ID: []byte("ignored"), Data: []byte("ignored"), Retry: 7}), "\n")
}

func TestFieldThatCouldForgeAnotherIsRefused(t *testing.T) {
	f := func(text string, refused bool) {
		t.Helper()
		if err := CheckField(text); errors.Is(err, ErrBadField) != refused {
			t.Errorf("CheckField(%q) = %v, refused should be %v", text, err, refused)
		}
		if err := CheckField([]byte(text)); errors.Is(err, ErrBadField) != refused {
			t.Errorf("CheckField([]byte(%q)) = %v, refused should be %v", text, err, refused)
		}
		if got := AppendID([]byte("x"), text); (string(got) == "x") != refused {
			t.Errorf("AppendID(%q) = %q", text, got)
		}
		if got := AppendType([]byte("x"), []byte(text)); (string(got) == "x") != refused {
			t.Errorf("AppendType(%q) = %q", text, got)
		}
		asID, asType := Event{HasID: true, ID: []byte(text)}, Event{Type: []byte(text)}
		if errors.Is(asID.Check(), ErrBadField) != refused || errors.Is(asType.Check(), ErrBadField) != refused {
			t.Errorf("Check of %q: id %v, type %v", text, asID.Check(), asType.Check())
		}
	}
	f("", false)
	f("e1-5~e2-7", false)
	f("with space: and colon", false)
	f("a\nb", true)
	f("a\rb", true)
	f("a\x00b", true)
	f("\n", true)
	unused := Event{ID: []byte("a\nb")}
	if err := unused.Check(); err != nil {
		t.Errorf("an id that is not written is not a fault: %v", err)
	}
}

func TestIndexEOLAcrossWindows(t *testing.T) {
	for _, n := range []int{0, 1, 511, 512, 513, 1023, 1024, 1025, 5000} {
		pad := strings.Repeat("x", n)
		f := func(s string, want int) {
			t.Helper()
			if got := indexEOL([]byte(s)); got != want {
				t.Errorf("pad %d: got %d, want %d", n, got, want)
			}
		}
		f(pad, -1)
		f(pad+"\n", n)
		f(pad+"\r", n)
		f(pad+"\r\n", n)
		f(pad+"\n\r", n)
		f(pad+"\n"+pad+"\r", n)
		f(pad+"\r"+pad+"\n", n)
	}
}

func TestAppendingAllocatesNothing(t *testing.T) {
	buf := make([]byte, 0, 4096)
	e := &Event{HasID: true, ID: []byte("e1-5"), Type: []byte("x"), HasData: true, Data: []byte("one\ntwo\r\nthree"), HasRetry: true, Retry: 9}
	data, text, id := bytes.Repeat([]byte("p"), 1000), "a\nb", "e1-99"
	f := func(name string, fn func()) {
		t.Helper()
		if n := testing.AllocsPerRun(100, fn); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	f("AppendEvent", func() { AppendEvent(buf, e) })
	f("AppendData", func() { AppendData(buf, data) })
	f("AppendData of a string", func() { AppendData(buf, text) })
	f("AppendID", func() { AppendID(buf, id) })
	f("AppendType", func() { AppendType(buf, id) })
	f("AppendRetry", func() { AppendRetry(buf, 3000) })
	f("AppendComment", func() { AppendComment(buf, text) })
}

func BenchmarkAppendEvent(b *testing.B) {
	e := &Event{HasID: true, ID: []byte("e1-5"), HasData: true, Data: bytes.Repeat([]byte("p"), 200)}
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		AppendEvent(buf, e)
	}
}
