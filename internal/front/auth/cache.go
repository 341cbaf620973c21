package auth

import (
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"time"
)

// cache remembers verified tokens by their SHA-256, so that a storm of
// reconnects costs one hash each. Only valid tokens are in it: an attacker cannot
// fill it with garbage.
//
// It is two generations of at most size/2 entries. When the young one is full it
// becomes the old one and the old one is forgotten, so the bound holds without a
// list.
type cache struct {
	half int // entries per generation; 0: the cache is off
	gens atomic.Pointer[generations]

	mu sync.Mutex // guards additions to gens.young and the swap
	n  int        // entries added to young
}

type generations struct{ young, old *shelf }

// A shelf is a map in parts, each under a lock of its own that is held for one
// look-up: loops that meet there do so for nanoseconds, and unlike with a sync.Map
// looking up allocates nothing.
type shelf [64]struct {
	mu sync.RWMutex
	m  map[[sha256.Size]byte]*entry
}

func (s *shelf) load(sum [sha256.Size]byte) (*entry, bool) {
	part := &s[sum[0]%64]
	part.mu.RLock()
	e, ok := part.m[sum]
	part.mu.RUnlock()
	return e, ok
}

// store reports whether sum was there before.
func (s *shelf) store(sum [sha256.Size]byte, e *entry) (had bool) {
	part := &s[sum[0]%64]
	part.mu.Lock()
	defer part.mu.Unlock()
	if part.m == nil {
		part.m = map[[sha256.Size]byte]*entry{}
	}
	_, had = part.m[sum]
	part.m[sum] = e
	return had
}

// An entry ends with its token, and with the key that verified it.
type entry struct {
	id        *Identity
	key       *key
	notBefore time.Time
}

func newCache(size int) *cache {
	c := &cache{half: max(0, (size+1)/2)}
	c.gens.Store(&generations{new(shelf), new(shelf)})
	return c
}

// get never waits for more than another look-up.
func (c *cache) get(sum [sha256.Size]byte, now time.Time) (*Identity, bool) {
	g := c.gens.Load()
	e, ok := g.young.load(sum)
	aged := !ok
	if !ok {
		if e, ok = g.old.load(sum); !ok {
			return nil, false
		}
	}
	if e.key.gone.Load() || e.id.Expired(now) || now.Before(e.notBefore) {
		return nil, false
	}
	// An entry in use moves up, unless someone else holds the lock: then the next
	// use moves it.
	if aged && c.mu.TryLock() {
		c.add(sum, e)
		c.mu.Unlock()
	}
	return e.id, true
}

func (c *cache) put(sum [sha256.Size]byte, e *entry) {
	if c.half == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(sum, e)
}

func (c *cache) add(sum [sha256.Size]byte, e *entry) {
	g := c.gens.Load()
	if c.n >= c.half {
		g = &generations{young: new(shelf), old: g.young}
		c.gens.Store(g)
		c.n = 0
	}
	if had := g.young.store(sum, e); !had {
		c.n++
	}
}
