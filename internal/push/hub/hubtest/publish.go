package hubtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func messageArrivesAsPublished(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	n.Sub(&ns, "x", 0)
	before := time.Now().Add(-time.Second).UnixMilli()
	at, err := n.Try(&ns, hub.Publication{Channel: Channel(&ns, "x"), Key: "k\u00e9y 1", Data: []byte("{\"a\":\"\\u0000\"}")})
	if err != nil {
		s.Fatalf("publish: %v", err)
	}
	m := n.Await(&ns, "x", 1)[0]
	if !m.Position().Same(at) || at.Offset == 0 || at.Epoch == "" {
		s.Errorf("answered %v, delivered %v", at, m.Position())
	}
	if p, err := hub.ParsePosition(m.Position().String()); err != nil || p != m.Position() {
		s.Errorf("the position %q does not survive its wire form: %v, %v", at.String(), p, err)
	}
	if m.Channel != Channel(&ns, "x") || m.Key != "k\u00e9y 1" || string(m.Data) != "{\"a\":\"\\u0000\"}" || m.Prev != 0 {
		s.Errorf("delivered %q key %q data %q prev %d", m.Channel, m.Key, m.Data, m.Prev)
	}
	if after := time.Now().Add(time.Second).UnixMilli(); m.Time < before || m.Time > after {
		s.Errorf("time %d is not within %d..%d", m.Time, before, after)
	}
	h := n.Page(&ns, "x", 0, 10)
	if len(h.Messages) != 1 || h.Epoch != at.Epoch {
		s.Fatalf("history: %d messages in epoch %q", len(h.Messages), h.Epoch)
	}
	if g := h.Messages[0]; g.Position() != m.Position() || g.Key != m.Key || g.Time != m.Time || g.Channel != m.Channel || !bytes.Equal(g.Data, m.Data) {
		s.Errorf("history says %+v, delivered was %+v", g.Position(), m.Position())
	}
}

