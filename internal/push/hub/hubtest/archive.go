package hubtest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// archiveOf returns the node's broker as the Archive it has to be.
func archiveOf(n *Node) hub.Archive {
	n.t.Helper()
	a, ok := n.Broker.(hub.Archive)
	if !ok {
		n.t.Fatalf("%T is not a hub.Archive", n.Broker)
	}
	return a
}

// find looks id up.
func (n *Node) find(ns *hub.Namespace, id string) (hub.Position, error) {
	n.t.Helper()
	ctx, cancel := n.context()
	defer cancel()
	return archiveOf(n).Lookup(ctx, ns, id)
}

// remove removes the channel called name.
func (n *Node) remove(ns *hub.Namespace, name string) {
	n.t.Helper()
	ctx, cancel := n.context()
	defer cancel()
	if err := archiveOf(n).Remove(ctx, ns, Channel(ns, name)); err != nil {
		n.t.Fatalf("remove %q: %v", name, err)
	}
}

// with publishes data with attributes and returns its position.
func (n *Node) with(ns *hub.Namespace, name, data string, a hub.Attributes) hub.Position {
	n.t.Helper()
	p, err := n.Try(ns, hub.Publication{Channel: Channel(ns, name), Data: []byte(data), Attributes: &a})
	if err != nil {
		n.t.Fatalf("publish to %q with %+v: %v", name, a, err)
	}
	return p
}

// wholeSub subscribes to the whole namespace.
func (n *Node) wholeSub(ns *hub.Namespace, tail int) hub.Snapshot {
	n.t.Helper()
	ctx, cancel := n.context()
	defer cancel()
	s, err := n.Subscribe(ctx, ns, hub.Whole(ns.Name), tail)
	if err != nil {
		n.t.Fatalf("subscribe to all of %q: %v", ns.Name, err)
	}
	return s
}

// wholePage reads one page of the whole namespace.
func (n *Node) wholePage(ns *hub.Namespace, since uint64, limit int) hub.Page {
	n.t.Helper()
	ctx, cancel := n.context()
	defer cancel()
	p, err := n.History(ctx, ns, hub.Whole(ns.Name), since, limit)
	if err != nil {
		n.t.Fatalf("history of all of %q since %d: %v", ns.Name, since, err)
	}
	return p
}

// arrived returns everything that arrived of ns, in the order of the log.
func (n *Node) arrived(ns *hub.Namespace) []*hub.Message {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*hub.Message
	for channel, ms := range n.messages {
		if hub.NamespaceOf(channel) == ns.Name {
			all = append(all, ms...)
		}
	}
	slices.SortFunc(all, func(a, b *hub.Message) int { return int(a.Offset) - int(b.Offset) })
	return all
}

// awaitAll waits until count messages of ns have arrived.
func (n *Node) awaitAll(ns *hub.Namespace, count int) []*hub.Message {
	n.t.Helper()
	n.Wait(n.patience, fmt.Sprintf("%d messages of %q", count, ns.Name), func() bool {
		have := 0
		for channel, ms := range n.messages {
			if hub.NamespaceOf(channel) == ns.Name {
				have += len(ms)
			}
		}
		return have >= count
	})
	return n.arrived(ns)
}

func attributesArriveVerbatim(s *suite) {
	ns := s.namespace("a")
	none := s.namespace("n")
	withoutLog(&none)
	n := s.start(ns, none)
	n.Sub(&ns, "x", 0)
	n.Sub(&none, "x", 0)
	want := []*hub.Attributes{
		nil,
		{ID: "urn:uuid:1"},
		{ID: " \"é\u2028\U0001f30a<&>\t ", Event: "a: b", Retry: 1500, Private: true, Payload: hub.Text},
		{ID: strings.Repeat("x", 255), Event: strings.Repeat("é", 127), Payload: hub.Binary},
		{Topics: []string{Channel(&ns, "a"), Channel(&ns, "x")}, Index: 1, First: 7, Origin: "conn 1"},
		{Version: 1<<64 - 1, VersionEpoch: " e\"1"},
		{Info: []byte(`{"user":"1","x":[1,2]}`), Tags: map[string]string{"a": "b", "": "\r\n\x00"}},
	}
	for i, a := range want {
		for _, in := range []*hub.Namespace{&ns, &none} {
			if _, err := n.Try(in, hub.Publication{Channel: Channel(in, "x"), Key: "k", Data: fmt.Append(nil, i), Attributes: a}); err != nil {
				s.Fatal(err)
			}
		}
	}
	check := func(where string, ms []*hub.Message) {
		s.Helper()
		if len(ms) != len(want) {
			s.Fatalf("%s: %d messages, want %d", where, len(ms), len(want))
		}
		for i, m := range ms {
			if !reflect.DeepEqual(m.Attributes, want[i]) || string(m.Data) != fmt.Sprint(i) || m.Key != "k" {
				s.Errorf("%s: message %d %q: %+v, want %+v", where, i, m.Data, m.Attributes, want[i])
			}
		}
	}
	check("live", n.Await(&ns, "x", len(want)))
	check("live without a log", n.Await(&none, "x", len(want)))
	check("history", n.Page(&ns, "x", 0, 100).Messages)
	n.Unsubscribe(&ns, Channel(&ns, "x"))
	check("snapshot", n.Sub(&ns, "x", 100).Messages)
	check("history of all", n.wholePage(&ns, 0, 100).Messages)
}

