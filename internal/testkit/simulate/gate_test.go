package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A gate is the broker of a node's hub. It holds every call that may wait until the schedule
// lets it through, and passes it to the memory broker or to a link of the store. What is planted
// by a mutant of the test is planted here.
type gate struct {
	w     *world
	name  string
	inner hub.Broker

	mu       sync.Mutex
	calls    []*call
	followed map[string]bool
}

// A call waits for its answer, which is made at one step and returned at another.
type call struct {
	name    string
	take    func() error
	taken   bool
	err     error
	release chan struct{}
}

var _ hub.Broker = (*gate)(nil)

func (g *gate) wait(ctx context.Context, name string, take func() error) error {
	c := &call{name: name, take: take, release: make(chan struct{})}
	g.mu.Lock()
	g.calls = append(g.calls, c)
	// Goroutines register in any order: the same seed must have the same calls.
	slices.SortStableFunc(g.calls, func(x, y *call) int { return strings.Compare(x.name, y.name) })
	g.mu.Unlock()
	select {
	case <-c.release:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pending returns how many calls wait.
func (g *gate) pending() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.calls)
}

// step takes one call further. away says that the broker cannot be reached.
func (g *gate) step(r *rand.Rand, away bool) {
	g.mu.Lock()
	if len(g.calls) == 0 {
		g.mu.Unlock()
		return
	}
	c := g.calls[r.IntN(len(g.calls))]
	g.mu.Unlock()
	switch {
	case away && r.IntN(3) > 0:
		return
	case away:
		c.err = hub.ErrUnavailable
	case !c.taken:
		c.taken = true
		c.err = c.take()
		if r.IntN(3) == 0 {
			return // its answer is on the way
		}
	}
	g.mu.Lock()
	g.calls = slices.DeleteFunc(g.calls, func(x *call) bool { return x == c })
	g.mu.Unlock()
	g.w.logf("%s: %s: %v", g.name, c.name, c.err)
	close(c.release)
}

// Start implements hub.Broker.
func (g *gate) Start(ctx context.Context, ns []hub.Namespace, deliver func(*hub.Message)) error {
	n := 0
	return g.inner.Start(ctx, ns, func(m *hub.Message) {
		n++
		if g.w.planted(dropDelivery) && n%7 == 0 && !m.Missing {
			return
		}
		if g.w.planted(dropDelivery) {
			m = copyOf(m)
			m.Prev = 0
		}
		deliver(m)
	})
}

func copyOf(m *hub.Message) *hub.Message {
	return &hub.Message{Channel: m.Channel, Key: m.Key, Data: m.Data, Time: m.Time, Epoch: m.Epoch, Offset: m.Offset, Prev: m.Prev, Missing: m.Missing, Check: m.Check}
}

// Publish implements hub.Broker.
func (g *gate) Publish(ns *hub.Namespace, p hub.Publication, done func(hub.Position, error)) {
	g.inner.Publish(ns, p, done)
}

// Subscribe implements hub.Broker.
func (g *gate) Subscribe(ctx context.Context, ns *hub.Namespace, channel string, tail int) (snap hub.Snapshot, err error) {
	g.mu.Lock()
	twice := g.followed[channel]
	g.followed[channel] = true
	g.mu.Unlock()
	if twice {
		g.w.fail("%s subscribes %s twice", g.name, channel)
	}
	err = g.wait(ctx, "subscribe "+channel, func() error {
		snap, err = g.inner.Subscribe(ctx, ns, channel, tail)
		g.spoilSnapshot(ns, channel, &snap)
		return err
	})
	if err != nil {
		g.mu.Lock()
		delete(g.followed, channel)
		g.mu.Unlock()
		g.inner.Unsubscribe(ns, channel)
	}
	return snap, err
}

func (g *gate) spoilSnapshot(ns *hub.Namespace, channel string, snap *hub.Snapshot) {
	switch e := g.w.ledger.epochs[snap.Top.Epoch]; {
	case g.w.planted(offByOne) && e != nil && e.number > 0:
		snap.Top.Offset++
	case g.w.planted(hideTrim):
		snap.FirstRetained = 1
	case g.w.planted(lateSubscribe) && len(snap.Messages) > 0:
		// The newest message came between the look at the log and the start of delivery.
		lost := snap.Messages[len(snap.Messages)-1]
		snap.Messages = snap.Messages[:len(snap.Messages)-1]
		snap.Top.Offset = max(snap.Top.Offset, lost.Offset)
	}
}

// Unsubscribe implements hub.Broker.
func (g *gate) Unsubscribe(ns *hub.Namespace, channel string) {
	if g.w.planted(leakSubscription) {
		return
	}
	g.mu.Lock()
	delete(g.followed, channel)
	g.mu.Unlock()
	g.inner.Unsubscribe(ns, channel)
}

// History implements hub.Broker.
func (g *gate) History(ctx context.Context, ns *hub.Namespace, channel string, since uint64, limit int) (page hub.Page, err error) {
	err = g.wait(ctx, fmt.Sprint("history ", channel, " ", since), func() error {
		page, err = g.inner.History(ctx, ns, channel, since, limit)
		switch {
		case g.w.planted(dropBoundary) && len(page.Messages) > 1:
			page.Messages = page.Messages[1:]
		case g.w.planted(hideTrim):
			page.FirstRetained = 1
		}
		return err
	})
	return page, err
}

// Prove implements hub.Broker.
func (g *gate) Prove(ctx context.Context, ns *hub.Namespace, p hub.Position) (c hub.Check, err error) {
	err = g.wait(ctx, fmt.Sprint("prove ", ns.Name, " ", p.Offset), func() error {
		c, err = g.inner.Prove(ctx, ns, p)
		return err
	})
	return c, err
}

// Top implements hub.Broker.
func (g *gate) Top(ctx context.Context, ns *hub.Namespace) (p hub.Position, err error) {
	err = g.wait(ctx, "top "+ns.Name, func() error {
		p, err = g.inner.Top(ctx, ns)
		return err
	})
	return p, err
}

// Ready implements hub.Broker.
func (g *gate) Ready() error { return g.inner.Ready() }

// Close implements hub.Broker.
func (g *gate) Close() error { return g.inner.Close() }

// left returns the channels that are still subscribed.
func (g *gate) left() (names []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range g.followed {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
