package app

import (
	"fmt"

	"github.com/weir-gateway/weir/internal/config"
)

// A change is a reload of the parts that can prepare theirs: what is wrong shows while they
// do, and nothing has changed yet.
type change struct {
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

// prepare has every part compile its section of next.
func (a *App) prepare(was, next *config.Config) (*change, error) {
	c := &change{}
	for _, part := range []func(c *change, was, next *config.Config) error{a.prepareLog, a.prepareAccessLog, a.prepareLimits} {
		if err := part(c, was, next); err != nil {
			c.drop()
			return nil, err
		}
	}
	return c, nil
}

func (a *App) prepareLog(c *change, _, next *config.Config) error {
	if a.opt.Level != nil {
		level := next.Log.Slog()
		c.commits = append(c.commits, func() { a.opt.Level.Set(level) })
	}
	return nil
}

// prepareAccessLog opens the file again even if it has the same name: it may have been
// moved away.
func (a *App) prepareAccessLog(c *change, _, next *config.Config) error {
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

func (a *App) prepareLimits(c *change, _, next *config.Config) error {
	replace, err := a.admission.front.Prepare(next.Limits)
	if err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	c.commits = append(c.commits, replace)
	c.after = append(c.after, a.countOpen)
	return nil
}
