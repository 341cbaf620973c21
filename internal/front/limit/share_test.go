package limit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A shareNet carries messages between nodes with fake time: what is sent arrives when carry is called.
type shareNet struct {
	t     *testing.T
	now   int64
	nodes []*shareNode
	sent  []shareMail
}

type shareMail struct {
	from string
	data []byte
}

type shareNode struct {
	*Share
	table *Table
	// lost has what it sends lost without a notice, and what is sent to it; refused has sending fail.
	lost, refused bool
}

const shareLease = 3500 * time.Millisecond

func newShareNet(t *testing.T, n int) *shareNet {
	net := &shareNet{t: t, now: 1e15}
	for range n {
		net.add()
	}
	net.run(time.Second, nil) // all know each other
	return net
}

func (net *shareNet) add() *shareNode {
	n := &shareNode{table: NewTable(0)}
	id := fmt.Sprint("node", len(net.nodes))
	n.Share = NewShare(id, shareLease, func(data []byte) error {
		switch {
		case n.refused:
			return errors.New("no connection")
		case !n.lost:
			net.sent = append(net.sent, shareMail{id, slices.Clone(data)})
		}
		return nil
	})
	n.Add(func() *Table { return n.table })
	n.SetKey([]byte("0123456789abcdef"))
	net.nodes = append(net.nodes, n)
	return n
}

func (net *shareNet) carry() {
	for _, m := range net.sent {
		for _, n := range net.nodes {
			if !n.lost && !n.refused {
				n.Receive(m.from, m.data, net.now)
			}
		}
	}
	net.sent = nil
}

// run lets time pass in steps of a millisecond, and calls each for every one.
func (net *shareNet) run(d time.Duration, each func()) {
	for range d / time.Millisecond {
		net.now += int64(time.Millisecond)
		if each != nil {
			each()
		}
		if net.now%int64(ShareInterval) == 0 {
			for _, n := range net.nodes {
				n.Tick(net.now)
			}
			net.carry()
		}
	}
}

// allow takes tokens of a client until there are n or none is left, and returns how many.
func (n *shareNode) allow(client string, q Quota, now int64, most int) (taken int) {
	for taken < most {
		if _, ok := n.table.Allow(n.table.KeyString(7, client), q, now); !ok {
			break
		}
		taken++
	}
	return taken
}

// TestSipHashIsThatOfItsPaper has the vector of the paper, appendix A.
func TestSipHashIsThatOfItsPaper(t *testing.T) {
	k := sipKey{0x0706050403020100, 0x0f0e0d0c0b0a0908}
	in := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}
	if got := sipHash(&k, in); got != 0xa129ca6149be45e5 {
		t.Errorf("%x", got)
	}
	if sipHash(&k, string(in)) != sipHash(&k, in) {
		t.Error("a string has another hash than its bytes")
	}
}

// TestNodesTogetherGiveOutTheRateOfOne spreads a client over three nodes: what they let through together is
// one rate, whatever comes to each.
func TestNodesTogetherGiveOutTheRateOfOne(t *testing.T) {
	const seconds, rate, burst = 60, 1000, 100
	f := func(demand ...int) {
		t.Helper()
		net := newShareNet(t, 3)
		q := Rate{PerSecond: rate, Burst: burst}.Quota()
		took := make([]int, 3)
		net.run(seconds*time.Second, func() {
			for i, n := range net.nodes {
				took[i] += n.allow("ann", q, net.now, demand[i])
			}
		})
		sum := took[0] + took[1] + took[2]
		offered := (demand[0] + demand[1] + demand[2]) * 1000 * seconds
		least, most := min(offered, rate*seconds)*98/100, rate*seconds+3*burst+3*rate/10
		t.Logf("%v per ms: %v, %d in all; one node alone: %d", demand, took, sum, rate*seconds+burst)
		if sum < least || sum > most {
			t.Errorf("%v per ms: %v, %d in all, want %d to %d", demand, took, sum, least, most)
		}
	}
	f(1, 0, 0)
	f(1, 1, 1)
	f(50, 50, 50)
	f(2, 1, 0)
	f(50, 1, 0)
}

