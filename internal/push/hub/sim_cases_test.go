package hub

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// plainBroker answers at once and counts; the log is given.
type plainBroker struct {
	simBroker
	log       []*Message
	reads     atomic.Int64
	tops      atomic.Int64
	checks    atomic.Int64
	now, most atomic.Int64 // calls under way
	slow      time.Duration
}

func (b *plainBroker) enter() func() {
	n := b.now.Add(1)
	for m := b.most.Load(); n > m && !b.most.CompareAndSwap(m, n); m = b.most.Load() {
	}
	time.Sleep(b.slow)
	return func() { b.now.Add(-1) }
}

func (b *plainBroker) top() Position { return Position{Epoch: "e", Offset: uint64(len(b.log))} }

func (b *plainBroker) Subscribe(_ context.Context, _ *Namespace, _ string, tail int) (Snapshot, error) {
	defer b.enter()()
	from := max(0, len(b.log)-tail)
	return Snapshot{Top: b.top(), Messages: b.log[from:], Floor: uint64(from), FirstRetained: 1}, nil
}

func (b *plainBroker) Unsubscribe(*Namespace, string) {}

func (b *plainBroker) History(_ context.Context, _ *Namespace, _ string, since uint64, limit int) (Page, error) {
	b.reads.Add(1)
	defer b.enter()()
	to := min(len(b.log), int(since)+limit)
	return Page{Epoch: "e", Messages: b.log[since:to], Covered: uint64(to), FirstRetained: 1}, nil
}

func (b *plainBroker) Top(context.Context, *Namespace) (Position, error) {
	b.tops.Add(1)
	defer b.enter()()
	return b.top(), nil
}

func (b *plainBroker) Prove(_ context.Context, _ *Namespace, p Position) (Check, error) {
	b.checks.Add(1)
	defer b.enter()()
	if p.Epoch != "e" || p.Offset > uint64(len(b.log)) {
		return 0, nil
	}
	return b.log[p.Offset-1].Check, nil
}

func plain(n int) *plainBroker {
	b := &plainBroker{}
	for i := range n {
		b.log = append(b.log, &Message{Channel: "a", Epoch: "e", Offset: uint64(i + 1), Data: []byte(strconv.Itoa(i + 1))})
	}
	return b
}

func (b *plainBroker) hub(t testing.TB, ns Namespace) *Hub {
	t.Helper()
	ns.Name = "default"
	h, err := New(Config{Namespaces: []Namespace{ns}, Encoders: []Encoder{simEncode}}, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

// tape is a sink that keeps offsets and gaps.
type tape struct {
	sub  Subscriber
	at   Positions
	got  []uint64
	gaps []Gap
	err  error
	// lives counts calls of Live; before is how much had come at the last.
	lives, before int
}

func (s *tape) Start(at Positions) { s.at = at }
func (s *tape) Live()              { s.lives++; s.before = len(s.got) + len(s.gaps) }
func (s *tape) Gap(g Gap)          { s.gaps = append(s.gaps, g) }
func (s *tape) Failed(err error)   { s.err = err }
func (s *tape) Room() bool         { return true }
func (s *tape) Deliver(b *Batch) {
	for _, m := range b.Messages {
		s.got = append(s.got, m.Offset)
	}
}

// settleShards runs the shards until nothing happens. In a bubble only.
func settleShards(shards ...*Shard) {
	for range 100 {
		synctest.Wait()
		for _, s := range shards {
			s.Run()
		}
		time.Sleep(time.Millisecond)
	}
}

func TestManyResumesFromOnePositionCostOneReadPerPage(t *testing.T) {
	f := func(n, recent int, since uint64, reads int64) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			b := plain(n)
			b.slow = time.Millisecond
			h := b.hub(t, Namespace{Recent: recent})
			defer h.Close()
			shards := []*Shard{h.NewShard(func() {}), h.NewShard(func() {})}
			sinks := make([]tape, 10_000)
			for i := range sinks {
				o := SubscribeOptions{Channels: []string{"a"}, Since: Positions{{Epoch: "e", Offset: since}}}
				if err := shards[i%2].Subscribe(&sinks[i].sub, &sinks[i], o); err != nil {
					t.Fatal(err)
				}
				if i%2500 == 0 { // some come when others are there already
					settleShards(shards...)
				}
			}
			settleShards(shards...)
			for i := range sinks {
				if got := sinks[i].got; len(got) != n-int(since) || len(got) > 0 && got[0] != since+1 || !sinks[i].sub.isLive() {
					t.Fatalf("sink %d got %d messages, want %d", i, len(got), n-int(since))
				}
			}
			if got := b.reads.Load(); got != reads {
				t.Errorf("since %d of %d: %d reads, want %d", since, n, got, reads)
			}
		})
	}
	f(300, 100, 0, 2)   // 128, 128, and the rest from the ring
	f(300, 100, 190, 1) // one too old
	f(300, 100, 200, 0) // the ring reaches
	f(300, 100, 300, 0)
	f(40, 100, 0, 0)
}

