package nats

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A streamReader is a subscriber of a hub that keeps what it is given.
type streamReader struct {
	started bool
	ids     []string
	last    uint64
	gaps    []hub.Gap
	bad     string
}

func (r *streamReader) Start(at hub.Positions) { r.started = true }
func (r *streamReader) Live()                  {}
func (r *streamReader) Room() bool             { return true }
func (r *streamReader) Gap(g hub.Gap)          { r.gaps = append(r.gaps, g) }
func (r *streamReader) Failed(err error)       { r.bad = err.Error() }
func (r *streamReader) Deliver(b *hub.Batch) {
	for _, m := range b.Messages {
		if m.Offset <= r.last || m.Attributes == nil {
			r.bad = fmt.Sprintf("offset %d after %d, attributes %v", m.Offset, r.last, m.Attributes)
			continue
		}
		r.last = m.Offset
		r.ids = append(r.ids, m.Attributes.ID)
	}
}

// A hubNode is a hub on the broker with one shard, which this test's goroutine runs.
type hubNode struct {
	*hub.Hub
	b     *Broker
	t     *testing.T
	shard *hub.Shard
	wake  chan struct{}
}

func startHub(t *testing.T, cfg Config, ns ...hub.Namespace) *hubNode {
	t.Helper()
	return startHubOn(t, newBroker(t, cfg), ns...)
}

