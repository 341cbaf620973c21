package nats

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

func TestSyncedSyncsEveryWrite(t *testing.T) {
	f := func(d hub.Durability, want bool) {
		t.Helper()
		n := startOn(t, Config{Dir: t.TempDir()}, hub.Namespace{Name: "a", Durability: d})
		cfg := n.Broker.(*Broker).server.srv.Load().JetStreamConfig()
		if cfg == nil || cfg.SyncAlways != want {
			t.Errorf("durability %s: sync always is %v", d, cfg)
		}
	}
	f(hub.Stored, false)
	f(hub.Synced, true)
	b := newBroker(t, Config{URL: "nats://127.0.0.1:1"})
	defer b.Close()
	err := b.Start(t.Context(), []hub.Namespace{{Name: "a", Durability: hub.Synced}}, nil)
	if err == nil || !strings.Contains(err.Error(), "sync_interval: always") || !strings.Contains(err.Error(), "assume_synced") {
		t.Errorf("synced on an external server: %v", err)
	}
}

// free returns how many bytes may still be written to dir before minFree is reached.
func free(dir string, minFree int64) (int64, error) {
	d, err := spaceOf(dir)
	return d.free - keptFree(d, minFree), err
}

// On a small disk the broker refuses in time, keeps what it answered, and goes
// on when there is room again.
func TestFullDiskRefusesAndRecovers(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Dir: dir}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err == nil {
		t.Cleanup(func() { syscall.Unmount(dir, 0) })
	} else { // not root: pretend that little more than what is free now must stay free
		left, err := free(dir, 1)
		if err != nil {
			t.Fatal(err)
		}
		cfg.MinFree = left - 20<<20
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	ns := hub.Namespace{Name: "a", HistorySize: 100_000}.WithDefaults()
	n := startOn(t, cfg, ns)
	n.Sub(&ns, "x", 0)
	answered := 0
	data := strings.Repeat("d", 32<<10)
	var last error
	for range 2000 {
		if _, last = n.Try(&ns, hub.Publication{Channel: "a:x", Data: []byte(data)}); last != nil {
			break
		}
		answered++
	}
	if !errors.Is(last, hub.ErrStorageFull) || answered < 50 {
		t.Fatalf("after %d messages: %v, want ErrStorageFull", answered, last)
	}
	if err := n.Ready(); !errors.Is(err, hub.ErrStorageFull) {
		t.Errorf("ready on a full disk: %v", err)
	}
	n.Await(&ns, "x", answered)
	if got := len(history(t, n, &ns, "x")); got != answered {
		t.Errorf("%d answered, %d in the log", answered, got)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	hubtest.Until(t, patience, "room again", func() bool {
		_, err := n.Try(&ns, hub.Publication{Channel: "a:x", Data: []byte("d")})
		return err == nil
	})
	n.Await(&ns, "x", answered+1)
}

// An external server on a full disk leaves publishes without an answer. They are refused
// as storage full long before AckTimeout, later ones without being sent; what is stored
// can be read, and a server that was started again with room is used.
func TestFullDiskOfAnExternalServerRefuses(t *testing.T) {
	t.Parallel()
	c := external(t)
	small := c
	small.Dir = t.TempDir()
	if err := syscall.Mount("tmpfs", small.Dir, "tmpfs", 0, "size=16m"); err == nil {
		t.Cleanup(func() { syscall.Unmount(small.Dir, syscall.MNT_DETACH) })
	} else { // not root: let writes to large files fail
		small.MaxFile = 2 << 20
	}
	p := small.spawn(t)
	ns := hub.Namespace{Name: "a", HistorySize: 100_000}.WithDefaults()
	n := startOn(t, Config{URL: c.url(), AckTimeout: hub.Duration(time.Hour)}, ns)
	n.Sub(&ns, "x", 0)
	pub := hub.Publication{Channel: "a:x", Data: []byte(strings.Repeat("d", 32<<10))}
	answered := 0
	var last error
	for range 2000 {
		if _, last = n.Try(&ns, pub); last != nil {
			break
		}
		answered++
	}
	if !errors.Is(last, hub.ErrStorageFull) || !errors.As(last, new(*hub.UncertainError)) || answered < 20 {
		t.Fatalf("after %d messages: %v, want ErrStorageFull and that it is uncertain", answered, last)
	}
	hubtest.Until(t, patience, "a refusal of what was not sent", func() bool {
		_, err := n.Try(&ns, pub)
		return errors.Is(err, hub.ErrStorageFull) && !errors.As(err, new(*hub.UncertainError))
	})
	if err := n.Ready(); !errors.Is(err, hub.ErrStorageFull) {
		t.Errorf("ready on a full disk: %v", err)
	}
	n.Await(&ns, "x", answered)
	if got := len(history(t, n, &ns, "x")); got != answered {
		t.Errorf("%d answered, %d in the log", answered, got)
	}
	p.stop()
	c.spawn(t)
	hubtest.Until(t, patience, "room again", func() bool {
		_, err := n.Try(&ns, pub)
		return err == nil
	})
	if err := n.Ready(); err != nil {
		t.Errorf("ready with room again: %v", err)
	}
}

func TestServerAtItsStoreLimitIsStorageFull(t *testing.T) {
	c := external(t)
	c.MaxStore = 2 << 20
	c.spawn(t)
	ns := hub.Namespace{Name: "a", HistoryBytes: 1 << 30}.WithDefaults()
	b := newBroker(t, Config{URL: c.url()})
	defer b.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := b.Start(ctx, []hub.Namespace{ns}, func(*hub.Message) {})
	if err == nil || !strings.Contains(err.Error(), "storage") {
		t.Errorf("a log larger than the server's limit: %v", err)
	}
	if !errors.Is((&apiError{Code: 503, ErrCode: codeStoreFailed, Description: "maximum bytes exceeded"}).sentinel(), hub.ErrStorageFull) {
		t.Error("maximum bytes exceeded is not ErrStorageFull")
	}
}
