package metrics

import "sync/atomic"

// A Ring is a bounded queue from one goroutine to another. When it is full what is
// put is dropped and counted: the writer never waits.
type Ring[T any] struct {
	// Fixed at NewRing.
	slots []T
	mask  uint64

	// The writer moves tail, the reader head; each on a line of its own, or they
	// would take it from each other.
	_       [64]byte
	tail    atomic.Uint64
	dropped atomic.Uint64
	_       [48]byte
	head    atomic.Uint64
}

// NewRing returns a ring for at least n values.
func NewRing[T any](n int) *Ring[T] {
	size := 1
	for size < n {
		size *= 2
	}
	return &Ring[T]{slots: make([]T, size), mask: uint64(size - 1)}
}

// Put adds v, or drops it when there is no room. The writer only.
func (r *Ring[T]) Put(v T) bool {
	t := r.tail.Load()
	if t-r.head.Load() == uint64(len(r.slots)) {
		r.dropped.Store(r.dropped.Load() + 1)
		return false
	}
	r.slots[t&r.mask] = v
	r.tail.Store(t + 1)
	return true
}

// Drain hands everything that waits to f, oldest first, and returns how many there
// were. The reader only.
func (r *Ring[T]) Drain(f func(T)) int {
	h, t := r.head.Load(), r.tail.Load()
	var zero T
	for i := h; i != t; i++ {
		v := r.slots[i&r.mask]
		r.slots[i&r.mask] = zero // what it points to may go
		r.head.Store(i + 1)
		f(v)
	}
	return int(t - h)
}

// Dropped returns how many values found no room. Any goroutine.
func (r *Ring[T]) Dropped() uint64 { return r.dropped.Load() }

// Len returns how many values wait. Any goroutine.
func (r *Ring[T]) Len() int {
	h := r.head.Load() // first: it never passes a tail that is read later
	return int(r.tail.Load() - h)
}
