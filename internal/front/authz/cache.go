package authz

import (
	"sync"
	"time"
)

// A cache keeps decisions until they expire. It is two generations of at most half of its bound:
// when the young one is full it becomes the old one, and the old one is dropped.
type cache struct {
	half int

	mu         sync.Mutex
	young, old map[key]entry
}

type entry struct {
	decision *Decision
	until    time.Time
}

func newCache(size int) cache { return cache{half: max(size/2, 1), young: map[key]entry{}} }

// get returns what was put under k, nil if nothing was or it has expired.
func (c *cache) get(k key, now time.Time) *Decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.young[k]
	if !ok {
		if e, ok = c.old[k]; !ok {
			return nil
		}
	}
	if !now.Before(e.until) {
		return nil
	}
	return e.decision
}

func (c *cache) put(k key, d *Decision, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.young[k]; !ok && len(c.young) >= c.half {
		c.young, c.old = map[key]entry{}, c.young
	}
	c.young[k] = entry{d, until}
}

func (c *cache) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.young) + len(c.old)
}
