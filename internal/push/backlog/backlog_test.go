package backlog

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func message(channel, key string, offset uint64, size int) *hub.Message {
	return &hub.Message{Channel: channel, Key: key, Epoch: "e" + hub.NamespaceOf(channel), Offset: offset, Data: make([]byte, size)}
}

func TestAQueueThatIsNeverEmptyDoesNotGrow(t *testing.T) {
	q, c := &Queue{}, &Counts{}
	ns := &hub.Namespace{Name: "default", Policy: hub.DropOldest, QueueMessages: 10, QueueBytes: 1 << 20}
	for i := range 100_000 {
		q.Push(message("a", "", uint64(i+1), 1), ns, c)
		if i%3 == 0 && q.Len() > 5 {
			q.Pop(c)
		}
		if i%1000 == 0 {
			q.PushGap(hub.Gap{Namespace: "default", Reason: hub.GapUnknown})
		}
		q.PopGap()
		q.PopDropped(c)
	}
	if q.Len() > 10 || cap(q.messages) > 1024 {
		t.Errorf("%d messages in room for %d", q.Len(), cap(q.messages))
	}
}

// A reader that accepts nothing costs what waits for it, however often that is replaced.
func TestAQueueOfReplacedMessagesDoesNotGrow(t *testing.T) {
	q, c := &Queue{}, &Counts{}
	ns := &hub.Namespace{Name: "default", Policy: hub.Conflate, QueueMessages: 100, QueueBytes: 1 << 20}
	q.Push(message("a", "old", 1, 1), ns, c)
	for i := range 200_000 {
		q.Push(message("a", strconv.Itoa(i%7), uint64(i+2), 1), ns, c)
	}
	if q.Len() != 8 || cap(q.messages) > 1024 {
		t.Errorf("%d messages in room for %d, want 8", q.Len(), cap(q.messages))
	}
	for i, want := range []uint64{1, 199_995, 199_996, 199_997, 199_998, 199_999, 200_000, 200_001} {
		if m := q.Pop(c); m.Offset != want {
			t.Errorf("message %d is %d, want %d", i, m.Offset, want)
		}
	}
}

// A key that changes more often than the queue moves is sent all the same.
func TestAKeyThatIsAlwaysReplacedKeepsItsPlace(t *testing.T) {
	q, c := &Queue{}, &Counts{}
	ns := &hub.Namespace{Name: "default", Policy: hub.Conflate, QueueMessages: 1000, QueueBytes: 1 << 20}
	offset, last, waited := uint64(0), uint64(0), 0
	push := func(key string) {
		offset++
		q.Push(message("a", key, offset, 1), ns, c)
	}
	for i := range 10_000 {
		push("cold " + strconv.Itoa(i%100))
		push("cold " + strconv.Itoa((i+50)%100))
		push("hot")
		m := q.Pop(c) // one of three
		if m.Offset <= last {
			t.Fatalf("offset %d after %d", m.Offset, last)
		}
		last = m.Offset
		if waited++; m.Key == "hot" {
			waited = 0
		}
		if waited > 210 { // two rounds of a hundred keys
			t.Fatalf("after %d pushes the hot key was not sent for %d messages", offset, waited)
		}
		if q.Len() > 202 {
			t.Fatalf("%d messages of 101 keys wait", q.Len())
		}
	}
}

func TestANamespacesBoundDropsItsOwnMessagesOnly(t *testing.T) {
	q, c := &Queue{}, &Counts{}
	ticker := &hub.Namespace{Name: "ticker", Policy: hub.DropOldest, QueueMessages: 2, QueueBytes: 1 << 10}
	orders := &hub.Namespace{Name: "orders", Policy: hub.Disconnect, QueueMessages: 3, QueueBytes: 1 << 10}
	for i := range uint64(3) {
		if !q.Push(message("orders:a", "", i+1, 1), orders, c) {
			t.Fatalf("order %d was too much", i)
		}
		q.Push(message("ticker:a", "", 2*i+1, 1), ticker, c)
		q.Push(message("ticker:a", "", 2*i+2, 1), ticker, c)
	}
	gaps := q.PopDropped(c)
	if len(gaps) != 1 || gaps[0].Namespace != "ticker" || gaps[0].To.Offset != 4 {
		t.Errorf("gaps %+v, want one of the ticker up to 4", gaps)
	}
	var got []string
	for q.Len() > 0 {
		m := q.Pop(c)
		got = append(got, m.Channel+" "+strconv.FormatUint(m.Offset, 10))
	}
	if want := "[orders:a 1 orders:a 2 orders:a 3 ticker:a 5 ticker:a 6]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
	for i := range uint64(3) {
		q.Push(message("ticker:a", "", i+7, 1), ticker, c)
	}
	for i := range uint64(4) {
		if ok := q.Push(message("orders:a", "", i+4, 1), orders, c); ok != (i < 3) {
			t.Errorf("order %d: kept %v", i, ok)
		}
	}
}

