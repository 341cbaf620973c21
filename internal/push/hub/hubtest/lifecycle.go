package hubtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func noneStoresNothing(s *suite) {
	ns := s.namespace("a")
	withoutLog(&ns)
	n := s.start(ns)
	if snap := n.Sub(&ns, "x", 10); !snap.Top.IsZero() || len(snap.Messages) != 0 || snap.Floor != 0 {
		s.Errorf("snapshot %+v", snap)
	}
	n.Sub(&ns, "y", 10)
	for i := range 100 {
		at, err := n.Try(&ns, hub.Publication{Channel: Channel(&ns, []string{"x", "y"}[i%2]), Key: "k", Data: fmt.Append(nil, i)})
		if err != nil || !at.IsZero() {
			s.Fatalf("publish: %v, %v", at, err)
		}
	}
	n.Pub(&ns, "unread", "-")
	var sum []string
	for _, name := range []string{"x", "y"} {
		ms := n.Await(&ns, name, 50)
		for i, m := range ms {
			want := fmt.Sprint(2*i + map[string]int{"x": 0, "y": 1}[name])
			if string(m.Data) != want || !m.Position().IsZero() || m.Prev != 0 || m.Key != "k" || m.Time < time.Now().Add(-time.Minute).UnixMilli() {
				s.Fatalf("%s: message %d is %q at %v, prev %d, key %q, time %d", name, i, m.Data, m.Position(), m.Prev, m.Key, m.Time)
			}
		}
		sum = append(sum, fmt.Sprint(len(ms)))
	}
	if !slices.Equal(sum, []string{"50", "50"}) {
		s.Errorf("delivered %v", sum)
	}
	if p := n.Page(&ns, "x", 0, 10); len(p.Messages) != 0 || p.Epoch != "" || p.FirstRetained != 0 {
		s.Errorf("history %+v", p)
	}
	if top := n.End(&ns); !top.IsZero() {
		s.Errorf("top %v", top)
	}
	n.Unsubscribe(&ns, Channel(&ns, "x"))
	n.Pub(&ns, "x", "late")
	n.Pub(&ns, "y", "fence")
	n.Await(&ns, "y", 51)
	if got := len(n.On(Channel(&ns, "x"))); got != 50 {
		s.Errorf("%d messages after unsubscribe", got)
	}
}

func secondNodeSeesTheSame(s *suite) {
	ns := s.namespace("a")
	ns.HistorySize = 10_000
	a, b := s.start(ns), (*Node)(nil)
	before := a.Pub(&ns, "x", "before")
	b = s.start(ns)
	if s.h.Alone {
		if top := b.End(&ns); top.Epoch == before.Epoch || top.Offset != 0 {
			s.Errorf("another broker alone starts at %v, this one is at %v", top, before)
		}
		return
	}
	if snap := b.Sub(&ns, "x", 10); !snap.Top.Same(before) || texts(snap.Messages) != "before" {
		s.Errorf("the second node's snapshot: %q at %v, want %v", texts(snap.Messages), snap.Top, before)
	}
	a.Sub(&ns, "x", 0)
	done := make(chan map[string][]uint64, 2)
	for _, n := range []*Node{a, b} {
		go func() { done <- publishMany(n, &ns, 2, 200, "x") }()
	}
	acked := append((<-done)["x"], (<-done)["x"]...)
	slices.Sort(acked)
	for _, n := range []*Node{a, b} {
		ms := n.Await(&ns, "x", len(acked))
		if !slices.Equal(offsets(ms), acked) {
			s.Errorf("%d delivered, %d acked", len(ms), len(acked))
		}
		for _, m := range ms {
			if m.Epoch != before.Epoch {
				s.Fatalf("epoch %q and %q", m.Epoch, before.Epoch)
			}
		}
	}
	none := b.End(&ns)
	if a.End(&ns) != none {
		s.Errorf("tops %v and %v", a.End(&ns), none)
	}
}

func closeAnswersEveryPublish(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	n.Sub(&ns, "x", 0)
	const writers, enough = 4, 200
	var answered atomic.Int64
	over := make(chan int, writers)
	for range writers {
		go func() {
			sent := 0
			for {
				r := <-n.Go(&ns, hub.Publication{Channel: Channel(&ns, "x"), Data: []byte("d")})
				sent++
				if answered.Add(1); r.Err != nil {
					if !errors.Is(r.Err, hub.ErrClosed) {
						s.Errorf("publish while closing: %v, want ErrClosed", r.Err)
					}
					over <- sent
					return
				}
			}
		}()
	}
	Until(s.T, s.h.Patience, "some traffic", func() bool { return answered.Load() > enough })
	if err := n.Close(); err != nil {
		s.Errorf("close: %v", err)
	}
	n.Recorder.End()
	for range writers {
		select {
		case <-over:
		case <-time.After(s.h.Patience):
			s.Fatal("a publish was never answered")
		}
	}
	if err := n.Close(); err != nil {
		s.Errorf("close again: %v", err)
	}
	ctx := context.Background()
	_, err := n.Subscribe(ctx, &ns, Channel(&ns, "y"), 1)
	_, err2 := n.History(ctx, &ns, Channel(&ns, "y"), 0, 1)
	_, err3 := n.Top(ctx, &ns)
	_, err4 := n.Try(&ns, hub.Publication{Channel: Channel(&ns, "x")})
	for i, err := range []error{err, err2, err3, err4, n.Ready()} {
		if !errors.Is(err, hub.ErrClosed) {
			s.Errorf("call %d after close: %v, want ErrClosed", i, err)
		}
	}
	n.Unsubscribe(&ns, Channel(&ns, "x"))
}

func stateIsReported(s *suite) {
	b := s.h.New(s.T)
	ns := s.namespace("a")
	if err := b.Ready(); !errors.Is(err, hub.ErrUnavailable) {
		s.Errorf("ready before start: %v, want ErrUnavailable", err)
	}
	answered := make(chan error, 1)
	b.Publish(&ns, hub.Publication{Channel: Channel(&ns, "x")}, func(_ hub.Position, err error) { answered <- err })
	if err := <-answered; !errors.Is(err, hub.ErrUnavailable) {
		s.Errorf("publish before start: %v, want ErrUnavailable", err)
	}
	n := Start(s.T, b, s.h.Patience, ns)
	if err := n.Ready(); err != nil {
		s.Errorf("ready after start: %v", err)
	}
	if err := b.Start(context.Background(), []hub.Namespace{ns}, n.Deliver); err == nil {
		s.Error("starting twice is not an error")
	}
	if err := n.Close(); err != nil {
		s.Errorf("close: %v", err)
	}
	never := s.h.New(s.T)
	if err := never.Close(); err != nil {
		s.Errorf("close before start: %v", err)
	}
	if err := never.Start(context.Background(), []hub.Namespace{ns}, n.Deliver); !errors.Is(err, hub.ErrClosed) {
		s.Errorf("start after close: %v, want ErrClosed", err)
	}
}
