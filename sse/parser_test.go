package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"
)

// show renders blocks in one line each, for comparison: type and data of an
// event, then what the block sets, then the last event id it leaves behind.
func show(ev Event) string {
	var s strings.Builder
	if ev.HasData {
		typ := string(ev.Type)
		if typ == "" {
			typ = "message"
		}
		fmt.Fprintf(&s, "%s %q ", typ, ev.Data)
	}
	if ev.HasRetry {
		fmt.Fprintf(&s, "retry=%d ", ev.Retry)
	}
	if ev.HasID {
		s.WriteString("id! ")
	}
	fmt.Fprintf(&s, "last=%q", ev.ID)
	return s.String()
}

// parse feeds stream in pieces of n bytes (0: whole) and returns what came out.
func parse(stream string, n int) (blocks []string, p *Parser, err error) {
	p = new(Parser)
	p.Comment = func(text []byte) { blocks = append(blocks, fmt.Sprintf("comment %q", text)) }
	if n == 0 {
		n = len(stream) + 1
	}
	for b := []byte(stream); len(b) > 0; {
		piece := bytes.Clone(b[:min(n, len(b))])
		err = p.Feed(piece, func(ev Event) { blocks = append(blocks, show(ev)) })
		for i := range piece {
			piece[i] = '#' // a later read of it shows
		}
		b = b[min(n, len(b)):]
	}
	return blocks, p, err
}

// The cases follow the standard's examples (§9.2.6) and the subjects of the web
// platform tests for EventSource: format-bom, format-comments, format-field-*,
// format-leading-space, format-newlines, format-null-character, format-utf-8.
func TestStreamGivesBlocks(t *testing.T) {
	f := func(stream string, want ...string) {
		t.Helper()
		for _, n := range []int{0, 1, 2, 3, 5, 7} {
			got, _, err := parse(stream, n)
			if err != nil || strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("%.60q in pieces of %d:\n got %q, %v\nwant %q", stream, n, got, err, want)
				return
			}
		}
	}
	// §9.2.6, the examples.
	f("data: YHOO\ndata: +2\ndata: 10\n\n", `message "YHOO\n+2\n10" last=""`)
	f(": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
		`comment "test stream"`, `message "first event" id! last="1"`, `message "second event" id! last=""`, `message " third event" last=""`)
	f("data\n\ndata\ndata\n\ndata:", `message "" last=""`, `message "\n" last=""`)
	f("data:test\n\ndata: test\n\n", `message "test" last=""`, `message "test" last=""`)
	// Line ends.
	f("data:a\n\n", `message "a" last=""`)
	f("data:a\r\r", `message "a" last=""`)
	f("data:a\r\n\r\n", `message "a" last=""`)
	f("data:a\r\n\n", `message "a" last=""`)
	f("data:a\n\r\n", `message "a" last=""`)
	f("data:a\n\r", `message "a" last=""`)
	f("data:test\r\ndata\ndata:test\r\n\r", `message "test\n\ntest" last=""`)
	f("data:a\r\n\r\n\r\n\n\r\rdata:b\n\n", `message "a" last=""`, `message "b" last=""`)
	// BOM: one at the very start.
	f("\ufeffdata:1\n\n\ufeffdata:2\n\ndata:3\n\n", `message "1" last=""`, `message "3" last=""`)
	f("\ufeff\ufeffdata:1\n\ndata:2\n\n", `message "2" last=""`)
	f("\ufeff\n\ndata:2\n\n", `message "2" last=""`)
	f("\xef\xbbdata:1\n\ndata:2\n\n", `message "2" last=""`)
	f("data:\ufeffx\n\n", `message "\ufeffx" last=""`)
	// Comments.
	f("data:1\r:\x00\n:\r\ndata:2\n: x\rdata:3\n:data:fail\r:y\ndata:4\n\n",
		`comment "\x00"`, `comment ""`, `comment "x"`, `comment "data:fail"`, `comment "y"`, `message "1\n2\n3\n4" last=""`)
	// Fields.
	f("data:\x00\ndata:  2\rData:1\ndata\x00:2\ndata:1\r\x00data:4\nda-ta:3\rdata_5\ndata:3\rdata:\r\n data:32\ndata:4\n\n",
		`message "\x00\n 2\n1\n3\n\n4" last=""`)
	f("data:test\n data\ndata\nfoobar:xxx\njustsometext\ndata:test\n\n", `message "test\n\ntest" last=""`)
	f("data:\ttest\rdata: \ndata:test\n\n", `message "\ttest\n\ntest" last=""`)
	f("data:a:b: c\n\n", `message "a:b: c" last=""`)
	f("data:ok…ü€\n\n", `message "ok…ü€" last=""`)
	// Types.
	f("event:test\ndata:x\n\ndata:x\n\n", `test "x" last=""`, `message "x" last=""`)
	f("event: \ndata:x\n\nevent\ndata:y\n\n", `message "x" last=""`, `message "y" last=""`)
	f("event:a\nevent:b\ndata:x\n\n", `b "x" last=""`)
	f("event:lost\n\ndata:x\n\n", `message "x" last=""`)
	// Ids.
	f("id: 7\ndata:x\n\ndata:y\n\n", `message "x" id! last="7"`, `message "y" last="7"`)
	f("id: 7\n\nid\n\n", `id! last="7"`, `id! last=""`)
	f("id: 7\n\nid:\ndata:x\n\n", `id! last="7"`, `message "x" id! last=""`)
	f("id: 7\ndata:x\n\nid: 8\x00\ndata:y\n\n", `message "x" id! last="7"`, `message "y" last="7"`)
	f("id: 7\nid: 8\x00\ndata:y\n\n", `message "y" id! last="7"`)
	f("id: …\n\ndata:x\n\n", `id! last="…"`, `message "x" last="…"`)
	f("id: 1\nid: 2\ndata:x\n\n", `message "x" id! last="2"`)
	// Reconnection time.
	f("retry: 3000\n\n", `retry=3000 last=""`)
	f("retry:03000\nretry:1000x\nretry:\nretry\nretry:-1\nretry:+1\nretry: 5 \nretry:３\n\n", `retry=3000 last=""`)
	f("retry:99999999999999999999999999\n\n", fmt.Sprintf(`retry=%d last=""`, math.MaxInt))
	f("retry: 0\nid: e-4\n\n", `retry=0 id! last="e-4"`)
	// What is unfinished is not there.
	f("id: 1\ndata:a\n\nid: 2\ndata:b\n", `message "a" id! last="1"`)
	f("data:b")
	f("")
	f("\n\r\n\r")
}