// An id is found exactly: the earliest of several, none that is gone, also after
// many other messages.
func idsAreFoundExactly(s *suite) {
	ns := s.namespace("a")
	ns.HistorySize = 50
	n := s.start(ns)
	f := func(id string, want hub.Position) {
		s.Helper()
		at, err := n.find(&ns, id)
		switch {
		case want.IsZero() && !errors.Is(err, hub.ErrNoMessage):
			s.Errorf("%q: %v, %v, want ErrNoMessage", id, at, err)
		case !want.IsZero() && (err != nil || !at.Same(want)):
			s.Errorf("%q: %v, %v, want %v", id, at, err, want)
		}
	}
	f("a", hub.Position{})
	f("", hub.Position{})
	a := n.with(&ns, "x", "1", hub.Attributes{ID: "a"})
	f("a", a) // it was stored before the call
	odd := "https://example.com/%2F?a=b&c *>.\u00e9 \"q\""
	at := n.with(&ns, "y", "2", hub.Attributes{ID: odd})
	again := n.with(&ns, "z", "3", hub.Attributes{ID: "a"})
	third := n.with(&ns, "z", "4", hub.Attributes{ID: "a"})
	n.Pub(&ns, "x", "5")
	f("a", a)
	f("A", hub.Position{})
	f("a ", hub.Position{})
	f(odd, at)
	var newest hub.Position
	for i := range 49 { // x is full then, and loses its first
		newest = n.with(&ns, "x", fmt.Sprint(i), hub.Attributes{ID: fmt.Sprint("x", i)})
	}
	f("a", again)
	f("x48", newest)
	n.remove(&ns, "z")
	f("a", hub.Position{})
	f(odd, at)
	if third.Offset <= again.Offset {
		s.Errorf("%v came before %v", third, again)
	}
	back := n.with(&ns, "z", "6", hub.Attributes{ID: "a"})
	f("a", back)
	other := s.namespace("missing")
	if _, err := n.find(&other, "a"); !errors.Is(err, hub.ErrUnknownNamespace) {
		s.Errorf("in an unknown namespace: %v", err)
	}
}

func idsExpireWithTheirMessages(s *suite) {
	ns := s.namespace("a")
	ns.HistoryTTL, ns.IdempotencyWindow = hub.Duration(time.Second), hub.Duration(100*time.Millisecond)
	n := s.start(ns)
	n.with(&ns, "x", "1", hub.Attributes{ID: "a"})
	Until(s.T, s.h.Patience, "the id to be forgotten", func() bool {
		_, err := n.find(&ns, "a")
		return errors.Is(err, hub.ErrNoMessage)
	})
	at := n.with(&ns, "x", "2", hub.Attributes{ID: "a"})
	if got, err := n.find(&ns, "a"); err != nil || !got.Same(at) {
		s.Errorf("used again: %v, %v, want %v", got, err, at)
	}
}