// Positions in gap events never go back.
func TestWhatIsDroppedBehindAGapIsReportedAfterIt(t *testing.T) {
	q, c := &Queue{}, &Counts{}
	ns := &hub.Namespace{Name: "default", Policy: hub.DropOldest, QueueMessages: 2, QueueBytes: 1 << 10}
	push := func(epoch string, offset uint64) {
		m := message("a", "", offset, 1)
		m.Epoch = epoch
		q.Push(m, ns, c)
	}
	push("one", 7)
	push("one", 8)
	q.PushGap(hub.Gap{Namespace: "default", From: "one-8", To: hub.Position{Epoch: "two"}, At: hub.Position{Epoch: "two"}, Reason: hub.GapEpoch})
	for i := range uint64(4) {
		push("two", i+1)
	}
	var got []string
	for _, g := range q.PopDropped(c) {
		got = append(got, fmt.Sprintf("%s %s..%s", g.Reason, g.From, g.At))
	}
	if _, ok := q.PopGap(); ok {
		t.Error("the gap is reported again")
	}
	if want := "[overflow one-6..one-8 epoch one-8..two-0 overflow two-0..two-2]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if n := c.Gaps.Load(); n != 2 {
		t.Errorf("%d gaps are counted as made by dropping, want 2", n)
	}
}

// model is what a queue is to do, with lists and no bookkeeping.
type model struct {
	list    []waiting
	dropped map[string]string // by namespace: what is reported before the rest of it
	// pushed counts messages, and popped is the number of the one that was taken last.
	pushed, popped int
}

type waiting struct {
	m       *hub.Message // nil: a gap
	gap     hub.Gap
	history bool
	// number is its own, and turn that of the first message that it replaced.
	number, turn int
}

func (w waiting) namespace() string {
	if w.m == nil {
		return w.gap.Namespace
	}
	return hub.NamespaceOf(w.m.Channel)
}

// holds counts what is live of a namespace.
func (o *model) holds(name string) (n, bytes int) {
	for _, w := range o.list {
		if w.m != nil && !w.history && w.namespace() == name {
			n++
			bytes += len(w.m.Data)
		}
	}
	return n, bytes
}

func (o *model) push(m *hub.Message, ns *hub.Namespace) bool {
	o.pushed++
	turn := o.pushed
	if ns.Policy == hub.Conflate && m.Key != "" {
		o.list = slices.DeleteFunc(o.list, func(w waiting) bool {
			same := w.m != nil && !w.history && w.m.Channel == m.Channel && w.m.Key == m.Key && w.turn > o.popped
			if same {
				turn = w.turn
			}
			return same
		})
	}
	for {
		n, bytes := o.holds(ns.Name)
		if n < ns.QueueMessages && bytes+len(m.Data) <= ns.QueueBytes {
			break
		}
		i := slices.IndexFunc(o.list, func(w waiting) bool { return w.m != nil && w.namespace() == ns.Name })
		if ns.Policy == hub.Disconnect || i < 0 {
			return false
		}
		old := o.list[i].m
		for k := 0; k < i; { // gaps of its namespace that come before it
			if w := o.list[k]; w.m == nil && w.namespace() == ns.Name {
				o.dropped[ns.Name] += " gap " + w.gap.From
				o.list = slices.Delete(o.list, k, k+1)
				i--
				continue
			}
			k++
		}
		o.list = slices.Delete(o.list, i, i+1)
		reported := o.dropped[ns.Name]
		if at := strings.LastIndex(reported, " "); at >= 0 && strings.HasPrefix(reported[at+1:], "..") {
			reported = reported[:at]
		} else {
			reported += fmt.Sprintf(" after %d", old.Offset-1)
		}
		o.dropped[ns.Name] = reported + fmt.Sprintf(" ..%d", old.Offset)
	}
	o.list = append(o.list, waiting{m: m, number: o.pushed, turn: turn})
	return true
}

