package nats

import (
	"context"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

// A broker that began without a log keeps marks from the first namespace on that has one,
// and compares a log with its mark before it is used.
func TestAnAddedLogHasAMark(t *testing.T) {
	s := serverIn(t)
	plain, ns := hub.Namespace{Name: "plain", Durability: hub.None}.WithDefaults(), hub.Namespace{Name: "a"}.WithDefaults()
	n, _ := startLogged(t, s, plain)
	b := n.Broker.(*Broker)
	if b.outside.Load() != nil {
		t.Fatal("marks are kept of no log")
	}
	if err := n.Add(ns); err != nil {
		t.Fatal(err)
	}
	first := n.Pub(&ns, "x", "1")
	n.Pub(&ns, "x", "2")
	hubtest.Until(t, patience, "a mark is written", func() bool {
		o := b.outside.Load()
		if o == nil {
			return false
		}
		m, known, err := o.last(t.Context(), "a")
		return err == nil && known && m.Last == 2 && m.Epoch == first.Epoch
	})
	if st := b.Stats(); st.Unmarked != 0 {
		t.Errorf("%d logs without a mark", st.Unmarked)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}

	// The log loses its end while no node serves it; it is added again to another broker.
	later, _ := startLogged(t, s, plain)
	c := later.Broker.(*Broker)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var answer struct{ Success bool }
	if err := c.request(ctx, "STREAM.MSG.DELETE."+c.cfg.Prefix+"_a", map[string]any{"seq": 2, "no_erase": true}, &answer); err != nil || !answer.Success {
		t.Fatal(answer, err)
	}
	if err := later.Add(ns); err != nil {
		t.Fatal(err)
	}
	if top := later.End(&ns); top.Epoch == first.Epoch {
		t.Errorf("a log that lost its end is believed: %v", top)
	}
}

// A namespace that could not be added can be once what was wrong has gone.
func TestANamespaceIsAddedAfterAFailure(t *testing.T) {
	s := serverIn(t)
	plain := hub.Namespace{Name: "plain", Durability: hub.None}.WithDefaults()
	n, _ := startLogged(t, s, plain)
	bad := hub.Namespace{Name: "a", Replicas: 3}.WithDefaults() // the server is not clustered
	if err := n.Add(bad); err == nil {
		t.Fatal("three replicas on one server")
	}
	if err := n.Ready(); err != nil {
		t.Errorf("the others are not ready: %v", err)
	}
	good := hub.Namespace{Name: "a"}.WithDefaults()
	if err := n.Add(good); err != nil {
		t.Fatal(err)
	}
	n.Sub(&good, "x", 0)
	n.Pub(&good, "x", "1")
	n.Await(&good, "x", 1)
}