func removedMessagesAreGone(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	first := n.Pub(&ns, "x", "1")
	n.Pub(&ns, "y", "2")
	last := n.Pub(&ns, "x", "3")
	n.remove(&ns, "x")
	n.remove(&ns, "never")
	if p := n.Page(&ns, "x", 0, 10); len(p.Messages) != 0 || p.FirstRetained <= last.Offset {
		s.Errorf("history %q, first retained %d, the last was %d", texts(p.Messages), p.FirstRetained, last.Offset)
	}
	if p := n.Page(&ns, "y", 0, 10); texts(p.Messages) != "2" || p.FirstRetained > 1 {
		s.Errorf("the neighbour's history %q, first retained %d", texts(p.Messages), p.FirstRetained)
	}
	next := n.Pub(&ns, "x", "4")
	if next.Epoch != first.Epoch || next.Offset <= last.Offset {
		s.Errorf("%v follows %v", next, last)
	}
	p := n.Page(&ns, "x", first.Offset, 10)
	if texts(p.Messages) != "4" || p.FirstRetained <= last.Offset || p.FirstRetained > next.Offset {
		s.Errorf("history %q, first retained %d", texts(p.Messages), p.FirstRetained)
	}
	if snap := n.Sub(&ns, "x", 10); texts(snap.Messages) != "4" || snap.Floor >= next.Offset {
		s.Errorf("snapshot %q, floor %d", texts(snap.Messages), snap.Floor)
	}
	if p := n.wholePage(&ns, 0, 10); texts(p.Messages) != "2 4" || p.FirstRetained <= last.Offset {
		s.Errorf("history of all %q, first retained %d", texts(p.Messages), p.FirstRetained)
	}
	ctx, cancel := n.context()
	defer cancel()
	other := s.namespace("missing")
	if err := archiveOf(n).Remove(ctx, &other, Channel(&other, "x")); !errors.Is(err, hub.ErrUnknownNamespace) {
		s.Errorf("in an unknown namespace: %v", err)
	}
}

// What arrives and what is read of a whole namespace is every message, once.
func wholeNamespacesArrive(s *suite) {
	ns, other := s.namespace("a"), s.namespace("b")
	n := s.start(ns, other)
	n.Pub(&ns, "x", "0")
	n.Pub(&other, "x", "-")
	snap := n.wholeSub(&ns, 10)
	if texts(snap.Messages) != "0" || snap.Floor != 0 || !snap.Top.Same(n.End(&ns)) {
		s.Errorf("snapshot %q at %v, floor %d", texts(snap.Messages), snap.Top, snap.Floor)
	}
	n.Sub(&ns, "x", 0) // beside it: nothing comes twice, says the recorder
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint(i))
		n.Pub(&ns, fmt.Sprint([]string{"x", "y", "new/"}[i%3], i%7), fmt.Sprint(i))
		n.Pub(&other, "x", "-")
	}
	ms := n.awaitAll(&ns, 100)
	if got := texts(ms); got != strings.Join(want, " ") {
		s.Errorf("arrived %s", got)
	}
	n.Unsubscribe(&ns, Channel(&ns, "x"))
	n.Pub(&ns, "x", "100")
	n.awaitAll(&ns, 101)
	n.Sub(&ns, "x", 0)
	n.Unsubscribe(&ns, hub.Whole(ns.Name))
	n.Pub(&ns, "y0", "101")
	n.Pub(&ns, "x", "102")
	if got := texts(n.awaitAll(&ns, 102)[101:]); got != "102" {
		s.Errorf("%q arrived after unsubscribe", got)
	}
	if len(n.arrived(&other)) > 0 {
		s.Errorf("%d messages of another namespace", len(n.arrived(&other)))
	}
	again := n.wholeSub(&ns, 3)
	if got := texts(again.Messages); got != "100 101 102" || again.Floor >= again.Messages[0].Offset || again.Floor == 0 {
		s.Errorf("snapshot %q, floor %d", got, again.Floor)
	}
	if _, err := n.Try(&ns, hub.Publication{Channel: hub.Whole(ns.Name), Data: []byte("d")}); !errors.Is(err, hub.ErrBadChannel) {
		s.Errorf("publish to all: %v, want ErrBadChannel", err)
	}
}

func wholeHistoryPagesCoverTheLog(s *suite) {
	ns := s.namespace("a")
	ns.HistorySize = 20
	n := s.start(ns)
	var want []uint64
	publish := func(i int) uint64 { return n.Pub(&ns, fmt.Sprint("c", i%5), fmt.Sprint(i)).Offset }
	for i := range 60 {
		want = append(want, publish(i))
	}
	read := func(since uint64) (got []uint64, first uint64) {
		top := n.End(&ns)
		for since < top.Offset {
			p := n.wholePage(&ns, since, 7)
			if p.Epoch != top.Epoch || len(p.Messages) > 7 || p.Covered <= since {
				s.Fatalf("page since %d: epoch %q, %d messages, covered %d", since, p.Epoch, len(p.Messages), p.Covered)
			}
			got = append(got, offsets(p.Messages)...)
			first = max(first, p.FirstRetained)
			since = p.Covered
		}
		return got, first
	}
	if got, first := read(0); !slices.Equal(got, want) || first > 1 {
		s.Errorf("pages gave %v, first retained %d", got, first)
	}
	if got, _ := read(want[30]); !slices.Equal(got, want[31:]) {
		s.Errorf("pages since %d gave %v", want[30], got)
	}
	lost := want[0]
	for i := range 9 { // c0 loses one
		n.Pub(&ns, "c0", fmt.Sprint(i))
	}
	got, first := read(0)
	if slices.Contains(got, lost) || len(got) != 68 || first <= lost || first > want[5] {
		s.Errorf("%d messages, first retained %d after offset %d was lost", len(got), first, lost)
	}
}

