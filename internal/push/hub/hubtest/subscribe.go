package hubtest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func snapshotHoldsTheTail(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	if snap := n.Sub(&ns, "empty", 10); snap.Top.Offset != 0 || snap.Top.Epoch == "" || len(snap.Messages) != 0 || snap.Floor != 0 {
		s.Errorf("of an empty log: %+v", snap)
	}
	var at []uint64
	for i := range 10 {
		at = append(at, n.Pub(&ns, "x", fmt.Sprint(i)).Offset)
		n.Pub(&ns, "other", "-")
	}
	top := n.End(&ns)
	f := func(tail int, want string, floor uint64) {
		s.Helper()
		snap := n.Sub(&ns, "x", tail)
		n.Unsubscribe(&ns, Channel(&ns, "x"))
		if !snap.Top.Same(top) || texts(snap.Messages) != want {
			s.Errorf("tail %d: top %v want %v, messages %q want %q", tail, snap.Top, top, texts(snap.Messages), want)
		}
		lo, hi := floor, floor // any floor from the last message left out to just under the first one given
		if len(snap.Messages) > 0 && floor > 0 {
			hi = snap.Messages[0].Offset - 1
		} else if floor > 0 {
			hi = top.Offset
		}
		if snap.Floor < lo || snap.Floor > hi {
			s.Errorf("tail %d: floor %d is not within %d..%d", tail, snap.Floor, lo, hi)
		}
	}
	f(3, "7 8 9", at[6])
	f(1, "9", at[8])
	f(0, "", at[9])
	f(10, "0 1 2 3 4 5 6 7 8 9", 0)
	f(100, "0 1 2 3 4 5 6 7 8 9", 0)
	if snap := n.Sub(&ns, "new", 5); !snap.Top.Same(top) || len(snap.Messages) != 0 || snap.Floor != 0 {
		s.Errorf("of an empty channel: %+v", snap)
	}
}

// traffic publishes on channels x and y until it is stopped, and counts the answers.
func traffic(s *suite, n *Node, ns *hub.Namespace, writers int) (count *atomic.Int64, stop func()) {
	count = new(atomic.Int64)
	var over atomic.Bool
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := 0; !over.Load(); i++ {
				name := []string{"x", "y"}[(w+i)%2]
				r := <-n.Go(ns, hub.Publication{Channel: Channel(ns, name), Data: []byte("d")})
				if r.Err != nil {
					s.Errorf("publish: %v", r.Err)
					return
				}
				count.Add(1)
			}
		})
	}
	return count, func() { over.Store(true); wg.Wait() }
}

// A subscriber that appears while messages flow sees each of them once: those up
// to Top in the snapshot, the others live.
func snapshotAndLiveJoinExactly(s *suite) {
	ns := s.namespace("a")
	ns.HistorySize = 1_000_000 // more than is published meanwhile
	n := s.start(ns)
	count, stop := traffic(s, n, &ns, 3)
	more := func() {
		enough := count.Load() + 20
		Until(s.T, s.h.Patience, "more traffic", func() bool { return count.Load() >= enough || s.Failed() })
	}
	var snaps []hub.Snapshot
	for round := range 12 {
		more()
		snaps = append(snaps, n.Sub(&ns, "x", 1_000_000))
		more()
		if round < 11 {
			n.Unsubscribe(&ns, Channel(&ns, "x"))
		}
	}
	stop()
	last := n.Pub(&ns, "x", "last")
	n.Wait(s.h.Patience, "the last message", func() bool {
		ms := n.messages[Channel(&ns, "x")]
		return len(ms) > 0 && ms[len(ms)-1].Offset == last.Offset
	})
	all := offsets(n.Page(&ns, "x", 0, 1_000_000).Messages)
	live := offsets(n.On(Channel(&ns, "x")))
	for i, snap := range snaps {
		var upTo []uint64
		for _, o := range all {
			if o <= snap.Top.Offset {
				upTo = append(upTo, o)
			}
		}
		if got := offsets(snap.Messages); !slices.Equal(got, upTo) {
			s.Errorf("snapshot %d: %d messages up to %d, want %d", i, len(got), snap.Top.Offset, len(upTo))
		}
	}
	final := snaps[len(snaps)-1]
	joined := offsets(final.Messages)
	for _, o := range live {
		if o > final.Top.Offset {
			joined = append(joined, o)
		}
	}
	if !slices.Equal(joined, all) {
		s.Errorf("snapshot and live join to %d messages, the log has %d", len(joined), len(all))
	}
}

func manyChannelsSubscribeAtOnce(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	const channels = 2000
	name := func(i int) string { return fmt.Sprint("c", i) }
	var answers []<-chan Result
	for i := range channels {
		answers = append(answers, n.Go(&ns, hub.Publication{Channel: Channel(&ns, name(i)), Data: fmt.Append(nil, i)}))
	}
	for _, c := range answers {
		if r := <-c; r.Err != nil {
			s.Fatal(r.Err)
		}
	}
	began := time.Now()
	var wg sync.WaitGroup
	for i := range channels {
		wg.Go(func() {
			ctx, cancel := n.context()
			defer cancel()
			snap, err := n.Subscribe(ctx, &ns, Channel(&ns, name(i)), 8)
			if err != nil || texts(snap.Messages) != fmt.Sprint(i) {
				s.Errorf("subscribe %d: %q, %v", i, texts(snap.Messages), err)
			}
		})
	}
	wg.Wait()
	s.Logf("%d channels subscribed in %v", channels, time.Since(began))
	for i := range channels {
		n.Go(&ns, hub.Publication{Channel: Channel(&ns, name(i)), Data: []byte("live")})
	}
	for i := range channels {
		n.Await(&ns, name(i), 1)
	}
}

func unsubscribeEndsDelivery(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	n.Sub(&ns, "x", 0)
	n.Sub(&ns, "fence", 0)
	n.Pub(&ns, "x", "1")
	n.Await(&ns, "x", 1)
	n.Unsubscribe(&ns, Channel(&ns, "x"))
	n.Unsubscribe(&ns, Channel(&ns, "x")) // twice does nothing
	n.Pub(&ns, "x", "2")
	n.Pub(&ns, "fence", "f")
	n.Await(&ns, "fence", 1)
	if got := texts(n.On(Channel(&ns, "x"))); got != "1" {
		s.Errorf("delivered %q after unsubscribe", got)
	}
	if snap := n.Sub(&ns, "x", 10); texts(snap.Messages) != "1 2" {
		s.Errorf("snapshot %q", texts(snap.Messages))
	}
	n.Pub(&ns, "x", "3")
	if got := n.Await(&ns, "x", 2); string(got[len(got)-1].Data) != "3" {
		s.Errorf("delivered %q after subscribing again", texts(got))
	}
}
