package app

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A change is a reload of the parts that can prepare theirs: what is wrong shows while they
// do, and nothing has changed yet.
type change struct {
	auth       *auth.Change
	sets       auth.KeySets // afterwards
	namespaces *hub.Change
	was, rules *access.Model // who may do what, before and afterwards
	dry        bool          // there will be no commit

	commits []func() // put in force what was prepared; none of them fails
	drops   []func() // release what was prepared, if something else was wrong
	after   []func() // what follows from the commits
}

func (c *change) commit() {
	for _, list := range [][]func(){c.commits, c.after} {
		for _, f := range list {
			f()
		}
	}
}

func (c *change) drop() {
	for i := len(c.drops) - 1; i >= 0; i-- {
		c.drops[i]()
	}
}

// A preparer has a part compile its section of next.
type preparer func(ctx context.Context, c *change, next *config.Config) error

// prepare has every part compile its section of next.
func (r *reloads) prepare(ctx context.Context, next *config.Config) (*change, error) {
	return r.prepareParts(ctx, &change{}, next, append(r.rights(), r.prepareLog, r.prepareAccessLog, r.prepareLimits, r.prepareExtensions, r.prepareSources))
}

// prepareDry has the parts say what would be that decide who may do what.
func (r *reloads) prepareDry(ctx context.Context, next *config.Config) (*change, error) {
	return r.prepareParts(ctx, &change{dry: true}, next, r.rights())
}

// rights are the parts that decide who may do what.
func (r *reloads) rights() []preparer {
	return []preparer{r.prepareAuth, r.prepareNamespaces, r.prepareProtocols, r.prepareAccess}
}

func (r *reloads) prepareParts(ctx context.Context, c *change, next *config.Config, parts []preparer) (*change, error) {
	c.auth = auth.NewChange()
	for _, part := range parts {
		if err := part(ctx, c, next); err != nil {
			c.drop()
			return nil, err
		}
	}
	return c, nil
}

// prepareAuth comes first: its Commit is what others may request.
func (r *reloads) prepareAuth(ctx context.Context, c *change, next *config.Config) error {
	a := r.app
	c.drops = append(c.drops, c.auth.Drop)
	if err := c.auth.Set(ctx, a.auth, next.Auth); err != nil {
		return err
	}
	was := a.keySets
	now, added, err := c.auth.KeysOf(ctx, was, next.Auth, next.KeySets, func(cfg auth.Config) (*auth.Authenticator, error) {
		k, err := auth.New(cfg, a.log)
		if err == nil {
			a.revocations.list.ShareWith(k)
		}
		return k, err
	})
	c.drops = append(c.drops, func() {
		for _, k := range added {
			_ = k.Close()
		}
	})
	if err != nil {
		return err
	}
	c.sets = now
	c.commits = append(c.commits, c.auth.Commit, func() { a.keySets = now })
	c.after = append(c.after, func() {
		for _, k := range added {
			a.runLater(k.Run)
		}
		for name, k := range was {
			if now[name] == nil {
				_ = k.Close()
			}
		}
	})
	return nil
}

// namespacePatience bounds how long a reload waits for the broker.
const namespacePatience = 30 * time.Second

func (r *reloads) prepareNamespaces(ctx context.Context, c *change, next *config.Config) error {
	a := r.app
	classes, err := a.push.PrepareClasses(next.Namespaces)
	if err != nil {
		return err
	}
	if c.namespaces, err = a.hub.Plan(namespaces(*next)); err != nil || c.dry {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, namespacePatience)
	defer cancel()
	c.commits = append(c.commits, c.namespaces.Commit, classes, func() { a.formats.SetNamespaces(next.Namespaces) })
	return c.namespaces.Add(ctx)
}

func (r *reloads) prepareProtocols(_ context.Context, c *change, next *config.Config) error {
	a := r.app
	p, find := &a.protocol, c.namespaces.Namespace
	commit := func(name string, replace func(), err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.commits = append(c.commits, replace)
		return nil
	}
	if s := p.Mercure.Load(); s != nil {
		replace, err := s.Prepare(next.Mercure, c.sets, find)
		if err := commit("mercure", replace, err); err != nil {
			return err
		}
	}
	if s := p.Centrifuge; s != nil {
		replace, err := s.Prepare(next.Centrifuge, c.sets, find)
		if err := commit("centrifuge", replace, err); err != nil {
			return err
		}
	}
	if s := p.Pusher; s != nil {
		replace, err := s.Prepare(next.Pusher, find)
		return commit("pusher", replace, err)
	}
	return nil
}

func (r *reloads) prepareAccess(_ context.Context, c *change, next *config.Config) error {
	a := r.app
	cfg := next.Access()
	c.was, c.rules = access.New(c.namespaces.Before, r.now().Access()), access.New(c.namespaces.Namespace, cfg)
	c.commits = append(c.commits, func() { a.access.Replace(access.New(a.hub.Namespace, cfg)) })
	return nil
}

func (r *reloads) prepareLog(_ context.Context, c *change, next *config.Config) error {
	a := r.app
	if a.opt.Level != nil {
		level := next.Log.Slog()
		c.commits = append(c.commits, func() { a.opt.Level.Set(level) })
	}
	return nil
}

// prepareAccessLog opens the file again even if it has the same name: it may have been
// moved away.
func (r *reloads) prepareAccessLog(_ context.Context, c *change, next *config.Config) error {
	a := r.app
	f, err := openAccessFile(next.AccessLog)
	if err != nil {
		return err
	}
	c.drops = append(c.drops, func() { _ = f.close() })
	c.after = append(c.after, func() { // the new routes write already
		w := &a.wing
		was := w.logs
		w.logs = f
		w.access.Redirect(f.w)
		if err := was.close(); err != nil {
			a.log.Warn("close the access log", "err", err)
		}
	})
	return nil
}

func (r *reloads) prepareExtensions(_ context.Context, c *change, next *config.Config) error {
	x, err := r.app.extensions.Prepare(next.Extensions, r.app.opt.Dial)
	if err != nil {
		return err
	}
	c.commits = append(c.commits, x.Commit)
	c.drops = append(c.drops, x.Drop)
	return nil
}

func (r *reloads) prepareLimits(_ context.Context, c *change, next *config.Config) error {
	a := r.app
	replace, err := a.admission.front.Prepare(next.Limits)
	if err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	c.commits = append(c.commits, replace)
	c.after = append(c.after, a.admission.countOpen)
	return nil
}
