package hubtest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A namespace that is added while others are in use works as they do, and they continue.
func namespacesCanBeAdded(s *suite) {
	first, later, plain := s.namespace("first"), s.namespace("later"), s.namespace("plain")
	withoutLog(&plain)
	n := s.start(first)
	n.Sub(&first, "x", 0)
	stop, count := make(chan struct{}), 0
	var busy sync.WaitGroup
	busy.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := n.Try(&first, hub.Publication{Channel: Channel(&first, "x"), Data: fmt.Append(nil, count)}); err != nil {
					s.Errorf("publish while another is added: %v", err)
					return
				}
				count++
			}
		}
	})
	if _, err := n.Try(&later, hub.Publication{Channel: Channel(&later, "x"), Data: []byte("1")}); !errors.Is(err, hub.ErrUnknownNamespace) {
		s.Errorf("before: %v", err)
	}
	for _, ns := range []hub.Namespace{later, plain} {
		if err := n.Add(ns); err != nil {
			s.Fatalf("add %q: %v", ns.Name, err)
		}
		if err := n.Add(ns); err == nil {
			s.Errorf("%q was added twice", ns.Name)
		}
	}
	n.Sub(&later, "x", 10)
	n.Sub(&plain, "x", 0)
	one := n.Pub(&later, "x", "one")
	n.Pub(&plain, "x", "p")
	two := n.Pub(&later, "x", "two")
	if one.Epoch != two.Epoch || two.Offset <= one.Offset {
		s.Errorf("%v, then %v", one, two)
	}
	if got := texts(n.Await(&later, "x", 2)); got != "one two" {
		s.Errorf("arrived: %q", got)
	}
	if got := texts(n.Await(&plain, "x", 1)); got != "p" {
		s.Errorf("arrived without a log: %q", got)
	}
	if p := n.Page(&later, "x", 0, 10); texts(p.Messages) != "one two" {
		s.Errorf("history: %q", texts(p.Messages))
	}
	if top := n.End(&later); !top.Same(two) {
		s.Errorf("top %v, want %v", top, two)
	}
	close(stop)
	busy.Wait()
	if ms := n.Await(&first, "x", count); len(ms) != count {
		s.Errorf("%d of %d messages arrived in the namespace beside", len(ms), count)
	}
	if err := n.Ready(); err != nil {
		s.Errorf("ready: %v", err)
	}
	bad := s.namespace("bad")
	bad.HistorySize = -1
	if err := n.Add(bad); err == nil {
		s.Error("options that are wrong were taken")
	}
	if err := n.Close(); err != nil {
		s.Fatal(err)
	}
	if err := n.Add(s.namespace("more")); !errors.Is(err, hub.ErrClosed) {
		s.Errorf("after Close: %v", err)
	}
	if err := n.Change(later); !errors.Is(err, hub.ErrClosed) {
		s.Errorf("after Close: %v", err)
	}
}

// What a namespace retains follows its options; what it has delivered is not touched.
func namespacesCanBeChanged(s *suite) {
	ns, unknown := s.namespace("a"), s.namespace("unknown")
	n := s.start(ns)
	n.Sub(&ns, "x", 0)
	var last hub.Position
	publish := func(from, to int) {
		s.Helper()
		for i := from; i < to; i++ {
			last = n.Pub(&ns, "x", fmt.Sprint(i))
		}
	}
	history := func(want string) {
		s.Helper()
		if got := texts(n.Page(&ns, "x", 0, 100).Messages); got != want {
			s.Errorf("retained %q, want %q", got, want)
		}
	}
	publish(0, 8)
	history("0 1 2 3 4 5 6 7")
	was := ns
	ns.HistorySize, ns.MaxMessageBytes = 3, 2
	if err := n.Change(ns); err != nil {
		s.Fatal(err)
	}
	history("5 6 7")
	if _, err := n.Try(&ns, hub.Publication{Channel: Channel(&ns, "x"), Data: []byte("100")}); !errors.Is(err, hub.ErrTooLarge) {
		s.Errorf("a message that is too large now: %v", err)
	}
	publish(8, 10)
	history("7 8 9")
	ns = was
	if err := n.Change(ns); err != nil {
		s.Fatal(err)
	}
	publish(10, 12)
	history("7 8 9 10 11")
	if top := n.End(&ns); !top.Same(last) {
		s.Errorf("top %v, want %v: a change starts no epoch", top, last)
	}
	if got := texts(n.Await(&ns, "x", 12)); got != "0 1 2 3 4 5 6 7 8 9 10 11" {
		s.Errorf("arrived: %q", got)
	}
	if err := n.Change(unknown); !errors.Is(err, hub.ErrUnknownNamespace) {
		s.Errorf("one that is not there: %v", err)
	}
	other := ns
	if other.Durability = hub.None; n.Change(other) == nil {
		s.Error("the durability was changed")
	}
	bad := ns
	bad.HistoryTTL = 1
	if n.Change(bad) == nil {
		s.Error("options that are wrong were taken")
	}
	history("7 8 9 10 11")
}

// Nodes that add a namespace one after the other, and one that starts with it, have one log.
func addedOnEveryNode(s *suite) {
	if s.h.Alone {
		return
	}
	first, ns := s.namespace("first"), s.namespace("later")
	a, b := s.start(first), s.start(first)
	if err := a.Add(ns); err != nil {
		s.Fatal(err)
	}
	before := a.Pub(&ns, "x", "before")
	if err := b.Add(ns); err != nil {
		s.Fatal(err)
	}
	c := s.start(first, ns)
	for _, n := range []*Node{a, b, c} {
		if snap := n.Sub(&ns, "x", 10); !snap.Top.Same(before) || texts(snap.Messages) != "before" {
			s.Errorf("snapshot %q at %v, want %v", texts(snap.Messages), snap.Top, before)
		}
	}
	want := "before"
	for i, n := range []*Node{a, b, c} {
		n.Pub(&ns, "x", fmt.Sprint(i))
		want += fmt.Sprintf(" %d", i)
	}
	for _, n := range []*Node{a, b, c} {
		n.Await(&ns, "x", 3)
		if got := texts(n.Page(&ns, "x", 0, 10).Messages); got != want {
			s.Errorf("history %q, want %q", got, want)
		}
	}
}
