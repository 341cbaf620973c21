package hubtest

import (
	"fmt"
	"slices"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// What is lost on the way to a node is fetched from the log. What the log has not any more is
// reported, before the next message of the channel; the recorder checks the order.
func lostMessagesAreReported(s *suite) {
	for _, size := range []int{1, 3, 100} {
		ns := s.namespace(fmt.Sprint("lost", size))
		ns.HistorySize = size
		n := s.start(ns)
		if s.h.Lose != nil {
			n.AllowLate()
		}
		n.Sub(&ns, "x", 0)
		n.Sub(&ns, "y", 0)
		at := []hub.Position{n.Pub(&ns, "x", "0")}
		n.Await(&ns, "x", 1)
		f := func() {
			for i := range 6 {
				at = append(at, n.Pub(&ns, "x", fmt.Sprint(1+i)))
				n.Pub(&ns, "y", fmt.Sprint(i))
			}
			n.Await(&ns, "y", 6)
		}
		if s.h.Lose == nil {
			f()
		} else {
			s.h.Lose(s.T, n.Broker, &ns, Channel(&ns, "x"), f)
		}
		at = append(at, n.Pub(&ns, "x", "last"))
		last := at[len(at)-1].Offset
		n.Wait(n.patience, "the last message", func() bool {
			ms := n.messages[Channel(&ns, "x")]
			return len(ms) > 0 && ms[len(ms)-1].Offset == last
		})
		got, missing := offsets(n.On(Channel(&ns, "x"))), offsets(n.MissingOn(Channel(&ns, "x")))
		for i, p := range at {
			came := slices.Contains(got, p.Offset)
			reported := len(missing) > 0 && missing[len(missing)-1] >= p.Offset
			if !came && !reported || s.h.Lose == nil && !came {
				s.Errorf("history_size %d: message %d at %d did not come and was not reported missing: %v, missing %v", size, i, p.Offset, got, missing)
			}
		}
		if size == 100 && len(missing) > 0 {
			s.Errorf("the log has everything; missing %v", missing)
		}
	}
}
