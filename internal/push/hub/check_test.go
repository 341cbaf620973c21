package hub

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestCheckDistinguishesMessages(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	now := time.Date(2030, 1, 2, 3, 4, 5, 678, time.UTC)
	equal := 0
	for range 1_000_000 {
		offset := r.Uint64N(1 << 40)
		a := NewCheck(offset, now)
		if a == 0 || a >= checkEnd {
			t.Fatalf("check %d", a)
		}
		if p, ok := parseCheck(string(a.appendTo(nil))); !ok || p != a {
			t.Fatalf("%d reads as %d, %v", a, p, ok)
		}
		// Stored again after the log was truncated and the process started anew.
		if NewCheck(offset, now.Add(100*time.Millisecond+time.Duration(r.Int64N(int64(30*time.Second))))) == a {
			equal++
		}
		if NewCheck(offset, now.Add(time.Minute+time.Duration(r.Int64N(int64(25*24*time.Hour))))) == a {
			t.Fatalf("equal checks of messages at %d, stored at different times", offset)
		}
	}
	if equal > 10 { // 1 in 866,702 is expected
		t.Errorf("%d equal checks of a million", equal)
	}
}

func TestCheckKnowsItsTime(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		stored := time.Unix(r.Int64N(1<<32), r.Int64N(1e9))
		later := stored.Add(time.Duration(r.Int64N(int64(25 * 24 * time.Hour))))
		if end := NewCheck(7, stored).Latest(later); end.Before(stored) || end.Sub(stored) > 35*time.Second {
			t.Fatalf("stored at %v, the window that was open before %v ends at %v", stored, later, end)
		}
	}
}

func TestPositionHasItsWireForm(t *testing.T) {
	p := Position{"Ab3", 17, NewCheck(17, time.Unix(1900000000, 12345))}
	token := p.String()
	if strings.Trim(token, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~-") != "" || len(token) != len("Ab3-17.")+6 {
		t.Errorf("token %q", token)
	}
	f := func(s string, want Position, ok bool) {
		t.Helper()
		if got, err := ParsePosition(s); got != want || (err == nil) != ok {
			t.Errorf("%q is %+v, %v", s, got, err)
		}
	}
	f(token, p, true)
	f("Ab3-17", Position{Epoch: "Ab3", Offset: 17}, true)
	for _, bad := range []string{"Ab3-17.", "Ab3-17.abc", "Ab3-17.abcdefg", "Ab3-17.abc-ef", "Ab3-17.000000", "Ab3-.abcdef", "Ab3-17.abcdef.", "Ab3.abcdef"} {
		f(bad, Position{}, false)
	}
}

// A log that changed under its epoch: the ring or one read of the broker finds it out.
func TestCheckOfAnotherMessageIsAGap(t *testing.T) {
	f := func(what string, recent int, since Position, gap GapReason, reads int64) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			b := plain(300)
			for _, m := range b.log {
				m.Check = NewCheck(m.Offset, time.Unix(int64(m.Offset), 0))
			}
			b.slow = time.Millisecond
			h := b.hub(t, Namespace{Recent: recent})
			defer h.Close()
			shard := h.NewShard(func() {})
			sinks := make([]tape, 100)
			for i := range sinks {
				if err := shard.Subscribe(&sinks[i].sub, &sinks[i], SubscribeOptions{Channels: []string{"a"}, Since: Positions{since}}); err != nil {
					t.Fatal(err)
				}
			}
			settleShards(shard)
			for i := range sinks {
				s := &sinks[i]
				switch {
				case gap == "" && (len(s.gaps) != 0 || len(s.got) != int(300-since.Offset) || s.at[0] != since && since.Check != 0):
					t.Errorf("%s: starts at %v with %d messages, gaps %v", what, s.at, len(s.got), s.gaps)
				case gap != "" && (len(s.gaps) != 1 || s.gaps[0].Reason != gap || len(s.got) != 0 || fmt.Sprint(since) != s.gaps[0].From || s.gaps[0].At != b.log[299].Position()):
					t.Errorf("%s: %d messages, gaps %v", what, len(s.got), s.gaps)
				}
			}
			if n := b.checks.Load(); n != reads {
				t.Errorf("%s: %d reads for %d subscribers, want %d", what, n, len(sinks), reads)
			}
			if _, err := h.History(t.Context(), "a", HistoryOptions{Since: since, Limit: 1}); (err == nil) != (gap == "") {
				t.Errorf("%s: history since it: %v", what, err)
			}
			if got := h.Stats().Refuted; (got == 0) != (gap == "") {
				t.Errorf("%s: %d refuted", what, got)
			}
		})
	}
	right := func(offset uint64) Position {
		return Position{"e", offset, NewCheck(offset, time.Unix(int64(offset), 0))}
	}
	wrong := func(offset uint64) Position { p := right(offset); p.Check ^= 1; return p }
	f("in the ring", 100, right(250), "", 0)
	f("another one in the ring", 100, wrong(250), GapEpoch, 0)
	f("at the broker", 100, right(10), "", 1)
	f("another one at the broker", 100, wrong(10), GapEpoch, 1)
	f("the old form", 100, Position{Epoch: "e", Offset: 10}, "", 0)
}

// A publisher's check accepts the clock to two minutes, and nothing else.
func TestContentCheckDistinguishesMessages(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	equal := 0
	for range 300_000 {
		offset, stored := 1+r.Uint64N(1<<40), time.Unix(1900000000+r.Int64N(1<<25), r.Int64N(1e9))
		data := []byte(fmt.Sprint(r.Uint64()))
		off := time.Duration(r.Int64N(int64(4*time.Minute))) - 2*time.Minute
		c := NewContentCheck(offset, stored.Add(off), "k", data)
		if p, ok := parseCheck(string(c.appendTo(nil))); !ok || p != c || c.Exact() {
			t.Fatalf("%d reads as %d, %v", c, p, ok)
		}
		if !c.Proves(offset, stored, "k", data) {
			t.Fatalf("the clock %v off: not proved", off)
		}
		for _, away := range []time.Duration{-8 * time.Minute, 8 * time.Minute, -25 * 24 * time.Hour, 25 * 24 * time.Hour} {
			if c.Proves(offset, stored.Add(away), "k", data) {
				t.Fatalf("the same %v away is proved", away)
			}
		}
		if end := c.Latest(stored.Add(time.Hour)); end.Before(stored) || end.Sub(stored) > 8*time.Minute {
			t.Fatalf("stored at %v, at the latest %v", stored, end)
		}
		for _, other := range []bool{c.Proves(offset+1, stored, "k", data), c.Proves(offset, stored, "", data), c.Proves(offset, stored, "k", append(data, 'x'))} {
			if other {
				equal++
			}
		}
	}
	if equal > 5 { // 0.3 are expected
		t.Errorf("%d equal checks of 900,000", equal)
	}
}