func startHubOn(t *testing.T, b *Broker, ns ...hub.Namespace) *hubNode {
	t.Helper()
	h, err := hub.New(hub.Config{Namespaces: ns}, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	n := &hubNode{Hub: h, b: b, t: t, wake: make(chan struct{}, 1)}
	n.shard = h.NewShard(func() {
		select {
		case n.wake <- struct{}{}:
		default:
		}
	})
	return n
}

// until runs the shard until ok.
func (n *hubNode) until(what string, ok func() bool) {
	n.t.Helper()
	late := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond) // for what does not come by the shard
	defer tick.Stop()
	for n.shard.Run(); !ok(); n.shard.Run() {
		select {
		case <-n.wake:
		case <-tick.C:
		case <-late:
			n.t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

func (n *hubNode) subscribe(opt hub.SubscribeOptions) *streamReader {
	n.t.Helper()
	r := &streamReader{}
	if err := n.shard.Subscribe(new(hub.Subscriber), r, opt); err != nil {
		n.t.Fatal(err)
	}
	n.until("the subscription to begin", func() bool { return r.started || r.bad != "" })
	return r
}

// publish tries until id is stored and returns where.
func (n *hubNode) publish(channel, id string) (at hub.Position) {
	n.t.Helper()
	type answer struct {
		at  hub.Position
		err error
	}
	var a answer
	n.until("a publish to be answered", func() bool {
		c := make(chan answer, 1)
		n.Publish(hub.Publication{
			Channel: channel, Data: []byte("1"), IdempotencyKey: id, Attributes: &hub.Attributes{ID: id},
		}, func(at hub.Position, err error) { c <- answer{at, err} })
		a = <-c
		return a.err == nil
	})
	return a.at
}

// Through the hub: a reader of everything sees each message once while the server
// dies, another resumes behind an id, and a removal on one node is a gap on the other.
func TestHubsShareAWholeNamespace(t *testing.T) {
	c := external(t)
	p := c.spawn(t)
	ns := hub.Namespace{Name: "m"}
	a, b := startHub(t, Config{URL: c.url()}, ns), startHub(t, Config{URL: c.url()}, ns)
	live := b.subscribe(hub.SubscribeOptions{Channels: []string{hub.Whole("m")}})
	one := b.subscribe(hub.SubscribeOptions{Channels: []string{"m:https://x/1"}})
	const count = 60
	var at []hub.Position
	for i := range count {
		if i == count/2 {
			p.kill()
			b.until("the end to be noticed", func() bool { return errors.Is(b.Ready(), hub.ErrUnavailable) })
			p = c.spawn(t)
		}
		at = append(at, a.publish(fmt.Sprint("m:https://x/", i%3), fmt.Sprint("urn:", i)))
	}
	b.until("all messages", func() bool { return len(live.ids) >= count && len(one.ids) >= count/3 })
	f := func(what string, r *streamReader, from, step, gaps int) {
		t.Helper()
		for k, id := range r.ids {
			if want := fmt.Sprint("urn:", from+k*step); id != want {
				t.Errorf("%s: message %d is %s, want %s", what, k, id, want)
				break
			}
		}
		if len(r.ids) != (count-from+step-1)/step || len(r.gaps) != gaps || r.bad != "" {
			t.Errorf("%s: %d messages, gaps %v, %s", what, len(r.ids), r.gaps, r.bad)
		}
	}
	f("everything", live, 0, 1, 0)
	f("one channel", one, 1, 3, 0)

	found, err := b.Lookup(t.Context(), "m", "urn:20")
	if err != nil || !found.Same(at[20]) {
		t.Fatalf("looked up at %v, %v, want %v", found, err, at[20])
	}
	behind := b.subscribe(hub.SubscribeOptions{Channels: []string{hub.Whole("m")}, Since: hub.Positions{found}})
	b.until("what came after", func() bool { return len(behind.ids) >= count-21 })
	f("behind an id", behind, 21, 1, 0)

	if err := a.Remove(t.Context(), "m:https://x/1"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Lookup(t.Context(), "m", "urn:31"); !errors.Is(err, hub.ErrNoMessage) {
		t.Errorf("a removed message is looked up: %v", err)
	}
	b.until("the other node to notice it", func() bool {
		r := b.subscribe(hub.SubscribeOptions{Channels: []string{"m:https://x/1"}, Since: hub.Positions{at[10]}})
		b.until("the gap or the messages", func() bool { return len(r.gaps)+len(r.ids) > 0 })
		return len(r.gaps) == 1 && len(r.ids) == 0
	})
	whole := b.subscribe(hub.SubscribeOptions{Channels: []string{hub.Whole("m")}, Since: hub.Positions{at[50]}})
	b.until("what is left", func() bool { return len(whole.ids) >= 6 })
	if len(whole.gaps) != 1 || whole.ids[0] != "urn:51" || whole.bad != "" {
		t.Errorf("%v, gaps %v, %s", whole.ids, whole.gaps, whole.bad)
	}
	kept := b.subscribe(hub.SubscribeOptions{Channels: []string{"m:https://x/2"}, Since: hub.Positions{at[0]}})
	b.until("the neighbour's messages", func() bool { return len(kept.ids) >= count/3 })
	f("the neighbour", kept, 2, 3, 0)
}

// A message is lost on its way to one node, and one of another channel takes a stream past it.
// Its client continues on another node, which has both, and gets a gap there once the first
// node finds it out.
func TestAnotherNodeKnowsOfLateMessages(t *testing.T) {
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "m"}.WithDefaults()
	a, b := startHub(t, Config{URL: c.url()}, ns), startHub(t, Config{URL: c.url()}, ns)
	both := []string{"m:x", "m:y"}
	before, there := a.subscribe(hub.SubscribeOptions{Channels: both}), b.subscribe(hub.SubscribeOptions{Channels: both})
	var at hub.Position
	loseOn(t, a.b, &ns, "m:x", func() {
		a.publish("m:x", "lost")
		at = a.publish("m:y", "passes")
		a.until("the other channel's", func() bool { return len(before.ids) == 1 })
	})
	b.until("both", func() bool { return len(there.ids) == 2 })
	moved := b.subscribe(hub.SubscribeOptions{Channels: both, Since: hub.Positions{at}})
	a.publish("m:x", "next")
	a.until("what was lost", func() bool { return len(before.ids) >= 2 || before.bad != "" })
	b.until("a gap", func() bool { return len(moved.gaps) > 0 })
	if again := b.subscribe(hub.SubscribeOptions{Channels: both, Since: hub.Positions{at}}); len(again.gaps) != 1 {
		t.Errorf("one that comes later: gaps %v", again.gaps)
	}
	if len(moved.gaps) != 1 || len(there.gaps) != 0 || there.bad != "" {
		t.Errorf("gaps %v for one that came, %v for one that was there, %s", moved.gaps, there.gaps, there.bad)
	}
}
