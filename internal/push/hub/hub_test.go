package hub_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// owner is a goroutine that owns a shard, as an event loop would.
type owner struct {
	shard *hub.Shard
	wake  chan struct{}
	calls chan func()
	done  sync.WaitGroup
	stop  chan struct{}
}

func newOwner(t *testing.T, h *hub.Hub) *owner {
	o := &owner{wake: make(chan struct{}, 1), calls: make(chan func()), stop: make(chan struct{})}
	o.shard = h.NewShard(func() {
		select {
		case o.wake <- struct{}{}:
		default:
		}
	})
	o.done.Go(func() {
		for {
			select {
			case <-o.stop:
				return
			case <-o.wake:
				o.shard.Run()
			case f := <-o.calls:
				f()
			}
		}
	})
	t.Cleanup(func() { close(o.stop); o.done.Wait() })
	return o
}

// do runs f on the shard's goroutine.
func (o *owner) do(f func()) {
	done := make(chan struct{})
	o.calls <- func() { f(); close(done) }
	<-done
}

// sink remembers what it gets.
type sink struct {
	sub hub.Subscriber
	// room limits what a replay may deliver before it has to wait; 0 means no limit.
	room int

	mu     sync.Mutex
	cond   sync.Cond
	at     hub.Positions
	starts int
	live   bool
	got    []*hub.Message
	gaps   []hub.Gap
	failed error
	wire   [][]byte
}

func newSink() *sink {
	s := &sink{}
	s.cond.L = &s.mu
	return s
}

func (s *sink) Start(at hub.Positions) { s.note(func() { s.at = at; s.starts++ }) }
func (s *sink) Live()                  { s.note(func() { s.live = true }) }
func (s *sink) Gap(g hub.Gap)          { s.note(func() { s.gaps = append(s.gaps, g) }) }
func (s *sink) Failed(err error)       { s.note(func() { s.failed = err }) }
func (s *sink) Room() bool             { return s.room == 0 || len(s.got) < s.room }
func (s *sink) Deliver(b *hub.Batch) {
	s.note(func() { s.got = append(s.got, b.Messages...); s.wire = append(s.wire, b.Bytes(0)) })
}

func (s *sink) note(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.cond.Broadcast()
}

// wait waits until ok holds.
func (s *sink) wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late := time.AfterFunc(10*time.Second, func() { s.note(func() {}) })
	defer late.Stop()
	end := time.Now().Add(10 * time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("%s: did not happen; got %d messages, gaps %v, failed %v", what, len(s.got), s.gaps, s.failed)
		}
		s.cond.Wait()
	}
}

func newHub(t *testing.T, change func(*hub.Config)) *hub.Hub {
	t.Helper()
	cfg := hub.Config{
		Namespaces: []hub.Namespace{{Name: "default", Recent: 8, HistorySize: 100_000}, {Name: "other"}, {Name: "flow", Durability: hub.None}},
		Encoders:   []hub.Encoder{func(dst []byte, m *hub.Message) []byte { return append(append(dst, m.Data...), '\n') }},
	}
	if change != nil {
		change(&cfg)
	}
	b, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(cfg, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func publish(t testing.TB, h *hub.Hub, channel, data string) hub.Position {
	t.Helper()
	type answer struct {
		pos hub.Position
		err error
	}
	got := make(chan answer, 1)
	h.Publish(hub.Publication{Channel: channel, Data: []byte(data)}, func(p hub.Position, err error) { got <- answer{p, err} })
	a := <-got
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.pos
}

func subscribe(t *testing.T, o *owner, s *sink, opt hub.SubscribeOptions) {
	t.Helper()
	o.do(func() {
		if err := o.shard.Subscribe(&s.sub, s, opt); err != nil {
			t.Error(err)
		}
	})
	s.wait(t, "start", func() bool { return s.starts == 1 || s.failed != nil })
}

func offsets(ms []*hub.Message) []uint64 {
	var out []uint64
	for _, m := range ms {
		out = append(out, m.Offset)
	}
	return out
}

func TestEverySubscriberGetsEveryMessageOnce(t *testing.T) {
	h := newHub(t, nil)
	owners := []*owner{newOwner(t, h), newOwner(t, h)}
	var sinks []*sink
	for i := range 20 {
		s := newSink()
		subscribe(t, owners[i%2], s, hub.SubscribeOptions{Channels: []string{"a"}})
		sinks = append(sinks, s)
	}
	for i := range 500 {
		publish(t, h, "a", strconv.Itoa(i))
	}
	for _, s := range sinks {
		s.wait(t, "500 messages", func() bool { return len(s.got) >= 500 })
		for i, m := range s.got {
			if string(m.Data) != strconv.Itoa(i) {
				t.Fatalf("message %d is %q", i, m.Data)
			}
		}
	}
	if st := h.Stats(); st.Encoded != 500 {
		t.Errorf("encoded %d times, want 500: once per message for 20 subscribers on 2 shards", st.Encoded)
	}
}

func TestReplayMeetsLiveExactly(t *testing.T) {
	f := func(name string, channels []string) {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 1))
			h := newHub(t, nil)
			o := newOwner(t, h)
			var positions []hub.Position
			var mu sync.Mutex
			var wg sync.WaitGroup
			stop := make(chan struct{})
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					p := publish(t, h, channels[i%len(channels)], strconv.Itoa(i))
					mu.Lock()
					positions = append(positions, p)
					mu.Unlock()
					if i%50 == 0 {
						time.Sleep(time.Millisecond) // lets subscribers catch up: the load, not a synchronisation
					}
				}
			})
			for range 100 {
				mu.Lock()
				n := len(positions)
				var since hub.Positions
				first := uint64(1)
				if n > 0 {
					p := positions[r.IntN(n)]
					since, first = hub.Positions{p}, p.Offset+1
				}
				mu.Unlock()
				if n == 0 {
					continue
				}
				s := newSink()
				subscribe(t, o, s, hub.SubscribeOptions{Channels: channels, Since: since})
				want := r.IntN(300) + 1
				s.wait(t, "messages", func() bool { return len(s.got) >= want })
				o.do(func() { o.shard.Unsubscribe(&s.sub) })
				for i, m := range s.got {
					if m.Offset != first+uint64(i) {
						t.Fatalf("since %v: message %d has offset %d, want %d", since, i, m.Offset, first+uint64(i))
					}
				}
			}
			close(stop)
			wg.Wait()
		})
	}
	f("one channel", []string{"a"})
	f("several channels", []string{"a", "b", "c"})
}

