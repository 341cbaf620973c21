package nats

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A store is a NATS whose directory can be damaged between two runs.
type store struct {
	t    *testing.T
	dir  string
	ns   hub.Namespace
	out  *natsChild // nil for an embedded server
	proc *process
	node *hubNode
	// lives are the ids published on each channel, in order.
	published map[string][]string
	count     int
	size      int // of a payload, in bytes
}

func newStore(t *testing.T, outside bool, ns hub.Namespace) *store {
	s := &store{t: t, dir: t.TempDir(), ns: ns, published: map[string][]string{}}
	if outside {
		c := external(t)
		s.out, s.dir = &c, c.Dir
	}
	s.start()
	return s
}

func (s *store) start() {
	s.t.Helper()
	cfg := Config{Dir: s.dir}
	if s.out != nil {
		s.proc = s.out.spawn(s.t)
		cfg = Config{URL: s.out.url()}
	}
	s.node = startHub(s.t, cfg, s.ns)
}

func (s *store) stop() {
	s.t.Helper()
	if err := s.node.Close(); err != nil {
		s.t.Fatal(err)
	}
	if s.out != nil {
		s.proc.stop()
	}
}

// fill publishes n messages, turn and turn about on the channels x, y and z.
func (s *store) fill(n int) {
	s.t.Helper()
	done := make(chan error, n)
	for range n {
		s.count++
		id, ch := fmt.Sprint("m", s.count), "a:"+string('x'+rune(s.count%3))
		s.node.Publish(hub.Publication{Channel: ch, Data: make([]byte, s.size), Attributes: &hub.Attributes{ID: id}}, func(_ hub.Position, err error) { done <- err })
		s.published[ch] = append(s.published[ch], id)
	}
	for range n {
		if err := <-done; err != nil {
			s.t.Fatal(err)
		}
	}
}

// positions returns where a client may stand: at each message of channel x.
func (s *store) positions() (at []hub.Position) {
	s.t.Helper()
	h, err := s.node.History(s.t.Context(), "a:x", hub.HistoryOptions{Limit: -1})
	if err != nil || len(h.Messages) != len(s.published["a:x"]) {
		s.t.Fatalf("%d messages of %d: %v", len(h.Messages), len(s.published["a:x"]), err)
	}
	for _, m := range h.Messages {
		if m.Check == 0 {
			s.t.Fatalf("%v has no check", m.Position())
		}
		at = append(at, m.Position())
	}
	return at
}

// resume has a client continue from the message that was x's i-th, which has check p, and
// reports whether it got everything since then, or else got a gap event.
func (s *store) resume(what string, i int, p hub.Position) (gap bool) {
	s.t.Helper()
	r := s.node.subscribe(hub.SubscribeOptions{Channels: []string{"a:x"}, Since: hub.Positions{p}})
	s.count++
	last := fmt.Sprint("m", s.count)
	s.node.publish("a:x", last)
	s.published["a:x"] = append(s.published["a:x"], last)
	s.node.until("the newest message", func() bool { return len(r.ids) > 0 && r.ids[len(r.ids)-1] == last || r.bad != "" })
	if want := s.published["a:x"][i+1:]; len(r.gaps) == 0 && !slices.Equal(r.ids, want) || r.bad != "" {
		s.t.Errorf("%s: after message %d of x came %d messages of %d without a gap: %s", what, i+1, len(r.ids), len(want), r.bad)
	}
	return len(r.gaps) > 0
}

