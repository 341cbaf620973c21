package nats

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

// smallDisk returns a directory on a file system of its own of 24 MiB; false if the test
// may not make one, which takes root.
func smallDisk(t *testing.T) (string, bool) {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Logf("no file system can be mounted: %v", err)
		return dir, false
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir, true
}

// fill writes a file until the disk takes no byte more, and returns its name.
func fill(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for b := make([]byte, 4096); err == nil; {
		_, err = f.Write(b)
	}
	if !noSpace(err) {
		t.Fatal(err)
	}
	return name
}

// killedOn has a child publish on dir, kills it, and returns the positions it was given
// on channel a:0, oldest first.
func killedOn(t *testing.T, dir string) (at []hub.Position) {
	t.Helper()
	p := spawn(t, "weir", dir)
	for range 600 {
		line, err := p.out.ReadString('\n')
		var i int
		var pos string
		if n, _ := fmt.Sscan(line, &i, &pos); err != nil || n != 2 {
			t.Fatalf("the child said %q, %v", line, err)
		}
		if i%3 == 0 {
			parsed, err := hub.ParsePosition(pos)
			if err != nil {
				t.Fatal(err)
			}
			at = append(at, parsed)
		}
	}
	// The child does not continue for long when its output is not read.
	hubtest.Until(t, patience, "the mark of these messages", func() bool {
		h, err := openHighWater(dir)
		return err == nil && h.last.Logs["a"].Last >= at[len(at)-1].Offset
	})
	p.kill()
	return at
}

// A logText is a log that is read while it is written.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logText) count(s string) int { return strings.Count(l.String(), s) }

func (n *hubNode) tryPublish(channel string) (hub.Position, error) {
	type answer struct {
		at  hub.Position
		err error
	}
	c := make(chan answer, 1)
	n.Publish(hub.Publication{Channel: channel, Data: []byte("1"), Attributes: &hub.Attributes{ID: channel}}, func(at hub.Position, err error) { c <- answer{at, err} })
	var a answer
	n.until("an answer to a publish", func() bool {
		select {
		case a = <-c:
			return true
		default:
			return false
		}
	})
	return a.at, a.err
}

