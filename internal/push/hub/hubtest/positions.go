package hubtest

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A resumed is what a subscriber that resumes is sent.
type resumed struct {
	started bool
	live    bool // it came after Start, and once
	atLive  int  // messages before it
	gaps    []hub.Gap
	early   int // messages before the first gap, or without one
	got     []uint64
	err     error
}

func (r *resumed) Start(hub.Positions) { r.started = true }
func (r *resumed) Live()               { r.live, r.atLive = r.started && !r.live, len(r.got) }
func (r *resumed) Room() bool          { return true }
func (r *resumed) Gap(g hub.Gap)       { r.gaps = append(r.gaps, g) }
func (r *resumed) Failed(err error)    { r.err = err }
func (r *resumed) Deliver(b *hub.Batch) {
	for _, m := range b.Messages {
		if len(r.gaps) == 0 {
			r.early++
		}
		r.got = append(r.got, m.Offset)
	}
}

// A hubOn is a hub with one shard, run by the test.
type hubOn struct {
	*hub.Hub
	s     *suite
	shard *hub.Shard
	wake  chan struct{}
}

func (s *suite) hub(namespaces ...hub.Namespace) *hubOn {
	s.Helper()
	h, err := hub.New(hub.Config{Namespaces: namespaces}, s.h.New(s.T))
	if err != nil {
		s.Fatal(err)
	}
	if err := h.Start(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = h.Close() })
	n := &hubOn{Hub: h, s: s, wake: make(chan struct{}, 1)}
	n.shard = h.NewShard(func() {
		select {
		case n.wake <- struct{}{}:
		default:
		}
	})
	return n
}

func (n *hubOn) until(what string, ok func() bool) {
	n.s.Helper()
	late := time.After(n.s.h.Patience)
	for n.shard.Run(); !ok(); n.shard.Run() {
		select {
		case <-n.wake:
		case <-late:
			n.s.Fatalf("waited %v for %s", n.s.h.Patience, what)
		}
	}
}

func (n *hubOn) publish(channel, data string) hub.Position {
	n.s.Helper()
	got := make(chan Result, 1)
	n.Publish(hub.Publication{Channel: channel, Data: []byte(data)}, func(at hub.Position, err error) { got <- Result{at, err} })
	select {
	case r := <-got:
		if r.Err != nil {
			n.s.Fatal(r.Err)
		}
		return r.Position
	case <-time.After(n.s.h.Patience):
		n.s.Fatalf("publish to %q: no answer", channel)
		panic("unreachable")
	}
}

// resume subscribes from p until as many messages as want have come, or a gap.
func (n *hubOn) resume(channel string, p hub.Position, want int) *resumed {
	n.s.Helper()
	r := &resumed{}
	sub := new(hub.Subscriber)
	if err := n.shard.Subscribe(sub, r, hub.SubscribeOptions{Channels: []string{channel}, Since: hub.Positions{p}}); err != nil {
		n.s.Fatal(err)
	}
	n.until(fmt.Sprintf("%d messages or a gap after %v", want, p), func() bool {
		return r.err != nil || r.live && (len(r.gaps) > 0 || len(r.got) >= want)
	})
	if r.err != nil {
		n.s.Errorf("resume from %v: %v", p, r.err)
	}
	n.shard.Unsubscribe(sub)
	return r
}

