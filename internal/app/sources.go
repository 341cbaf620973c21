package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/push/ingest"
)

// startSources reads the sources until the returned function is called: when this process
// drains or another one has taken over. The hub, and the cluster if there is one, have started.
func (a *App) startSources(parts *group, ctx context.Context) (stop func(), err error) { //nolint:revive // the context is the parts', not this call's
	if !a.cfg.Pushes() {
		return func() {}, nil
	}
	deps := ingest.Deps{Publish: a.hub.Publish, Log: a.log}
	if c := a.protocol.Cluster; c != nil {
		deps.Leads = func(name string) bool { return c.Owns("source/" + name) }
	}
	set := ingest.NewSet(deps, a.hub.Bus())
	if err := set.Replace(a.cfg.Specs()); err != nil {
		return nil, err
	}
	a.sources.Store(set)
	ctx, stop = context.WithCancel(ctx)
	parts.run(func() error { return set.Run(ctx) })
	return stop, nil
}

// sourceStates returns what the sources do. Any goroutine.
func (a *App) sourceStates() []ingest.State {
	if set := a.sources.Load(); set != nil {
		return set.States()
	}
	return []ingest.State{}
}

// pauseSource pauses a source on all nodes, or resumes it. Any goroutine.
func (a *App) pauseSource(name string, paused bool) (ingest.State, error) {
	set := a.sources.Load()
	if set == nil {
		return ingest.State{}, fmt.Errorf("%w: source %.40q: there are no sources", admin.ErrNotFound, name)
	}
	v, err := set.Pause(name, paused)
	if errors.Is(err, ingest.ErrUnknown) {
		err = fmt.Errorf("%w: %w", admin.ErrNotFound, err)
	}
	return v, err
}

// prepareSources checks the sources; those that changed start again after the commit.
func (r *reloads) prepareSources(_ context.Context, c *change, next *config.Config) error {
	set := r.app.sources.Load()
	if set == nil {
		return nil
	}
	specs := next.Specs()
	if err := ingest.Check(specs); err != nil {
		return err
	}
	c.after = append(c.after, func() {
		if err := set.Replace(specs); err != nil {
			r.app.log.Error("sources are not replaced", "err", err)
		}
	})
	return nil
}