// A subscriber to everything that appears while messages flow sees each once.
func wholeSnapshotAndLiveJoinExactly(s *suite) {
	ns := s.namespace("a")
	ns.HistorySize = 1_000_000
	n := s.start(ns)
	count, stop := traffic(s, n, &ns, 3)
	more := func() {
		enough := count.Load() + 20
		Until(s.T, s.h.Patience, "more traffic", func() bool { return count.Load() >= enough || s.Failed() })
	}
	var final hub.Snapshot
	for round := range 8 {
		more()
		final = n.wholeSub(&ns, 1_000_000)
		more()
		if round < 7 {
			n.Unsubscribe(&ns, hub.Whole(ns.Name))
		}
	}
	stop()
	last := n.Pub(&ns, "z", "last")
	n.Wait(s.h.Patience, "the last message", func() bool { return len(n.messages[Channel(&ns, "z")]) > 0 })
	joined := offsets(final.Messages)
	for _, m := range n.arrived(&ns) {
		if m.Offset > final.Top.Offset {
			joined = append(joined, m.Offset)
		}
	}
	var all []uint64
	for since := uint64(0); since < last.Offset; {
		p := n.wholePage(&ns, since, 1000)
		all = append(all, offsets(p.Messages)...)
		since = p.Covered
	}
	if !slices.Equal(joined, all) {
		s.Errorf("snapshot and live join to %d messages, the log has %d", len(joined), len(all))
	}
}

func wholeNamespaceWithoutLogArrives(s *suite) {
	ns := s.namespace("a")
	withoutLog(&ns)
	n := s.start(ns)
	if snap := n.wholeSub(&ns, 10); !snap.Top.IsZero() || len(snap.Messages) != 0 {
		s.Errorf("snapshot %+v", snap)
	}
	n.Sub(&ns, "x", 0)
	for i := range 30 {
		n.Pub(&ns, []string{"x", "y"}[i%2], fmt.Sprint(i))
	}
	n.Await(&ns, "x", 15)
	n.Await(&ns, "y", 15)
	if got := len(n.arrived(&ns)); got != 30 {
		s.Errorf("%d messages arrived of 30", got)
	}
	if _, err := n.find(&ns, "a"); !errors.Is(err, hub.ErrNoMessage) {
		s.Errorf("lookup without a log: %v", err)
	}
	n.remove(&ns, "x")
}

// ear keeps what a bus delivered.
type ear struct {
	mu   sync.Mutex
	got  []string
	from []string
	busy bool
	s    *suite
}

func (e *ear) receive(from string, data []byte) {
	e.mu.Lock()
	if e.busy {
		e.s.Error("a listener was called twice at once")
	}
	e.busy = true
	e.got, e.from = append(e.got, string(data)), append(e.from, from)
	e.mu.Unlock()
	e.mu.Lock()
	e.busy = false
	e.mu.Unlock()
}

func (e *ear) wait(what string, count int) (got, from []string) {
	e.s.Helper()
	Until(e.s.T, e.s.h.Patience, what, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.got) >= count
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.got), slices.Clone(e.from)
}

func listen(s *suite, b hub.Bus, topic string) (*ear, func()) {
	s.Helper()
	e := &ear{s: s}
	stop, err := b.Listen(topic, e.receive)
	if err != nil {
		s.Fatal(err)
	}
	return e, stop
}