func TestSlowSinkPacesItsReplay(t *testing.T) {
	h := newHub(t, nil)
	o := newOwner(t, h)
	for i := range 1000 {
		publish(t, h, "a", strconv.Itoa(i))
	}
	s := newSink()
	s.room = 1
	subscribe(t, o, s, hub.SubscribeOptions{Channels: []string{"a"}, All: true})
	s.wait(t, "first page", func() bool { return len(s.got) > 0 })
	n, live := 0, false
	o.do(func() { n = len(s.got) })
	if n >= 1000 {
		t.Fatalf("%d messages delivered without room", n)
	}
	for end := time.Now().Add(10 * time.Second); !live && time.Now().Before(end); {
		o.do(func() { s.room = len(s.got) + 1; s.sub.Continue(); live = s.live })
	}
	s.wait(t, "all", func() bool { return len(s.got) == 1000 })
}

func TestGapsAreDeclared(t *testing.T) {
	h := newHub(t, func(c *hub.Config) { c.Namespaces[0].HistorySize = 10 })
	o := newOwner(t, h)
	first := publish(t, h, "a", "0")
	var last hub.Position
	for i := range 50 {
		last = publish(t, h, "a", strconv.Itoa(i))
	}
	f := func(opt hub.SubscribeOptions, reason hub.GapReason, replayed int) {
		t.Helper()
		s := newSink()
		opt.Channels = []string{"a"}
		subscribe(t, o, s, opt)
		for live := false; !live; {
			o.do(func() { live = s.live })
		}
		next := publish(t, h, "a", "next")
		s.wait(t, "the next message", func() bool {
			return len(s.got) > 0 && s.got[len(s.got)-1].Offset == next.Offset
		})
		switch {
		case reason == "" && len(s.gaps) > 0:
			t.Errorf("gaps %v, want none", s.gaps)
		case reason != "" && (len(s.gaps) != 1 || s.gaps[0].Reason != reason):
			t.Errorf("gaps %v, want one of %q", s.gaps, reason)
		}
		if got := len(s.got) - 1; got != replayed {
			t.Errorf("%d replayed (%v), want %d", got, offsets(s.got), replayed)
		}
		o.do(func() { o.shard.Unsubscribe(&s.sub) })
		last = next
	}
	f(hub.SubscribeOptions{}, "", 0)
	f(hub.SubscribeOptions{Since: hub.Positions{first}}, hub.GapRetention, 10)
	f(hub.SubscribeOptions{Since: hub.Positions{last}}, "", 0)
	f(hub.SubscribeOptions{Since: hub.Positions{{Epoch: "gone", Offset: 7}}}, hub.GapEpoch, 0)
	f(hub.SubscribeOptions{Since: hub.Positions{{Epoch: first.Epoch, Offset: 1 << 40}}}, hub.GapUnknown, 0)
	f(hub.SubscribeOptions{Unknown: "rubbish"}, hub.GapUnknown, 0)
	f(hub.SubscribeOptions{All: true}, "", 10)
}

