package nats

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func FuzzChannelOf(f *testing.F) {
	for _, c := range []string{"a:b", "news", "default:news", "a:=3D", "a:é*> =", "a:a:b:", "mercure:https://x/{id}?q=1#:"} {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, channel string) {
		if hub.CheckChannel(channel) == nil {
			ns := hub.NamespaceOf(channel)
			if got, ok := channelOf(ns, token(ns, channel)); !ok || got != channel {
				t.Errorf("%q of %q is read as %q, %v", channel, ns, got, ok)
			}
		}
		if got, ok := channelOf("a", channel); ok && token("a", got) != channel { // as a token
			t.Errorf("token %q is read as %q", channel, got)
		}
	})
}

// The whole namespace and channels of it: every message comes once, under its own
// name. The recorder judges order and repeats.
func TestWholeBesideChannels(t *testing.T) {
	for _, name := range []string{"a", hub.DefaultNamespace} {
		ns := hub.Namespace{Name: name}.WithDefaults()
		n := startOn(t, Config{Dir: t.TempDir()}, ns)
		before := n.Pub(&ns, "x", "before")
		n.Sub(&ns, "x", 0)
		if snap := n.Sub(&ns, "", 10); len(snap.Messages) != 1 || snap.Messages[0].Channel != hubtest.Channel(&ns, "x") || !snap.Top.Same(before) || snap.Floor != 0 {
			t.Errorf("snapshot %+v", snap)
		}
		for i := range 50 {
			for _, c := range []string{"x", "y", "odd/é:.*>"} {
				n.Pub(&ns, c, fmt.Sprint(i))
			}
			switch i {
			case 10:
				n.Sub(&ns, "y", 0)
			case 20:
				n.Unsubscribe(&ns, hubtest.Channel(&ns, "x"))
			}
		}
		for _, c := range []string{"x", "y", "odd/é:.*>"} {
			if got := len(n.Await(&ns, c, 50)); got != 50 {
				t.Errorf("%d messages on %s", got, c)
			}
		}
		n.Unsubscribe(&ns, hub.Whole(ns.Name))
		n.Pub(&ns, "z", "missed")
		n.Pub(&ns, "y", "received")
		n.Await(&ns, "y", 51)
		if got := len(n.On(hubtest.Channel(&ns, "z"))); got != 0 {
			t.Errorf("%d messages after the namespace was unsubscribed", got)
		}
		if _, err := n.Try(&ns, hub.Publication{Channel: hub.Whole(ns.Name)}); !errors.Is(err, hub.ErrBadChannel) {
			t.Errorf("publish on the whole: %v", err)
		}
	}
}

func TestWholeWithoutLogDeliversOnce(t *testing.T) {
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "a", Durability: hub.None}.WithDefaults()
	a, b := startOn(t, Config{URL: c.url()}, ns), startOn(t, Config{URL: c.url()}, ns)
	a.Sub(&ns, "x", 0)
	l := startLoad(b, &ns, 2, "x", "y")
	l.more(t, 100)
	if snap := a.Sub(&ns, "", 10); snap.Top.Epoch != "" || len(snap.Messages) != 0 {
		t.Errorf("snapshot %+v", snap)
	}
	l.more(t, 200)
	a.Sub(&ns, "y", 0)
	l.more(t, 200)
	for range 20 {
		a.Unsubscribe(&ns, "a:")
		l.more(t, 10)
		a.Sub(&ns, "", 0)
		l.more(t, 10)
	}
	close(l.stop)
	l.wg.Wait()
	for _, name := range []string{"x", "y"} {
		b.Pub(&ns, name, "last")
		hubtest.Until(t, patience, "the last on "+name, func() bool {
			ms := a.On("a:" + name)
			return len(ms) > 0 && string(ms[len(ms)-1].Data) == "last"
		})
		seen := map[string]int{}
		for _, m := range a.On("a:" + name) {
			if seen[string(m.Data)]++; seen[string(m.Data)] > 1 || m.Offset != 0 || m.Time < 1e12 {
				t.Fatalf("%s: message %s the %d. time, at %d, %d", name, m.Data, seen[string(m.Data)], m.Offset, m.Time)
			}
		}
		if name == "x" && len(seen) < len(l.answered)/2 {
			t.Errorf("%d messages on x of %d published on two channels", len(seen), len(l.answered))
		}
	}
}

