package nats

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// pubID publishes a message with an id.
func pubID(t *testing.T, n *hubtest.Node, ns *hub.Namespace, name, id string) hub.Position {
	t.Helper()
	at, err := n.Try(ns, hub.Publication{Channel: hubtest.Channel(ns, name), Data: []byte("d"), Attributes: &hub.Attributes{ID: id}})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// isAt judges one lookup; a zero position is one that finds nothing.
func isAt(t *testing.T, n *hubtest.Node, ns *hub.Namespace, id string, want hub.Position) {
	t.Helper()
	at, err := n.Broker.(*Broker).Lookup(t.Context(), ns, id)
	if !at.Same(want) || want == (hub.Position{}) != errors.Is(err, hub.ErrNoMessage) || want.Offset != 0 && err != nil {
		t.Errorf("%q is looked up at %v, %v, want %v", id, at, err, want)
	}
}

// A process that hosts the broker is killed after 20,000 answered publishes: every
// one is found by its id, where it was said to be.
func TestLookupIsExactAfterAKill(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	dir := t.TempDir()
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000}.WithDefaults()
	answered := map[string]hub.Position{}
	p := spawn(t, "weir", dir)
	for range 20_000 {
		line, err := p.out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		record(t, answered, line)
	}
	p.killed(func(line string) { record(t, answered, line) })
	n := startOn(t, Config{Dir: dir}, ns)
	began := time.Now()
	isAt(t, n, &ns, "id0", answered["0"])
	t.Logf("the first lookup took %v", time.Since(began))
	var wg sync.WaitGroup
	ids := make(chan string)
	for range 8 {
		wg.Go(func() {
			for i := range ids {
				isAt(t, n, &ns, "id"+i, answered[i])
			}
		})
	}
	some := 0
	for i := range answered {
		if some++; some%5 == 0 {
			ids <- i
		}
	}
	for _, i := range []string{"0", "1", "19000"} {
		ids <- i
	}
	close(ids)
	wg.Wait()
	isAt(t, n, &ns, "id-1", hub.Position{})
	isAt(t, n, &ns, "", hub.Position{})
	isAt(t, n, &ns, "later", hub.Position{})
	isAt(t, n, &ns, "later", pubID(t, n, &ns, "x", "later"))
	x := &n.Broker.(*Broker).all()["a"].index
	if x.count < len(answered) || x.count > len(answered)+256+1 || len(x.more) > 1 {
		t.Errorf("%d of %d ids in the index, %d with more than one place", x.count, len(answered), len(x.more))
	}
}

// An answered publication is found, also by another node, while others publish.
func TestLookupWhilePublishing(t *testing.T) {
	cs := cluster(t)
	spawnAll(t, cs)
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000, Replicas: 3}.WithDefaults()
	a, b := startOn(t, Config{URL: cs[0].url()}, ns), startOn(t, Config{URL: cs[1].url()}, ns)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 100 {
				from, other := a, b
				if (w+i)%2 == 0 {
					from, other = b, a
				}
				id := fmt.Sprint(w, ".", i)
				at := pubID(t, from, &ns, fmt.Sprint(i%5), id)
				isAt(t, other, &ns, id, at)
				isAt(t, from, &ns, id, at)
				isAt(t, other, &ns, id+"?", hub.Position{})
			}
		})
	}
	wg.Wait()
}

func TestLookupFindsTheEarliestRetained(t *testing.T) {
	ns := hub.Namespace{Name: "a", HistorySize: 2}.WithDefaults()
	n := startOn(t, Config{Dir: t.TempDir()}, ns)
	one := pubID(t, n, &ns, "x", "i")
	isAt(t, n, &ns, "i", one)
	two := pubID(t, n, &ns, "y", "i")
	three := pubID(t, n, &ns, "x", "i")
	isAt(t, n, &ns, "i", one)
	n.Pub(&ns, "x", "-") // removes one
	isAt(t, n, &ns, "i", two)
	if err := n.Broker.(*Broker).Remove(t.Context(), &ns, "a:y"); err != nil {
		t.Fatal(err)
	}
	isAt(t, n, &ns, "i", three)
	n.Pub(&ns, "x", "-")
	isAt(t, n, &ns, "i", hub.Position{})
	isAt(t, n, &ns, "i", pubID(t, n, &ns, "z", "i"))
	none := hub.Namespace{Name: "a", Durability: hub.None}.WithDefaults()
	isAt(t, startOn(t, Config{Dir: t.TempDir()}, none), &none, "i", hub.Position{})
}