func TestUnfinishedBlockDoesNotMoveTheLastEventID(t *testing.T) {
	_, p, _ := parse("id: 1\ndata: a\n\nid: 2\nretry: 5\ndata: b\n", 0)
	if got := string(p.LastEventID()); got != "1" {
		t.Errorf("last event id %q, want 1", got)
	}
	if ms, ok := p.Retry(); ms != 5 || !ok {
		t.Errorf("retry = %d, %v: it counts at once, want 5", ms, ok)
	}
}

func TestResetContinuesFromAnID(t *testing.T) {
	p := Parser{MaxEvent: 100}
	_ = p.Feed([]byte("id: 1\nretry: 5\n\nevent: x\ndata: unfinished\nda"), func(Event) {})
	p.Reset("9")
	var got []string
	if err := p.Feed([]byte("\ufeffdata: a\n\n"), func(ev Event) { got = append(got, show(ev)) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] != `message "a" last="9"` || p.MaxEvent != 100 {
		t.Errorf("got %q, MaxEvent %d", got, p.MaxEvent)
	}
	if _, ok := p.Retry(); ok {
		t.Error("the new stream has set no retry")
	}
}

func TestLinesAndEventsAreBounded(t *testing.T) {
	f := func(stream string, tooLarge bool) {
		t.Helper()
		for _, n := range []int{0, 1, 4} {
			p, got := Parser{MaxEvent: 10}, error(nil)
			for b := []byte(stream); len(b) > 0 && got == nil; b = b[min(max(n, 1), len(b)):] {
				if n == 0 {
					got = p.Feed(b, func(Event) {})
					break
				}
				got = p.Feed(b[:min(n, len(b))], func(Event) {})
			}
			if errors.Is(got, ErrTooLarge) != tooLarge {
				t.Errorf("%q in pieces of %d: %v", stream, n, got)
			}
			if got != nil && p.Feed([]byte("data:x\n\n"), func(Event) { t.Error("event after the failure") }) == nil {
				t.Errorf("%q: the failure is forgotten", stream)
			}
		}
	}
	f("data:12345\n\n", false)
	f("data:123456\n\n", true)
	f("data:123456", true)
	f(":123456789\n:123456789\n\n", false)
	f(":1234567890", true)
	f("data:12345\ndata:1234\n\n", false)
	f("data:12345\ndata:12345\n\n", true)
	f(strings.Repeat("data:12345\n\n", 5), false)
	f(strings.Repeat("data\n", 11), false)
	f(strings.Repeat("data\n", 12), true)
}

func TestReaderReadsWhateverTheSourceGives(t *testing.T) {
	const stream = "retry: 10\nid: e-0\n\n: hi\nid: e-1\ndata: a\ndata: b\n\nevent: end\ndata: {}\n\ndata: cut"
	want := []string{`retry=10 id! last="e-0"`, `message "a\nb" id! last="e-1"`, `end "{}" last="e-1"`}
	boom := errors.New("boom")
	f := func(name string, src io.Reader, end error) {
		t.Helper()
		r, got := NewReader(src), []string(nil)
		for {
			ev, err := r.Next()
			if err != nil {
				if !errors.Is(err, end) {
					t.Errorf("%s: ended with %v, want %v", name, err, end)
				}
				break
			}
			got = append(got, show(ev))
		}
		if strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("%s: got %q", name, got)
		}
		if _, err := r.Next(); !errors.Is(err, end) {
			t.Errorf("%s: after the end: %v", name, err)
		}
	}
	f("whole", strings.NewReader(stream), io.EOF)
	f("bytes", iotest.OneByteReader(strings.NewReader(stream)), io.EOF)
	f("halves", iotest.HalfReader(strings.NewReader(stream)), io.EOF)
	f("error with data", iotest.DataErrReader(strings.NewReader(stream)), io.EOF)
	f("broken", io.MultiReader(strings.NewReader(stream), iotest.ErrReader(boom)), boom)
}

