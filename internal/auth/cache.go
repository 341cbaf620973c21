package auth

import (
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"time"
)

// cache remembers verified tokens by their SHA-256, so that a storm of
// reconnects costs one hash each. Only tokens that held are in it: nobody can
// fill it with garbage.
//
// It is two generations of at most size/2 entries. When the young one is full it
// becomes the old one and the old one is forgotten, so the bound holds without a
// list and readers need no lock.
type cache struct {
	half int // entries per generation; 0: the cache is off
	gens atomic.Pointer[generations]

	mu sync.Mutex // guards additions to gens.young and the swap
	n  int        // entries added to young
}

type generations struct{ young, old *sync.Map } // [32]byte → *entry

// An entry ends with its token, and with the key that verified it.
type entry struct {
	id        *Identity
	key       *key
	notBefore time.Time
}

func newCache(size int) *cache {
	c := &cache{half: max(0, (size+1)/2)}
	c.gens.Store(&generations{new(sync.Map), new(sync.Map)})
	return c
}

// get never waits.
func (c *cache) get(sum [sha256.Size]byte, now time.Time) (*Identity, bool) {
	g := c.gens.Load()
	v, ok := g.young.Load(sum)
	aged := !ok
	if !ok {
		if v, ok = g.old.Load(sum); !ok {
			return nil, false
		}
	}
	e := v.(*entry)
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
		g = &generations{young: new(sync.Map), old: g.young}
		c.gens.Store(g)
		c.n = 0
	}
	if _, had := g.young.Swap(sum, e); !had {
		c.n++
	}
}
