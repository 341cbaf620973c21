package nats

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

// The node leaves its NATS server for another while channels are subscribed and
// read: none of it fails.
func TestReadsContinueAfterAReconnect(t *testing.T) {
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	b := newBroker(t, Config{URL: c.url()})
	b.patience = patience // a busy machine may take longer than a cluster should
	n := hubtest.Start(t, b, patience, ns)
	const channels, switches = 300, 3
	var wg sync.WaitGroup
	for i := range channels {
		name := fmt.Sprint("c", i)
		n.Pub(&ns, name, name)
	}
	for i := range channels {
		name := fmt.Sprint("c", i)
		if i%(channels/switches) == 0 {
			l := b.link.Load()
			wg.Wait()
			if err := b.nc.ForceReconnect(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if b.link.Load() == l {
					t.Error("the connection was not made again")
				}
			}()
		}
		wg.Go(func() {
			snap, err := n.Subscribe(t.Context(), &ns, hubtest.Channel(&ns, name), 8)
			if err != nil || len(snap.Messages) != 1 {
				t.Errorf("subscribe %s: %d messages, %v", name, len(snap.Messages), err)
			}
			if p, err := n.History(t.Context(), &ns, hubtest.Channel(&ns, name), 0, 8); err != nil || len(p.Messages) != 1 {
				t.Errorf("history of %s: %d messages, %v", name, len(p.Messages), err)
			}
			if _, err := n.Top(t.Context(), &ns); err != nil {
				t.Error("top:", err)
			}
		})
	}
	wg.Wait()
	for i := range channels {
		n.Pub(&ns, fmt.Sprint("c", i), "live")
	}
	for i := range channels {
		n.Await(&ns, fmt.Sprint("c", i), 1)
	}
}

// While no server is there for long, reads are answered at once.
func TestReadsDoNotWaitInALongOutage(t *testing.T) {
	t.Parallel()
	c := external(t)
	p := c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{URL: c.url()}, ns)
	b := n.Broker.(*Broker)
	p.kill()
	hubtest.Until(t, patience, "the outage to be long", func() bool {
		lost := b.link.Load().lost.Load()
		return lost != 0 && time.Now().UnixNano()-lost > int64(reconnectPatience)
	})
	calls := 0
	err := b.again(t.Context(), func() error { calls++; return errDisconnected })
	if !errors.Is(err, hub.ErrUnavailable) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