// blocks returns the files of the stream's messages, oldest first.
func (s *store) blocks() []string {
	s.t.Helper()
	var files []string
	err := filepath.WalkDir(s.dir, func(name string, d fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".blk" && filepath.Base(filepath.Dir(filepath.Dir(name))) == "weir_a" {
			files = append(files, name)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		s.t.Fatalf("no blocks below %s: %v", s.dir, err)
	}
	slices.SortFunc(files, func(a, b string) int { return len(a)*1000 - len(b)*1000 + slices.Compare([]byte(a), []byte(b)) })
	return files
}

// edit changes the content of a file.
func edit(t *testing.T, name string, change func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, change(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// flip changes a bit in each of three messages of size bytes, one after the other.
func flip(b []byte, at, size int) []byte {
	for range 3 {
		b[at] ^= 0x40
		at -= size + 200 // its head
	}
	return b
}

func both(t *testing.T, f func(t *testing.T, outside bool)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) { f(t, false) })
	t.Run("external", func(t *testing.T) { f(t, true) })
}

// Without damage a restart is no gap, whatever a client has seen.
func TestUndamagedLogContinues(t *testing.T) {
	both(t, func(t *testing.T, outside bool) {
		s := newStore(t, outside, hub.Namespace{Name: "a"}.WithDefaults())
		s.fill(600)
		at := s.positions()
		s.stop()
		s.start()
		s.fill(300)
		for _, i := range []int{0, 100, len(at) - 1} {
			if s.resume("undamaged", i, at[i]) {
				t.Errorf("a gap after message %d of x", i+1)
			}
		}
	})
}

// A copy of the directory is put back: what was stored after it was made is gone, and
// its offsets go to other messages.
func TestRestoredBackupIsAGap(t *testing.T) {
	both(t, func(t *testing.T, outside bool) {
		for _, running := range []bool{false, true} {
			s := newStore(t, outside, hub.Namespace{Name: "a"}.WithDefaults())
			backup := filepath.Join(t.TempDir(), "backup")
			s.fill(300)
			before, published := s.positions(), maps.Clone(s.published)
			if !running {
				s.stop()
			}
			if err := os.CopyFS(backup, os.DirFS(s.dir)); err != nil {
				t.Fatal(err)
			}
			if !running {
				s.start()
			}
			s.fill(300)
			at := s.positions()
			s.stop()
			if err := os.RemoveAll(s.dir); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(s.dir, os.DirFS(backup)); err != nil {
				t.Fatal(err)
			}
			s.published = published // a client no further than the backup has seen nothing else
			s.start()
			s.fill(900)
			for i := range at {
				if i%20 != 19 && i != len(at)-1 {
					continue
				}
				if gap := s.resume(fmt.Sprintf("restored, running %v", running), i, at[i]); gap != (i >= len(before)) {
					t.Errorf("running %v: of %d messages of x the backup has %d, a client at %d: gap %v", running, len(at), len(before), i+1, gap)
				}
			}
		}
	})
}

// What a kill -9 leaves, taken less than a second after the last publish, so that no
// mark knows of it yet, loses the second half of its last file: the offsets of what was
// answered go to other messages.
func TestKilledLogThatLostItsTailIsAGap(t *testing.T) {
	both(t, func(t *testing.T, outside bool) {
		s := newStore(t, outside, hub.Namespace{Name: "a"}.WithDefaults())
		image := filepath.Join(t.TempDir(), "image")
		s.size = 1 << 10
		s.fill(600)
		if err := os.CopyFS(image, os.DirFS(s.dir)); err != nil {
			t.Fatal(err)
		}
		at := s.positions()
		s.stop()
		if err := os.RemoveAll(s.dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(s.dir, os.DirFS(image)); err != nil {
			t.Fatal(err)
		}
		files := s.blocks()
		edit(t, files[len(files)-1], func(b []byte) []byte { return b[:len(b)/2] })
		s.start()
		s.fill(900)
		for _, i := range []int{len(at) - 1, len(at) - 2, len(at) * 3 / 4} {
			if !s.resume("the tail is lost", i, at[i]) {
				t.Errorf("no gap after message %d of %d, which is lost", i+1, len(at))
			}
		}
	})
}

// A power failure within a second of a log's first message may leave the log empty and its mark
// at zero: the offsets of what was answered must not be those of other messages.
func TestEmptyLogAfterAPowerFailureIsANewEpoch(t *testing.T) {
	dir, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: dir}, ns)
	if err := os.CopyFS(image, os.DirFS(dir)); err != nil { // what of it was written to the disk
		t.Fatal(err)
	}
	epoch := n.Pub(&ns, "x", "d").Epoch
	n.Close()
	f := func(what, boot, mount string, same bool) {
		t.Helper()
		h, err := openHighWater(image)
		if err != nil {
			t.Fatal(err)
		}
		if m := h.last.Logs["a"]; m.Epoch != epoch || m.Last != 0 {
			t.Fatalf("%s: the mark is %+v, want 0 in epoch %s", what, m, epoch)
		}
		h.boot, h.mount = h.boot+boot, h.mount+mount
		if err := h.write(h.last.Logs, false); err != nil {
			t.Fatal(err)
		}
		n := startOn(t, Config{Dir: image}, ns)
		at := n.End(&ns)
		if (at.Epoch == epoch) != same || at.Offset != 0 {
			t.Errorf("%s: %v, before it epoch %s", what, at, epoch)
		}
		epoch = at.Epoch
		n.Close()
	}
	f("a killed process", "", "", true)
	f("a power failure", " of before", "", false)
	f("a file system mounted anew", "", " of before", false)
}

// Of a message that was removed there is nothing to compare: what decides is whether
// later ones took the offsets before it.
func TestRemovedMessageIsProvedByItsNeighbours(t *testing.T) {
	n := startOn(t, Config{Dir: t.TempDir()}, hub.Namespace{Name: "a", HistorySize: 2}.WithDefaults())
	ns := hub.Namespace{Name: "a", HistorySize: 2}.WithDefaults()
	n.Sub(&ns, "x", 0)
	n.Pub(&ns, "y", "before")
	at := n.Pub(&ns, "x", "removed")
	n.Pub(&ns, "x", "1")
	n.Pub(&ns, "x", "2")
	old := n.Await(&ns, "x", 1)[0].Position()
	f := func(what string, p hub.Position, want hub.Check) {
		t.Helper()
		if c, err := n.Prove(t.Context(), &ns, p); err != nil || c != want {
			t.Errorf("%s: %v has check %d, %v, want %d", what, p, c, err, want)
		}
	}
	f("no check", hub.Position{Epoch: at.Epoch, Offset: at.Offset}, 0)
	f("its publisher's", at, at.Check)
	f("its publisher's, of another day", hub.Position{Epoch: at.Epoch, Offset: at.Offset,
		Check: hub.NewContentCheck(at.Offset, time.Now().Add(-24*time.Hour), "", []byte("removed"))}, 0)
	f("its own", old, old.Check)
	early := old
	early.Check = hub.NewCheck(old.Offset, time.Now().Add(-time.Hour))
	f("stored an hour before its predecessor", early, 0)
	kept := n.Await(&ns, "x", 3)[2].Position()
	f("a kept one", hub.Position{Epoch: kept.Epoch, Offset: kept.Offset}, kept.Check)
	f("another in its place", hub.Position{Epoch: kept.Epoch, Offset: kept.Offset, Check: 5}, kept.Check)
	f("past the end", hub.Position{Epoch: kept.Epoch, Offset: 99, Check: 5}, 0)
	f("another epoch", hub.Position{Epoch: "other", Offset: kept.Offset, Check: kept.Check}, 0)
}

// Whatever the files of a log lost while nothing served it, a client gets what is
// missing for it or a gap.
func TestDamagedLogIsAGap(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	type damage struct {
		name   string
		change func(s *store)
	}
	const size = 48 << 10 // few large messages fill as many files as many small ones, in less time
	each := func(change func([]byte) []byte) func(*store) {
		return func(s *store) {
			for _, f := range s.blocks() {
				edit(s.t, f, change)
			}
		}
	}
	one := func(change func(s *store, files []string)) func(*store) {
		return func(s *store) { change(s, s.blocks()) }
	}
	damages := []damage{
		{"empty files", each(func(b []byte) []byte { return nil })},
		{"zero bytes", each(func(b []byte) []byte { return make([]byte, len(b)) })},
		{"half of the last file", one(func(s *store, files []string) {
			edit(s.t, files[len(files)-1], func(b []byte) []byte { return b[:len(b)/2] })
		})},
		{"half of a file between", one(func(s *store, files []string) {
			edit(s.t, files[1], func(b []byte) []byte { return b[:len(b)/2] })
		})},
		{"a file between removed", one(func(s *store, files []string) {
			if err := os.Remove(files[1]); err != nil {
				s.t.Fatal(err)
			}
		})},
		{"the last file removed", one(func(s *store, files []string) {
			if err := os.Remove(files[len(files)-1]); err != nil {
				s.t.Fatal(err)
			}
		})},
		{"a flipped byte", one(func(s *store, files []string) {
			edit(s.t, files[1], func(b []byte) []byte { return flip(b, len(b)/2, size) })
		})},
		{"a flipped byte in the last file", one(func(s *store, files []string) {
			edit(s.t, files[len(files)-1], func(b []byte) []byte { return flip(b, len(b)-80<<10, size) })
		})},
	}
	both(t, func(t *testing.T, outside bool) {
		for _, d := range damages {
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				s := newStore(t, outside, hub.Namespace{Name: "a", HistorySize: 100_000, HistoryBytes: 1 << 30}.WithDefaults())
				s.size = size
				s.fill(375)
				at := s.positions()
				s.stop()
				if n := len(s.blocks()); n < 3 {
					t.Fatalf("%d files", n)
				}
				d.change(s)
				s.start()
				s.fill(450)
				gaps := 0
				for _, i := range []int{len(at) - 1, len(at) - 15, len(at) * 3 / 4, len(at) / 2, 37, 1} {
					if s.resume(d.name, i, at[i]) {
						gaps++
					}
				}
				t.Logf("%d gaps of 6", gaps)
			})
		}
	})
}