// The ring holds all that is left, and yet something is missing before it.
func TestAGapBeforeASnapshotThatHoldsAllIsDeclared(t *testing.T) {
	h := newHub(t, func(c *hub.Config) { c.Namespaces[0].HistorySize, c.Namespaces[0].Recent = 5, 100 })
	o := newOwner(t, h)
	first := publish(t, h, "a", "0")
	for i := range 50 {
		publish(t, h, "a", strconv.Itoa(i))
	}
	s := newSink()
	subscribe(t, o, s, hub.SubscribeOptions{Channels: []string{"a"}, Since: hub.Positions{first}})
	s.wait(t, "what is left", func() bool { return len(s.got) == 5 })
	if len(s.gaps) != 1 || s.gaps[0].Reason != hub.GapRetention || s.gaps[0].To.Offset != 46 {
		t.Errorf("gaps %v, want one up to 46", s.gaps)
	}
}

func TestSeveralNamespacesResumeEachAtItsOwn(t *testing.T) {
	h := newHub(t, nil)
	o := newOwner(t, h)
	a := publish(t, h, "a", "1")
	b := publish(t, h, "other:b", "1")
	publish(t, h, "a", "2")
	publish(t, h, "other:b", "2")
	s := newSink()
	subscribe(t, o, s, hub.SubscribeOptions{Channels: []string{"a", "other:b"}, Since: hub.Positions{b, a}})
	s.wait(t, "both", func() bool { return len(s.got) == 2 })
	publish(t, h, "other:b", "3")
	publish(t, h, "a", "3")
	s.wait(t, "live", func() bool { return len(s.got) == 4 })
	var names []string
	for _, m := range s.got {
		names = append(names, m.Channel+"="+string(m.Data))
	}
	slices.Sort(names)
	if want := []string{"a=2", "a=3", "other:b=2", "other:b=3"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	if len(s.at) != 2 {
		t.Errorf("starts at %v, want a position per namespace", s.at)
	}
}

func TestNamespaceWithoutLogOnlyFansOut(t *testing.T) {
	h := newHub(t, nil)
	o := newOwner(t, h)
	s := newSink()
	subscribe(t, o, s, hub.SubscribeOptions{Channels: []string{"flow:x"}})
	if pos := publish(t, h, "flow:x", "1"); !pos.IsZero() {
		t.Errorf("position %v, want none", pos)
	}
	s.wait(t, "message", func() bool { return len(s.got) == 1 })
	if len(s.at) != 0 {
		t.Errorf("starts at %v, want nowhere", s.at)
	}
}

func TestIdleChannelsAreGivenUp(t *testing.T) {
	h := newHub(t, func(c *hub.Config) { c.Linger = 20 * time.Millisecond })
	o := newOwner(t, h)
	s := newSink()
	subscribe(t, o, s, hub.SubscribeOptions{Channels: []string{"a"}})
	o.do(func() { o.shard.Unsubscribe(&s.sub) })
	trial.Eventually(t, "the channel is given up", func() bool { return h.Stats().Channels == 0 })
	s = newSink()
	subscribe(t, o, s, hub.SubscribeOptions{Channels: []string{"a"}})
	publish(t, h, "a", "1")
	s.wait(t, "message after coming back", func() bool { return len(s.got) == 1 })
}

func TestRefusedPublications(t *testing.T) {
	h := newHub(t, nil)
	f := func(p hub.Publication, want error) {
		t.Helper()
		var got error
		h.Publish(p, func(_ hub.Position, err error) { got = err })
		if !isErr(got, want) {
			t.Errorf("%+v: %v, want %v", p.Channel, got, want)
		}
	}
	f(hub.Publication{Channel: "nowhere:a"}, hub.ErrUnknownNamespace)
	f(hub.Publication{Channel: "a b"}, hub.ErrBadChannel)
	f(hub.Publication{Channel: ""}, hub.ErrBadChannel)
	f(hub.Publication{Channel: "a", Data: make([]byte, 65<<10)}, hub.ErrTooLarge)
	f(hub.Publication{Channel: "a", Data: make([]byte, 64<<10)}, nil)
	_ = h.Close()
	f(hub.Publication{Channel: "a"}, hub.ErrClosed)
}

func TestFullShardRefusesPublications(t *testing.T) {
	h := newHub(t, func(c *hub.Config) { c.ShardQueue = 10 })
	o := newOwner(t, h)
	s := newSink()
	subscribe(t, o, s, hub.SubscribeOptions{Channels: []string{"a"}})
	refused := false
	o.do(func() { // the shard does not run meanwhile
		for range 50 {
			h.Publish(hub.Publication{Channel: "a", Data: []byte("x")}, func(_ hub.Position, err error) {
				refused = refused || isErr(err, hub.ErrOverloaded)
			})
		}
	})
	if !refused {
		t.Error("50 publications were taken with a queue of 10")
	}
	s.wait(t, "those taken", func() bool { return len(s.got) >= 10 })
}

func isErr(err, want error) bool {
	for err != nil {
		if err == want {
			return true
		}
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return false
		}
		err = u.Unwrap()
	}
	return want == nil
}