func busDeliversInOrder(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	bus := archiveOf(n).Bus()
	if id := bus.Node(); id == "" || len(id) > 32 || strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		s.Errorf("node %q", id)
	}
	topic := s.prefix + ".x-Y_1"
	a, stopA := listen(s, bus, topic)
	b, stopB := listen(s, bus, topic)
	defer stopB()
	c, stopC := listen(s, bus, s.prefix+".other")
	defer stopC()
	var want []string
	data := make([]byte, 0, 16)
	for i := range 1000 {
		data = fmt.Append(data[:0], i)
		want = append(want, string(data))
		if err := bus.Broadcast(topic, data); err != nil {
			s.Fatal(err)
		}
		clear(data) // it is not kept
	}
	for _, e := range []*ear{a, b} {
		got, from := e.wait("all that was sent", 1000)
		if !slices.Equal(got, want) || slices.ContainsFunc(from, func(f string) bool { return f != bus.Node() }) {
			s.Errorf("received %d, or not in order, or from another", len(got))
		}
	}
	stopA()
	big := strings.Repeat("x", 512<<10)
	if err := bus.Broadcast(topic, []byte(big)); err != nil {
		s.Fatal(err)
	}
	if err := bus.SendTo(bus.Node(), topic, nil); err != nil {
		s.Fatal(err)
	}
	got, _ := b.wait("the big one", 1002)
	if got[1000] != big || got[1001] != "" {
		s.Errorf("a big one of %d bytes came as %d", len(big), len(got[1000]))
	}
	if err := bus.Broadcast(topic, []byte(big+"x")); !errors.Is(err, hub.ErrTooLarge) {
		s.Errorf("one byte over: %v", err)
	}
	for _, bad := range []string{"", "a b", "a*", ">", "é", strings.Repeat("x", 65)} {
		if bus.Broadcast(bad, nil) == nil || bus.SendTo(bus.Node(), bad, nil) == nil {
			s.Errorf("topic %q is taken", bad)
		}
		if _, err := bus.Listen(bad, func(string, []byte) {}); err == nil {
			s.Errorf("listening to %q is taken", bad)
		}
	}
	a.mu.Lock()
	c.mu.Lock()
	if len(a.got) != 1000 || len(c.got) != 0 {
		s.Errorf("the stopped listener received %d, the other %d", len(a.got), len(c.got))
	}
	c.mu.Unlock()
	a.mu.Unlock()
	if err := n.Close(); err != nil {
		s.Fatal(err)
	}
	if err := bus.Broadcast(topic, nil); err == nil {
		s.Error("a closed broker's bus accepts messages")
	}
}

func busReachesOtherNodes(s *suite) {
	ns := s.namespace("a")
	x, y := s.start(ns), s.start(ns)
	bx, by := archiveOf(x).Bus(), archiveOf(y).Bus()
	if bx.Node() == by.Node() {
		s.Errorf("both nodes are %q", bx.Node())
	}
	if s.h.Alone {
		return
	}
	topic := s.prefix + ".t"
	ex, stopX := listen(s, bx, topic)
	defer stopX()
	ey, stopY := listen(s, by, topic)
	defer stopY()
	// That there is a listener at the other node is not announced: send until it receives.
	Until(s.T, s.h.Patience, "the nodes to receive from each other", func() bool {
		_ = bx.Broadcast(topic, []byte("hello"))
		_ = by.Broadcast(topic, []byte("hello"))
		received := func(e *ear, from string) bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return slices.Contains(e.from, from)
		}
		return received(ex, by.Node()) && received(ey, bx.Node())
	})
	for i := range 100 {
		if err := bx.Broadcast(topic, fmt.Append(nil, "all ", i)); err != nil {
			s.Fatal(err)
		}
	}
	if err := bx.SendTo(by.Node(), topic, []byte("one")); err != nil {
		s.Fatal(err)
	}
	if err := bx.Broadcast(topic, []byte("end")); err != nil {
		s.Fatal(err)
	}
	numbered := func(e *ear) (all []string, one int) {
		Until(s.T, s.h.Patience, "the end", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return slices.Contains(e.got, "end")
		})
		got, _ := e.wait("the end", 1)
		for _, g := range got {
			switch {
			case strings.HasPrefix(g, "all "):
				all = append(all, g)
			case g == "one":
				one++
			}
		}
		return all, one
	}
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint("all ", i))
	}
	Until(s.T, s.h.Patience, "what was sent to one", func() bool { _, one := numbered(ey); return one == 1 })
	for i, e := range []*ear{ex, ey} {
		if all, one := numbered(e); !slices.Equal(all, want) || one != i {
			s.Errorf("node %d received %d of 100 in order %v, %d of its own", i, len(all), slices.Equal(all, want), one)
		}
	}
}

func closedArchiveSaysSo(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	if err := n.Close(); err != nil {
		s.Fatal(err)
	}
	_, err := archiveOf(n).Lookup(context.Background(), &ns, "a")
	err2 := archiveOf(n).Remove(context.Background(), &ns, Channel(&ns, "x"))
	if !errors.Is(err, hub.ErrClosed) || !errors.Is(err2, hub.ErrClosed) {
		s.Errorf("after close: %v and %v, want ErrClosed", err, err2)
	}
}
