package nats

import (
	"context"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

// Another node gives the log a new epoch: channels follow it, with as many subscriptions as before
// and without a wildcard, and miss nothing of it.
func TestChannelsFollowTheEpochOfAnotherNode(t *testing.T) {
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	follower, other := startOn(t, Config{URL: c.url()}, ns), startOn(t, Config{URL: c.url()}, ns)
	names := []string{"x", "y"}
	for _, name := range names {
		follower.Sub(&ns, name, 0)
		other.Pub(&ns, name, "before")
		follower.Await(&ns, name, 1)
	}
	b := follower.Broker.(*Broker)
	subscriptions := b.nc.NumSubscriptions()

	s := other.Broker.(*Broker).all()["a"]
	in, err := s.look(context.Background())
	if err == nil {
		in, err = s.newEpoch(context.Background(), in)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.adopt(in)
	for _, name := range names {
		other.Pub(&ns, name, "after")
		hubtest.Until(t, patience, "the message of the new epoch on "+name, func() bool { return len(follower.On("a:"+name)) == 2 })
		if m := follower.On("a:" + name)[1]; m.Epoch != in.epoch || string(m.Data) != "after" || m.Prev != 0 {
			t.Errorf("%s: %s of epoch %s after %d; %s began", name, m.Data, m.Epoch, m.Prev, in.epoch)
		}
	}
	if n := b.nc.NumSubscriptions(); n != subscriptions {
		t.Errorf("%d subscriptions, %d before", n, subscriptions)
	}
	own := b.all()["a"]
	for _, name := range names {
		own.mu.Lock()
		subject := own.channels[name].sub.Subject
		own.mu.Unlock()
		if subject != own.live(in.epoch, name) || strings.Contains(subject, "*") {
			t.Errorf("%s is subscribed at %s", name, subject)
		}
	}
}
