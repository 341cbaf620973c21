package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/systemd"
)

// notifier keeps the service manager informed.
type notifier struct {
	service *systemd.Service // nil: there is none
	loops   *eventloop.Group
	log     *slog.Logger
	url     func() string
}

// ready notifies the service manager that the start has ended, and from then on that
// the loops turn, if it watches that.
func (n *notifier) ready(parts *group, ctx context.Context) { //nolint:revive // the context is the parts', not this call's
	n.notified(n.service.Ready(n.status()))
	if limit := n.service.Watchdog(); limit > 0 {
		parts.run(func() error { n.keepAlive(ctx, limit/2); return nil })
	}
}

func (n *notifier) status() string { return fmt.Sprintf("serving on %s", n.url()) }

// notified logs what kept the service manager from being notified. It restarts a service
// that is silent for too long, so that there is nothing else to do.
func (n *notifier) notified(err error) {
	if err != nil {
		n.log.Warn("the service manager is not notified", "err", err)
	}
}

// keepAlive notifies the service manager whenever every loop has turned since the last
// time, at most every interval: a process with a loop that is stuck is restarted.
func (n *notifier) keepAlive(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		turned := make(chan struct{})
		var left atomic.Int64
		left.Store(int64(len(n.loops.Loops())))
		for _, l := range n.loops.Loops() {
			l.Post(func() {
				if left.Add(-1) == 0 {
					close(turned)
				}
			})
		}
		select {
		case <-turned:
			n.notified(n.service.Alive())
		case <-ctx.Done():
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Reloading is App's.
func (n *notifier) Reloading(reload func()) {
	n.notified(n.service.Reloading())
	reload()
	n.notified(n.service.Ready(n.status()))
}
