package hub_test

import (
	"fmt"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Wherever a subscriber is left, another one continues from what Stands says: in the middle of a
// replay, live on one channel, live on several.
func TestSubscribersResumeAtTheirPosition(t *testing.T) {
	f := func(name string, room int, since bool, channels ...string) {
		t.Helper()
		h := newHub(t, nil)
		old, fresh := newOwner(t, h), newOwner(t, h)
		publish := func(from, n int) {
			t.Helper()
			for i := from; i < from+n; i++ {
				done := make(chan error, 1)
				h.Publish(hub.Publication{Channel: fmt.Sprintf("c%d", i%3), Data: fmt.Appendf(nil, "%d", i)}, func(_ hub.Position, err error) { done <- err })
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
		}
		publish(0, 30)
		s := newSink()
		s.room = room
		old.do(func() {
			if err := old.shard.Subscribe(&s.sub, s, hub.SubscribeOptions{Channels: channels, All: since}); err != nil {
				t.Error(err)
			}
		})
		s.wait(t, name+" starts", func() bool { return s.starts > 0 && (!since || len(s.got) > 0) })
		publish(30, 30)
		var at hub.Positions
		for ok := false; !ok; { // a replay that has only started is nowhere yet
			old.do(func() {
				if at, ok = s.sub.Position(); ok {
					old.shard.Unsubscribe(&s.sub)
				}
			})
		}
		publish(60, 30)
		next := newSink()
		fresh.do(func() {
			if err := fresh.shard.Subscribe(&next.sub, next, hub.SubscribeOptions{Channels: channels, Since: at}); err != nil {
				t.Error(err)
			}
		})
		first := 30
		if since {
			first = 0
		}
		var want []string
		for i := first; i < 90; i++ {
			for _, c := range channels {
				if c == fmt.Sprintf("c%d", i%3) {
					want = append(want, fmt.Sprint(i))
				}
			}
		}
		next.wait(t, name+" continues", func() bool { return len(s.got)+len(next.got) >= len(want) })
		var got []string
		for _, m := range append(s.got, next.got...) {
			got = append(got, string(m.Data))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || len(s.gaps)+len(next.gaps) > 0 {
			t.Errorf("%s: got %v, want %v; gaps %v %v", name, got, want, s.gaps, next.gaps)
		}
		var none hub.Subscriber
		if _, ok := none.Position(); ok {
			t.Error("an unsubscribed one has a position")
		}
	}
	f("live on one channel", 0, false, "c0")
	f("live on several", 0, false, "c0", "c2")
	f("replayed on one channel", 0, true, "c1")
	f("in the middle of a replay", 1, true, "c1")
	f("in the middle of a replay of several", 1, true, "c0", "c1", "c2")
}
