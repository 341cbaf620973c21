package app

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// notifyReady notifies the service manager that the start has ended, and from then on that
// the loops turn, if it watches that.
func (a *App) notifyReady(parts *group, ctx context.Context) { //nolint:revive // the context is the parts', not this call's
	a.notified(a.opt.Service.Ready(a.serviceStatus()))
	if limit := a.opt.Service.Watchdog(); limit > 0 {
		parts.run(func() error { a.keepAlive(ctx, limit/2); return nil })
	}
}

func (a *App) serviceStatus() string { return fmt.Sprintf("serving on %s", a.URL()) }

// notified logs what kept the service manager from being notified. It restarts a service
// that is silent for too long, so that there is nothing else to do.
func (a *App) notified(err error) {
	if err != nil {
		a.log.Warn("the service manager is not notified", "err", err)
	}
}

// keepAlive notifies the service manager whenever every loop has turned since the last
// time, at most every interval: a process with a loop that is stuck is restarted.
func (a *App) keepAlive(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		turned := make(chan struct{})
		var left atomic.Int64
		left.Store(int64(len(a.loops.Loops())))
		for _, l := range a.loops.Loops() {
			l.Post(func() {
				if left.Add(-1) == 0 {
					close(turned)
				}
			})
		}
		select {
		case <-turned:
			a.notified(a.opt.Service.Alive())
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

// Reloading runs a reload that the service manager requested, and notifies it of the
// beginning and the end.
func (a *App) Reloading(reload func()) {
	a.notified(a.opt.Service.Reloading())
	reload()
	a.notified(a.opt.Service.Ready(a.serviceStatus()))
}
