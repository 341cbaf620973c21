package hubtest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// after publishes p on the channel called name if newest is its newest message.
func (n *Node) after(ns *hub.Namespace, name string, p hub.Publication, newest uint64) (hub.Position, error) {
	n.t.Helper()
	p.Channel = Channel(ns, name)
	got := make(chan Result, 1)
	archiveOf(n).PublishAfter(ns, p, newest, func(at hub.Position, err error) { got <- Result{at, err} })
	select {
	case r := <-got:
		return r.Position, r.Err
	case <-time.After(n.patience):
		n.t.Fatalf("publish to %q: no answer after %v", p.Channel, n.patience)
		panic("unreachable")
	}
}

func conditionsAreCheckedAtTheEnd(s *suite) {
	ns, none := s.namespace("a"), s.namespace("n")
	withoutLog(&none)
	ns.HistorySize = 2
	n := s.start(ns, none)
	n.Sub(&ns, "x", 0)
	f := func(name, data, key string, newest uint64, want error) hub.Position {
		s.Helper()
		at, err := n.after(&ns, name, hub.Publication{Data: []byte(data), IdempotencyKey: key}, newest)
		if !errors.Is(err, want) {
			s.Errorf("%q on %q after %d: %v, want %v", data, name, newest, err, want)
		}
		return at
	}
	f("x", "no", "", 7, hub.ErrConflict)
	first := f("x", "1", "", 0, nil)
	f("x", "no", "", 0, hub.ErrConflict)
	f("x", "no", "", first.Offset+1, hub.ErrConflict)
	other := n.Pub(&ns, "y", "0")
	f("x", "no", "", other.Offset, hub.ErrConflict)
	second := f("x", "2", "k", first.Offset, nil)
	if again := f("x", "2", "k", second.Offset, nil); !again.Same(second) {
		s.Errorf("the same key: at %v, want %v", again, second)
	}
	third := n.Pub(&ns, "x", "3") // the first is not retained any more
	f("x", "no", "", second.Offset, hub.ErrConflict)
	f("x", "4", "", third.Offset, nil)
	if got := texts(n.Await(&ns, "x", 4)); got != "1 2 3 4" {
		s.Errorf("stored %q", got)
	}
	n.remove(&ns, "x")
	f("x", "no", "", third.Offset+1, hub.ErrConflict)
	f("x", "5", "", 0, nil)
	if got := texts(n.Await(&ns, "x", 5)); got != "1 2 3 4 5" {
		s.Errorf("stored %q", got)
	}
	f("", "no", "", 0, hub.ErrBadChannel)
	f("big", string(make([]byte, ns.MaxMessageBytes+1)), "", 0, hub.ErrTooLarge)
	if _, err := n.after(&none, "x", hub.Publication{Data: []byte("1")}, 0); !errors.Is(err, errors.ErrUnsupported) {
		s.Errorf("without a log: %v", err)
	}
}

// oneOfManyConditionsHolds has several publish after the same message, on all nodes.
func oneOfManyConditionsHolds(s *suite) {
	ns := s.namespace("a")
	nodes := []*Node{s.start(ns)}
	if !s.h.Alone {
		nodes = append(nodes, s.start(ns))
	}
	newest := uint64(0)
	for round := range 10 {
		var stored atomic.Int64
		var at atomic.Uint64
		var done []<-chan error
		for i := range 8 {
			n, failed := nodes[i%len(nodes)], make(chan error, 1)
			p := hub.Publication{Channel: Channel(&ns, "x"), Data: fmt.Append(nil, round)}
			archiveOf(n).PublishAfter(&ns, p, newest, func(p hub.Position, err error) {
				if err == nil {
					stored.Add(1)
					at.Store(p.Offset)
				} else if errors.Is(err, hub.ErrConflict) {
					err = nil
				}
				failed <- err
			})
			done = append(done, failed)
		}
		for _, c := range done {
			select {
			case err := <-c:
				if err != nil {
					s.Fatal(err)
				}
			case <-time.After(nodes[0].patience):
				s.Fatal("no answer")
			}
		}
		if stored.Load() != 1 {
			s.Fatalf("round %d: %d were stored", round, stored.Load())
		}
		newest = at.Load()
	}
}
