package hubtest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func historyPagesCoverTheLog(s *suite) {
	ns := s.namespace("a")
	n := s.start(ns)
	var want []uint64
	for i := range 50 {
		want = append(want, n.Pub(&ns, "x", fmt.Sprint(i)).Offset)
		n.Pub(&ns, "y", "-")
	}
	top := n.End(&ns)
	var got []uint64
	since, pages := uint64(0), 0
	for {
		p := n.Page(&ns, "x", since, 7)
		if p.Epoch != top.Epoch || len(p.Messages) > 7 || p.Covered <= since || p.FirstRetained > 1 {
			s.Fatalf("page since %d: epoch %q, %d messages, covered %d, first retained %d", since, p.Epoch, len(p.Messages), p.Covered, p.FirstRetained)
		}
		for _, m := range p.Messages {
			if m.Offset <= since || m.Offset > p.Covered {
				s.Errorf("page since %d covers %d and holds %d", since, p.Covered, m.Offset)
			}
		}
		got = append(got, offsets(p.Messages)...)
		since = p.Covered
		if pages++; p.Covered >= top.Offset {
			break
		}
	}
	if !slices.Equal(got, want) || pages < 7 {
		s.Errorf("%d pages gave %v", pages, got)
	}
	f := func(name string, since uint64, want string) {
		s.Helper()
		if p := n.Page(&ns, name, since, 3); texts(p.Messages) != want {
			s.Errorf("%s since %d: %q, want %q", name, since, texts(p.Messages), want)
		} else if want == "" && p.Covered != top.Offset {
			s.Errorf("%s since %d: covered %d, want the top %d", name, since, p.Covered, top.Offset)
		}
	}
	f("x", want[46], "47 48 49")
	f("x", want[48], "49")
	f("x", want[49], "")
	f("x", top.Offset, "")
	f("x", top.Offset+1000, "")
	f("none such", 0, "")
}

func retentionIsReported(s *suite) {
	ns := s.namespace("a")
	ns.HistorySize = 5
	n := s.start(ns)
	n.Pub(&ns, "quiet", "q")
	var at []uint64
	for i := range 12 {
		at = append(at, n.Pub(&ns, "x", fmt.Sprint(i)).Offset)
	}
	p := n.Page(&ns, "x", 0, 100)
	if texts(p.Messages) != "7 8 9 10 11" {
		s.Errorf("retained %q, want the newest five", texts(p.Messages))
	}
	if p.FirstRetained <= at[6] || p.FirstRetained > at[7] {
		s.Errorf("first retained %d, want within %d..%d", p.FirstRetained, at[6]+1, at[7])
	}
	if p := n.Page(&ns, "x", at[9], 100); p.FirstRetained <= at[6] || p.FirstRetained > at[7] || texts(p.Messages) != "10 11" {
		s.Errorf("since %d: %q, first retained %d", at[9], texts(p.Messages), p.FirstRetained)
	}
	if p := n.Page(&ns, "quiet", 0, 100); texts(p.Messages) != "q" || p.FirstRetained > 1 {
		s.Errorf("the quiet channel: %q, first retained %d", texts(p.Messages), p.FirstRetained)
	}
	if snap := n.Sub(&ns, "x", 100); texts(snap.Messages) != "7 8 9 10 11" || snap.Floor >= at[7] {
		s.Errorf("snapshot %q, floor %d", texts(snap.Messages), snap.Floor)
	}
}

// A channel that lost nothing has no gap, however much its neighbours lost.
func untouchedChannelHasNoGap(s *suite) {
	ns := s.namespace("a")
	ns.HistorySize = 5
	n := s.start(ns)
	first := n.Pub(&ns, "hot", "0")
	for i := range 50 {
		n.Pub(&ns, "hot", fmt.Sprint(i))
	}
	q := n.Pub(&ns, "quiet", "q")
	for i := range 50 {
		n.Pub(&ns, "hot", fmt.Sprint(i))
	}
	if p := n.Page(&ns, "quiet", first.Offset, 10); p.FirstRetained > first.Offset+1 || texts(p.Messages) != "q" {
		s.Errorf("quiet since %d: %q at %d, first retained %d", first.Offset, texts(p.Messages), q.Offset, p.FirstRetained)
	}
	if p := n.Page(&ns, "never", first.Offset, 10); p.FirstRetained > first.Offset+1 || p.Covered != n.End(&ns).Offset {
		s.Errorf("a channel without messages: first retained %d, covered %d", p.FirstRetained, p.Covered)
	}
}

func ageRemovesMessages(s *suite) {
	ns := s.namespace("a")
	ns.HistoryTTL, ns.IdempotencyWindow = hub.Duration(time.Second), hub.Duration(100*time.Millisecond)
	n := s.start(ns)
	n.Sub(&ns, "x", 0)
	a := n.Pub(&ns, "x", "a")
	var p hub.Page
	Until(s.T, s.h.Patience, "the message to expire", func() bool {
		p = n.Page(&ns, "x", 0, 10)
		return len(p.Messages) == 0
	})
	if p.FirstRetained <= a.Offset || p.Covered < a.Offset {
		s.Errorf("first retained %d, covered %d after offset %d expired", p.FirstRetained, p.Covered, a.Offset)
	}
	if top := n.End(&ns); !top.Same(a) {
		s.Errorf("top %v of the expired log, want %v", top, a)
	}
	if b := n.Pub(&ns, "x", "b"); b.Epoch != a.Epoch || b.Offset != a.Offset+1 {
		s.Errorf("%v follows %v", b, a)
	}
	n.Await(&ns, "x", 2)
}

func bytesBoundTheLog(s *suite) {
	ns := s.namespace("a")
	ns.HistoryBytes, ns.HistorySize = int64(ns.Partitions)<<20, 1000
	n := s.start(ns)
	var at []uint64
	for i := range 100 {
		at = append(at, n.Pub(&ns, fmt.Sprint("c", i%4), fmt.Sprint(i)+strings.Repeat(" ", 32<<10)).Offset)
	}
	total, oldest := 0, uint64(0)
	for i := range 4 {
		p := n.Page(&ns, fmt.Sprint("c", i), 0, 1000)
		if len(p.Messages) == 0 {
			s.Fatalf("channel c%d is empty", i)
		}
		for _, m := range p.Messages {
			total += len(m.Data)
		}
		first := p.Messages[0].Offset
		if p.FirstRetained > first || p.FirstRetained+4 <= first {
			s.Errorf("channel c%d: first retained %d, first there %d", i, p.FirstRetained, first)
		}
		if oldest == 0 || first < oldest {
			oldest = first
		}
	}
	if total > 1<<20 || total < 1<<19 || oldest <= at[0] {
		s.Errorf("%d bytes retained of at most %d, oldest offset %d", total, 1<<20, oldest)
	}
}
