package pusher

import (
	"context"
	"sync"
)

// hookRunner runs the webhooks of all apps.
type hookRunner struct {
	mu    sync.Mutex
	start func(*hook) // nil before run, and after end
}

// run runs all webhooks, and those that a reload adds, until ctx ends.
func (r *hookRunner) run(ctx context.Context, wg *sync.WaitGroup, all map[*hook]*app) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start = func(h *hook) {
		own, stop := context.WithCancel(ctx)
		h.stop = stop
		wg.Go(func() { h.run(own) })
	}
	for h := range all {
		r.start(h)
	}
}

// end lets no more start.
func (r *hookRunner) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start = nil
}

// turn starts the webhooks that are new, and ends those that are gone after what waits in
// them.
func (r *hookRunner) turn(before, next *settings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	had, has := before.hooks(), next.hooks()
	for h, a := range has {
		h.app.Store(a) // its secret may be another
		if had[h] == nil && r.start != nil {
			r.start(h)
		}
	}
	for h := range had {
		if has[h] == nil && h.stop != nil {
			h.stop()
		}
	}
}
