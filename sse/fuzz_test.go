package sse

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

// normal is data as a reader returns it: its line ends are LF.
func normal(data []byte) []byte {
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	return bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))
}

func FuzzCutsChangeNothing(f *testing.F) {
	f.Add([]byte("\ufeffid: 1\r\ndata: a\r\n\r\n: c\rdata:b\r\rretry: 5\n\nevent: x\ndata\n\ndata: cut"), uint64(1))
	f.Add([]byte("data:a\r\r\ndata:b\n\n"), uint64(2))
	f.Add([]byte("\xef\xbb\xbf\xef\xbb\xbfdata:a\n\n"), uint64(3))
	f.Add([]byte("id:\x00\nid\n\nid:7\n\n"), uint64(4))
	f.Add([]byte(strings.Repeat("data: long\n", 20)+"\n"), uint64(5))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		run := func(next func(left int) int) (blocks []string, last string, failed bool) {
			p := Parser{MaxEvent: 64}
			p.Comment = func(text []byte) { blocks = append(blocks, "comment "+string(text)) }
			for b := stream; len(b) > 0; {
				n := next(len(b))
				piece := bytes.Clone(b[:n])
				err := p.Feed(piece, func(ev Event) { blocks = append(blocks, show(ev)) })
				clear(piece)
				if b = b[n:]; err != nil {
					return blocks, string(p.LastEventID()), true
				}
			}
			return blocks, string(p.LastEventID()), false
		}
		rnd := rand.New(rand.NewPCG(seed, 0))
		whole, wholeLast, wholeFailed := run(func(left int) int { return left })
		cut, cutLast, cutFailed := run(func(left int) int { return 1 + rnd.IntN(min(left, 12)) })
		if strings.Join(whole, "\n") != strings.Join(cut, "\n") || wholeLast != cutLast || wholeFailed != cutFailed {
			t.Errorf("whole: %q last %q failed %v\n  cut: %q last %q failed %v",
				whole, wholeLast, wholeFailed, cut, cutLast, cutFailed)
		}
	})
}

func FuzzWrittenEventReadsBack(f *testing.F) {
	f.Add([]byte("e1-5"), []byte("gap"), []byte("{}"), 3000, uint8(0xff))
	f.Add([]byte(""), []byte(""), []byte(""), 0, uint8(0xff))
	f.Add([]byte(" 1"), []byte(":"), []byte("a\r\nb\rc\nd\n"), -1, uint8(0xff))
	f.Add([]byte("x\nid: 2"), []byte("y\rdata: z"), []byte("\n\nid: 3\n\ndata: forged\r\revent: z"), 1, uint8(0xff))
	f.Add([]byte("\x00"), []byte("\x00"), []byte("\x00\ufeff"), 1, uint8(3))
	f.Fuzz(func(t *testing.T, id, typ, data []byte, retry int, has uint8) {
		ev := Event{ID: id, HasID: has&1 != 0, Type: typ, Data: data, HasData: has&2 != 0, Retry: retry, HasRetry: has&4 != 0}
		// What cannot be written must be left out and take nothing else with it.
		want := Event{Retry: max(retry, 0), HasRetry: ev.HasRetry, HasData: ev.HasData}
		want.HasID = ev.HasID && CheckField(id) == nil
		want.ID = []byte("before")
		if want.HasID {
			want.ID = id
		}
		if CheckField(typ) == nil {
			want.Type = typ
		}
		if !want.HasRetry {
			want.Retry = 0
		}
		want.Data = normal(data)

		stream := AppendComment(nil, data)
		stream = AppendEvent(stream, &ev)
		var p Parser
		p.Reset("before")
		var got []string
		if err := p.Feed(stream, func(e Event) { got = append(got, show(e)) }); err != nil {
			t.Fatal(err)
		}
		exists := want.HasData || want.HasID || want.HasRetry
		switch {
		case !exists && len(got) != 0, exists && len(got) != 1:
			t.Errorf("%q gave %d blocks: %q", stream, len(got), got)
		case exists && got[0] != show(want):
			t.Errorf("%q gave %s, want %s", stream, got[0], show(want))
		}
		if !p.atStart() {
			t.Errorf("%q leaves something for the next block", stream)
		}
	})
}

// atStart reports whether p is between two blocks with nothing pending.
func (p *Parser) atStart() bool {
	return len(p.line) == 0 && len(p.typ) == 0 && !p.hasData && !p.hasID && !p.hasRtr
}
