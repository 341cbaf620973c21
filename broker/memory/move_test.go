package memory

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// imported is a broker that is not started and has the pieces of another one's logs.
func imported(t *testing.T, pieces [][]byte) *Broker {
	t.Helper()
	b, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pieces {
		if err := b.Import(bytes.Clone(p)); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// startedBroker is an imported one with two namespaces.
func startedBroker(t *testing.T, pieces [][]byte) *Broker {
	t.Helper()
	b := imported(t, pieces)
	if err := b.Start(t.Context(), []hub.Namespace{{Name: "default", HistorySize: 50}, {Name: "brief", Durability: hub.None}}, func(*hub.Message) {}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func publishTo(t *testing.T, b *Broker, p hub.Publication) (at hub.Position, err error) {
	t.Helper()
	b.Publish(&hub.Namespace{Name: "default"}, p, func(pos hub.Position, e error) { at, err = pos, e })
	return at, err
}

// historyOf is all that channels c0, c1, … hold.
func historyOf(t *testing.T, b *Broker, channels int) (all string) {
	t.Helper()
	for i := range channels {
		page, err := b.History(t.Context(), &hub.Namespace{Name: "default"}, fmt.Sprintf("c%d", i), 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		all += fmt.Sprintf("%s %d %d\n", page.Epoch, page.Covered, page.FirstRetained)
		for _, m := range page.Messages {
			all += fmt.Sprintf("%s %s %s %d %d %d %s %+v\n", m.Channel, m.Key, m.Data, m.Time, m.Offset, m.Prev, m.Epoch, m.Attributes)
		}
	}
	return all
}

func TestALogMovesWhole(t *testing.T) {
	old := startedBroker(t, nil)
	for i := range 200 {
		p := hub.Publication{Channel: fmt.Sprintf("c%d", i%3), Key: "k", Data: fmt.Appendf(nil, `%d`, i), IdempotencyKey: fmt.Sprint(i)}
		if i%5 == 0 {
			p.Attributes = &hub.Attributes{ID: fmt.Sprint("id", i), Event: "e", Tags: map[string]string{"a": "b"}}
		}
		if _, err := publishTo(t, old, p); err != nil {
			t.Fatal(err)
		}
	}
	ns := &hub.Namespace{Name: "default"}
	want := historyOf(t, old, 3)
	var pieces [][]byte
	if err := old.Export(nil, func(piece []byte) error { pieces = append(pieces, bytes.Clone(piece)); return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := publishTo(t, old, hub.Publication{Channel: "c0", Data: []byte("1")}); !errors.Is(err, hub.ErrUnavailable) {
		t.Errorf("a publish to a log that is moved: %v", err)
	}
	fresh := startedBroker(t, pieces)
	if got := historyOf(t, fresh, 3); got != want {
		t.Errorf("the log is\n%s\nand was\n%s", got, want)
	}
	// It continues where it was, and knows the keys.
	if at, err := publishTo(t, fresh, hub.Publication{Channel: "c1", Data: []byte("next")}); err != nil || at.Offset != 201 {
		t.Errorf("the next publish: %v, %v", at, err)
	}
	if at, err := fresh.Lookup(t.Context(), ns, "id195"); err != nil || at.Offset != 196 {
		t.Errorf("looked up: %v, %v", at, err)
	}
	// And back: the old one has it still.
	if err := old.Resume(); err != nil {
		t.Fatal(err)
	}
	if at, err := publishTo(t, old, hub.Publication{Channel: "c0", Data: []byte("1")}); err != nil || at.Offset != 201 {
		t.Errorf("after a roll-back: %v, %v", at, err)
	}
}

func TestRepeatedKeysAreKnownAfterTheMove(t *testing.T) {
	old := startedBroker(t, nil)
	p := hub.Publication{Channel: "c", Data: []byte("1"), IdempotencyKey: "key", Publisher: "p"}
	first, err := publishTo(t, old, p)
	if err != nil {
		t.Fatal(err)
	}
	var pieces [][]byte
	if err := old.Export(nil, func(piece []byte) error { pieces = append(pieces, bytes.Clone(piece)); return nil }); err != nil {
		t.Fatal(err)
	}
	if again, err := publishTo(t, startedBroker(t, pieces), p); err != nil || again != first {
		t.Errorf("%v, %v; want %v", again, err, first)
	}
}

// The later use of a key that comes twice counts, also where no more keys are remembered than come.
func TestTheLaterUseOfAKeyCounts(t *testing.T) {
	in := newImporting(2, &budget{})
	id := func(b byte) hub.KeyID { return hub.KeyID{b} }
	for i, k := range []byte{1, 2, 1, 3} { // the third pushes out the first use of the first
		in.key(&movedKey{id: id(k), use: use{offset: uint64(i + 1)}, at: time.Duration(i)})
	}
	in.useKeysAgain()
	keys := &in.log.keys
	if u, is := keys.used[id(1)]; !is || u.offset != 3 || len(keys.used) != 2 || len(keys.queue)-keys.head != 2 {
		t.Errorf("used %v, queue %v from %d; want the third use of key 1", keys.used, keys.queue, keys.head)
	}
}

// While most of a log is on its way, messages come and go, keys are used, and channels are
// forgotten: what arrives is the log as it is in the end.
func TestALogThatChangesOnItsWayMovesWhole(t *testing.T) {
	old := startedBroker(t, nil)
	publication := func(i int) hub.Publication {
		return hub.Publication{Channel: fmt.Sprintf("c%d", i%7), Data: fmt.Appendf(nil, "%9000d", i), IdempotencyKey: fmt.Sprint(i), Attributes: &hub.Attributes{ID: fmt.Sprint("id", i)}}
	}
	publish := func(i int) {
		t.Helper()
		if _, err := publishTo(t, old, publication(i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 500 {
		publish(i)
	}
	var pieces [][]byte
	i := 500
	keep := func(piece []byte) error {
		pieces = append(pieces, bytes.Clone(piece))
		for range 100 { // each removes an older one
			publish(i)
			i++
		}
		return nil
	}
	ahead, err := old.ExportAhead(keep)
	if err != nil {
		t.Fatal(err)
	}
	before := len(pieces)
	publish(i)
	want := historyOf(t, old, 7)
	if err := old.Export(ahead, func(piece []byte) error { pieces = append(pieces, bytes.Clone(piece)); return nil }); err != nil {
		t.Fatal(err)
	}
	if before < 3 || len(pieces) == before {
		t.Fatalf("%d pieces ahead, %d in the end", before, len(pieces)-before)
	}
	fresh := startedBroker(t, pieces)
	if got := historyOf(t, fresh, 7); got != want {
		t.Errorf("the log is\n%s\nand was\n%s", got, want)
	}
	if got, want := len(fresh.logs["default"].ids), len(old.logs["default"].ids); got != want {
		t.Errorf("%d ids, want %d", got, want)
	}
	if got, want := fresh.logs["default"].bytes, old.logs["default"].bytes; got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	for _, n := range []int{0, i} { // the first of all, and the last
		if at, err := publishTo(t, fresh, publication(n)); err != nil || at.Offset != uint64(n+1) {
			t.Errorf("published again with the key of message %d: %v, %v", n+1, at, err)
		}
	}
}

// A channel whose record was dropped meanwhile holds nothing in the other process.
func TestAForgottenChannelDoesNotComeBack(t *testing.T) {
	old := startedBroker(t, nil)
	for i := range 3 {
		if _, err := publishTo(t, old, hub.Publication{Channel: "gone", Data: fmt.Appendf(nil, "%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	var pieces [][]byte
	keep := func(piece []byte) error { pieces = append(pieces, bytes.Clone(piece)); return nil }
	ahead, err := old.ExportAhead(keep)
	if err != nil {
		t.Fatal(err)
	}
	l := old.logs["default"]
	l.mu.Lock()
	for l.order.live > 0 {
		l.remove(l.order.oldest())
	}
	l.forgot = l.channels["gone"].removed
	delete(l.channels, "gone")
	l.empty = 0
	l.mu.Unlock()
	if err := old.Export(ahead, keep); err != nil {
		t.Fatal(err)
	}
	fresh := startedBroker(t, pieces)
	page, err := fresh.History(t.Context(), &hub.Namespace{Name: "default"}, "gone", 0, 10)
	if err != nil || len(page.Messages) != 0 || page.FirstRetained != 4 {
		t.Errorf("%d messages, the first retained is %d, %v; want none and 4", len(page.Messages), page.FirstRetained, err)
	}
}

// The other process has stored a message and ended: its position must not be one of another
// message here.
func TestALogStartsAnewAfterAFailedMove(t *testing.T) {
	old := startedBroker(t, nil)
	ns := &hub.Namespace{Name: "default"}
	if _, err := old.Subscribe(t.Context(), ns, "c", 10); err != nil {
		t.Fatal(err)
	}
	for _, ch := range []string{"c", "d"} {
		if _, err := publishTo(t, old, hub.Publication{Channel: ch, Data: []byte("1"), IdempotencyKey: "key"}); err != nil {
			t.Fatal(err)
		}
	}
	before, err := old.Top(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Export(nil, func([]byte) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := old.Renew(); err != nil {
		t.Fatal(err)
	}
	if bytes, _ := old.Memory(); bytes != 0 {
		t.Errorf("%d bytes are kept in an empty log", bytes)
	}
	at, err := publishTo(t, old, hub.Publication{Channel: "c", Data: []byte("2"), IdempotencyKey: "key"})
	if err != nil || at.Epoch == before.Epoch || at.Offset != 1 {
		t.Errorf("published at %v, %v; before it was %v", at, err, before)
	}
	for _, ch := range []string{"c", "d"} {
		page, err := old.History(t.Context(), ns, ch, 0, 10)
		if want := map[string]int{"c": 1}[ch]; err != nil || len(page.Messages) != want || page.Epoch != at.Epoch || page.FirstRetained > 1 {
			t.Errorf("%s has %+v, %v; want %d messages", ch, page, err, want)
		}
	}
}

func FuzzImport(f *testing.F) {
	old, _ := New(Config{})
	_ = old.Start(f.Context(), []hub.Namespace{{Name: "default"}}, func(*hub.Message) {})
	old.Publish(&hub.Namespace{Name: "default"}, hub.Publication{Channel: "c", Data: []byte("1"), IdempotencyKey: "k"}, func(hub.Position, error) {})
	_ = old.Export(nil, func(piece []byte) error { f.Add(bytes.Clone(piece)); return nil })
	_ = old.Close()
	f.Fuzz(func(t *testing.T, b []byte) {
		fresh, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer fresh.Close()
		if fresh.Import(b) == nil {
			_ = fresh.Start(t.Context(), []hub.Namespace{{Name: "default"}}, func(*hub.Message) {})
		}
	})
}

// Each partition's log moves; one of another number of partitions is refused.
func TestPartitionsMove(t *testing.T) {
	start := func(partitions int, pieces [][]byte) (*Broker, *hub.Hub, error) {
		b := imported(t, pieces)
		h, err := hub.New(hub.Config{Namespaces: []hub.Namespace{{Name: "a", Partitions: partitions}}}, b)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		return b, h, h.Start(t.Context())
	}
	old, oldHub, err := start(4, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]hub.Position{}
	for i := range 20 {
		ch := fmt.Sprint("a:", i)
		oldHub.Publish(hub.Publication{Channel: ch, Data: []byte("1")}, func(at hub.Position, err error) {
			if want[ch] = at; err != nil {
				t.Error(err)
			}
		})
	}
	var pieces [][]byte
	if err := old.Export(nil, func(piece []byte) error { pieces = append(pieces, bytes.Clone(piece)); return nil }); err != nil {
		t.Fatal(err)
	}
	_, fresh, err := start(4, pieces)
	if err != nil {
		t.Fatal(err)
	}
	for ch, at := range want {
		h, err := fresh.History(t.Context(), ch, hub.HistoryOptions{Limit: -1})
		if err != nil || len(h.Messages) != 1 || !h.Messages[0].Position().Same(at) {
			t.Errorf("%s has %d messages, %v, want one at %v", ch, len(h.Messages), err, at)
		}
	}
	for _, other := range []int{1, 2} {
		if _, _, err := start(other, pieces); err == nil || !strings.Contains(err.Error(), "partitions changed") {
			t.Errorf("logs of 4 partitions move to %d: %v", other, err)
		}
	}
}