// publishMany publishes per messages by each of writers goroutines, round the
// channels, all asynchronously, and returns the answered offsets by channel, sorted.
func publishMany(n *Node, ns *hub.Namespace, writers, per int, channels ...string) map[string][]uint64 {
	n.t.Helper()
	var mu sync.Mutex
	got := map[string][]uint64{}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			pending := map[string][]<-chan Result{}
			for i := range per {
				name := channels[(w+i)%len(channels)]
				p := hub.Publication{Channel: Channel(ns, name), Data: fmt.Appendf(nil, "%d.%d", w, i)}
				pending[name] = append(pending[name], n.Go(ns, p))
			}
			for name, rs := range pending {
				for _, c := range rs {
					r := <-c
					if r.Err != nil {
						n.t.Errorf("publish to %q: %v", name, r.Err)
						continue
					}
					mu.Lock()
					got[name] = append(got[name], r.Offset)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for _, o := range got {
		slices.Sort(o)
	}
	return got
}

func offsetsRiseAcrossChannels(s *suite) {
	ns := s.namespace("a")
	ns.HistorySize = 10_000
	n := s.start(ns)
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names {
		n.Sub(&ns, name, 0)
	}
	acked := publishMany(n, &ns, 4, 400, names...) // the recorder checks the order
	for _, name := range names {
		ms := n.Await(&ns, name, len(acked[name]))
		if !slices.Equal(offsets(ms), acked[name]) {
			s.Errorf("channel %s: %d acked, %d delivered, or not the same ones", name, len(acked[name]), len(ms))
		}
		seen := map[string]int{}
		for _, m := range ms {
			var w, i int
			if _, err := fmt.Sscanf(string(m.Data), "%d.%d", &w, &i); err != nil {
				s.Fatalf("payload %q", m.Data)
			}
			if last, ok := seen[fmt.Sprint(w)]; ok && i <= last {
				s.Errorf("channel %s: writer %d's message %d after its %d", name, w, i, last)
			}
			seen[fmt.Sprint(w)] = i
		}
	}
	if top := n.End(&ns); top.Offset != 1600 {
		s.Errorf("top is %d after 1600 messages", top.Offset)
	}
}

func prevChainsEveryChannel(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	n.Pub(&ns, "a", "before")
	n.Sub(&ns, "a", 0)
	n.Sub(&ns, "b", 0)
	publishMany(n, &ns, 3, 100, "a", "b", "silent")
	for _, name := range []string{"a", "b"} {
		ms := n.Await(&ns, name, 100)
		prev := uint64(0)
		if name == "a" {
			prev = n.Page(&ns, "a", 0, 1).Messages[0].Offset
		}
		for _, m := range ms {
			if m.Prev != prev {
				s.Errorf("channel %s offset %d: prev %d, want %d", name, m.Offset, m.Prev, prev)
			}
			prev = m.Offset
		}
	}
}

func namespacesHaveTheirOwnLogs(s *suite) {
	a, b := s.namespace("a"), s.namespace("b")
	n := s.start(a, b)
	n.Sub(&a, "x", 0)
	n.Sub(&b, "x", 0)
	n.Pub(&a, "x", "1")
	pa, pb := n.Pub(&a, "x", "2"), n.Pub(&b, "x", "3")
	if pa.Epoch == pb.Epoch || pa.Epoch != n.End(&a).Epoch || pb.Epoch != n.End(&b).Epoch {
		s.Errorf("epochs %q and %q", pa.Epoch, pb.Epoch)
	}
	if pa.Offset != 2 || pb.Offset != 1 {
		s.Errorf("offsets %d and %d, want 2 and 1", pa.Offset, pb.Offset)
	}
	if got := texts(n.Await(&a, "x", 2)) + "|" + texts(n.Await(&b, "x", 1)); got != "1 2|3" {
		s.Errorf("delivered %s", got)
	}
}

func oddChannelNamesStayApart(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	names := []string{
		"a", "A", "a.b", "a.", ".a", ".", "a..b", "*", ">", "a.*", "a.>", "a*b", "$JS.API.INFO", "%", "%61", "=61", "_61", "-", "_",
		"a/b?c=d&e", "a:b", ":", "日本語", "é", "e\u0301", "\U0001f30a", `"quoted"`, `back\slash`, "a'b",
		strings.Repeat("x", 200), strings.Repeat("x", 199) + "y", strings.Repeat("é", 100),
	}
	for _, name := range names {
		if err := hub.CheckChannel(Channel(&ns, name)); err != nil {
			s.Fatal(err)
		}
		n.Sub(&ns, name, 0)
	}
	for _, name := range names {
		n.Pub(&ns, name, name)
	}
	for _, name := range names {
		if got := texts(n.Await(&ns, name, 1)); got != name {
			s.Errorf("channel %q got %q", name, got)
		}
		if h := n.Page(&ns, name, 0, 10); texts(h.Messages) != name {
			s.Errorf("history of %q is %q", name, texts(h.Messages))
		}
	}
}

func payloadsOfEverySizeArriveWhole(s *suite) {
	ns := s.namespace("a")
	ns.MaxMessageBytes, ns.QueueBytes = 1<<20, 4<<20
	n := s.start(ns)
	n.Sub(&ns, "x", 0)
	sizes := []int{0, 1, 4095, 4096, 65536, 1 << 20}
	for _, size := range sizes {
		n.Pub(&ns, "x", strings.Repeat(string(rune('a'+size%26)), size))
	}
	check := func(where string, ms []*hub.Message) {
		if len(ms) != len(sizes) {
			s.Fatalf("%s: %d messages", where, len(ms))
		}
		for i, size := range sizes {
			if want := strings.Repeat(string(rune('a'+size%26)), size); string(ms[i].Data) != want {
				s.Errorf("%s: payload of %d bytes came as %d", where, size, len(ms[i].Data))
			}
		}
	}
	check("live", n.Await(&ns, "x", len(sizes)))
	check("history", n.Page(&ns, "x", 0, 100).Messages)
	_, err := n.Try(&ns, hub.Publication{Channel: Channel(&ns, "x"), Data: make([]byte, 1<<20+1)})
	if !errors.Is(err, hub.ErrTooLarge) {
		s.Errorf("one byte over the bound: %v, want ErrTooLarge", err)
	}
}

func errorsAreTheSentinels(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	other := s.namespace("missing")
	ctx := context.Background()
	f := func(what string, err, want error) {
		s.Helper()
		if !errors.Is(err, want) {
			s.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	_, err := n.Try(&other, hub.Publication{Channel: Channel(&other, "x")})
	f("publish to an unknown namespace", err, hub.ErrUnknownNamespace)
	_, err = n.Subscribe(ctx, &other, Channel(&other, "x"), 1)
	f("subscribe in an unknown namespace", err, hub.ErrUnknownNamespace)
	_, err = n.History(ctx, &other, Channel(&other, "x"), 0, 1)
	f("history of an unknown namespace", err, hub.ErrUnknownNamespace)
	_, err = n.Top(ctx, &other)
	f("top of an unknown namespace", err, hub.ErrUnknownNamespace)
	n.Unsubscribe(&other, Channel(&other, "x"))
	_, err = n.Try(&ns, hub.Publication{Channel: ""})
	f("publish to no channel", err, hub.ErrBadChannel)
	_, err = n.Subscribe(ctx, &ns, "", 0)
	f("subscribe to no channel", err, hub.ErrBadChannel)

	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err = n.Subscribe(over, &ns, Channel(&ns, "x"), 1)
	f("subscribe when it is too late", err, context.Canceled)
	_, err = n.History(over, &ns, Channel(&ns, "x"), 0, 1)
	f("history when it is too late", err, context.Canceled)
	n.Sub(&ns, "x", 1) // the failed call left nothing behind
	if _, err = n.Subscribe(ctx, &ns, Channel(&ns, "x"), 1); err == nil {
		s.Error("subscribing twice is not an error")
	}
	n.Pub(&ns, "x", "still")
	n.Await(&ns, "x", 1)
}
