package hub

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A siteBroker has a log that starts new epochs, each of which continues those before it up to the end
// that the log had. From when it is paused its questions are answered only after it is released.
type siteBroker struct {
	plainBroker

	mu      sync.Mutex
	epochs  []Position // all, each with its last offset; of the current one that is not used
	release chan struct{}
}

func newSiteBroker(n int) *siteBroker {
	b := &siteBroker{plainBroker: *plain(n), epochs: []Position{{Epoch: "e"}}}
	for _, m := range b.log {
		m.Check = NewCheck(m.Offset, time.Unix(int64(m.Offset), 0))
	}
	return b
}

func (b *siteBroker) hub(t testing.TB, ns Namespace) *Hub {
	t.Helper()
	ns.Name = "default"
	h, err := New(Config{Namespaces: []Namespace{ns}, Encoders: []Encoder{simEncode}}, b)
	if err == nil {
		err = h.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// pause has questions wait from now on; the function returned answers them.
func (b *siteBroker) pause() (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := make(chan struct{})
	b.release = c
	return func() { close(c) }
}

func (b *siteBroker) wait() {
	b.mu.Lock()
	c := b.release
	b.mu.Unlock()
	if c != nil {
		<-c
	}
}

// stored returns the message at n as it is stored in epoch.
func stored(epoch string, n int) *Message {
	return &Message{Channel: "a", Epoch: epoch, Offset: uint64(n), Data: []byte("m"), Check: NewCheck(uint64(n), time.Unix(int64(n), 0))}
}

// promote starts epoch, and stores and delivers so many more messages.
func (b *siteBroker) promote(epoch string, more int) {
	b.mu.Lock()
	end := len(b.log)
	b.epochs[len(b.epochs)-1].Offset = uint64(end)
	b.epochs = append(b.epochs, Position{Epoch: epoch})
	log := make([]*Message, 0, end+more) // those of before are the hub's
	for n := 1; n <= end+more; n++ {
		log = append(log, stored(epoch, n))
	}
	b.log = log
	b.mu.Unlock()
	for n := end + 1; n <= end+more; n++ {
		b.deliver(stored(epoch, n))
	}
}

func (b *siteBroker) top() Position {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Position{Epoch: b.epochs[len(b.epochs)-1].Epoch, Offset: uint64(len(b.log))}
}

func (b *siteBroker) Continues(_ *Namespace, epoch string) []Position {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, e := range b.epochs {
		if e.Epoch == epoch {
			return append([]Position(nil), b.epochs[:i]...)
		}
	}
	return nil
}

func (b *siteBroker) Subscribe(context.Context, *Namespace, string, int) (Snapshot, error) {
	top := b.top()
	return Snapshot{Top: top, Floor: top.Offset, FirstRetained: 1}, nil
}

func (b *siteBroker) History(_ context.Context, _ *Namespace, _ string, since uint64, limit int) (Page, error) {
	top := b.top()
	to := min(top.Offset, since+uint64(limit))
	return Page{Epoch: top.Epoch, Messages: b.log[since:to], Covered: to, FirstRetained: 1}, nil
}

func (b *siteBroker) Top(context.Context, *Namespace) (Position, error) {
	b.wait()
	return b.top(), nil
}

func (b *siteBroker) Prove(_ context.Context, _ *Namespace, p Position) (Check, error) {
	b.wait()
	if top := b.top(); p.Epoch != top.Epoch || p.Offset > top.Offset {
		return 0, nil
	}
	return b.log[p.Offset-1].Check, nil
}

// A subscriber that resumes while another site takes over has a position of the epoch before. It
// continues there as one that came earlier or later does, whatever the hub waited for of the broker meanwhile.
func TestATakeOverWhileASubscriberResumesIsNoGap(t *testing.T) {
	f := func(what string, since, ahead, want int, gap GapReason, takeOver func(b *siteBroker)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			b := newSiteBroker(300)
			h := b.hub(t, Namespace{Recent: 100})
			defer h.Close()
			shard := h.NewShard(func() {})
			var early, s tape
			subscribe := func(to *tape, opt SubscribeOptions) {
				opt.Channels = []string{"a"}
				if err := shard.Subscribe(&to.sub, to, opt); err != nil {
					t.Fatal(err)
				}
				settleShards(shard)
			}
			subscribe(&early, SubscribeOptions{}) // so the shard knows the epoch before
			for n := 301; n <= 300+ahead; n++ {   // what has not come to this node
				b.log = append(b.log, stored("e", n))
			}
			release := b.pause()
			subscribe(&s, SubscribeOptions{Since: Positions{stored("e", since).Position()}})
			if s.at != nil {
				t.Fatalf("%s: it does not wait for the broker", what)
			}
			takeOver(b)
			release()
			settleShards(shard)
			switch {
			case gap == "" && (len(s.gaps) > 0 || len(s.got) != want || len(s.got) > 0 && s.got[0] != uint64(since)+1):
				t.Errorf("%s: starts at %v with %d messages, want %d; gaps %v", what, s.at, len(s.got), want, s.gaps)
			case gap != "" && (len(s.gaps) != 1 || s.gaps[0].Reason != gap):
				t.Errorf("%s: gaps %v, want one for %s", what, s.gaps, gap)
			}
			if got := h.Stats().Refuted; got != 0 {
				t.Errorf("%s: %d positions are refuted", what, got)
			}
		})
	}
	once := func(more int) func(*siteBroker) { return func(b *siteBroker) { b.promote("f", more) } }
	f("past what this node knows", 305, 5, 0, "", once(0))
	f("past what this node knows, and more came", 305, 5, 2, "", once(2))
	f("older than what this node has", 10, 0, 290, "", once(0))
	f("older than what this node has, and more came", 10, 0, 292, "", once(2))
	f("taken over twice", 305, 5, 4, "", func(b *siteBroker) { b.promote("f", 2); b.promote("g", 2) })
	f("taken over twice, from an older one", 10, 0, 294, "", func(b *siteBroker) { b.promote("f", 2); b.promote("g", 2) })
	f("not stored at the site that took over", 306, 5, 0, GapEpoch, once(0))
}

