package app

import (
	"errors"
	"sync"
)

// group runs parts and stops all of them when one fails.
type group struct {
	stop func()
	done sync.WaitGroup
	mu   sync.Mutex
	err  error
}

func newGroup(stop func()) *group { return &group{stop: stop} }

func (g *group) run(f func() error) {
	g.done.Go(func() {
		if err := f(); err != nil {
			g.mu.Lock()
			g.err = errors.Join(g.err, err)
			g.mu.Unlock()
			g.stop()
		}
	})
}

func (g *group) wait() error {
	g.done.Wait()
	return g.err
}
