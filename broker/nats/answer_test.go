package nats

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A publisher resumes from what it was answered with. After a backup was put back, with
// its marks, the offsets of what came later go to other messages: none of the answers
// that are lost is continued from, though every message has one of two payloads.
func TestAnswersProveThemselves(t *testing.T) {
	both(t, func(t *testing.T, outside bool) {
		s := newStore(t, outside, hub.Namespace{Name: "a"}.WithDefaults())
		backup := filepath.Join(t.TempDir(), "backup")
		publish := func(n int, data func(i int) string) (at []hub.Position) {
			t.Helper()
			type answer struct {
				at  hub.Position
				err error
			}
			for i := range n {
				got := make(chan answer, 1)
				s.node.Publish(hub.Publication{Channel: "a:x", Key: "k", Data: []byte(data(i)), Attributes: &hub.Attributes{ID: fmt.Sprint(data(0), i)}}, func(at hub.Position, err error) { got <- answer{at, err} })
				a := <-got
				if a.err != nil || a.at.Check == 0 || a.at.Check.Exact() {
					t.Fatalf("answered with %+v, %v", a.at, a.err)
				}
				at = append(at, a.at)
			}
			return at
		}
		resume := func(p hub.Position) (gap bool, next string) {
			t.Helper()
			p, err := hub.ParsePosition(p.String())
			if err != nil {
				t.Fatal(err)
			}
			r := s.node.subscribe(hub.SubscribeOptions{Channels: []string{"a:x"}, Since: hub.Positions{p}})
			s.node.until("an answer", func() bool { return len(r.ids) > 0 || len(r.gaps) > 0 || r.bad != "" })
			if r.bad != "" {
				t.Fatal(r.bad)
			}
			if len(r.gaps) > 0 {
				return true, ""
			}
			return false, r.ids[0]
		}
		before := publish(20, func(i int) string { return fmt.Sprint("before ", i%2) })
		s.stop()
		if err := os.CopyFS(backup, os.DirFS(s.dir)); err != nil {
			t.Fatal(err)
		}
		s.start()
		after := publish(20, func(i int) string { return fmt.Sprint("lost ", i%2) })
		s.stop()
		if err := os.RemoveAll(s.dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(s.dir, os.DirFS(backup)); err != nil {
			t.Fatal(err)
		}
		s.start()
		again := publish(25, func(i int) string { return fmt.Sprint("new ", i%2) })
		if again[0].Epoch != after[0].Epoch || again[0].Offset != after[0].Offset {
			t.Fatalf("the new ones begin at %v, the lost ones at %v", again[0], after[0])
		}
		for _, p := range slices.Concat(before, again[:24]) {
			want := fmt.Sprint("before 0", p.Offset)
			if p.Offset >= 20 {
				want = fmt.Sprint("new 0", p.Offset-20)
			}
			if gap, next := resume(p); gap || next != want {
				t.Errorf("after %v: gap %v, next %s, want %s", p, gap, next, want)
			}
		}
		for _, p := range after {
			if gap, _ := resume(p); !gap {
				t.Errorf("no gap after %v, which is lost", p)
			}
		}
	})
}

// The answer to a retry is the first message's own position.
func TestRetryIsAnsweredWithTheCheck(t *testing.T) {
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: t.TempDir()}, ns)
	n.Sub(&ns, "x", 0)
	p := hub.Publication{Channel: "a:x", Data: []byte("1"), IdempotencyKey: "k"}
	first, err := n.Try(&ns, p)
	if err != nil {
		t.Fatal(err)
	}
	m := n.Await(&ns, "x", 1)[0]
	second, err := n.Try(&ns, p)
	if err != nil || second != m.Position() || !first.Same(second) {
		t.Errorf("first %v, then %v, %v; the message is at %v", first, second, err, m.Position())
	}
	for _, at := range []hub.Position{first, second} {
		if c, err := n.Prove(t.Context(), &ns, at); err != nil || c != at.Check {
			t.Errorf("%v has check %d, %v", at, c, err)
		}
	}
	bad := first
	bad.Check ^= 1
	if c, err := n.Prove(t.Context(), &ns, bad); err != nil || c != m.Check {
		t.Errorf("another content: %d, %v", c, err)
	}
}