// loseWhole is lose for the subscription to the whole namespace.
func loseWhole(t *testing.T, n *hubtest.Node, f func()) {
	t.Helper()
	b := n.Broker.(*Broker)
	s := b.all()["a"]
	s.mu.Lock()
	c := s.channels[anyToken]
	s.mu.Unlock()
	if err := errors.Join(c.sub.Unsubscribe(), b.nc.Flush()); err != nil {
		t.Fatal(err)
	}
	f()
	var sub *natsgo.Subscription
	sub, err := b.nc.ChanSubscribe(s.live(s.epochNow(), anyToken), s.in)
	if err = errors.Join(err, b.nc.Flush()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	c.sub = sub
	s.mu.Unlock()
}

func TestLostMessageOfTheWholeIsFetchedBeforeTheNext(t *testing.T) {
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: t.TempDir()}, ns)
	n.Sub(&ns, "", 0)
	n.Sub(&ns, "y", 0)
	n.Pub(&ns, "x", "1")
	n.Await(&ns, "x", 1)
	loseWhole(t, n, func() { n.Pub(&ns, "x", "2"); n.Pub(&ns, "y", "1"); n.Pub(&ns, "z", "1") }) // y comes by itself, and fetches
	n.Pub(&ns, "x", "3")
	n.Await(&ns, "x", 3)
	n.Await(&ns, "y", 1)
	n.Await(&ns, "z", 1)
}

func TestLostLastMessageOfTheWholeIsFoundByTheCheck(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{URL: c.url()}, ns)
	n.Sub(&ns, "", 0)
	n.Pub(&ns, "x", "1")
	n.Await(&ns, "x", 1)
	loseWhole(t, n, func() { n.Pub(&ns, "x", "2") })
	n.Await(&ns, "x", 2)
}

// Behind a slow hub the whole namespace is fetched from the log.
func TestSlowDeliveryOfTheWholeLosesNothing(t *testing.T) {
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000, MaxMessageBytes: 1 << 20, QueueBytes: 4 << 20}.WithDefaults()
	b := newBroker(t, Config{Dir: t.TempDir()})
	r := hubtest.NewRecorder(t)
	gate := make(chan struct{})
	if err := b.Start(t.Context(), []hub.Namespace{ns}, func(m *hub.Message) { <-gate; r.Deliver(m) }); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, name := range []string{"a:", "a:1"} {
		if _, err := b.Subscribe(t.Context(), &ns, name, 0); err != nil {
			t.Fatal(err)
		}
	}
	const count = 6000 // the queue of this namespace holds 2,048
	answers := make(chan error, count)
	for i := range count {
		b.Publish(&ns, hub.Publication{Channel: fmt.Sprint("a:", i%50), Data: fmt.Append(nil, i)}, func(_ hub.Position, err error) { answers <- err })
		if i%1000 == 999 {
			for range 1000 {
				if err := <-answers; err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	close(gate)
	for i := range 50 {
		hubtest.Until(t, patience, "all messages", func() bool { return len(r.On(fmt.Sprint("a:", i))) >= count/50 })
	}
}

// The server dies again and again under load: the whole namespace gets every
// answered message once and in order.
func TestKilledServerLosesNothingOfTheWhole(t *testing.T) {
	c := external(t)
	p := c.spawn(t)
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000}.WithDefaults()
	a, b := startOn(t, Config{URL: c.url()}, ns), startOn(t, Config{URL: c.url()}, ns)
	names := []string{"x", "y", "z"}
	for _, n := range []*hubtest.Node{a, b} {
		n.Sub(&ns, "", 0)
	}
	b.Sub(&ns, "y", 0)
	l := startLoad(a, &ns, 3, names...)
	for range 2 {
		l.more(t, 300)
		p.kill()
		hubtest.Until(t, patience, "a to notice", func() bool { return errors.Is(a.Ready(), hub.ErrUnavailable) })
		p = c.spawn(t)
	}
	l.more(t, 300)
	l.check(t, []*hubtest.Node{a, b}, names...)
}

func TestKilledLeaderLosesNothingOfTheWhole(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	cs := cluster(t)
	ps := spawnAll(t, cs)
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000, Replicas: 3}.WithDefaults()
	n := startOn(t, Config{URL: urls(cs)}, ns)
	n.Sub(&ns, "", 0)
	n.Sub(&ns, "x", 0)
	names := []string{"x", "y", "z"}
	l := startLoad(n, &ns, 2, names...)
	l.more(t, 200)
	i := leader(t, n, cs)
	ps[i].kill()
	l.more(t, 200)
	ps[i] = cs[i].spawn(t)
	l.more(t, 200)
	l.check(t, []*hubtest.Node{n}, names...)
}

