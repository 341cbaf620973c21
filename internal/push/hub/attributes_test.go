package hub

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"unsafe"
)

func TestAttributesKeepWhatTheyAre(t *testing.T) {
	f := func(a *Attributes) {
		t.Helper()
		b := a.AppendTo([]byte("x"))
		if b[0] != 'x' || bytes.ContainsFunc(b, func(r rune) bool { return r < ' ' }) {
			t.Errorf("written as %q", b)
		}
		got, err := ParseAttributes(b[1:])
		if err != nil || !reflect.DeepEqual(got, a) {
			t.Errorf("%+v comes back as %+v, %v", a, got, err)
		}
	}
	f(nil)
	f(&Attributes{})
	f(&Attributes{ID: "a\"\\<&>\u2028\t\x7f", Event: "e", Retry: 1, Private: true, Payload: Binary})
	f(&Attributes{Topics: []string{"a", "b"}, Index: 1, First: 1 << 63, Origin: "o", Info: []byte("{}"), Tags: map[string]string{"a": "\r\n"}})
	for _, bad := range []string{"x", "{", "[]", `{"id":1}`} {
		if _, err := ParseAttributes([]byte(bad)); !errors.Is(err, ErrBadAttributes) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzAttributes(f *testing.F) {
	f.Add("id", "event", "origin", []byte(`{"a":1}`), "tag", 5, true)
	f.Add("\xff", "\n", "", []byte("{"), "\u2028", -1, false)
	f.Add("#", strings.Repeat("e", 256), "\x00", []byte(nil), "", 0, false)
	f.Fuzz(func(t *testing.T, id, event, origin string, info []byte, tag string, n int, private bool) {
		a := &Attributes{ID: id, Event: event, Origin: origin, Info: info, Retry: n, Private: private, Tags: map[string]string{tag: id}}
		if len(info) == 0 {
			a.Info = nil
		}
		if a.Validate() != nil {
			return
		}
		got, err := ParseAttributes(a.AppendTo(nil))
		if err != nil || !reflect.DeepEqual(got, a) {
			t.Fatalf("%+v comes back as %+v, %v", a, got, err)
		}
		if got.Size() != a.Size() {
			t.Fatalf("size %d and %d", got.Size(), a.Size())
		}
	})
}

func FuzzParseAttributes(f *testing.F) {
	for _, s := range []string{"", "{}", `{"id":"a","topics":["x"],"index":3}`, `{"info":"e30="}`, `{"id":null,"tags":{"a":1}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ParseAttributes(b)
		if err != nil {
			return
		}
		again, err := ParseAttributes(a.AppendTo(nil))
		if err != nil || again.Size() != a.Size() {
			t.Fatalf("%q: %+v comes back as %+v, %v", b, a, again, err)
		}
	})
}

func TestFormsAreKeptOncePerFormat(t *testing.T) {
	enc := func(f byte) Encoder {
		return func(dst []byte, m *Message) []byte { return append(append(dst, f), m.Data...) }
	}
	m := &Message{Data: []byte("d")}
	var budget atomic.Int64
	m.await(2)
	for f := range byte(MaxFormats) {
		if b, fresh := m.encode(Format(f), enc(f), &budget, 1000); !fresh || b[0] != f {
			t.Fatalf("format %d: %q, fresh %v", f, b, fresh)
		}
	}
	m.enter()
	m.enter()
	counted := Format(70) // was not kept for the shards alone
	if _, fresh := m.encode(counted, enc(70), &budget, 1000); !fresh || budget.Load() != 2 {
		t.Fatalf("budget %d", budget.Load())
	}
	var wg sync.WaitGroup
	for f := range byte(MaxFormats) { // readers, while others let go
		wg.Go(func() {
			for range 100 {
				if p := m.forms.get(Format(f)); p != nil && p.bytes[0] != f {
					t.Errorf("format %d is %q", f, p.bytes)
				}
			}
		})
	}
	m.sent()
	if m.forms.get(3) == nil {
		t.Error("a form was dropped before the last shard had it")
	}
	m.sent()
	wg.Wait()
	if m.forms.get(3) != nil || m.forms.get(counted) == nil {
		t.Error("what stays is not what is counted")
	}
	m.evict(&budget)
	if m.forms.get(counted) == nil || budget.Load() != 2 {
		t.Error("one of two rings let go of it all")
	}
	m.evict(&budget)
	if m.forms.get(counted) != nil || budget.Load() != 0 {
		t.Errorf("budget %d in the end", budget.Load())
	}
}

// What a connection with many channels pays for each: its owner embeds it.
func TestASubscriberIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(Subscriber{}); n > 48 {
		t.Errorf("a Subscriber has %d bytes, want at most 48", n)
	}
}

// A message that a broker found missing reaches a whole namespace late, once, and
// who has passed it is notified.
func TestALateMessageReachesAWholeNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := plain(0)
		h := b.hub(t, Namespace{Recent: 8})
		defer h.Close()
		s := h.NewShard(func() {})
		var all, joined, requests, filtered tape
		sub := func(x *tape, o SubscribeOptions) {
			t.Helper()
			o.Channels = []string{"default:"}
			if err := s.Subscribe(&x.sub, x, o); err != nil {
				t.Fatal(err)
			}
			settleShards(s)
		}
		send := func(offsets ...uint64) {
			for _, o := range offsets {
				b.deliver(&Message{Channel: []string{"a", "b"}[o%2], Epoch: "e", Offset: o})
			}
			settleShards(s)
		}
		sub(&all, SubscribeOptions{})
		sub(&filtered, SubscribeOptions{Select: func(m *Message) bool { return m.Offset != 9 }})
		send(1, 3, 9)
		sub(&joined, SubscribeOptions{Select: func(*Message) bool { return true }})
		send(4, 9, 3, 4, 12) // 4 was missing, the others come again
		sub(&requests, SubscribeOptions{Since: Positions{{Epoch: "e", Offset: 7}}})
		f := func(what string, x *tape, gaps int, want ...uint64) {
			t.Helper()
			if !slices.Equal(x.got, want) || len(x.gaps) != gaps {
				t.Errorf("%s: got %v, gaps %v, want %v and %d", what, x.got, x.gaps, want, gaps)
			}
		}
		f("live", &all, 0, 1, 3, 9, 4, 12)
		f("selecting", &filtered, 0, 1, 3, 4, 12)
		f("joined after it should have come", &joined, 1, 12)
		f("resumed from between", &requests, 1, 9, 12)
		var replay tape
		sub(&replay, SubscribeOptions{Since: Positions{{Epoch: "e", Offset: 1}}})
		f("replay", &replay, 0, 3, 4, 9, 12)
		for o := range uint64(maxSeen) {
			send(100 + o)
		}
		before := len(all.got)
		send(5) // it may have been there
		if len(all.got) != before || len(all.gaps) != 1 || all.gaps[0].Reason != GapUnknown {
			t.Errorf("a very late one: %d messages more, gaps %v", len(all.got)-before, all.gaps)
		}
	})
}

// meddler is a sink that does something to others when it is called.
type meddler struct {
	tape
	then func()
}

func (m *meddler) Deliver(b *Batch) {
	m.tape.Deliver(b)
	if f := m.then; f != nil {
		m.then = nil
		f()
	}
}

func TestASinkMayDisconnectAndSubscribeOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := plain(0)
		h := b.hub(t, Namespace{})
		defer h.Close()
		s := h.NewShard(func() {})
		sinks := make([]meddler, 20)
		options := func(i int) SubscribeOptions {
			o := SubscribeOptions{Channels: []string{"a"}}
			switch i % 3 {
			case 1:
				o.Public = true
			case 2:
				o.Channels = []string{"a", "b"}
			}
			return o
		}
		for i := range 10 {
			if err := s.Subscribe(&sinks[i].sub, &sinks[i], options(i)); err != nil {
				t.Fatal(err)
			}
		}
		settleShards(s)
		for i := range 10 { // each sends its neighbour away and calls another in
			sinks[i].then = func() {
				s.Unsubscribe(&sinks[(i+1)%10].sub)
				if err := s.Subscribe(&sinks[10+i].sub, &sinks[10+i], options(i+1)); err != nil {
					t.Error(err)
				}
			}
		}
		b.deliver(&Message{Channel: "a", Epoch: "e", Offset: 1})
		settleShards(s)
		b.deliver(&Message{Channel: "a", Epoch: "e", Offset: 2})
		settleShards(s)
		left, came := 0, 0
		for i := range sinks {
			x := &sinks[i]
			switch got := x.got; {
			case len(got) > 2 || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got):
				t.Errorf("sink %d got %v", i, got)
			case i >= 10 && slices.Contains(got, 1):
				t.Errorf("sink %d came during message 1 and got %v", i, got)
			case x.sub.sink != nil && !slices.Contains(got, 2):
				t.Errorf("sink %d is there and got %v", i, got)
			}
			if i < 10 && x.sub.sink == nil {
				left++
			} else if i >= 10 && x.sub.sink != nil {
				came++
			}
		}
		if left < 3 || came != countServed(sinks[:10]) {
			t.Errorf("%d left and %d came", left, came)
		}
		if n := s.Subscribers(); n != 10-left+came {
			t.Errorf("%d subscribers, want %d", n, 10-left+came)
		}
	})
}

// countServed returns how many of sinks did what they were to do.
func countServed(sinks []meddler) int {
	n := 0
	for i := range sinks {
		if sinks[i].then == nil {
			n++
		}
	}
	return n
}
