package accept

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
)

// A rendezvous has several loads begin together: when each has all its connections.
type rendezvous struct {
	left chan struct{} // one for each load that has its connections
	open chan struct{} // closed when all have
}

func newRendezvous(loads int) *rendezvous {
	return &rendezvous{left: make(chan struct{}, loads), open: make(chan struct{})}
}

// pass is called for a load that has its connections, and returns when all loads have.
func (g *rendezvous) pass(ctx context.Context) error {
	g.left <- struct{}{}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wait returns when all loads have their connections, at the latest after patience, with an error then.
func (g *rendezvous) wait(ctx context.Context, patience time.Duration) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	for n := range cap(g.left) {
		select {
		case <-g.left:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late.C:
			return fmt.Errorf("%d of %d loads have all their connections after %v", n, cap(g.left), patience)
		}
	}
	return nil
}

// load makes the loads at the same time, from when all have their connections, and keeps what they found.
func (w *world) load(ctx context.Context, name string, specs ...loadgen.Spec) ([]*loadgen.Result, error) {
	return w.loadThen(ctx, name, func() {}, specs...)
}

// loadThen is load, and calls connected when all connections of all loads are open and before their warm-up.
func (w *world) loadThen(ctx context.Context, name string, connected func(), specs ...loadgen.Spec) ([]*loadgen.Result, error) {
	loads, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results, errs := make([]*loadgen.Result, len(specs)), make([]error, len(specs))
	g, conns := newRendezvous(len(specs)), 0
	var all sync.WaitGroup
	for i, s := range specs {
		conns += s.Conns
		all.Go(func() {
			if results[i], errs[i] = w.run(loads, s, g.pass); errs[i] != nil {
				cancel(errs[i]) // the others would wait for it
			}
		})
	}
	if err := g.wait(loads, 3*time.Minute+connecting(conns)); err != nil {
		cancel(err)
	} else {
		connected()
		close(g.open)
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := context.Cause(loads); err != nil {
		return nil, errors.Join(append([]error{err}, others(errs, err)...)...)
	}
	for i, r := range results {
		addLimited(w, r.Windows)
		if err := w.keep(fmt.Sprintf("%s-%d.json", name, i+1), r); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// others are the errors that do not follow from first.
func others(errs []error, first error) (list []error) {
	for _, err := range errs {
		if err != nil && !errors.Is(err, first) && !errors.Is(err, context.Canceled) {
			list = append(list, err)
		}
	}
	return list
}

// run makes one load, in several processes where the plan has them. It begins when connected, called with all
// connections open, returns.
func (w *world) run(ctx context.Context, s loadgen.Spec, connected func(context.Context) error) (*loadgen.Result, error) {
	if n := w.plan.processes; n > 1 && w.opt.Processes != nil && s.Conns >= 1000*n {
		return w.opt.Processes(ctx, s, n, connected)
	}
	g, err := loadgen.New(s, nil)
	if err != nil {
		return nil, err
	}
	if err = g.Connect(ctx); err == nil {
		err = connected(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	r, err := g.Run(ctx)
	return r, errors.Join(err, g.Close())
}

// loadWatched is load, and watches the machine and s from the end of the warm-up on, for length: with connections
// still coming up, or not yet settled, a node grows. It notes how long connecting took. after is called with the
// connections open and may be nil.
func (w *world) loadWatched(ctx context.Context, s *process.Server, length time.Duration, after func(), specs ...loadgen.Spec) ([]*loadgen.Result, error) {
	began, warm := time.Now(), time.Duration(0)
	for _, one := range specs {
		warm = max(warm, one.Warmup)
	}
	stop := func() {}
	defer func() { stop() }()
	return w.loadThen(ctx, "load", func() {
		took := time.Since(began)
		w.ev.value("connecting", took.Seconds())
		w.progress("connected in %.1f s, settling for %v", took.Seconds(), warm.Round(100*time.Millisecond))
		stop = w.watch(ctx, s, warm, length)
		if after != nil {
			after()
		}
	}, specs...)
}

// connectingTook is the criterion of the time that loadWatched notes.
func connectingTook() criterion {
	return criterion{name: "connecting", what: "time until all were connected", kind: info, unit: seconds}
}
