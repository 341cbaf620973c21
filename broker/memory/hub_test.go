package memory

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// sink is a subscriber that accepts everything.
type sink struct{ started, got int }

func (s *sink) Deliver(b *hub.Batch) {
	s.got += len(b.Messages)
	b.Once(0)
}
func (s *sink) Live()               {}
func (s *sink) Gap(hub.Gap)         {}
func (s *sink) Room() bool          { return true }
func (s *sink) Start(hub.Positions) { s.started++ }
func (s *sink) Failed(error)        {}

// many returns a hub over a memory broker with one subscriber on each of n
// channels, and what publishes to the i-th of them and delivers.
func many(tb testing.TB, n int) (all *sink, publish func(i int)) {
	tb.Helper()
	br, err := New(Config{})
	if err != nil {
		tb.Fatal(err)
	}
	enc := func(dst []byte, m *hub.Message) []byte { return append(dst, m.Data...) }
	h, err := hub.New(hub.Config{Encoders: []hub.Encoder{enc}}, br)
	if err != nil {
		tb.Fatal(err)
	}
	if err := h.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = h.Close() })
	var woken atomic.Int64
	s := h.NewShard(func() { woken.Add(1) })
	all = &sink{}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("c%d", i)
		if err := s.Subscribe(new(hub.Subscriber), all, hub.SubscribeOptions{Channels: []string{names[i]}}); err != nil {
			tb.Fatal(err)
		}
	}
	for all.started < n {
		s.Run()
		runtime.Gosched()
	}
	data := make([]byte, 128)
	done := func(_ hub.Position, err error) {
		if err != nil {
			tb.Error(err)
		}
	}
	return all, func(i int) {
		h.Publish(hub.Publication{Channel: names[i%n], Data: data}, done)
		s.Run()
	}
}

func TestAPublishToOneSubscriberIsOneAllocation(t *testing.T) {
	all, publish := many(t, 1)
	for i := range 2000 { // the rings of the channel have their size then
		publish(i)
	}
	before := all.got
	if n := testing.AllocsPerRun(1000, func() { publish(0) }); n > 1 {
		t.Errorf("%v allocations per publish, want 1: the message", n)
	}
	if all.got-before < 1000 {
		t.Errorf("%d messages arrived of 1,000", all.got-before)
	}
}

// chained is a subscriber that wants every offset after its start.
type chained struct {
	sink
	t    *testing.T
	next uint64
}

func (c *chained) Start(at hub.Positions) { c.started, c.next = 1, at[0].Offset+1 }
func (c *chained) Deliver(b *hub.Batch) {
	for _, m := range b.Messages {
		if m.Offset != c.next {
			c.t.Errorf("offset %d, want %d", m.Offset, c.next)
		}
		c.next = m.Offset + 1
		c.got++
	}
}

// A publication that found its channel before the last subscriber left reaches
// those who came since.
func TestChannelsThatComeAndGoLoseNothing(t *testing.T) {
	br, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(hub.Config{Linger: 1}, br)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	s := h.NewShard(func() {})
	var over atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !over.Load() {
				h.Publish(hub.Publication{Channel: "x", Data: []byte("1")}, func(hub.Position, error) {})
				runtime.Gosched()
			}
		})
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); s.Run() {
			if time.Now().After(end) {
				t.Fatalf("not within 20s: %s", what)
			}
			runtime.Gosched()
		}
	}
	for range 20 {
		c := &chained{t: t}
		sub := new(hub.Subscriber)
		if err := s.Subscribe(sub, c, hub.SubscribeOptions{Channels: []string{"x"}}); err != nil {
			t.Fatal(err)
		}
		until("messages arrive", func() bool { return c.got > 50 })
		s.Unsubscribe(sub)
		until("the channel is given up", func() bool { return h.Stats().Channels == 0 })
	}
	over.Store(true)
	wg.Wait()
}

func BenchmarkPublishTo10kChannels(b *testing.B) {
	_, publish := many(b, 10_000)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i += 7919
		publish(i)
	}
}