// TestABurstIsThatOfAllNodes spends one burst at three nodes that have time to know.
func TestABurstIsThatOfAllNodes(t *testing.T) {
	net := newShareNet(t, 3)
	q := Rate{PerSecond: 1.0 / 3600, Burst: 30}.Quota()
	local := Rate{PerSecond: 1.0 / 3600, Burst: 30, Shared: 1}.Quota()
	for i, want := range []int{10, 10, 10} {
		if got := net.nodes[i].allow("ann", q, net.now, 10); got != want {
			t.Errorf("node %d: %d, want %d", i, got, want)
		}
		net.run(ShareInterval, nil)
	}
	for i, n := range net.nodes {
		if got := n.allow("ann", q, net.now, 100); got != 0 {
			t.Errorf("node %d: %d more", i, got)
		}
		if got := n.allow("bob", local, net.now, 100); got != 30 {
			t.Errorf("node %d by itself: %d", i, got)
		}
		net.run(ShareInterval, nil)
	}
	// All at once: the most that there can be. Nothing is there before it is made up for.
	sum := 0
	for _, n := range net.nodes {
		sum += n.allow("eve", q, net.now, 1000)
	}
	net.run(time.Minute, func() {
		for _, n := range net.nodes {
			sum += n.allow("eve", q, net.now, 1000)
		}
	})
	if sum != 90 {
		t.Errorf("all at once: %d, want 90", sum)
	}
}

// TestANodeThatIsCutOffHasItsPart cuts a node off in both ways in which it can notice, and heals it.
func TestANodeThatIsCutOffHasItsPart(t *testing.T) {
	q := Rate{PerSecond: 300, Burst: 30}.Quota()
	f := func(cut func(n *shareNode, is bool)) {
		t.Helper()
		net := newShareNet(t, 3)
		n := net.nodes[0]
		cut(n, true)
		net.run(2*time.Second, nil)
		if s := n.Stats(); !s.Alone || s.Nodes != 3 {
			t.Fatalf("cut off: %+v", s)
		}
		took := 0
		if took = n.allow("ann", q, net.now, 1000); took != 10 {
			t.Errorf("its part of the burst: %d, want 10", took)
		}
		net.run(60*time.Second, func() { took += n.allow("ann", q, net.now, 1000) })
		if took < 6000 || took > 6010 {
			t.Errorf("a third of 300 per second in a minute, and of 30: %d, want 6000 to 6010", took)
		}
		if s := net.nodes[1].Stats(); s.Alone || s.Nodes != 2 {
			t.Errorf("the others: %+v", s)
		}
		cut(n, false)
		net.run(time.Second, nil)
		if s := n.Stats(); s.Alone || s.Nodes != 3 || net.nodes[1].Stats().Nodes != 3 {
			t.Errorf("healed: %+v, %+v", s, net.nodes[1].Stats())
		}
		net.run(time.Second, nil)
		sum := 0
		net.run(60*time.Second, func() {
			for _, n := range net.nodes {
				sum += n.allow("ann", q, net.now, 1000)
			}
		})
		if sum < 300*60*98/100 || sum > 300*60+3*30+3*30 {
			t.Errorf("healed: %d in a minute", sum)
		}
	}
	f(func(n *shareNode, is bool) { n.refused = is })
	f(func(n *shareNode, is bool) { n.lost = is })
}

