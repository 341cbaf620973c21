package hubtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
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
	if again := pub("x", "key 1 \u00e9", "one"); !again.Same(first) {
		s.Errorf("the retry was answered %v, first was %v", again, first)
	}
	if again := pub("x", "key 2", "two"); !again.Same(second) {
		s.Errorf("the retry was answered %v, first was %v", again, second)
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

// keysAreTheirPublishersOwn: anyone who uses a key first takes it from no other publisher and
// no other channel.
func keysAreTheirPublishersOwn(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	publishers := []string{"", "api_key:a", "api_key:b", "token:a", "weir:a", "api_key:a\x00x"}
	channels := []string{"x", "y"}
	at := map[[2]string]hub.Position{}
	for range 2 {
		for _, who := range publishers {
			for _, ch := range channels {
				p := hub.Publication{Channel: Channel(&ns, ch), Data: []byte(who + " " + ch), IdempotencyKey: "k", Publisher: who}
				got, err := n.Try(&ns, p)
				key := [2]string{who, ch}
				if first, again := at[key]; err != nil || again && !got.Same(first) || !again && got.Offset != uint64(len(at)+1) {
					s.Fatalf("%q on %s: %v and %v, %d are stored", who, ch, got, err, len(at))
				}
				at[key] = got
			}
		}
	}
}

// anotherMessageUnderAKeyIsRefused: what differs in anything is not treated as a retry, by
// any node.
func anotherMessageUnderAKeyIsRefused(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	nodes := []*Node{n}
	if !s.h.Alone {
		nodes = append(nodes, s.start(ns))
	}
	base := func() hub.Publication {
		return hub.Publication{Channel: Channel(&ns, "x"), Key: "conflation", Data: []byte(`{"a":1}`), IdempotencyKey: "k", Publisher: "token:a",
			Attributes: &hub.Attributes{ID: "id", Event: "e", Tags: map[string]string{"a": "1", "b": "2"}, Origin: "first connection", Info: []byte(`{"n":1}`)}}
	}
	first, err := n.Try(&ns, base())
	if err != nil {
		s.Fatal(err)
	}
	plain := hub.Publication{Channel: Channel(&ns, "plain"), Data: []byte("d"), IdempotencyKey: "k"}
	plainAt, err := n.Try(&ns, plain)
	if err != nil {
		s.Fatal(err)
	}
	for i, n := range nodes {
		same := base()
		same.Attributes.Origin, same.Attributes.Info = "second connection", []byte(`{"n":2}`)
		if got, err := n.Try(&ns, same); err != nil || !got.Same(first) {
			s.Errorf("node %d: the same over another connection: %v and %v, want %v", i, got, err, first)
		}
		plain.Attributes = &hub.Attributes{}
		if got, err := n.Try(&ns, plain); err != nil || !got.Same(plainAt) {
			s.Errorf("node %d: the same with empty attributes: %v and %v, want %v", i, got, err, plainAt)
		}
		for name, change := range map[string]func(p *hub.Publication){
			"data":          func(p *hub.Publication) { p.Data = []byte(`{"a":2}`) },
			"key":           func(p *hub.Publication) { p.Key = "" },
			"no attributes": func(p *hub.Publication) { p.Attributes = nil },
			"id":            func(p *hub.Publication) { p.Attributes.ID = "" },
			"event":         func(p *hub.Publication) { p.Attributes.Event = "f" },
			"payload":       func(p *hub.Publication) { p.Attributes.Payload = hub.Text },
			"private":       func(p *hub.Publication) { p.Attributes.Private = true },
			"retry":         func(p *hub.Publication) { p.Attributes.Retry = 1 },
			"tags":          func(p *hub.Publication) { p.Attributes.Tags["b"] = "3" },
			"shifted":       func(p *hub.Publication) { p.Key, p.Data = "conflatio", []byte(`n{"a":1}`) },
		} {
			p := base()
			change(&p)
			got, err := n.Try(&ns, p)
			var reused *hub.KeyReusedError
			if !errors.Is(err, hub.ErrKeyReused) || !errors.As(err, &reused) || !reused.At.Same(first) {
				s.Errorf("node %d: other %s: %v and %v, want ErrKeyReused at %v", i, name, got, err, first)
			}
		}
	}
	if top := n.End(&ns); top.Offset != 2 {
		s.Errorf("top is %d, want 2", top.Offset)
	}
}

// retriesOfRemovedMessagesStoreNothing: a key outlives its message.
func retriesOfRemovedMessagesStoreNothing(s *suite) {
	ns := s.namespace("a")
	ns.HistorySize = 1
	n := s.start(ns)
	first := hub.Publication{Channel: Channel(&ns, "x"), Data: []byte("one"), IdempotencyKey: "k"}
	at, err := n.Try(&ns, first)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := n.Try(&ns, hub.Publication{Channel: Channel(&ns, "x"), Data: []byte("two")}); err != nil {
		s.Fatal(err)
	}
	if again, err := n.Try(&ns, first); err != nil || !again.Same(at) {
		s.Errorf("the retry was answered %v and %v, first was %v", again, err, at)
	}
	if top := n.End(&ns); top.Offset != 2 {
		s.Errorf("top is %d, want 2", top.Offset)
	}
}

// keysAreLookedUpWithoutStoring: a condition that never holds leaves what the key says.
func keysAreLookedUpWithoutStoring(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	a, ok := n.Broker.(hub.Archive)
	if !ok {
		s.Fatal("the broker is not an archive")
	}
	look := func(p hub.Publication) Result {
		got := make(chan Result, 1)
		a.PublishAfter(&ns, p, hub.Never, func(at hub.Position, err error) { got <- Result{at, err} })
		return <-got
	}
	p := hub.Publication{Channel: Channel(&ns, "x"), Data: []byte("d"), IdempotencyKey: "k"}
	if r := look(p); !errors.Is(r.Err, hub.ErrConflict) {
		s.Errorf("a new key: %v and %v, want ErrConflict", r.Position, r.Err)
	}
	at, err := n.Try(&ns, p)
	if r := look(p); err != nil || !r.Same(at) || r.Err != nil {
		s.Errorf("a known key: %v and %v, want %v", r.Position, r.Err, at)
	}
	p.Data = []byte("e")
	if r := look(p); !errors.Is(r.Err, hub.ErrKeyReused) {
		s.Errorf("another message's key: %v and %v, want ErrKeyReused", r.Position, r.Err)
	}
	if top := n.End(&ns); top.Offset != 1 {
		s.Errorf("top is %d, want 1", top.Offset)
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
			if r := <-c; !r.Same(first.Position) || r.Err != nil {
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
