// Package ingesttest runs sources against a hub in tests. Only tests import it.
package ingesttest

import (
	"context"
	"testing"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// Hub starts a hub on the memory broker with these namespaces until the test ends.
func Hub(t testing.TB, namespaces ...hub.Namespace) *hub.Hub {
	t.Helper()
	b, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(hub.Config{Namespaces: namespaces}, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// Run reads sources into h until the returned function is called, or the test ends.
func Run(t testing.TB, h *hub.Hub, deps ingest.Deps, specs ...ingest.Spec) (set *ingest.Set, stop func()) {
	t.Helper()
	if deps.Publish == nil {
		deps.Publish = h.Publish
	}
	set = ingest.NewSet(deps, h.Bus())
	if err := set.Replace(specs); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return set, stop
}

// Log returns the payloads of channel, oldest first.
func Log(t testing.TB, h *hub.Hub, channel string) []string {
	t.Helper()
	log, err := h.History(context.Background(), channel, hub.HistoryOptions{Limit: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range log.Messages {
		all = append(all, string(m.Data))
	}
	return all
}

// Await waits until channel has at least n messages, and returns them.
func Await(t testing.TB, h *hub.Hub, channel string, n int) (all []string) {
	t.Helper()
	trial.Eventually(t, "the messages are in the log", func() bool {
		all = Log(t, h, channel)
		return len(all) >= n
	})
	return all
}

// State returns what the source called name does.
func State(t testing.TB, set *ingest.Set, name string) ingest.State {
	t.Helper()
	for _, s := range set.States() {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("there is no source %s", name)
	return ingest.State{}
}