// TestANodeThatLeavesGivesItsPartBack has one leave in order and one end without a word.
func TestANodeThatLeavesGivesItsPartBack(t *testing.T) {
	net := newShareNet(t, 4)
	a, b := net.nodes[0], net.nodes[1]
	net.nodes[3].Leave(net.now)
	net.carry()
	net.nodes = net.nodes[:3]
	net.run(ShareInterval, nil)
	if a.Stats().Nodes != 3 {
		t.Errorf("one has left: %+v", a.Stats())
	}
	net.nodes = net.nodes[:2]
	net.run(shareLease-time.Second, nil)
	if a.Stats().Nodes != 3 {
		t.Errorf("before the lease is over: %+v", a.Stats())
	}
	net.run(2*time.Second, nil)
	if a.Stats().Nodes != 2 || a.Stats().Alone {
		t.Errorf("one is silent: %+v", a.Stats())
	}
	a.refused, b.refused = true, true
	net.run(time.Second, nil)
	q := Rate{PerSecond: 1.0 / 3600, Burst: 30}.Quota()
	if x, y := a.allow("ann", q, net.now, 100), b.allow("ann", q, net.now, 100); x != 15 || y != 15 {
		t.Errorf("the two of them by themselves: %d and %d, want 15 each", x, y)
	}
}

// TestANodeThatWasSuspendedKnowsTheOthersStill stops one for a minute: it does not take the others for gone.
func TestANodeThatWasSuspendedKnowsTheOthersStill(t *testing.T) {
	net := newShareNet(t, 3)
	a := net.nodes[0]
	net.now += int64(time.Minute)
	a.Tick(net.now)
	if s := a.Stats(); s.Nodes != 3 || s.Alone {
		t.Errorf("%+v", s)
	}
}

// TestMessagesThatMakeNoSense sends them: they change nothing and are counted.
func TestMessagesThatMakeNoSense(t *testing.T) {
	net := newShareNet(t, 2)
	n := net.nodes[0]
	q := Rate{PerSecond: 1.0 / 3600, Burst: 1}.Quota()
	key := n.table.KeyString(7, "ann")
	good := appendShare(nil, shareHeader{key: n.keyID, number: 1000}, []spending{{key: key, cost: q.step, t: 1}})
	want := uint64(0)
	f := func(data []byte) {
		t.Helper()
		want++
		n.Receive("node1", data, net.now)
		if s := n.Stats(); s.Malformed != want || s.Nodes != 2 {
			t.Errorf("%.60x: %+v", data, s)
		}
		if n.table.Stats(net.now).Used != 0 {
			t.Fatalf("%.60x has used a bucket", data)
		}
	}
	for i := range good {
		if i != 12 { // a header alone is a message
			f(good[:i])
		}
	}
	f(append(slices.Clone(good), 0))
	f(append([]byte{2}, good[1:]...))
	f(append([]byte{1, 2}, good[2:]...))
	f(append(slices.Clone(good), good[12:]...)) // a table twice
	f(make([]byte, maxShareBytes+1))
	f(appendShare(nil, shareHeader{key: n.keyID, number: 1000}, []spending{{key: 0, cost: 1, t: 1}}))
	f(appendShare(nil, shareHeader{key: n.keyID, number: 1000}, []spending{{key: 1, cost: 0, t: 1}}))
	f(appendShare(nil, shareHeader{key: n.keyID}, nil))
	f(appendShare(nil, shareHeader{key: n.keyID, number: 1000}, slices.Repeat([]spending{{key: 1, cost: 1, t: 1}}, maxShareEntries+1)))
	received := n.Stats().Received
	for _, m := range [][]byte{
		appendShare(nil, shareHeader{key: n.keyID, number: 1000}, []spending{{key: 1, cost: 1, t: 9}}), // a table of a newer version
		appendShare(nil, shareHeader{key: 1, number: 1001}, []spending{{key: 1, cost: 1, t: 1}}),       // another secret
	} {
		n.Receive("node1", m, net.now)
	}
	if s := n.Stats(); s.Malformed != want || s.Received != received+2 || s.Foreign != 1 || !n.KeyWanted() || n.table.Stats(net.now).Used != 0 {
		t.Errorf("%+v", s)
	}
	n.Receive("node1", good, net.now) // its number was there before
	if n.table.Stats(net.now).Used != 0 {
		t.Error("a message was applied again")
	}
	n.Receive("node2", good, net.now)
	if n.table.Stats(net.now).Used != 1 || n.allow("ann", q, net.now, 1) != 0 {
		t.Error("the message was not applied")
	}
}

