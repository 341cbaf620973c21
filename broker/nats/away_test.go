package nats

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

// Publishes with durability none wait while there is no server, in order and within the
// bounds, and are sent when it is back. Those to be stored are refused at once.
func TestPublishesWithoutALogWaitForTheServer(t *testing.T) {
	const bound = 50
	c := external(t)
	p := c.spawn(t)
	none, stored := hub.Namespace{Name: "a", Durability: hub.None}.WithDefaults(), hub.Namespace{Name: "b"}.WithDefaults()
	n := startOn(t, Config{URL: c.url(), MaxPending: bound, AckTimeout: hub.Duration(time.Hour)}, none, stored)
	n.Sub(&none, "x", 0)
	n.Pub(&none, "x", "before")
	n.Await(&none, "x", 1)
	p.kill()
	hubtest.Until(t, patience, "the server is missed", func() bool { return n.Ready() != nil })
	var waiting []<-chan hubtest.Result
	for i := range bound {
		waiting = append(waiting, n.Go(&none, hub.Publication{Channel: "a:x", Data: fmt.Append(nil, i)}))
	}
	if _, err := n.Try(&none, hub.Publication{Channel: "a:x"}); !errors.Is(err, hub.ErrOverloaded) {
		t.Errorf("publish %d: %v, want ErrOverloaded", bound+1, err)
	}
	if _, err := n.Try(&stored, hub.Publication{Channel: "b:x"}); !errors.Is(err, hub.ErrUnavailable) {
		t.Errorf("publish that is to be stored: %v, want ErrUnavailable", err)
	}
	c.spawn(t)
	for i, w := range waiting {
		if r := <-w; r.Err != nil {
			t.Errorf("publish %d: %v", i, r.Err)
		}
	}
	got := n.Await(&none, "x", bound+1)
	for i, m := range got[1:] {
		if string(m.Data) != fmt.Sprint(i) {
			t.Fatalf("message %d is %q", i, m.Data)
		}
	}
}

// A publish with durability none waits no longer than AckTimeout.
func TestPublishesWithoutALogDoNotWaitForEver(t *testing.T) {
	c := external(t)
	p := c.spawn(t)
	ns := hub.Namespace{Name: "a", Durability: hub.None}.WithDefaults()
	n := startOn(t, Config{URL: c.url(), AckTimeout: 1}, ns)
	p.kill()
	hubtest.Until(t, patience, "the server is missed", func() bool { return n.Ready() != nil })
	if _, err := n.Try(&ns, hub.Publication{Channel: "a:x"}); !errors.Is(err, hub.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}

// What another client of NATS removes from a log is a gap for those who resume before it,
// and only for them.
func TestALogThatWasTrimmedFromOutsideIsAGap(t *testing.T) {
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{URL: c.url()}, ns)
	for i := range 20 {
		n.Pub(&ns, "x", fmt.Sprint(i))
	}
	f := func(request string, since, want uint64) {
		t.Helper()
		if request != "" {
			if _, err := n.Broker.(*Broker).Request(t.Context(), "$JS.API.STREAM.PURGE.weir_a", []byte(request)); err != nil {
				t.Fatal(err)
			}
		}
		if p := n.Page(&ns, "x", since, 100); (p.FirstRetained <= since+1) != (want <= since+1) || p.FirstRetained > want {
			t.Errorf("after purge %s: %d is retained first, want %d", request, p.FirstRetained, want)
		}
	}
	f("", 3, 1)
	f(`{"seq":11}`, 3, 11)
	f("", 12, 11)
	f(`{}`, 12, 21)
	f("", 20, 21)
}

// A data directory that was mounted read-only refuses as a full one does, in other words,
// and stores again by itself.
func TestAReadOnlyDiskRefusesAndRecovers(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skip("only root can mount: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	r := &room{dir: dir, kick: make(chan struct{}, 1)}
	look := func(flags uintptr, readOnly bool) {
		t.Helper()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
		if err := r.look(0); err != nil {
			t.Fatal(err)
		}
		if r.frozen.Load() != readOnly || r.bare.Load() != readOnly || readOnly && r.reserve(1) {
			t.Errorf("read-only %v: %v, full %v", readOnly, r.frozen.Load(), r.bare.Load())
		}
	}
	look(0, false)
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	look(syscall.MS_RDONLY, true)
	if err := r.refusal(); !errors.Is(err, hub.ErrStorageFull) || !errors.Is(err, ErrReadOnlyDisk) {
		t.Errorf("%v", err)
	}
	look(0, false)
}