func TestLookupFollowsANewEpoch(t *testing.T) {
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{URL: c.url()}, ns)
	old := pubID(t, n, &ns, "x", "old")
	isAt(t, n, &ns, "old", old)
	var gone struct{ Success bool }
	if err := n.Broker.(*Broker).request(t.Context(), "STREAM.DELETE.weir_a", nil, &gone); err != nil {
		t.Fatal(err)
	}
	var at hub.Position
	tries := 0 // each its own id: one that was refused may be stored
	hubtest.Until(t, patience, "publishing to work again", func() (ok bool) {
		var err error
		tries++
		at, err = n.Try(&ns, hub.Publication{Channel: "a:x", Attributes: &hub.Attributes{ID: fmt.Sprint("new", tries)}})
		return err == nil
	})
	isAt(t, n, &ns, fmt.Sprint("new", tries), at)
	isAt(t, n, &ns, "old", hub.Position{})
}

// The index is bounded by what is retained, not by what was ever published: ids of messages that are
// no more are removed once there are too many.
func TestIndexForgetsWhatIsNoMore(t *testing.T) {
	const perRound = 500
	f := func(what string, keep bool) {
		t.Helper()
		ns := hub.Namespace{Name: "a", HistorySize: 100}.WithDefaults()
		n := startOn(t, Config{Dir: t.TempDir()}, ns)
		kept := hub.Position{}
		if keep {
			kept = pubID(t, n, &ns, "quiet", "kept") // what is removed later lies between what is there
		}
		x := &n.Broker.(*Broker).all()["a"].index
		for round := range 2 {
			var answers []<-chan hubtest.Result
			for i := range perRound {
				answers = append(answers, n.Go(&ns, hub.Publication{
					Channel: "a:x", Attributes: &hub.Attributes{ID: fmt.Sprint(round, ".", i)},
				}))
			}
			var last hub.Position
			for _, c := range answers {
				r := <-c
				if r.Err != nil {
					t.Fatal(r.Err)
				}
				last = r.Position
			}
			isAt(t, n, &ns, fmt.Sprint(round, ".", perRound-1), last)
			isAt(t, n, &ns, fmt.Sprint(round, ".", 1), hub.Position{})
			isAt(t, n, &ns, "kept", kept)
			if round == 0 { // as after very many lookups between publishes
				const early = 2
				for i := range slack + 200 {
					x.add(fmt.Sprint("early", i), early)
				}
			}
		}
		if x.count > 200+slack || x.count != len(x.first) {
			t.Errorf("%s: %d ids in the index, in %d places", what, x.count, len(x.first))
		}
	}
	f("the old end is removed", false)
	f("the middle is removed", true)
}

func TestIndexKeepsItsBooks(t *testing.T) {
	x := newIndex()
	x.reset("e")
	for seq := uint64(1); seq <= 30; seq++ {
		x.add(fmt.Sprint(seq%3), seq)
	}
	f := func(id string, first uint64, count int) {
		t.Helper()
		if at := x.at(id); len(at) != count || count > 0 && at[0] != first {
			t.Errorf("%q is at %v, want %d from %d", id, at, count, first)
		}
	}
	f("0", 3, 10)
	x.drop("0", 6) // is not the earliest
	f("0", 3, 10)
	x.drop("0", 3)
	f("0", 6, 9)
	x.prune(20)
	f("0", 21, 4)
	f("1", 22, 3)
	f("2", 20, 4)
	x.prune(30)
	f("0", 30, 1)
	f("1", 0, 0)
	if x.count != 1 || len(x.first) != 1 || len(x.more) != 0 {
		t.Errorf("%d, %v, %v", x.count, x.first, x.more)
	}
	x.drop("0", 30)
	f("0", 0, 0)
	if x.count != 0 {
		t.Errorf("count %d", x.count)
	}
}

