package nats

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// Every partition passes what a namespace with one log does.
func TestPartitionsConform(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	c := external(t)
	c.spawn(t)
	hubtest.Run(t, func(t *testing.T) hubtest.Harness {
		return hubtest.Harness{Lose: loseOn, Partitions: 3, New: func(t *testing.T) hub.Broker { return newBroker(t, Config{URL: c.url()}) }}
	})
}

// Another number of partitions is refused in words that name the way, and nothing is lost by it.
func TestPartitionsAreFixed(t *testing.T) {
	dir := t.TempDir()
	start := func(ns hub.Namespace) error {
		b := newBroker(t, Config{Dir: dir})
		h, err := hub.New(hub.Config{Namespaces: []hub.Namespace{ns, {Name: "one"}}}, b)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		if err := h.Start(t.Context()); err != nil {
			return err
		}
		for _, channel := range []string{"a:x", "a:y", "one:x"} {
			done := make(chan error, 1)
			h.Publish(hub.Publication{Channel: channel, Data: []byte("1"), IdempotencyKey: channel}, func(_ hub.Position, err error) { done <- err })
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if p, err := h.History(t.Context(), channel, hub.HistoryOptions{Limit: -1}); err != nil || len(p.Messages) != 1 {
				t.Errorf("%s has %d messages, %v", channel, len(p.Messages), err)
			}
		}
		return nil
	}
	refused := func(ns hub.Namespace, want string) {
		t.Helper()
		if err := start(ns); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d partitions by %q: %v, want %q", ns.Partitions, ns.PartitionBy, err, want)
		}
	}
	if err := start(hub.Namespace{Name: "a", Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	refused(hub.Namespace{Name: "a"}, "set partitions: 2 and partition_by: channel")
	refused(hub.Namespace{Name: "a", Partitions: 4}, "2 partitions by channel in NATS and 4 partitions by channel")
	refused(hub.Namespace{Name: "a", Partitions: 2, PartitionBy: hub.ByPrefix}, "set partitions: 2 and partition_by: channel")
	if err := start(hub.Namespace{Name: "a", Partitions: 2}); err != nil {
		t.Error(err)
	}
	dir = t.TempDir()
	if err := start(hub.Namespace{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	refused(hub.Namespace{Name: "a", Partitions: 2}, "one log in NATS and 2 partitions by channel in the configuration")
}

// partitioned starts three NATS servers, which elect leaders as those inside Weir do.
func partitioned(t *testing.T) ([]natsChild, []*process) {
	cs := cluster(t)
	for i := range cs {
		cs[i].Quick = true
	}
	return cs, spawnAll(t, cs)
}

// onEach returns a channel of each partition.
func onEach(ns hub.Namespace) []string {
	ns = ns.WithDefaults()
	channels := make([]string, ns.Partitions)
	for i := 0; slices.Contains(channels, ""); i++ {
		ch := fmt.Sprint(ns.Name, ":", i)
		channels[ns.PartitionOf(ch)] = ch
	}
	return channels
}

// leaders returns the server that leads each partition, and waits until ok.
func leaders(t *testing.T, b *Broker, what string, ok func(leaders []string) bool) (all []string) {
	t.Helper()
	hubtest.Until(t, patience, what, func() bool {
		all = nil
		for _, l := range b.Logs(t.Context()) {
			all = append(all, l.Leader)
		}
		return ok(all)
	})
	return all
}

// answer publishes once and returns what came, which is an error after patience.
func answer(n *hubNode, p hub.Publication) error {
	n.t.Helper()
	got := make(chan error, 1)
	n.Publish(p, func(_ hub.Position, err error) { got <- err })
	select {
	case err := <-got:
		return err
	case <-time.After(patience):
		n.t.Fatalf("publish on %s: no answer", p.Channel)
		return nil
	}
}

// The leaders of the partitions are spread over the servers. When one of them dies, nothing is
// lost in any partition; the others store meanwhile.
func TestPartitionLeaderDies(t *testing.T) {
	t.Parallel()
	cs, ps := partitioned(t)
	ns := hub.Namespace{Name: "a", Partitions: 3, Replicas: 3}
	var nodes []*hubNode
	for i := range cs {
		nodes = append(nodes, startHub(t, Config{URL: cs[i].url()}, ns))
	}
	channels := onEach(ns)
	var subs []*partitionReader
	for _, n := range nodes {
		r := &partitionReader{got: map[string][]string{}}
		if err := n.shard.Subscribe(new(hub.Subscriber), r, hub.SubscribeOptions{Channels: channels}); err != nil {
			t.Fatal(err)
		}
		n.until("a subscription", func() bool { return r.live })
		subs = append(subs, r)
	}
	spread := leaders(t, nodes[0].b, "leaders on three servers", func(all []string) bool {
		s := slices.Compact(slices.Sorted(slices.Values(all)))
		return len(s) == len(cs) && s[0] != ""
	})
	const rounds, dies = 30, 10
	for round := range rounds {
		if round == dies {
			i := slices.IndexFunc(cs, func(c natsChild) bool { return c.Name == spread[1] })
			ps[i].kill()
		}
		for k, ch := range channels {
			id := fmt.Sprint(round)
			n := nodes[(round+k)%len(nodes)]
			hubtest.Until(t, 2*patience, "a publish in partition "+fmt.Sprint(k), func() bool {
				return answer(n, hub.Publication{Channel: ch, Data: []byte(id), IdempotencyKey: ch + id}) == nil
			})
		}
	}
	for i, n := range nodes {
		n.until("all messages", func() bool { return subs[i].n == rounds*len(channels) })
		for _, ch := range channels {
			for round, id := range subs[i].got[ch] {
				if id != fmt.Sprint(round) {
					t.Fatalf("node %d, %s: message %d is %s", i, ch, round, id)
				}
			}
		}
		if len(subs[i].gaps) > 0 {
			t.Errorf("node %d: gaps %v", i, subs[i].gaps)
		}
	}
}

// A partitionReader keeps what comes on each channel.
type partitionReader struct {
	live bool
	got  map[string][]string
	n    int
	gaps []hub.Gap
	err  error
}

func (r *partitionReader) Start(hub.Positions) {}
func (r *partitionReader) Live()               { r.live = true }
func (r *partitionReader) Room() bool          { return true }
func (r *partitionReader) Gap(g hub.Gap)       { r.gaps = append(r.gaps, g) }
func (r *partitionReader) Failed(err error)    { r.err = err }
func (r *partitionReader) Deliver(b *hub.Batch) {
	for _, m := range b.Messages {
		r.got[m.Channel] = append(r.got[m.Channel], string(m.Data))
		r.n++
	}
}

// A partition whose only server is suspended refuses its publishes by its name, and takes only
// its share of the queue: the others store and the node stays ready.
func TestFrozenPartitionStopsItselfOnly(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	cs, ps := partitioned(t)
	ns := hub.Namespace{Name: "a", Partitions: 8, Replicas: 1}
	n := startHub(t, Config{URL: cs[0].url(), AckTimeout: hub.Duration(8 * time.Second), MaxPending: 80}, ns)
	b := n.b
	channels := onEach(ns)
	for _, ch := range channels {
		if err := answer(n, hub.Publication{Channel: ch, Data: []byte("before")}); err != nil {
			t.Fatal(err)
		}
	}
	on := leaders(t, b, "leaders", func(all []string) bool { return len(all) == 8 && !slices.Contains(all, "") })
	server := slices.IndexFunc(cs[1:], func(c natsChild) bool { return slices.Contains(on, c.Name) }) + 1
	var frozen, others []int
	for k, name := range on {
		if name == cs[server].Name {
			frozen = append(frozen, k)
		} else {
			others = append(others, k)
		}
	}
	if server == 0 || len(others) == 0 {
		t.Fatalf("the partitions are on %v", on)
	}
	ps[server].suspend(t)
	defer ps[server].cmd.Process.Signal(continueSignal)

	k, share := frozen[0], 10
	refused := make(chan error, share+1)
	for i := range share + 1 {
		n.Publish(hub.Publication{Channel: channels[k], Data: fmt.Append(nil, i)}, func(_ hub.Position, err error) { refused <- err })
	}
	title := fmt.Sprintf(`"a", partition %d of 8`, k)
	if err := <-refused; !errors.Is(err, hub.ErrOverloaded) || !strings.Contains(err.Error(), title) {
		t.Errorf("past the share of %s: %v", title, err)
	}
	away := func() bool {
		for _, p := range Partitions(b) {
			if p.Partition == k {
				return p.Err != nil && p.Waiting == share && strings.Contains(p.Err.Error(), title)
			}
		}
		return false
	}
	for round := 0; !away(); round++ { // the others store all the while
		for _, o := range others {
			if err := answer(n, hub.Publication{Channel: channels[o], Data: []byte("beside")}); err != nil {
				t.Fatalf("partition %d beside a suspended one: %v", o, err)
			}
		}
		if round == 0 && n.Ready() != nil {
			t.Errorf("not ready: %v", n.Ready())
		}
		if len(refused) == share {
			t.Fatalf("the publishes to %s were answered before it counted as away", title)
		}
	}
	for range share {
		if err := <-refused; !errors.Is(err, hub.ErrUnavailable) || !strings.Contains(err.Error(), title) {
			t.Errorf("a publish to the suspended partition: %v", err)
		}
	}
	ps[server].cmd.Process.Signal(continueSignal)
	hubtest.Until(t, 2*patience, "the partition to store again", func() bool {
		return answer(n, hub.Publication{Channel: channels[k], Data: []byte("after"), IdempotencyKey: "after"}) == nil
	})
	hubtest.Until(t, patience, "every partition to count as up", func() bool {
		return !slices.ContainsFunc(Partitions(b), func(p PartitionStatus) bool { return p.Err != nil })
	})
}

// A node is sent the messages of the channels that are subscribed there, and no others.
func TestNodeReceivesOnlyItsChannels(t *testing.T) {
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "a", Partitions: 2}
	publisher, reader, idle := startHub(t, Config{URL: c.url()}, ns), startHub(t, Config{URL: c.url()}, ns), startHub(t, Config{URL: c.url()}, ns)
	channels := onEach(ns)
	r := &partitionReader{got: map[string][]string{}}
	if err := reader.shard.Subscribe(new(hub.Subscriber), r, hub.SubscribeOptions{Channels: channels[:1]}); err != nil {
		t.Fatal(err)
	}
	reader.until("a subscription", func() bool { return r.live })
	before := received(idle)
	const count = 200
	for i := range count {
		for _, ch := range channels {
			if err := answer(publisher, hub.Publication{Channel: ch, Data: fmt.Append(nil, i)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	reader.until("its messages", func() bool { return r.n == count })
	// Heartbeats, marks and checks of quiet logs are far fewer than the messages.
	if n := received(idle) - before; n > count/2 {
		t.Errorf("a node without subscribers was sent %d messages while %d were published", n, count*len(channels))
	}
}

// received counts the messages that NATS has sent to a node.
func received(n *hubNode) uint64 {
	return n.b.nc.Stats().InMsgs
}
