package loadgen

import "sync/atomic"

// A quota is how many exchanges a run may make. The zero value sets no limit. Any
// goroutine.
type quota struct {
	limit        atomic.Uint64 // 0: as many as there is time for
	taken, ended atomic.Uint64
	done         chan struct{} // closed when limit exchanges have ended
}

// reset starts a run of n exchanges; 0 sets no limit. Nothing may be under way.
func (q *quota) reset(n int) {
	q.taken.Store(0)
	q.ended.Store(0)
	q.done = make(chan struct{})
	q.limit.Store(uint64(n))
}

// take is the right to start one more exchange.
func (q *quota) take() bool {
	limit := q.limit.Load()
	if limit == 0 || q.taken.Add(1) <= limit {
		return true
	}
	q.taken.Store(limit) // others may have gone past it too
	return false
}

// end notes that an exchange has ended: answered, failed or dropped.
func (q *quota) end() {
	if limit := q.limit.Load(); limit > 0 && q.ended.Add(1) == limit {
		close(q.done)
	}
}
