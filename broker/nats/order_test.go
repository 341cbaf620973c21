package nats

import (
	"errors"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

// A channel's publishes that are in flight when its log changes the leader are stored in the order of
// the calls or refused, whichever of them are dropped, refused or stored without an answer.
func TestPublishesInFlightKeepTheirOrder(t *testing.T) {
	cs := cluster(t)
	spawnAll(t, cs)
	w := startScript(t, strings.TrimPrefix(cs[0].url(), "nats://"))
	ns := hub.Namespace{Name: "a", Replicas: 3}.WithDefaults()
	n := startOn(t, Config{URL: "nats://" + w.addr, AckTimeout: hub.Duration(patience)}, ns)
	b := n.Broker.(*Broker)
	publish := func(channel, data string) <-chan hubtest.Result {
		return n.Go(&ns, hub.Publication{Channel: "a:" + channel, Data: []byte(data)})
	}
	// inOrder publishes one and, when meanwhile allows it, another; both have to be stored.
	inOrder := func(channel, one string, meanwhile func()) {
		t.Helper()
		first := publish(channel, one)
		meanwhile()
		r2, r1 := <-publish(channel, "later than "+one), <-first
		if r1.Err != nil || r2.Err != nil || r1.Offset >= r2.Offset {
			t.Errorf("%s: %v, %v; %v, %v", one, r1.Position, r1.Err, r2.Position, r2.Err)
		}
	}
	n.Pub(&ns, "x", "before")

	bridged := b.bridgedPublishes.Load()
	w.plan("refused and dropped", false, refused, dropped)
	inOrder("x", "refused and dropped", func() {
		hubtest.Until(t, patience, "the refusal", func() bool { return b.bridgedPublishes.Load() > bridged })
	})
	w.plan("unheard", false, unheard)
	inOrder("y", "unheard", func() {
		hubtest.Until(t, patience, "the publish", func() bool { return w.sendings("unheard") > 0 })
	})

	// One that the next one has overtaken already.
	overtaken := func(channel, one string, fates ...fate) {
		t.Helper()
		w.plan(one, true, fates...)
		first := publish(channel, one)
		hubtest.Until(t, patience, "the publish", func() bool { return w.sendings(one) > 0 })
		r2 := <-publish(channel, "later than "+one)
		w.release()
		r1 := <-first
		if r2.Err != nil || !errors.Is(r1.Err, hub.ErrUnavailable) || errors.As(r1.Err, new(*hub.UncertainError)) {
			t.Errorf("%s: %v, %v; %v, %v", one, r1.Position, r1.Err, r2.Position, r2.Err)
		}
		if ms := history(t, n, &ns, channel); len(ms) != 1 || ms[0].Offset != r2.Offset {
			t.Errorf("%s: %d messages are stored, want the one at %v", one, len(ms), r2.Position)
		}
		if r := <-publish(channel, one+", again"); r.Err != nil || r.Offset <= r2.Offset {
			t.Errorf("%s, again: %v, %v", one, r.Position, r.Err)
		}
	}
	overtaken("v", "refused", refused)
	overtaken("w", "dropped", dropped)
}

// A server that has just started, or a log that elects a leader, serves no reads for a short time: they are made
// again, and only a log that no server serves is unavailable.
func TestReadsWaitForWhoServesThem(t *testing.T) {
	c := external(t)
	c.spawn(t)
	w := startScript(t, strings.TrimPrefix(c.url(), "nats://"))
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{URL: "nats://" + w.addr}, ns)
	n.Pub(&ns, "x", "one")
	w.plan(directReads, false, refused, refused, refused)
	if ms := history(t, n, &ns, "x"); len(ms) != 1 || w.sendings(directReads) < 4 {
		t.Errorf("%d messages after %d reads, want one after four", len(ms), w.sendings(directReads))
	}
}
