package hub

import (
	"context"
	"runtime"
	"testing"
	"time"
)

// pausing is a broker that numbers and delivers, and lets a test act between a
// publication's arrival and its delivery.
type pausing struct {
	Broker
	deliver func(*Message)
	top     uint64
	pause   func()
	handle  any
	carried []any
}

func (b *pausing) Start(_ context.Context, _ []Namespace, deliver func(*Message)) error {
	b.deliver = deliver
	return nil
}

func (b *pausing) Subscribe(context.Context, *Namespace, string, int) (Snapshot, error) {
	return Snapshot{Top: Position{Epoch: "e", Offset: b.top}, FirstRetained: 1, Handle: b.handle}, nil
}

func (b *pausing) Unsubscribe(*Namespace, string) {}
func (b *pausing) Close() error                   { return nil }

func (b *pausing) Publish(_ *Namespace, p Publication, done func(Position, error)) {
	b.carried = append(b.carried, p.Handle)
	b.pause()
	m := &Message{}
	p.Fill(m)
	b.top++
	m.Epoch, m.Offset = "e", b.top
	b.deliver(m)
	done(m.Position(), nil)
}

type counting struct{ started, got int }

func (c *counting) Start(Positions)  { c.started++ }
func (c *counting) Deliver(b *Batch) { c.got += len(b.Messages) }
func (c *counting) Live()            {}
func (c *counting) Gap(Gap)          {}
func (c *counting) Failed(error)     {}
func (c *counting) Room() bool       { return true }

// A message that found its channel before the last subscriber left reaches those
// who have come since, and its channel's handle goes with the channel.
func TestAMessageFindsTheChannelThatIsThereNow(t *testing.T) {
	b := &pausing{handle: "h", pause: func() {}}
	h, err := New(Config{Linger: 1}, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	s := h.NewShard(func() {})
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); s.Run() {
			if time.Now().After(end) {
				t.Fatalf("not within 20s: %s", what)
			}
			runtime.Gosched()
		}
	}
	enter := func() (*Subscriber, *counting) {
		sub, c := new(Subscriber), new(counting)
		if err := s.Subscribe(sub, c, SubscribeOptions{Channels: []string{"x"}}); err != nil {
			t.Fatal(err)
		}
		until("the subscriber has started", func() bool { return c.started == 1 })
		return sub, c
	}
	publish := func() { h.Publish(Publication{Channel: "x", Handle: "forged"}, func(Position, error) {}) }

	publish() // there is no subscriber
	first, _ := enter()
	until("publications carry the handle", func() bool {
		p := []Publication{{Channel: "x"}}
		h.Prefetch(p)
		return p[0].Handle == "h"
	})
	var second *counting
	b.pause = func() {
		s.Unsubscribe(first)
		until("the channel is given up", func() bool { return h.lookup("x") == nil })
		_, second = enter()
	}
	publish()
	s.Run()
	if second.got != 1 {
		t.Errorf("%d messages reached who came meanwhile, want 1", second.got)
	}
	if len(b.carried) != 2 || b.carried[0] != nil || b.carried[1] != "h" {
		t.Errorf("handles carried: %v, want none and h", b.carried)
	}
}
