package hub_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// attempt publishes data with attributes and returns the answer.
func attempt(h *hub.Hub, channel, data string, a hub.Attributes) (hub.Position, error) {
	type answer struct {
		at  hub.Position
		err error
	}
	got := make(chan answer, 1)
	h.Publish(hub.Publication{Channel: channel, Data: []byte(data), Attributes: &a}, func(p hub.Position, err error) { got <- answer{p, err} })
	x := <-got
	return x.at, x.err
}

func TestAnOlderVersionIsNotStored(t *testing.T) {
	h := newHub(t, func(c *hub.Config) { c.Namespaces[0].HistorySize, c.Namespaces[0].Recent = 5, 1 })
	s := live(t, newOwner(t, h), hub.SubscribeOptions{Channels: []string{"a"}})
	want, top := "", hub.Position{}
	f := func(version uint64, epoch, data string, stored bool) {
		t.Helper()
		at, err := attempt(h, "a", data, hub.Attributes{Version: version, VersionEpoch: epoch})
		if err != nil {
			t.Errorf("version %d %q: %v", version, epoch, err)
		}
		if stored {
			top.Offset, top.Epoch = top.Offset+1, at.Epoch
			want += " a=" + data
		}
		if at != top {
			t.Errorf("version %d %q: answered %v, want %v", version, epoch, at, top)
		}
	}
	f(5, "x", "1", true)
	f(5, "x", "no", false)
	f(4, "x", "no", false)
	f(5, "", "no", false) // no epoch fits all
	f(6, "", "2", true)
	f(3, "x", "3", true) // another epoch than the newest one's
	f(2, "", "no", false)
	f(1, "y", "4", true)
	f(0, "", "5", true) // without a version it always is
	f(1, "y", "no", false)
	f(1<<64-1, "y", "6", true)
	f(1<<63, "y", "no", false)
	for i := range 4 {
		f(0, "", fmt.Sprint(i), true)
	}
	f(7, "y", "no", false)  // behind four without
	f(0, "", "again", true) // the history is full: the last version leaves it
	f(7, "y", "late", true)
	publish(t, h, "b", "other")
	if _, err := attempt(h, "b", "first", hub.Attributes{Version: 1}); err != nil {
		t.Error(err)
	}
	if err := h.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	top.Offset += 2
	f(1, "y", "anew", true)
	s.wait(t, "the end", func() bool { return len(s.got) > 0 && string(s.got[len(s.got)-1].Data) == "anew" })
	if got := " " + s.text(); got != want {
		t.Errorf("got%s, want%s", got, want)
	}
}

func TestOfManyVersionsAtOnceTheNewestStays(t *testing.T) {
	h := newHub(t, nil)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			v := uint64(i*7%200 + 1)
			if _, err := attempt(h, fmt.Sprint("c", i%2), fmt.Sprint(v), hub.Attributes{Version: v}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, ch := range []string{"c0", "c1"} {
		page, err := h.History(t.Context(), ch, hub.HistoryOptions{Limit: -1})
		if err != nil {
			t.Fatal(err)
		}
		last := uint64(0)
		for _, m := range page.Messages {
			if m.Attributes.Version <= last {
				t.Errorf("%s: version %d after %d", ch, m.Attributes.Version, last)
			}
			last = m.Attributes.Version
		}
		if last < 199 {
			t.Errorf("%s: the newest is %d", ch, last)
		}
	}
}

func TestWithoutALogVersionsDoNotCount(t *testing.T) {
	h := newHub(t, nil)
	s := live(t, newOwner(t, h), hub.SubscribeOptions{Channels: []string{"flow:a"}})
	for _, a := range []hub.Attributes{{Version: 2}, {Version: 1}, {SkipHistory: true}} {
		if at, err := attempt(h, "flow:a", "1", a); err != nil || !at.IsZero() {
			t.Errorf("%+v: %v, %v", a, at, err)
		}
	}
	s.wait(t, "three", func() bool { return len(s.got) == 3 })
}

func TestWhatSkipsHistoryIsDeliveredAndNotStored(t *testing.T) {
	h := newHub(t, nil)
	o, o2 := newOwner(t, h), newOwner(t, h)
	sinks := []*sink{
		live(t, o, hub.SubscribeOptions{Channels: []string{"a"}}),
		live(t, o2, hub.SubscribeOptions{Channels: []string{"a", "b"}}),
		live(t, o2, hub.SubscribeOptions{Channels: []string{"default:"}}),
	}
	first := publish(t, h, "a", "1")
	at, err := attempt(h, "a", "2", hub.Attributes{SkipHistory: true, Version: 9, Event: "e"})
	if err != nil || !at.IsZero() {
		t.Errorf("answered %v, %v", at, err)
	}
	last := publish(t, h, "a", "3")
	if last.Offset != first.Offset+1 {
		t.Errorf("the next is at %v after %v", last, first)
	}
	for _, s := range sinks {
		s.wait(t, "three", func() bool { return len(s.got) >= 3 })
		if got := s.text(); got != "a=1 a=2 a=3" {
			t.Errorf("got %s", got)
		}
		if m := s.got[1]; !m.Position().IsZero() || m.Attributes.Event != "e" || m.Time == 0 {
			t.Errorf("passed on: %+v", m)
		}
		if len(s.gaps) != 0 {
			t.Errorf("gaps: %v", s.gaps)
		}
	}
	if got := live(t, o, hub.SubscribeOptions{Channels: []string{"a"}, All: true}).text(); got != "a=1 a=3" {
		t.Errorf("stored %s", got)
	}
	for _, f := range []struct {
		channel, data string
		want          error
	}{
		{"nowhere:a", "1", hub.ErrUnknownNamespace},
		{"a b", "1", hub.ErrBadChannel},
		{"a", string(make([]byte, 1<<20)), hub.ErrTooLarge},
	} {
		if _, err := attempt(h, f.channel, f.data, hub.Attributes{SkipHistory: true}); !errors.Is(err, f.want) {
			t.Errorf("%.20q: %v, want %v", f.channel, err, f.want)
		}
	}
}
