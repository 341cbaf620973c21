package memory

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newBroker(t *testing.T) hub.Broker {
	b, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBrokerConforms(t *testing.T) {
	hubtest.Run(t, func(*testing.T) hubtest.Harness { return hubtest.Harness{New: newBroker, Alone: true} })
}

func TestBrokerConformsWithAddedNamespaces(t *testing.T) {
	hubtest.Run(t, func(*testing.T) hubtest.Harness { return hubtest.Harness{New: newBroker, Alone: true, Late: true} })
}

func TestSyncedIsRefused(t *testing.T) {
	b := newBroker(t)
	err := b.Start(context.Background(), []hub.Namespace{{Name: "a", Durability: hub.Synced}}, nil)
	if err == nil || !strings.Contains(err.Error(), "synced") {
		t.Errorf("start with synced: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	if _, err := New(Config{IdempotencyKeys: -1}); err == nil {
		t.Error("a negative bound is accepted")
	}
}

func start(t *testing.T, cfg Config, ns hub.Namespace) (*Broker, *log) {
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context(), []hub.Namespace{ns}, func(*hub.Message) {}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, b.logs[ns.Name]
}

func publish(t *testing.T, b *Broker, ns *hub.Namespace, channel, key string) hub.Position {
	t.Helper()
	var at hub.Position
	b.Publish(ns, hub.Publication{Channel: channel, Data: []byte("d"), IdempotencyKey: key}, func(p hub.Position, err error) {
		if err != nil {
			t.Fatal(err)
		}
		at = p
	})
	return at
}

func TestIdleLogIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ns := hub.Namespace{Name: "a", HistoryTTL: hub.Duration(time.Minute), IdempotencyWindow: hub.Duration(10 * time.Second)}
		b, l := start(t, Config{}, ns)
		for i := range 100 {
			publish(t, b, &ns, fmt.Sprint("a:", i), fmt.Sprint(i))
		}
		time.Sleep(12 * time.Second) // fake time
		l.mu.Lock()
		if len(l.keys.used) != 0 || l.order.oldest() == nil {
			t.Errorf("after 12s: %d keys", len(l.keys.used))
		}
		l.mu.Unlock()
		time.Sleep(50 * time.Second)
		l.mu.Lock()
		if l.order.oldest() != nil || len(l.order.chunks) != 0 || l.bytes != 0 {
			t.Errorf("after 62s: %d bytes in the log", l.bytes)
		}
		l.mu.Unlock()
		b.Close()
	})
}

func TestKeysAreBounded(t *testing.T) {
	ns := hub.Namespace{Name: "a"}
	b, l := start(t, Config{IdempotencyKeys: 10}, ns)
	for i := range 5000 {
		publish(t, b, &ns, "a:x", fmt.Sprint(i))
	}
	if n, q := len(l.keys.used), len(l.keys.queue); n != 10 || q > 4096 {
		t.Errorf("%d keys, queue %d", n, q)
	}
	if at := publish(t, b, &ns, "a:x", "4999"); at.Offset != 5000 {
		t.Errorf("the newest key was answered %d", at.Offset)
	}
	if at := publish(t, b, &ns, "a:x", "0"); at.Offset != 5001 {
		t.Errorf("a forgotten key was answered %d", at.Offset)
	}
}

func TestPassingChannelsAreForgotten(t *testing.T) {
	ns := hub.Namespace{Name: "a", HistoryBytes: 100 * (perMessage + 1)}
	b, l := start(t, Config{}, ns)
	for i := range 3 * spareChannels {
		publish(t, b, &ns, fmt.Sprint("a:", i), "")
	}
	if n := len(l.channels); n > spareChannels+1000 {
		t.Errorf("%d channel records for 100 messages", n)
	}
	idle := 0
	for _, c := range l.channels {
		if c.idle() {
			idle++
		}
	}
	if idle != l.empty {
		t.Errorf("%d idle channels, counted %d", idle, l.empty)
	}
	p, err := b.History(t.Context(), &ns, "a:0", 0, 10)
	if err != nil || p.FirstRetained <= 1 {
		t.Errorf("history of a forgotten channel claims to be complete: first retained %d, %v", p.FirstRetained, err)
	}
}

// A message that a subscriber still holds must not hold the whole later log.
func TestRemovedMessageHoldsNothing(t *testing.T) {
	ns := hub.Namespace{Name: "a", HistorySize: 1}
	b, _ := start(t, Config{}, ns)
	publish(t, b, &ns, "a:x", "")
	p, err := b.History(t.Context(), &ns, "a:x", 0, 1)
	if err != nil || len(p.Messages) != 1 {
		t.Fatal(err)
	}
	held := p.Messages[0]
	gone := make(chan struct{})
	publish(t, b, &ns, "a:x", "")
	p, _ = b.History(t.Context(), &ns, "a:x", 0, 1)
	runtime.AddCleanup(p.Messages[0], func(c chan struct{}) { close(c) }, gone)
	p = hub.Page{}
	publish(t, b, &ns, "a:x", "")
	hubtest.Until(t, 10*time.Second, "the second message to be collected", func() bool {
		runtime.GC()
		select {
		case <-gone:
			return true
		default:
			return false
		}
	})
	runtime.KeepAlive(held)
}

func TestPublishAllocatesTheMessageOnly(t *testing.T) {
	ns := hub.Namespace{Name: "a", HistorySize: 64}
	b, _ := start(t, Config{}, ns)
	if _, err := b.Subscribe(t.Context(), &ns, "a:x", 0); err != nil {
		t.Fatal(err)
	}
	p := hub.Publication{Channel: "a:x", Data: []byte("d")}
	done := func(hub.Position, error) {}
	for range 200 {
		b.Publish(&ns, p, done)
	}
	if n := testing.AllocsPerRun(1000, func() { b.Publish(&ns, p, done) }); n > 1 {
		t.Errorf("%v allocations per publish, want 1", n)
	}
}

func BenchmarkPublish(b *testing.B) {
	br, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	ns := hub.Namespace{Name: "a"}
	if err := br.Start(b.Context(), []hub.Namespace{ns}, func(*hub.Message) {}); err != nil {
		b.Fatal(err)
	}
	defer br.Close()
	p := hub.Publication{Channel: "a:x", Data: make([]byte, 128)}
	b.ReportAllocs()
	for b.Loop() {
		br.Publish(&ns, p, func(hub.Position, error) {})
	}
}
