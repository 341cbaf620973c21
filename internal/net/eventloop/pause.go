package eventloop

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A Pause is a time in which no loop of a group turns: connections, timers and handlers are
// as they are, and input waits in the sockets. It is short, and ends with Resume. Its methods
// are for one goroutine.
type Pause struct {
	points []*pausePoint
	once   sync.Once
}

// A pausePoint is where one loop stops.
type pausePoint struct {
	loop    *Loop
	entered chan struct{}
	work    chan func()
	done    chan struct{} // of the work
}

// ErrPaused reports that the loops are paused already.
var ErrPaused = errors.New("event loops: paused already")

// Pause stops the loops between two ticks. After an error they turn.
func (g *Group) Pause(ctx context.Context) (*Pause, error) {
	p := &Pause{}
	for _, l := range g.loops {
		at := &pausePoint{loop: l, entered: make(chan struct{}), work: make(chan func()), done: make(chan struct{})}
		p.points = append(p.points, at)
		if !l.Post(func() { l.pause = at }) {
			p.points = p.points[:len(p.points)-1]
			p.Resume()
			return nil, ErrStopped
		}
	}
	for _, at := range p.points {
		select {
		case <-at.entered:
		case <-ctx.Done():
			p.Resume()
			return nil, ctx.Err()
		}
	}
	return p, nil
}

// pauseTick is where the loop's goroutine is until Resume.
func (l *Loop) pauseTick() {
	at := l.pause
	l.pause = nil
	close(at.entered)
	for f := range at.work {
		l.now = int64(time.Since(l.base))
		l.guard(nil, f)
		at.done <- struct{}{}
	}
}

// Each runs f for every loop on its goroutine, at the same time, and returns when all have.
func (p *Pause) Each(f func(*Loop)) {
	for _, at := range p.points {
		at.work <- func() { f(at.loop) }
	}
	for _, at := range p.points {
		<-at.done
	}
}

// Settle has the loops do what others posted, without input of connections, until done
// holds. It reports false when that takes longer than within.
func (p *Pause) Settle(within time.Duration, done func() bool) bool {
	const pause = 200 * time.Microsecond
	for end := time.Now().Add(within); ; time.Sleep(pause) {
		settled := done() // before the turn: what it answered goes out with it
		p.Each(func(l *Loop) {
			if err := l.tick(); err != nil {
				l.stopping = true
			}
		})
		if settled {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// Resume lets the loops turn again. It is idempotent.
func (p *Pause) Resume() {
	p.once.Do(func() {
		for _, at := range p.points {
			close(at.work)
		}
	})
}