func TestAQueueDoesWhatItsPoliciesSay(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		q, c, o := &Queue{}, &Counts{}, &model{dropped: map[string]string{}}
		spaces := []*hub.Namespace{
			{Name: "drop", Policy: hub.DropOldest, QueueMessages: 1 + int(seed%40), QueueBytes: 4000},
			{Name: "keys", Policy: hub.Conflate, QueueMessages: 1 + int(seed%90), QueueBytes: 6000},
			{Name: "all", Policy: hub.Disconnect, QueueMessages: 1 + int(seed%50), QueueBytes: 5000},
		}
		offset := uint64(0)
		next := func() (*hub.Message, *hub.Namespace) {
			offset++
			ns, key := spaces[r.IntN(3)], ""
			if r.IntN(8) > 0 {
				key = strconv.Itoa(r.IntN(6))
			}
			return message(ns.Name+":"+strconv.Itoa(r.IntN(2)), key, offset, 1+r.IntN(300)), ns
		}
		fill := 30 + r.IntN(60) // of a hundred steps
		for range 1500 {
			switch n := r.IntN(100); {
			case n < fill:
				m, ns := next()
				if got, want := q.Push(m, ns, c), o.push(m, ns); got != want {
					t.Fatalf("seed %d: offset %d of %s is kept: %v, want %v", seed, offset, ns.Name, got, want)
				}
			case n == 97 && len(q.queued) < maxQueuedGaps && !q.Empty():
				g := hub.Gap{Namespace: spaces[r.IntN(3)].Name, From: strconv.Itoa(int(offset)), Reason: hub.GapUnknown}
				if q.PushGap(g) {
					o.list = append(o.list, waiting{gap: g})
				}
			case n == 98 && len(o.list) == 0:
				for range 1 + r.IntN(100) { // history comes to a queue that is empty
					m, _ := next()
					q.PushReplay(m, c)
					o.pushed++
					o.list = append(o.list, waiting{m: m, history: true, number: o.pushed})
				}
			case n == 99:
				q.Age(time.Now())
			default:
				popBoth(t, seed, q, c, o)
			}
			if n := len(slices.DeleteFunc(slices.Clone(o.list), func(w waiting) bool { return w.m == nil })); q.Len() != n {
				t.Fatalf("seed %d: %d messages wait, want %d", seed, q.Len(), n)
			}
		}
		for !q.Empty() {
			popBoth(t, seed, q, c, o)
		}
		if len(o.list) > 0 || q.Bytes() != 0 || c.Queued.Load() != 0 || c.QueuedBytes.Load() != 0 || len(q.newest) != 0 {
			t.Fatalf("seed %d: an empty queue counts %d messages of %d bytes, %d are left", seed, c.Queued.Load(), c.QueuedBytes.Load(), len(o.list))
		}
	}
}

// popBoth takes what a write would and compares it.
func popBoth(t *testing.T, seed uint64, q *Queue, c *Counts, o *model) {
	t.Helper()
	reported := map[string]string{}
	for _, g := range q.PopDropped(c) {
		if g.Reason == hub.GapOverflow {
			from, _ := hub.ParsePosition(g.From)
			reported[g.Namespace] += fmt.Sprintf(" after %d ..%d", from.Offset, g.To.Offset)
		} else {
			reported[g.Namespace] += " gap " + g.From
		}
	}
	if !maps.Equal(reported, o.dropped) {
		t.Fatalf("seed %d: gap events %q, want %q", seed, reported, o.dropped)
	}
	clear(o.dropped)
	if len(o.list) == 0 {
		return
	}
	want := o.list[0]
	o.list = o.list[1:]
	g, ok := q.PopGap()
	if ok != (want.m == nil) || ok && g.From != want.gap.From {
		t.Fatalf("seed %d: gap %v %+v, want %+v", seed, ok, g, want)
	}
	if !ok {
		if m := q.Pop(c); m != want.m {
			t.Fatalf("seed %d: took %s %d, want %s %d", seed, m.Channel, m.Offset, want.m.Channel, want.m.Offset)
		}
		o.popped = want.number
	}
}
