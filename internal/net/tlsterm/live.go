package tlsterm

import "sync"

// liveSet are handshakes under way, so that they can be ended. Any goroutine.
type liveSet[T comparable] struct {
	mu  sync.Mutex
	set map[T]struct{} // nil once closed
}

func newLiveSet[T comparable]() liveSet[T] { return liveSet[T]{set: map[T]struct{}{}} }

// add returns false if the set is closed.
func (l *liveSet[T]) add(x T) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.set == nil {
		return false
	}
	l.set[x] = struct{}{}
	return true
}

func (l *liveSet[T]) remove(x T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.set, x)
}

// close ends all, and accepts no more.
func (l *liveSet[T]) close(end func(T)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for x := range l.set {
		end(x)
	}
	l.set = nil
}