func TestDeliveryAllocatesNothingPerSubscriber(t *testing.T) {
	h := newHub(t, nil)
	shard := h.NewShard(func() {})
	count := 0
	for range 1000 {
		s := &counter{n: &count}
		if err := shard.Subscribe(&s.sub, s, hub.SubscribeOptions{Channels: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
	}
	end := time.Now().Add(10 * time.Second)
	for count == 0 { // until the channel is active
		if time.Now().After(end) {
			t.Fatal("nothing delivered")
		}
		publish(t, h, "a", "x")
		shard.Run()
	}
	count = 0
	allocs := testing.AllocsPerRun(100, func() {
		h.Publish(hub.Publication{Channel: "a", Data: []byte("x")}, func(hub.Position, error) {})
		shard.Run()
	})
	if count < 100_000 {
		t.Fatalf("%d deliveries, want 1000 per publication", count)
	}
	if allocs > 20 {
		t.Errorf("%.1f allocations per publication to 1000 subscribers, want a fixed few", allocs)
	}
}

// A channel with one subscriber costs its message, and nothing for the way.
func TestDeliveryToOneAllocatesTheMessageAlone(t *testing.T) {
	h := newHub(t, nil)
	shard := h.NewShard(func() {})
	s := &once{}
	if err := shard.Subscribe(&s.sub, s, hub.SubscribeOptions{Channels: []string{"flow:a"}}); err != nil {
		t.Fatal(err)
	}
	pub, done := hub.Publication{Channel: "flow:a", Data: []byte("x")}, func(hub.Position, error) {}
	send := func() {
		h.Publish(pub, done)
		shard.Run()
	}
	for end := time.Now().Add(10 * time.Second); s.got == 0; send() { // until the channel is active
		if time.Now().After(end) {
			t.Fatal("nothing delivered")
		}
	}
	s.got, s.shared = 0, 0 // those that came while it was becoming active may have come together
	if allocs := testing.AllocsPerRun(100, send); allocs > 1 || s.shared > 0 {
		t.Errorf("%.1f allocations per message, %d of %d batches are not for one alone", allocs, s.shared, s.got)
	}
}

// once takes what is for it alone.
type once struct {
	counter
	got, shared int
}

func (s *once) Deliver(b *hub.Batch) {
	s.got++
	if w, ok := b.Once(0); !ok || string(w) != "x\n" {
		s.shared++
	}
}

type counter struct {
	sub hub.Subscriber
	n   *int
}

func (c *counter) Start(hub.Positions)  {}
func (c *counter) Live()                {}
func (c *counter) Gap(hub.Gap)          {}
func (c *counter) Failed(error)         {}
func (c *counter) Room() bool           { return true }
func (c *counter) Deliver(b *hub.Batch) { *c.n += len(b.Messages); _ = b.Bytes(0) }

func TestPositionTokens(t *testing.T) {
	f := func(s string, ok bool) {
		t.Helper()
		ps, err := hub.ParsePositions(s)
		if (err == nil) != ok {
			t.Errorf("ParsePositions(%q): %v, want ok=%v", s, err, ok)
		}
		if err == nil && string(ps.AppendTo(nil)) != s {
			t.Errorf("%q comes back as %q", s, ps.AppendTo(nil))
		}
	}
	f("e-1", true)
	f("e-0", true)
	f("a.b_C-18446744073709551615", true)
	f("e-1~f-2", true)
	f("e-1.a0B9zZ~f-2", true)
	f("", false)
	f("-1", false)
	f("e-", false)
	f("e-01", false)
	f("e-+1", false)
	f("e-18446744073709551616", false)
	f("e e-1", false)
	f("e\n-1", false)
	f("e-1~", false)
	f(fmt.Sprint(make([]int, 100)), false)
}

func FuzzParsePositions(f *testing.F) {
	for _, s := range []string{"e-1", "e-1~f-2", "e-7.a0B9zZ", "a-b-3", "~", "-", "x-99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ps, err := hub.ParsePositions(s)
		if err != nil {
			return
		}
		if got := string(ps.AppendTo(nil)); got != s {
			t.Fatalf("%q comes back as %q", s, got)
		}
	})
}