// foreignPositionsAreGaps: a position that is not a place in the log, as clients have it
// after the log was damaged, restored or replaced, is a gap and never a continuation; all
// that the broker gave out itself, with and without a check, is a continuation.
func foreignPositionsAreGaps(s *suite) {
	ns, other := s.namespace("a"), s.namespace("b")
	ns.Recent = 4
	n := s.hub(ns, other)
	x := Channel(&ns, "x")
	var answers []hub.Position
	const count = 12
	for i := range count {
		answers = append(answers, n.publish(x, fmt.Sprint(i%2)))
		n.publish(Channel(&ns, "y"), fmt.Sprint(i%2))
	}
	elsewhere := n.publish(Channel(&other, "x"), "0")
	anchor := &resumed{}
	if err := n.shard.Subscribe(new(hub.Subscriber), anchor, hub.SubscribeOptions{Channels: []string{x}}); err != nil {
		s.Fatal(err)
	}
	n.until("a subscription", func() bool { return anchor.live })
	h, err := n.History(s.Context(), x, hub.HistoryOptions{Limit: -1})
	if err != nil || len(h.Messages) != count {
		s.Fatalf("%d messages of %d: %v", len(h.Messages), count, err)
	}
	for i, m := range h.Messages {
		p, left := m.Position(), count-1-i
		bare := hub.Position{Epoch: p.Epoch, Offset: p.Offset}
		for what, right := range map[string]hub.Position{"a message's": p, "a publisher's": answers[i], "the short": bare} {
			if q, err := hub.ParsePosition(right.String()); err != nil || q != right {
				s.Errorf("%v reads as %v, %v", right, q, err)
			}
			if r := n.resume(x, right, left); len(r.gaps) > 0 || len(r.got) != left {
				s.Errorf("%s position %v: %d messages of %d, gaps %v", what, right, len(r.got), left, r.gaps)
			}
		}
		for what, check := range wrongChecks(m, h.Messages[(i+1)%count]) {
			if check == p.Check || check == answers[i].Check {
				continue
			}
			wrong := hub.Position{Epoch: p.Epoch, Offset: p.Offset, Check: check}
			n.mustGap(x, what, wrong)
		}
	}
	n.mustGap(x, "of another namespace", elsewhere)
	n.mustGap(x, "of another epoch", hub.Position{Epoch: "another", Offset: answers[2].Offset, Check: answers[2].Check})
	for _, past := range []uint64{h.Top.Offset + 1, h.Top.Offset + 1<<20, 1<<63 - 1, math.MaxUint64 - 1, math.MaxUint64} {
		for _, check := range []hub.Check{0, answers[2].Check, hub.NewCheck(past, time.Now())} {
			n.mustGap(x, "past the end", hub.Position{Epoch: h.Top.Epoch, Offset: past, Check: check})
		}
	}
}

// liveFollowsTheReplay: a subscriber is notified that it is live after all that its shard
// has of what it requested, from the ring and from the log, and before anything newer.
func liveFollowsTheReplay(s *suite) {
	ns := s.namespace("a")
	ns.Recent = 4
	n := s.hub(ns)
	x := Channel(&ns, "x")
	const count = 12
	anchor := &resumed{}
	if err := n.shard.Subscribe(new(hub.Subscriber), anchor, hub.SubscribeOptions{Channels: []string{x}}); err != nil {
		s.Fatal(err)
	}
	n.until("a subscription", func() bool { return anchor.live })
	at := []hub.Position{}
	for i := range count {
		at = append(at, n.publish(x, fmt.Sprint(i)))
	}
	n.until("all messages", func() bool { return len(anchor.got) == count })
	for i, p := range at {
		if r := n.resume(x, p, count-1-i); r.atLive != count-1-i || len(r.gaps) > 0 {
			s.Errorf("live after %d messages of %d, gaps %v", r.atLive, count-1-i, r.gaps)
		}
	}
	r := &resumed{}
	if err := n.shard.Subscribe(new(hub.Subscriber), r, hub.SubscribeOptions{Channels: []string{x}, All: true}); err != nil {
		s.Fatal(err)
	}
	n.until("a replay of all", func() bool { return r.live })
	n.publish(x, "newer")
	n.until("a newer message", func() bool { return len(r.got) > count })
	if r.atLive != count {
		s.Errorf("live after %d messages of %d", r.atLive, count)
	}
}

func (n *hubOn) mustGap(channel, what string, p hub.Position) {
	n.s.Helper()
	if r := n.resume(channel, p, 1); len(r.gaps) != 1 || r.early > 0 {
		n.s.Errorf("position %v, %s: %d messages without a gap, gaps %v", p, what, r.early, r.gaps)
	}
}

// wrongChecks are those of messages that were at m's offset before the log was changed.
func wrongChecks(m, neighbour *hub.Message) map[string]hub.Check {
	at, now := m.At(), time.Now()
	return map[string]hub.Check{
		"stored an hour before":         hub.NewCheck(m.Offset, at.Add(-time.Hour)),
		"stored 50 ms before":           hub.NewCheck(m.Offset, at.Add(-50*time.Millisecond)),
		"of the neighbour":              neighbour.Check,
		"the least":                     1,
		"the greatest":                  56800235583,
		"of another content":            hub.NewContentCheck(m.Offset, now, m.Key, []byte("another")),
		"of another key":                hub.NewContentCheck(m.Offset, now, "k", m.Data),
		"of this content at another":    hub.NewContentCheck(m.Offset+1, now, m.Key, m.Data),
		"of this content an hour ago":   hub.NewContentCheck(m.Offset, now.Add(-time.Hour), m.Key, m.Data),
		"seen before it was stored":     hub.NewBeforeCheck(at),
		"seen an hour before":           hub.NewBeforeCheck(at.Add(-time.Hour)),
		"the greatest of a publisher's": 2*56800235584 - 1,
	}
}
