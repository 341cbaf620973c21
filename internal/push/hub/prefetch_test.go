package hub

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
)

// slowly is a broker that keeps what it is to answer until it is released.
type slowly struct {
	pausing
	waiting []func(Position, error)
}

func (b *slowly) Publish(_ *Namespace, p Publication, done func(Position, error)) {
	b.carried = append(b.carried, p.Channel)
	b.waiting = append(b.waiting, done)
}

func TestPublishAllWaitsForNoneBeforeTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowly{}
		h, err := New(Config{}, b)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		var pubs []Publication
		for i := range 200 { // more than are looked up together
			pubs = append(pubs, Publication{Channel: fmt.Sprint("c", i)})
		}
		pubs[7].Channel = "nowhere:x"
		pubs[9].Attributes = &Attributes{First: 1}
		ctx, cancel := context.WithCancel(t.Context())
		var got []Outcome
		returned := make(chan struct{})
		go func() {
			got = h.PublishAll(ctx, pubs)
			close(returned)
		}()
		synctest.Wait()
		if len(b.waiting) != 198 {
			t.Fatalf("%d publications are with the broker, want 198", len(b.waiting))
		}
		for i, done := range b.waiting {
			if i%2 == 0 {
				done(Position{Epoch: "e", Offset: uint64(i) + 1}, nil)
			}
		}
		cancel()
		<-returned
		for i, done := range b.waiting {
			if i%2 == 1 {
				done(Position{}, nil) // too late
			}
		}
		at := 0
		for i, o := range got {
			switch {
			case i == 7:
				if !errors.Is(o.Err, ErrUnknownNamespace) {
					t.Errorf("of an unknown namespace: %v", o)
				}
			case i == 9:
				if !errors.Is(o.Err, ErrBadAttributes) {
					t.Errorf("with bad attributes: %v", o)
				}
			case b.carried[at] != pubs[i].Channel:
				t.Fatalf("the broker got %v in place of %s", b.carried[at], pubs[i].Channel)
			case at%2 == 0 && (o.Err != nil || o.At.Offset != uint64(at)+1):
				t.Errorf("%s was answered %v", pubs[i].Channel, o)
			case at%2 == 1 && (!errors.Is(o.Err, ErrUnavailable) || !errors.As(o.Err, new(*UncertainError))):
				t.Errorf("%s was not answered, and it says %v", pubs[i].Channel, o)
			}
			if i != 7 && i != 9 {
				at++
			}
		}
	})
}

func TestNothingPublishedIsNothingToWaitFor(t *testing.T) {
	h, err := New(Config{}, &slowly{})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.PublishAll(t.Context(), nil); got != nil {
		t.Error(got)
	}
}

func TestPrefetchAllocatesNothing(t *testing.T) {
	b := &pausing{handle: "h", pause: func() {}}
	h, err := New(Config{}, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	pubs := make([]Publication, 100)
	for i := range pubs {
		pubs[i].Channel = fmt.Sprint("c", i)
	}
	if n := testing.AllocsPerRun(10, func() { h.Prefetch(pubs) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestWhatWasPrefetchedMayBeRenamed publishes on another channel than what was prefetched.
func TestWhatWasPrefetchedMayBeRenamed(t *testing.T) {
	b := &pausing{handle: "h", pause: func() {}}
	h, err := New(Config{}, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	s := h.NewShard(func() {})
	sinks := map[string]*counting{"x": {}, "y": {}}
	for name, c := range sinks {
		if err := s.Subscribe(new(Subscriber), c, SubscribeOptions{Channels: []string{name}}); err != nil {
			t.Fatal(err)
		}
	}
	for sinks["x"].started+sinks["y"].started < 2 {
		s.Run()
		runtime.Gosched()
	}
	p := []Publication{{Channel: "x"}}
	h.Prefetch(p)
	p[0].Channel = "y"
	h.Publish(p[0], func(Position, error) {})
	s.Run()
	if sinks["x"].got != 0 || sinks["y"].got != 1 {
		t.Errorf("x got %d and y %d, want none and one", sinks["x"].got, sinks["y"].got)
	}
}
