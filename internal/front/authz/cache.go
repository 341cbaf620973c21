package authz

import (
	"crypto/sha256"
	"sync"
	"time"
)

// A Key is what a decision depends on, hashed.
type Key [sha256.Size]byte

// A Cache keeps values until they expire. It is two generations of at most half of its bound:
// when the young one is full it becomes the old one, and the old one is dropped. Any goroutine.
type Cache[V any] struct {
	half int

	mu         sync.Mutex // guards what follows
	young, old map[Key]entry[V]
}

type entry[V any] struct {
	value V
	until time.Time
}

// NewCache returns a Cache of at most size values, at least 2.
func NewCache[V any](size int) *Cache[V] {
	return &Cache[V]{half: max(size/2, 1), young: map[Key]entry[V]{}}
}

// Get returns what was put under k, unless it has expired.
func (c *Cache[V]) Get(k Key, now time.Time) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.young[k]
	if !ok {
		e, ok = c.old[k]
	}
	if !ok || !now.Before(e.until) {
		return v, false
	}
	return e.value, true
}

// Put keeps v under k until then.
func (c *Cache[V]) Put(k Key, v V, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.young[k]; !ok && len(c.young) >= c.half {
		c.young, c.old = map[Key]entry[V]{}, c.young
	}
	c.young[k] = entry[V]{v, until}
}

// Len returns how many values there are, expired ones included.
func (c *Cache[V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.young) + len(c.old)
}
