package backlog

import (
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestAQueuePositionPrecedesWhatWaits(t *testing.T) {
	ns := &hub.Namespace{Name: "default", Policy: hub.DropOldest, QueueMessages: 3, QueueBytes: 1 << 20}
	at := func() hub.Positions {
		return hub.Positions{{Epoch: "edefault", Offset: 100}, {Epoch: "eother", Offset: 7}}
	}
	f := func(name string, want uint64, wantOK bool, fill func(q *Queue, c *Counts)) {
		t.Helper()
		q, c := &Queue{}, &Counts{}
		fill(q, c)
		got, ok := q.Position(at())
		if ok != wantOK || ok && (got[0].Offset != want || got[1].Offset != 7) {
			t.Errorf("%s: %v, %v; want %d, %v", name, got, ok, want, wantOK)
		}
	}
	f("nothing", 100, true, func(*Queue, *Counts) {})
	f("messages", 90, true, func(q *Queue, c *Counts) {
		q.Push(message("a", "", 91, 1), ns, c)
		q.Push(message("a", "", 95, 1), ns, c)
	})
	f("what was sent", 94, true, func(q *Queue, c *Counts) {
		q.Push(message("a", "", 91, 1), ns, c)
		q.Push(message("a", "", 95, 1), ns, c)
		q.Pop(c)
	})
	f("what was dropped", 80, true, func(q *Queue, c *Counts) {
		for i := range uint64(10) {
			q.Push(message("a", "", 81+i, 1), ns, c)
		}
	})
	f("a gap of the log", 50, true, func(q *Queue, _ *Counts) {
		q.PushGap(hub.Gap{Namespace: "default", From: "edefault-50", At: hub.Position{Epoch: "edefault", Offset: 60}})
	})
	f("a gap of what it was taken past", 100, true, func(q *Queue, _ *Counts) {
		at := hub.Position{Epoch: "edefault", Offset: 60}
		g := hub.Gap{Namespace: "default", From: at.String(), To: at, At: at}
		q.PushGap(g)
		if lost := q.Unlogged(); len(lost) != 1 || lost[0].From != g.From || lost[0].To != at || !lost[0].At.IsZero() {
			t.Errorf("gaps that move: %+v", lost)
		}
	})
	f("a message of a log that is over", 0, false, func(q *Queue, c *Counts) {
		m := message("a", "", 5, 1)
		m.Epoch = "before"
		q.Push(m, ns, c)
	})
	f("a message of no log", 100, true, func(q *Queue, c *Counts) {
		q.Push(&hub.Message{Channel: "flow:a"}, &hub.Namespace{Name: "flow", QueueMessages: 3, QueueBytes: 1 << 20}, c)
	})
}