// TestWhatAnotherNodeTookIsBounded has one take everything for a year, by another rate: a client waits for
// no longer than all nodes could have made it.
func TestWhatAnotherNodeTookIsBounded(t *testing.T) {
	net := newShareNet(t, 3)
	n := net.nodes[0]
	key := n.table.KeyString(7, "ann")
	for i := range 5 {
		n.Receive("other", appendShare(nil, shareHeader{key: n.keyID, number: uint64(i + 1)}, []spending{{key: key, cost: maxCost, t: 1}}), net.now)
	}
	q := Rate{PerSecond: 10, Burst: 10}.Quota()
	n.allow("ann", q, net.now, 1)
	if wait, ok := n.table.Allow(key, q, net.now); ok || wait > 4*(time.Second+shareStale) {
		t.Errorf("wait %v", wait)
	}
}

// TestMissedMessagesAreCounted loses some.
func TestMissedMessagesAreCounted(t *testing.T) {
	net := newShareNet(t, 2)
	a, b := net.nodes[0], net.nodes[1]
	b.lost = true
	q := Rate{PerSecond: 1e6}.Quota()
	net.run(5*ShareInterval, func() { b.allow("ann", q, net.now, 1) })
	b.lost = false
	net.run(2*ShareInterval, func() { b.allow("ann", q, net.now, 1) })
	if s := a.Stats(); s.Missed != 5 || s.Nodes != 2 {
		t.Errorf("%+v, want 5 missed", s)
	}
}

// TestTheMostUsedBucketsAreSentFirst has more of them than a message has room for.
func TestTheMostUsedBucketsAreSentFirst(t *testing.T) {
	net := newShareNet(t, 2)
	a, b := net.nodes[0], net.nodes[1]
	q := Rate{PerSecond: 1.0 / 3600, Burst: 5}.Quota()
	const many = maxShareEntries + 1000
	for i := range many {
		a.allow(fmt.Sprint("client ", i), q, net.now, 1)
	}
	for i := range 100 {
		a.allow(fmt.Sprint("client ", i*17), q, net.now, 4)
	}
	net.run(ShareInterval, nil)
	if s := b.Stats(); s.Applied != maxShareEntries || a.Stats().Deferred != 1000 {
		t.Errorf("first: %d applied, %d deferred", s.Applied, a.Stats().Deferred)
	}
	for i := range 100 {
		if got := b.allow(fmt.Sprint("client ", i*17), q, net.now, 5); got != 0 {
			t.Fatalf("the other node lets %d of a full one through", got)
		}
	}
	net.run(ShareInterval, nil)
	if s := b.Stats(); s.Applied < many {
		t.Errorf("then: %d applied, want %d", s.Applied, many)
	}
}

// TestASecretThatChanges has nodes agree again.
func TestASecretThatChanges(t *testing.T) {
	net := newShareNet(t, 2)
	a, b := net.nodes[0], net.nodes[1]
	b.SetKey([]byte(strings.Repeat("x", ShareKeyBytes)))
	net.run(time.Second, nil)
	if !a.KeyWanted() || !b.KeyWanted() || a.Stats().Nodes != 2 {
		t.Errorf("%+v, %+v", a.Stats(), b.Stats())
	}
	a.SetKey([]byte(strings.Repeat("x", ShareKeyBytes)))
	q := Rate{PerSecond: 1.0 / 3600, Burst: 5}.Quota()
	net.run(ShareInterval, nil)
	a.allow("ann", q, net.now, 5)
	net.run(ShareInterval, nil)
	if a.KeyWanted() || b.allow("ann", q, net.now, 5) != 0 {
		t.Error("they do not share")
	}
}