func TestWholeJoinsWhileMessagesFlow(t *testing.T) {
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000}.WithDefaults()
	n := startOn(t, Config{Dir: t.TempDir()}, ns)
	n.Sub(&ns, "x", 0)
	l := startLoad(n, &ns, 3, "x", "y", "z")
	var snap hub.Snapshot
	for range 10 {
		n.Unsubscribe(&ns, "a:")
		l.more(t, 50)
		snap = n.Sub(&ns, "", 1_000_000)
		l.more(t, 50)
	}
	close(l.stop)
	l.wg.Wait()
	top := n.Pub(&ns, "z", "last")
	hubtest.Until(t, patience, "the last", func() bool {
		ms := n.On("a:z")
		return len(ms) > 0 && ms[len(ms)-1].Offset == top.Offset
	})
	got := map[uint64]bool{}
	for _, m := range snap.Messages {
		got[m.Offset] = true
	}
	if len(got) != int(snap.Top.Offset) {
		t.Errorf("%d of %d messages in the snapshot", len(got), snap.Top.Offset)
	}
	for _, c := range []string{"a:x", "a:y", "a:z"} {
		for _, m := range n.On(c) {
			got[m.Offset] = true
		}
	}
	if len(got) != int(top.Offset) {
		t.Errorf("snapshot and live join to %d messages of %d", len(got), top.Offset)
	}
}

func TestHistoryOfTheWhole(t *testing.T) {
	ns := hub.Namespace{Name: "a", HistorySize: 5}.WithDefaults()
	n := startOn(t, Config{Dir: t.TempDir()}, ns)
	read := func(since uint64, limit int) (offsets []uint64, first uint64) {
		t.Helper()
		for top := n.End(&ns).Offset; since < top; {
			p := n.Page(&ns, "", since, limit)
			if p.Covered <= since || len(p.Messages) > limit {
				t.Fatalf("page since %d covers %d with %d messages", since, p.Covered, len(p.Messages))
			}
			for _, m := range p.Messages {
				if m.Offset <= since || m.Offset > p.Covered || string(m.Data) != strings.TrimPrefix(m.Channel, "a:") {
					t.Errorf("page since %d to %d holds %q at %d of %q", since, p.Covered, m.Data, m.Offset, m.Channel)
				}
				offsets = append(offsets, m.Offset)
			}
			first = max(first, p.FirstRetained)
			since = p.Covered
		}
		return offsets, first
	}
	n.Pub(&ns, "q", "q")
	for i := range 7 { // h at 2, 4, ... 14, of which 2 and 4 are removed
		n.Pub(&ns, "h", "h")
		n.Pub(&ns, fmt.Sprint(i), fmt.Sprint(i))
	}
	for _, limit := range []int{1, 4, 100} {
		got, first := read(0, limit)
		if want := []uint64{1, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; !slices.Equal(got, want) || first != 5 {
			t.Errorf("limit %d: %v, first retained %d, want %v, 5", limit, got, first, want)
		}
	}
	if p := n.Page(&ns, "", 0, 1); p.FirstRetained != 5 || p.Covered != 1 {
		t.Errorf("what is missing after the page is not said: first retained %d, covered %d", p.FirstRetained, p.Covered)
	}
	if _, first := read(4, 100); first > 5 {
		t.Errorf("nothing is missing after 4, first retained %d", first)
	}
	snap := n.Sub(&ns, "", 12)
	if len(snap.Messages) != 12 || snap.Floor != 4 {
		t.Errorf("snapshot with %d messages and floor %d, want 12 and 4: there was one at 4", len(snap.Messages), snap.Floor)
	}
	n.Unsubscribe(&ns, "a:")
	if snap := n.Sub(&ns, "", 3); len(snap.Messages) != 3 || snap.Floor != 12 {
		t.Errorf("snapshot with %d messages and floor %d", len(snap.Messages), snap.Floor)
	}
}

// What is removed from the log while the whole is subscribed is no loss.
func TestRemovedMessagesAreNoHole(t *testing.T) {
	ns := hub.Namespace{Name: "a", HistorySize: 1}.WithDefaults()
	n := startOn(t, Config{Dir: t.TempDir()}, ns)
	n.Sub(&ns, "", 0)
	for i := range 100 {
		n.Pub(&ns, "x", fmt.Sprint(i))
		if i%10 == 0 {
			if err := n.Broker.(*Broker).Remove(t.Context(), &ns, "a:x"); err != nil {
				t.Fatal(err)
			}
		}
	}
	began := time.Now()
	n.Await(&ns, "x", 100)
	if took := time.Since(began); took > patience/2 {
		t.Errorf("took %v", took)
	}
}
