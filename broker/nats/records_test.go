package nats_test

import (
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// recordsNode is a node's view of records.
type recordsNode struct {
	*nats.Records
	mu sync.Mutex
	m  map[string]string
}

func (n *recordsNode) get(key string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.m[key]
}

func openRecords(t *testing.T, url string) *recordsNode {
	t.Helper()
	b, err := nats.New(nats.Config{URL: url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context(), nil, func(*hub.Message) {}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	n := &recordsNode{m: map[string]string{}}
	n.Records, err = nats.OpenRecords(t.Context(), b, "things", 1, time.Hour, func(key string, value []byte) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.m[key] = string(value); value == nil {
			delete(n.m, key)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// Every node has what is stored, also one that starts later, and what was forgotten is not there for
// those that start after that.
func TestRecordsAreOnEveryNode(t *testing.T) {
	url := natstest.Server(t)
	a, b := openRecords(t, url), openRecords(t, url)
	has := func(n *recordsNode, key, want string) {
		t.Helper()
		trial.Eventually(t, key+" is "+want, func() bool { return n.get(key) == want })
	}
	put := func(n *recordsNode, key, value string) {
		t.Helper()
		if err := n.Put(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	put(a, "x", "1")
	put(a, "y", "2")
	put(b, "x", "3")
	for _, n := range []*recordsNode{a, b} {
		has(n, "x", "3")
		has(n, "y", "2")
	}
	c := openRecords(t, url)
	if c.get("x") != "3" || c.get("y") != "2" { // at once
		t.Errorf("a later node has %q and %q", c.get("x"), c.get("y"))
	}
	if err := c.Remove(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if err := c.Forget(t.Context(), "y"); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*recordsNode{a, b, c} {
		has(n, "x", "")
		has(n, "y", "2") // it ends by itself
	}
	if d := openRecords(t, url); d.get("x") != "" || d.get("y") != "" {
		t.Errorf("removed, and a later node has %q and %q", d.get("x"), d.get("y"))
	}
}

// What a node knows of a value that another has replaced does not remove the new one.
func TestForgetKeepsNewerRecords(t *testing.T) {
	url := natstest.Server(t)
	a := openRecords(t, url)
	if err := a.Put(t.Context(), "x", []byte("1")); err != nil {
		t.Fatal(err)
	}
	trial.Eventually(t, "x is there", func() bool { return a.get("x") == "1" })
	_ = a.Close() // it follows no changes any more
	b := openRecords(t, url)
	if err := b.Put(t.Context(), "x", []byte("2")); err != nil {
		t.Fatal(err)
	}
	if err := a.Forget(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if c := openRecords(t, url); c.get("x") != "2" {
		t.Errorf("a later node has %q", c.get("x"))
	}
}
