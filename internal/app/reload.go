package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
)

// reloads is what reading the configuration again needs and has done.
type reloads struct {
	app        *App
	loaded     stamp // of the file as it was at New
	sync.Mutex       // one reload at a time

	// Any goroutine.
	inForce atomic.Pointer[config.Config] // what runs: the newest, but for keys that wait for a restart
	waiting atomic.Pointer[[]string]      // the keys that wait
	done    atomic.Uint64
}

// now is the configuration that runs now. It must not be changed. Any goroutine.
func (r *reloads) now() *config.Config { return r.inForce.Load() }

// Reloaded reports what a reload did.
type Reloaded struct {
	// Applied are the keys that took effect, Waiting those that differ from what runs and
	// wait for a restart.
	Applied []string `json:"applied"`
	Waiting []string `json:"waiting_for_restart"`
	// Closed counts the connections whose rights were taken away.
	Closed config.Closing `json:"closed"`
}

// Reload reads the configuration and the certificates again and applies what can be
// applied to a running server. It closes no connection but those whose rights are taken
// away. After an error everything is as it was. Any goroutine.
func (a *App) Reload(ctx context.Context) (Reloaded, error) {
	a.reload.Lock()
	defer a.reload.Unlock()
	if a.startTook.Load() == 0 {
		return Reloaded{}, errors.New("the server has not started yet: reload it then")
	}
	was := a.reload.now()
	wanted := *was
	if a.opt.Load != nil {
		var err error
		if wanted, err = a.opt.Load(); err != nil {
			return Reloaded{}, err
		}
	}
	changes := config.Diff(*was, wanted)
	next := config.Merge(*was, wanted)
	done := Reloaded{Applied: config.Applied(changes), Waiting: config.Waiting(changes)}
	if err := next.Validate(); err != nil {
		if len(done.Waiting) > 0 && wanted.Validate() == nil {
			err = fmt.Errorf("it needs keys that wait for a restart (%v): %w", done.Waiting, err)
		}
		return Reloaded{}, err
	}
	if err := a.reload.apply(ctx, was, &next, len(done.Applied) > 0, &done.Closed); err != nil {
		return Reloaded{}, err
	}
	a.reload.inForce.Store(&next)
	a.reload.waiting.Store(&done.Waiting)
	a.reload.done.Add(1)
	a.log.Info("configuration reloaded", "applied", done.Applied, "waiting_for_restart", done.Waiting, "closed", done.Closed.Connections)
	return done, nil
}

// Preview reports what a reload of the configuration in text would change. Any goroutine.
func (a *App) Preview(ctx context.Context, text []byte) (config.Preview, error) {
	if text == nil {
		text = []byte{}
	}
	wanted, err := config.Load(config.Sources{File: "configuration", Text: text}, Check)
	if err != nil {
		return config.Preview{}, err
	}
	a.reload.Lock()
	defer a.reload.Unlock()
	was := a.reload.now()
	p := config.NewPreview(*was, wanted)
	if a.startTook.Load() == 0 {
		return p, nil
	}
	p.Closing = &config.Closing{Protocols: map[string]int{}}
	if len(p.Applied) == 0 {
		return p, nil
	}
	next := config.Merge(*was, wanted)
	c, err := a.reload.prepareDry(ctx, &next)
	if err != nil {
		return config.Preview{}, err
	}
	defer c.drop()
	r := reviewOf(c)
	r.Dry = true
	*p.Closing = a.reload.review(ctx, r)
	return p, nil
}

// apply puts next in force, in which something differs from was if changed. After an error
// was is in force. It says how many connections it has closed.
func (r *reloads) apply(ctx context.Context, was, next *config.Config, changed bool, closed *config.Closing) error {
	set, err := r.app.wing.routes(*next)
	if err != nil {
		return err
	}
	c, err := r.prepare(ctx, next)
	if err != nil {
		return err
	}
	if err := r.replaceRoutes(ctx, was, next, set, changed); err != nil {
		c.drop()
		return err
	}
	if err := c.namespaces.Apply(ctx); err != nil {
		c.drop()
		if before, again := r.app.wing.routes(*was); again == nil {
			again = r.replaceRoutes(ctx, next, was, before, changed)
			err = errors.Join(err, again)
		}
		return err
	}
	requested := reviewOf(c)
	c.commit()
	*closed = r.review(ctx, requested)
	return nil
}

// replaceRoutes puts routes, the clusters that they lead to and certificates in force. After
// an error those of was are.
func (r *reloads) replaceRoutes(ctx context.Context, was, next *config.Config, set *policy.Set, changed bool) error {
	if r.app.tls != nil {
		if err := r.app.tls.Reload(); err != nil {
			return fmt.Errorf("tls: %w", err)
		}
	}
	// Clusters first: the new routes must find theirs. Those that are gone continue
	// serving the old routes until these are. Where nothing was written anew the files
	// of their certificates may have been.
	if err := r.app.wing.upstreams.Replace(ctx, next.Clusters, next.Splits); err != nil {
		return err
	}
	if changed {
		set.Watch(r.app.wing.upstreams)
		if err := r.app.wing.setRoutes(set); err != nil {
			return errors.Join(err, r.app.wing.upstreams.Replace(ctx, was.Clusters, was.Splits))
		}
	}
	return nil
}

// watch reloads when the configuration's file has changed and then rests for a
// look: a file that is being written is not read half. An empty one was truncated and is
// not written yet, which on a busy machine can take longer than a look.
func (r *reloads) watch(ctx context.Context) error {
	every := time.Duration(r.app.cfg.Reload.Watch)
	if r.app.opt.File == "" || every < 0 {
		return nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	applied := r.loaded
	seen := applied
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := stampOf(r.app.opt.File)
		settled := now == seen
		seen = now
		if !settled || now == applied || now.size == 0 {
			continue
		}
		applied = now
		if _, err := r.app.Reload(ctx); err != nil {
			r.app.log.Error("the changed configuration is not applied, everything stays as it was", "file", r.app.opt.File, "err", err)
		}
	}
}

// stamp identifies a state of a file.
type stamp struct {
	modified time.Time
	size     int64
}

// stampOf follows links: a mounted configuration is replaced by turning one.
func stampOf(path string) stamp {
	fi, err := os.Stat(path)
	if err != nil {
		return stamp{} // being replaced: there will be another look
	}
	return stamp{fi.ModTime(), fi.Size()}
}
