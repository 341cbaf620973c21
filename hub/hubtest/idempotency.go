package hubtest

import (
	"fmt"
	"time"

	"github.com/weir-gateway/weir/hub"
)

func oneKeyStoresOnce(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	n.Sub(&ns, "x", 0)
	pub := func(name, key, data string) hub.Position {
		s.Helper()
		at, err := n.Try(&ns, hub.Publication{Channel: Channel(&ns, name), Data: []byte(data), IdempotencyKey: key})
		if err != nil {
			s.Fatalf("publish %q: %v", data, err)
		}
		return at
	}
	first := pub("x", "key 1 \u00e9", "one")
	second := pub("x", "key 2", "two")
	if again := pub("x", "key 1 \u00e9", "one"); again != first {
		s.Errorf("the retry was answered %v, first was %v", again, first)
	}
	if again := pub("y", "key 2", "elsewhere"); again != second {
		s.Errorf("the same key on another channel was answered %v, want %v", again, second)
	}
	pub("x", "", "three")
	pub("x", "", "three")
	if got := texts(n.Await(&ns, "x", 4)); got != "one two three three" {
		s.Errorf("delivered %s", got)
	}
	if top := n.End(&ns); top.Offset != 4 {
		s.Errorf("top is %d, want 4", top.Offset)
	}
}

func concurrentRetriesStoreOnce(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	n.Sub(&ns, "x", 0)
	for round := range 20 {
		var answers []<-chan Result
		for range 16 {
			answers = append(answers, n.Go(&ns, hub.Publication{
				Channel: Channel(&ns, "x"), Data: fmt.Appendf(nil, "%d", round), IdempotencyKey: fmt.Sprint("round ", round),
			}))
		}
		first := <-answers[0]
		for _, c := range answers[1:] {
			if r := <-c; r != first || r.Err != nil {
				s.Fatalf("round %d: answers %v and %v", round, first, r)
			}
		}
	}
	n.Await(&ns, "x", 20)
	if top := n.End(&ns); top.Offset != 20 {
		s.Errorf("top is %d after 20 keys", top.Offset)
	}
}

func keyIsForgottenAfterItsWindow(s *suite) {
	ns := s.namespace("a")
	ns.IdempotencyWindow = hub.Duration(100 * time.Millisecond)
	n := s.start(ns)
	p := hub.Publication{Channel: Channel(&ns, "x"), Data: []byte("d"), IdempotencyKey: "k"}
	first, err := n.Try(&ns, p)
	if err != nil {
		s.Fatal(err)
	}
	Until(s.T, s.h.Patience, "the key to be forgotten", func() bool {
		again, err := n.Try(&ns, p)
		return err == nil && again.Offset > first.Offset
	})
}
