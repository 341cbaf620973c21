package eventloop

import (
	"sync"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/net/poller"
)

// An inbox is what others want a loop to do, and how they wake it. Its methods may be
// called from any goroutine, but for take and slept.
//
// It has no bound of its own: what posts is bounded (one outstanding request per
// connection, a fixed number of workers, the sweepers).
type inbox struct {
	// Fixed at New.
	poller poller.Poller

	mu     sync.Mutex
	queue  []func()
	closed bool

	woken    atomic.Bool // something was posted since the last tick
	sleeping atomic.Bool // the poller may be waiting
}

const keepInbox = 1 << 12

// Post makes the loop run f in its next tick. Any goroutine may call it. It
// returns false when the loop has ended and f will never run.
func (i *inbox) Post(f func()) bool {
	i.mu.Lock()
	if i.closed {
		i.mu.Unlock()
		return false
	}
	i.queue = append(i.queue, f)
	i.mu.Unlock()
	i.Wake()
	return true
}

// Wake makes the loop tick soon. Any goroutine may call it; it costs a system
// call at most once per sleep of the loop.
func (i *inbox) Wake() {
	if i.woken.Load() {
		return // its setter does the rest, and the tick is still to come
	}
	i.woken.Store(true)
	if !i.sleeping.CompareAndSwap(true, false) {
		return
	}
	i.mu.Lock() // a poller that is released must not be woken
	if !i.closed {
		i.poller.Wake()
	}
	i.mu.Unlock()
}

// take returns what is to be run, and gathers what comes next in spare.
func (i *inbox) take(spare []func()) []func() {
	i.mu.Lock()
	defer i.mu.Unlock()
	posted := i.queue
	i.queue = spare
	return posted
}

// slept ends a sleep: what is posted from now on wakes anew.
func (i *inbox) slept() {
	i.sleeping.Store(false)
	if i.woken.Load() {
		i.woken.Store(false) // before the inbox is read
	}
}

// refuse makes Post return false from now on, and returns what is left to run.
func (i *inbox) refuse() []func() {
	i.mu.Lock()
	defer i.mu.Unlock()
	rest := i.queue
	i.closed, i.queue = true, nil
	return rest
}

// length is how many functions wait.
func (i *inbox) length() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.queue)
}