// A shard that comes to know of two take-overs when the second one has happened goes through both.
func TestTwoTakeOversAtOnceAreNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSiteBroker(300)
		h := b.hub(t, Namespace{})
		defer h.Close()
		shard := h.NewShard(func() {})
		var s tape
		if err := shard.Subscribe(&s.sub, &s, SubscribeOptions{Channels: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
		settleShards(shard)
		b.promote("f", 1)
		b.promote("g", 1) // the shard has not run in between
		settleShards(shard)
		if len(s.gaps) > 0 || len(s.got) != 2 || s.got[0] != 301 || s.got[1] != 302 {
			t.Errorf("messages %v, gaps %v", s.got, s.gaps)
		}
	})
}

// A node that could not follow the epochs between starts where the messages of the new one start. What those between had is
// in the log, and is read for one who comes from a node that has followed them.
func TestANodeThatSkippedEpochsReadsWhatTheyHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSiteBroker(300)
		h := b.hub(t, Namespace{Recent: 100})
		defer h.Close()
		shard := h.NewShard(func() {})
		var s, other tape
		subscribe := func(to *tape, since ...Position) {
			if err := shard.Subscribe(&to.sub, to, SubscribeOptions{Channels: []string{"a"}, Since: since}); err != nil {
				t.Fatal(err)
			}
			settleShards(shard)
		}
		subscribe(&s)
		deliver := b.deliver
		b.deliver = func(*Message) {}
		b.promote("f", 5) // which this node does not get
		b.epochs = b.epochs[1:]
		b.deliver = deliver
		b.promote("g", 1)
		settleShards(shard)
		if len(s.gaps) != 1 || s.gaps[0].To != (Position{Epoch: "g", Offset: 305}) || len(s.got) != 1 || s.got[0] != 306 {
			t.Errorf("one of epoch e: messages %v, gaps %v", s.got, s.gaps)
		}
		for _, from := range []Position{stored("f", 303).Position(), stored("g", 303).Position()} {
			other = tape{}
			subscribe(&other, from)
			if len(other.gaps) > 0 || len(other.got) != 3 || other.got[0] != 304 {
				t.Errorf("one of %v: messages %v, gaps %v", from, other.got, other.gaps)
			}
			shard.Unsubscribe(&other.sub)
		}
	})
}