func TestParsingAllocatesNothingPerEvent(t *testing.T) {
	stream := []byte("id: e1-1\nevent: x\nretry: 5\ndata: one line\n\nid: e1-2\ndata: two\r\ndata: lines\r\n\r\n: c\n\n")
	p, events := new(Parser), 0
	count := func(ev Event) { events++ }
	f := func(name string, n int) {
		t.Helper()
		run := func() {
			for b := stream; len(b) > 0; b = b[min(n, len(b)):] {
				_ = p.Feed(b[:min(n, len(b))], count)
			}
		}
		run()
		if a := testing.AllocsPerRun(100, run); a != 0 {
			t.Errorf("%s: %v allocations for 2 events", name, a)
		}
	}
	f("whole", len(stream))
	f("bytes", 1)
	f("sevens", 7)
	if events == 0 {
		t.Error("no events")
	}
}

func TestIdleParserKeepsNoLargeBuffer(t *testing.T) {
	p := new(Parser)
	big := "data: " + strings.Repeat("x", 1<<20)
	_ = p.Feed([]byte(big), func(Event) {})
	_ = p.Feed([]byte("\ndata: y\n\n"), func(Event) {})
	if n := cap(p.line) + cap(p.own) + cap(p.typ) + cap(p.newID); n > 2*keepBuffer {
		t.Errorf("%d bytes kept between events", n)
	}
}

func BenchmarkParser(b *testing.B) {
	one := AppendEvent(nil, &Event{HasID: true, ID: []byte("e1-5"), HasData: true, Data: bytes.Repeat([]byte("p"), 200)})
	stream := bytes.Repeat(one, 64)
	p := new(Parser)
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		_ = p.Feed(stream, func(Event) {})
	}
}