// TestAFullDiskIsReadOnly: after kill -9 and with a disk that takes no byte more, the
// broker starts, replays and serves subscribers, says why it refuses to publish, and
// publishes again by itself when there is space, on the same log.
func TestAFullDiskIsReadOnly(t *testing.T) {
	dir, mounted := smallDisk(t)
	at := killedOn(t, dir)
	ballast, cfg := filepath.Join(dir, "none"), Config{Dir: dir}
	if mounted {
		ballast = fill(t, dir)
	} else {
		cfg.MinFree = 1 << 60
	}
	var text logText
	b, err := New(cfg, slog.New(slog.NewTextHandler(&text, nil)))
	if err != nil {
		t.Fatal(err)
	}
	// Both have something to be written: a log that changes, and one that is new.
	n := startHubOn(t, b, hub.Namespace{Name: "a", HistorySize: 900_000}, hub.Namespace{Name: "new"})
	if err := n.Ready(); !errors.Is(err, hub.ErrStorageFull) {
		t.Errorf("ready: %v, want ErrStorageFull", err)
	}
	first, last := at[10], at[len(at)-1]
	r := n.subscribe(hub.SubscribeOptions{Channels: []string{"a:0"}, Since: hub.Positions{first}})
	n.until("the replay", func() bool { return r.last >= last.Offset })
	if len(r.ids) < len(at)-11 || len(r.gaps) != 0 || r.bad != "" {
		t.Errorf("%d messages of %d, gaps %v, %s", len(r.ids), len(at)-11, r.gaps, r.bad)
	}
	fresh := n.subscribe(hub.SubscribeOptions{Channels: []string{"new:x"}})
	for _, channel := range []string{"a:0", "new:x"} {
		if _, err := n.tryPublish(channel); !errors.Is(err, hub.ErrStorageFull) {
			t.Errorf("publish on %s: %v, want ErrStorageFull", channel, err)
		}
	}
	if got := text.count("data directory is full"); got != 1 || text.count("dir="+dir) < 1 || text.count("free_bytes=") < 1 || text.count("level=ERROR") != 1 {
		t.Errorf("%d lines say that the disk is full:\n%s", got, text.b.String())
	}
	if !mounted {
		return
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	n.until("publishing", func() bool { return n.Ready() == nil })
	before := r.last
	next, err := n.tryPublish("a:0")
	if err != nil || next.Epoch != last.Epoch || next.Offset <= before {
		t.Errorf("published at %v, %v; want epoch %s, after %d", next, err, last.Epoch, before)
	}
	if _, err := n.tryPublish("new:x"); err != nil {
		t.Error(err)
	}
	n.until("the new messages", func() bool { return r.bad+fresh.bad != "" || r.last == next.Offset && len(fresh.ids) == 1 })
	if len(r.gaps)+len(fresh.gaps) != 0 || r.bad+fresh.bad != "" {
		t.Errorf("gaps %v, %v, %s %s", r.gaps, fresh.gaps, r.bad, fresh.bad)
	}
	s := b.all()["a"]
	if in, err := s.lookStored(t.Context()); err != nil || in.config.MaxMsgsPerSubject != 900_000 {
		t.Errorf("the log's configuration: %+v, %v", in.config, err)
	}
}

// A log that lost messages has a new epoch also when the disk is too full to write it:
// what is resumed gets its gap, once, and the epoch is the log's own when it can be.
func TestADamagedLogOnAFullDiskIsAGap(t *testing.T) {
	dir, mounted := smallDisk(t)
	at := killedOn(t, dir)
	blocks, err := filepath.Glob(filepath.Join(dir, "nats", "jetstream", "*", "streams", "*", "msgs", "1.blk"))
	if err != nil || len(blocks) != 1 {
		t.Fatal(blocks, err)
	}
	st, err := os.Stat(blocks[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(blocks[0], st.Size()/2); err != nil {
		t.Fatal(err)
	}
	ballast := ""
	if mounted {
		ballast = fill(t, dir)
	}
	n := startHub(t, Config{Dir: dir}, hub.Namespace{Name: "a", HistorySize: 1_000_000})
	r := n.subscribe(hub.SubscribeOptions{Channels: []string{"a:0"}, Since: hub.Positions{at[len(at)-1]}})
	n.until("the gap", func() bool { return len(r.gaps) > 0 })
	if mounted {
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	}
	n.until("publishing", func() bool { return n.Ready() == nil })
	next, err := n.tryPublish("a:0")
	if err != nil || next.Epoch == at[0].Epoch {
		t.Errorf("published at %v, %v", next, err)
	}
	n.until("the message", func() bool { return r.last == next.Offset })
	if len(r.gaps) != 1 || r.gaps[0].To.Epoch != next.Epoch {
		t.Errorf("gaps %+v, then %v", r.gaps, next)
	}
}

// Others may fill the disk while the server removes old messages, which takes a write. The
// log works again when there is space.
func TestADiskThatFillsUpUnderTheServerRecovers(t *testing.T) {
	dir, mounted := smallDisk(t)
	ns := hub.Namespace{Name: "a", HistoryTTL: hub.Duration(2 * time.Second), IdempotencyWindow: hub.Duration(time.Second)}.WithDefaults()
	n := startOn(t, Config{Dir: dir}, ns)
	for i := range 50 {
		n.Pub(&ns, "x", fmt.Sprint(i))
	}
	before := n.End(&ns)
	ballast := ""
	if mounted {
		ballast = fill(t, dir)
		hubtest.Until(t, patience, "the refusal", func() bool { return errors.Is(n.Ready(), hub.ErrStorageFull) })
	}
	hubtest.Until(t, patience, "the end of the messages", func() bool { return len(history(t, n, &ns, "x")) == 0 })
	if mounted {
		if _, err := n.Try(&ns, hub.Publication{Channel: "a:x", Data: []byte("d")}); !errors.Is(err, hub.ErrStorageFull) {
			t.Errorf("publish: %v, want ErrStorageFull", err)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	}
	hubtest.Until(t, patience, "readiness", func() bool { return n.Ready() == nil })
	end := n.End(&ns)
	at, err := n.Try(&ns, hub.Publication{Channel: "a:x", Data: []byte("d")})
	if err != nil || at.Offset != 51 || at.Epoch != before.Epoch || end.Offset != 50 {
		t.Errorf("published at %v, %v, after %v; want 51 in epoch %s", at, err, end, before.Epoch)
	}
}

// An ext4Disk is an ext4 file system in an image file.
type ext4Disk struct {
	t          *testing.T
	image, dir string
}

// newExt4Disk makes one; the test is skipped if it may not.
func newExt4Disk(t *testing.T) *ext4Disk {
	t.Helper()
	d := &ext4Disk{t, filepath.Join(t.TempDir(), "image"), t.TempDir()}
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip("there is no mkfs.ext4: ", err)
	}
	d.run("truncate", "-s", "64M", d.image)
	d.run("mkfs.ext4", "-q", "-F", d.image)
	t.Cleanup(func() { _ = syscall.Unmount(d.dir, syscall.MNT_DETACH) })
	if out, err := exec.Command("mount", "-o", "loop,errors=remount-ro", d.image, d.dir).CombinedOutput(); err != nil {
		t.Skipf("no loop device can be mounted: %v: %s", err, out)
	}
	return d
}

func (d *ext4Disk) run(name string, arg ...string) {
	d.t.Helper()
	if out, err := exec.Command(name, arg...).CombinedOutput(); err != nil && name != "e2fsck" { // which ends with 1 when it repaired
		d.t.Fatalf("%s %v: %v: %s", name, arg, err, out)
	}
}

// After an error of the disk the kernel refuses writes, and ext4 does not have statfs show it:
// the server is not started again on it, for it would come up without the logs. What was not
// synced is gone once the file system was repaired, which is a new epoch.
func TestAFailedFileSystemRefusesAndIsRead(t *testing.T) {
	d := newExt4Disk(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: d.dir}, ns)
	var last hub.Position
	for i := range 20 {
		last = n.Pub(&ns, "x", fmt.Sprint(i))
	}
	kernel, _, _ := strings.Cut(mountOf(d.dir), " ")
	if err := os.WriteFile(filepath.Join(kernel, "trigger_fs_error"), []byte("test"), 0o200); err != nil {
		t.Skip("no error can be injected: ", err)
	}
	hubtest.Until(t, patience, "the refusal", func() bool {
		at, err := n.Try(&ns, hub.Publication{Channel: "a:x", Data: []byte("d")})
		if err == nil {
			t.Fatalf("published at %v on a disk that takes nothing", at)
		}
		return errors.Is(err, ErrReadOnlyDisk)
	})
	if err := n.Ready(); !errors.Is(err, ErrReadOnlyDisk) {
		t.Errorf("ready: %v, want ErrReadOnlyDisk", err)
	}
	if got := len(history(t, n, &ns, "x")); got != 20 {
		t.Errorf("%d messages of history, want 20", got)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	d.run("umount", d.dir)
	d.run("e2fsck", "-f", "-y", d.image)
	d.run("mount", "-o", "loop,errors=remount-ro", d.image, d.dir)
	n = startOn(t, Config{Dir: d.dir}, ns)
	if at := n.Pub(&ns, "x", "after"); at.Epoch == last.Epoch {
		t.Errorf("published at %v, the last one before the error was at %v", at, last)
	}
}