// A removed channel is empty for every node, and a reader from before it gets a gap event.
func TestRemoveIsSeenByTheOtherNode(t *testing.T) {
	cs := cluster(t)
	spawnAll(t, cs)
	ns := hub.Namespace{Name: "a", Replicas: 3}.WithDefaults()
	a, b := startOn(t, Config{URL: cs[0].url()}, ns), startOn(t, Config{URL: cs[1].url()}, ns)
	archive := a.Broker.(*Broker)
	first := a.Pub(&ns, "x", "1")
	quiet := a.Pub(&ns, "quiet", "q")
	last := a.Pub(&ns, "x", "2")
	if err := archive.Remove(t.Context(), &ns, "a:x"); err != nil {
		t.Fatal(err)
	}
	f := func(n *hubtest.Node, name string, since uint64, count int, gap bool) {
		t.Helper()
		p := n.Page(&ns, name, since, 100)
		if len(p.Messages) != count || (p.FirstRetained > since+1) != gap {
			t.Errorf("%s since %d: %d messages, first retained %d", name, since, len(p.Messages), p.FirstRetained)
		}
	}
	for _, n := range []*hubtest.Node{a, b} {
		f(n, "x", 0, 0, true)
		f(n, "x", first.Offset, 0, true)
		f(n, "x", last.Offset, 0, false)
		f(n, "quiet", quiet.Offset-1, 1, false)
		f(n, "", 0, 1, true)
		f(n, "", first.Offset, 1, true)
		f(n, "", last.Offset, 0, false)
	}
	if snap := b.Sub(&ns, "x", 10); len(snap.Messages) != 0 || snap.Top.Offset < last.Offset {
		t.Errorf("snapshot %+v", snap)
	}
	next := a.Pub(&ns, "x", "3")
	b.Await(&ns, "x", 1)
	for _, n := range []*hubtest.Node{a, b} {
		f(n, "x", first.Offset, 1, true)
		f(n, "x", last.Offset, 1, false)
	}
	if err := archive.Remove(t.Context(), &ns, "a:never"); err != nil {
		t.Errorf("of a channel without messages: %v", err)
	}
	if top := b.End(&ns); !top.Same(next) {
		t.Errorf("which moved the top from %v to %v", next, top)
	}
	if err := b.Broker.(*Broker).Remove(t.Context(), &ns, "a:x"); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*hubtest.Node{a, b} {
		f(n, "x", last.Offset, 0, true)
		f(n, "x", next.Offset, 0, false)
	}
	if err := archive.Remove(t.Context(), &ns, "a:"); !errors.Is(err, hub.ErrBadChannel) {
		t.Errorf("remove the whole: %v", err)
	}
}

func TestRemoveOutlivesARestart(t *testing.T) {
	dir := t.TempDir()
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: dir}, ns)
	n.Sub(&ns, "x", 0)
	n.Pub(&ns, "other", "o")
	at := n.Pub(&ns, "x", "1")
	if err := n.Broker.(*Broker).Remove(t.Context(), &ns, "a:x"); err != nil {
		t.Fatal(err)
	}
	next := n.Pub(&ns, "x", "2")
	n.Await(&ns, "x", 2)
	n.Close()
	ns.HistorySize = 50 // the mark stays also when the options change
	n = startOn(t, Config{Dir: dir}, ns)
	if p := n.Page(&ns, "x", 0, 10); len(p.Messages) != 1 || p.FirstRetained != at.Offset+1 || p.Epoch != at.Epoch {
		t.Errorf("%d messages, first retained %d in epoch %s", len(p.Messages), p.FirstRetained, p.Epoch)
	}
	if top := n.End(&ns); !top.Same(next) {
		t.Errorf("top %v, want %v", top, next)
	}
}

// BenchmarkFirstLookup reads a log of 100,000 messages with ids.
func BenchmarkFirstLookup(b *testing.B) {
	br, err := New(Config{Dir: b.TempDir()}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer br.Close()
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000}.WithDefaults()
	if err := br.Start(b.Context(), []hub.Namespace{ns}, func(*hub.Message) {}); err != nil {
		b.Fatal(err)
	}
	const count, window = 100_000, 1000
	room := make(chan struct{}, window)
	for i := range count {
		room <- struct{}{}
		p := hub.Publication{
			Channel: fmt.Sprint("a:", i%100), Data: make([]byte, 128), Attributes: &hub.Attributes{ID: fmt.Sprint("urn:uuid:", i)},
		}
		br.Publish(&ns, p, func(_ hub.Position, err error) {
			if err != nil {
				b.Error(err)
			}
			<-room
		})
	}
	for range window {
		room <- struct{}{}
	}
	for b.Loop() {
		br.all()["a"].index.reset("")
		if _, err := br.Lookup(b.Context(), &ns, "urn:uuid:99999"); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*count/b.Elapsed().Seconds(), "messages/s")
}
