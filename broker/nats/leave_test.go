package nats

import (
	"net/url"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
)

// A server that was left is tried when the others have failed twice, or a while later.
func TestAServerThatWasLeftIsTriedLast(t *testing.T) {
	servers := make([]natsgo.Server, 3)
	for i, host := range []string{"a", "b", "c"} {
		servers[i].URL = &url.URL{Scheme: "nats", Host: host}
	}
	var d departures
	now := time.Now()
	f := func(want string, at time.Time, reconnects ...int) {
		t.Helper()
		for i, n := range reconnects {
			servers[i].Reconnects = n
		}
		got := ""
		s, wait := d.next(servers, at)
		if s != nil {
			got = s.URL.Host
			if n := s.Reconnects; (wait > 0) != (n > 0) {
				t.Errorf("%s after %d tries: at once is %v", got, n, wait == 0)
			}
		}
		if got != want {
			t.Errorf("after %v tries: %q, want %q", reconnects, got, want)
		}
	}
	f("", now, 0, 0, 0)
	d.add("nats://a", now)
	f("b", now, 0, 0, 0)
	f("c", now, 0, 1, 0)
	f("b", now, 0, 1, 1)
	f("a", now, 0, 3, 3)
	d.add("nats://b", now.Add(time.Second))
	f("c", now.Add(time.Second), 0, 0, 0)
	d.add("nats://c", now.Add(2*time.Second))
	f("a", now.Add(2*time.Second), 0, 0, 0)
	f("b", now.Add(2*time.Second), 1, 0, 0)
	f("", now.Add(2*avoidFor), 0, 0, 0)
	d.add("nats://b", now.Add(2*avoidFor))
	if len(d.left) != 1 {
		t.Errorf("%d servers are remembered, want 1", len(d.left))
	}
}