// TestNothingTakenIsLostWhileItIsSent takes on several goroutines while the Share collects.
func TestNothingTakenIsLostWhileItIsSent(t *testing.T) {
	tb := NewTable(64)
	s := NewShare("a", shareLease, func([]byte) error { return nil })
	tb.shareWith(s, sipKey{1, 2})
	q := Rate{PerSecond: 1e9, Burst: 1e9}.Quota()
	const each = 20000
	var takers sync.WaitGroup
	for g := range 4 {
		takers.Go(func() {
			for i := range each {
				tb.Allow(tb.KeyString(1, fmt.Sprint((i+g)%8)), q, 1)
			}
		})
	}
	done := make(chan struct{})
	go func() { takers.Wait(); close(done) }()
	sum, list := int64(0), []spending(nil)
	for last := false; ; {
		list = tb.collect(list[:0], 1, 1000)
		for _, x := range list {
			sum += x.cost
		}
		if last {
			break
		}
		select {
		case <-done:
			last = true
		default:
		}
	}
	if sum != 4*each*q.step {
		t.Errorf("collected %d, want %d", sum, 4*each*q.step)
	}
}

func TestSharedBucketsDoNotAllocate(t *testing.T) {
	tb := NewTable(64)
	tb.shareWith(NewShare("a", shareLease, nil), sipKey{1, 2})
	q, name := Rate{PerSecond: 1e9, Burst: 1e9}.Quota(), []byte("ann")
	if n := testing.AllocsPerRun(100, func() { tb.Allow(tb.Key(1, name), q, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzShareMessage reads messages of other nodes: nothing panics, what is accepted is in bounds and
// what it says is written and read the same.
func FuzzShareMessage(f *testing.F) {
	f.Add(appendShare(nil, shareHeader{key: 5, number: 1}, nil))
	f.Add(appendShare(nil, shareHeader{leaves: true, key: 5, number: 1 << 40}, []spending{{key: 1, cost: 1, t: 1}, {key: 2, cost: maxCost, t: 1}, {key: 1, cost: 3, t: 3}}))
	f.Add([]byte{2, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		read := func(b []byte) (h shareHeader, list []spending, err error) {
			h, rest, err := readShareHeader(b)
			if err == nil {
				err = eachEntry(rest, func(table uint8, key uint64, cost int64) {
					list = append(list, spending{key: key, cost: cost, t: table})
				})
			}
			return h, list, err
		}
		h, list, err := read(data)
		tb, s := NewTable(64), NewShare("a", shareLease, func([]byte) error { return nil })
		s.Add(func() *Table { return tb })
		s.SetKey([]byte("0123456789abcdef"))
		s.Receive("b", data, 1)
		if (s.Stats().Malformed == 1) != (err != nil) {
			t.Fatalf("%v, and %+v", err, s.Stats())
		}
		if err != nil {
			return
		}
		if len(list) > maxShareEntries || len(data) > maxShareBytes {
			t.Fatal("out of bounds")
		}
		again, list2, err := read(appendShare(nil, h, list))
		if err != nil || again != h || !slices.Equal(list, list2) {
			t.Fatalf("%+v %v, then %+v %v: %v", h, list, again, list2, err)
		}
	})
}

func BenchmarkTakeShared(b *testing.B) {
	tb := NewTable(0)
	tb.shareWith(NewShare("a", shareLease, nil), sipKey{1, 2})
	q := Rate{PerSecond: 1e9, Burst: 1e9}.Quota()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		name := []byte("client 0")
		for i := 0; pb.Next(); i++ {
			name[7] = byte(i)
			tb.Allow(tb.Key(1, name), q, int64(i))
		}
	})
}