func TestManyInTheFutureShareTheLooksAtTheTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := plain(10)
		b.slow = time.Millisecond
		h := b.hub(t, Namespace{})
		defer h.Close()
		s := h.NewShard(func() {})
		sinks := make([]tape, 5000)
		for i := range sinks {
			o := SubscribeOptions{Channels: []string{"a"}, Since: Positions{{Epoch: "e", Offset: 1 << 40}}}
			if err := s.Subscribe(&sinks[i].sub, &sinks[i], o); err != nil {
				t.Fatal(err)
			}
		}
		settleShards(s)
		for i := range sinks {
			if len(sinks[i].gaps) != 1 || sinks[i].gaps[0].Reason != GapUnknown {
				t.Fatalf("sink %d: gaps %v", i, sinks[i].gaps)
			}
		}
		if n := b.tops.Load(); n > 2 {
			t.Errorf("%d looks at the top, want 2", n)
		}
	})
}

func TestTenThousandChannelsAtOnceQueryTheBrokerOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := plain(1)
		b.slow = 10 * time.Millisecond
		h := b.hub(t, Namespace{})
		defer h.Close()
		s := h.NewShard(func() {})
		sinks := make([]tape, 10_000)
		for i := range sinks {
			if err := s.Subscribe(&sinks[i].sub, &sinks[i], SubscribeOptions{Channels: []string{"c" + strconv.Itoa(i)}}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		settleShards(s)
		for i := range sinks {
			if !sinks[i].sub.isLive() {
				t.Fatalf("sink %d is not live: %v", i, sinks[i].err)
			}
		}
		if n := b.most.Load(); n > brokerCalls {
			t.Errorf("%d calls at once, want at most %d", n, brokerCalls)
		}
	})
}

func TestCloseFreesADeliveryThatWaitsForRoom(t *testing.T) {
	for range 20 {
		b := plain(0)
		h := b.hub(t, Namespace{})
		h.shardQueue = 1
		s := h.NewShard(func() {})
		var x tape
		if err := s.Subscribe(&x.sub, &x, SubscribeOptions{Channels: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
		for !x.sub.isLive() {
			s.Run()
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range uint64(3 * publishers) {
				b.deliver(&Message{Channel: "a", Epoch: "e", Offset: i + 1})
			}
		}()
		trial.Eventually(t, "there is no room", func() bool { return s.depth.Load() > publishers })
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		<-done
	}
}

func TestALateMessageIsDeliveredAndDoubtIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := plain(0)
		h := b.hub(t, Namespace{})
		defer h.Close()
		s := h.NewShard(func() {})
		var both, joined, requests, after, one tape
		sub := func(x *tape, since uint64, channels ...string) {
			t.Helper()
			o := SubscribeOptions{Channels: channels}
			if since > 0 {
				o.Since = Positions{{Epoch: "e", Offset: since}}
			}
			if err := s.Subscribe(&x.sub, x, o); err != nil {
				t.Fatal(err)
			}
			settleShards(s)
		}
		send := func(channel string, offset uint64) {
			b.deliver(&Message{Channel: channel, Epoch: "e", Offset: offset})
			settleShards(s)
		}
		sub(&both, 0, "a", "b")
		send("b", 9)
		sub(&joined, 0, "a", "b")
		send("a", 5) // was missing
		send("b", 12)
		sub(&requests, 7, "a", "b")
		sub(&after, 10, "a", "b")
		sub(&one, 7, "b")
		if want := []uint64{9, 5, 12}; !slices.Equal(both.got, want) || len(both.gaps) > 0 {
			t.Errorf("live: got %v %v, want %v", both.got, both.gaps, want)
		}
		if want := []uint64{12}; !slices.Equal(joined.got, want) || len(joined.gaps) != 1 {
			t.Errorf("joined before it came: got %v %v, want %v and a gap", joined.got, joined.gaps, want)
		}
		if want := []uint64{9, 12}; !slices.Equal(requests.got, want) || len(requests.gaps) != 1 {
			t.Errorf("resumed from between: got %v %v, want %v and a gap", requests.got, requests.gaps, want)
		}
		if len(after.gaps)+len(one.gaps) > 0 {
			t.Errorf("gaps %v %v for those who cannot have missed it", after.gaps, one.gaps)
		}
	})
}

func TestSweepOfTenThousandChannelsIsQuick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := plain(0)
		h := b.hub(t, Namespace{})
		defer h.Close()
		s := h.NewShard(func() {})
		sinks := make([]tape, 10_000)
		for i := range sinks {
			var names []string
			for k := range 20 {
				names = append(names, fmt.Sprint("c", (i+k)%10_000))
			}
			if err := s.Subscribe(&sinks[i].sub, &sinks[i], SubscribeOptions{Channels: names}); err != nil {
				t.Fatal(err)
			}
		}
		settleShards(s)
		steps := testing.AllocsPerRun(3, func() { s.releaseIdle(time.Now()) })
		if steps > 0 || len(s.locals) != 10_000 {
			t.Errorf("%.0f allocations, %d locals left", steps, len(s.locals))
		}
	})
}

func TestAChannelInUseByAJoinIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := plain(300)
		h := b.hub(t, Namespace{Recent: 10})
		defer h.Close()
		s := h.NewShard(func() {})
		x := &slowTape{}
		if err := s.Subscribe(&x.sub, x, SubscribeOptions{Channels: []string{"a"}, All: true}); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			time.Sleep(10 * time.Second) // linger is 30s
			settleShards(s)
		}
		x.room = true
		x.sub.Continue()
		settleShards(s)
		b.deliver(&Message{Channel: "a", Epoch: "e", Offset: 301})
		settleShards(s)
		if n := len(x.got); n != 301 {
			t.Errorf("got %d messages, want 301", n)
		}
	})
}

// rejoining is a sink that leaves in Start, the first time, and subscribes once more.
type rejoining struct {
	tape
	shard  *Shard
	again  SubscribeOptions
	starts int
}

func (r *rejoining) Start(Positions) {
	if r.starts++; r.starts > 1 {
		return
	}
	r.shard.Unsubscribe(&r.sub)
	r.err = r.shard.Subscribe(&r.sub, r, r.again)
}

// TestLiveIsCalledOncePerSubscription: for one that starts live, that replays, and that ends
// in Start because its sink starts another.
func TestLiveIsCalledOncePerSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := plain(10)
		h := broker.hub(t, Namespace{})
		defer h.Close()
		s := h.NewShard(func() {})
		f := func(what string, sink Sink, x *tape, opt SubscribeOptions, before int) {
			t.Helper()
			if err := s.Subscribe(&x.sub, sink, opt); err != nil {
				t.Fatal(err)
			}
			settleShards(s)
			if x.lives != 1 || x.before != before || x.err != nil {
				t.Errorf("%s: %d times live after %d calls, want once after %d; %v", what, x.lives, x.before, before, x.err)
			}
		}
		live := SubscribeOptions{Channels: []string{"a"}}
		all := SubscribeOptions{Channels: []string{"a"}, All: true}
		one := func(what string, opt SubscribeOptions, before int) {
			t.Helper()
			x := &tape{}
			f(what, x, x, opt, before)
		}
		one("a cold channel", live, 0)
		one("a warm channel", live, 0)
		one("all of it", all, 10)
		one("a part of it", SubscribeOptions{Channels: []string{"a"}, Since: Positions{{Epoch: "e", Offset: 4}}}, 6)
		one("an unknown position", SubscribeOptions{Channels: []string{"a"}, Unknown: "?"}, 1)
		again := func(what string, first, then SubscribeOptions, before int) {
			t.Helper()
			x := &rejoining{shard: s, again: then}
			f(what, x, &x.tape, first, before)
			if x.starts != 2 {
				t.Errorf("%s: %d starts", what, x.starts)
			}
		}
		again("live, then live", live, live, 0)
		again("live, then all", live, all, 10)
		again("live, then a cold channel", live, SubscribeOptions{Channels: []string{"c"}}, 0)
		again("all, then live", all, live, 0)
	})
}

type slowTape struct {
	tape
	room bool
}

func (s *slowTape) Room() bool { return s.room }

func BenchmarkDeliver1000(b *testing.B) {
	broker := plain(0)
	h := broker.hub(b, Namespace{})
	defer h.Close()
	s := h.NewShard(func() {})
	sinks := make([]drain, 1000)
	for i := range sinks {
		if err := s.Subscribe(&sinks[i].sub, &sinks[i], SubscribeOptions{Channels: []string{"a"}}); err != nil {
			b.Fatal(err)
		}
	}
	for !sinks[999].sub.isLive() {
		s.Run()
	}
	data := []byte("0123456789")
	b.ReportAllocs()
	n := uint64(0)
	for b.Loop() {
		n++
		broker.deliver(&Message{Channel: "a", Epoch: "e", Offset: n, Data: data})
		s.Run()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/delivery")
}

// BenchmarkReplay is one subscriber that resumes 100 messages back in the ring,
// with others doing the same.
func BenchmarkReplay(b *testing.B) {
	broker := plain(1000)
	h := broker.hub(b, Namespace{})
	defer h.Close()
	s := h.NewShard(func() {})
	var keep, x drain
	if err := s.Subscribe(&keep.sub, &keep, SubscribeOptions{Channels: []string{"a"}}); err != nil {
		b.Fatal(err)
	}
	for !keep.sub.isLive() {
		s.Run()
	}
	o := SubscribeOptions{Channels: []string{"a"}, Since: Positions{{Epoch: "e", Offset: 900}}}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Subscribe(&x.sub, &x, o); err != nil {
			b.Fatal(err)
		}
		s.Unsubscribe(&x.sub)
	}
	if x.n != 100*b.N {
		b.Fatalf("%d messages, want %d", x.n, 100*b.N)
	}
}

type drain struct {
	sub Subscriber
	n   int
}

func (d *drain) Start(Positions)  {}
func (d *drain) Live()            {}
func (d *drain) Gap(Gap)          {}
func (d *drain) Failed(error)     {}
func (d *drain) Room() bool       { return true }
func (d *drain) Deliver(b *Batch) { d.n += len(b.Messages); _ = b.Bytes(0) }
