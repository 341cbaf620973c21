package limit

import (
	"cmp"
	"hash/maphash"
	"math"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// ways is how many buckets a set has: one key can be in any of them. A set is two
// cache lines.
const ways = 8

// DefaultBuckets is the size of a Table when 0 is asked for.
const DefaultBuckets = 1 << 16

// A Table is a bounded number of token buckets, each by a key.
//
// A bucket is one number, the theoretical arrival time of the generic cell rate
// algorithm (ITU-T I.371): the time at which it will be full again. A request
// moves it on by one compare-and-swap, so a bucket that is there already is used
// without a lock, from any loop. Only a new key takes its set's lock, for a few
// stores.
//
// Nodes of a cluster can share the buckets: see Share.
//
// At the bound a new key takes the place of the bucket in its set that is full
// again, or will be first: what is forgotten is the least that could be. A bucket
// forgotten before it was full lets its owner begin anew; Evicted counts those.
type Table struct {
	// Fixed at NewTable.
	seed maphash.Seed
	sets []set
	mask uint64

	// Any goroutine.
	locks   [64]sync.Mutex // of sets, by their lowest bits: guard who owns a way
	evicted atomic.Uint64
	refused atomic.Uint64
	sharing atomic.Pointer[sharing] // nil: the buckets are this node's alone
}

type set struct {
	key [ways]atomic.Uint64 // 0: free
	tat [ways]atomic.Int64
}

// NewTable returns a Table of at least n buckets; 0 means DefaultBuckets. It
// takes 16 bytes for each, at once and for good.
func NewTable(n int) *Table {
	if n <= 0 {
		n = DefaultBuckets
	}
	sets := 1 << bits.Len(uint((n+ways-1)/ways-1))
	return &Table{seed: maphash.MakeSeed(), sets: make([]set, sets), mask: uint64(sets - 1)}
}

// Key makes the key of name in the space of scope: equal names in two scopes are
// two buckets. It is a keyed hash, so a client cannot target another's bucket.
func (t *Table) Key(scope uint64, name []byte) uint64 {
	if x := t.sharing.Load(); x != nil {
		return spread(sipHash(&x.key, name), scope)
	}
	return spread(maphash.Bytes(t.seed, name), scope)
}

// FixedKey makes a key of a scope alone, that of a bucket that no client's name leads to. It is the
// same in all tables, on all nodes and at any time.
func FixedKey(scope uint64) uint64 { return spread(0x9E3779B97F4A7C15, scope) }

// KeyString is Key for a string.
func (t *Table) KeyString(scope uint64, name string) uint64 {
	if x := t.sharing.Load(); x != nil {
		return spread(sipHash(&x.key, name), scope)
	}
	return spread(maphash.String(t.seed, name), scope)
}

// KeyAddr is Key for an address. Of an IPv6 address only the first v6Bits bits
// count, 0 means 64: one customer is given that much. IPv4-mapped addresses are
// the IPv4 addresses.
func (t *Table) KeyAddr(scope uint64, a netip.Addr, v6Bits int) uint64 {
	b := Network(a, v6Bits).As16()
	if x := t.sharing.Load(); x != nil {
		return spread(sipHash(&x.key, b[:]), scope)
	}
	return spread(maphash.Bytes(t.seed, b[:]), scope)
}

// Network returns a with the bits after the first v6Bits cleared if it is IPv6;
// 0 means 64. An IPv4-mapped address is unmapped.
func Network(a netip.Addr, v6Bits int) netip.Addr {
	a = a.Unmap().WithZone("")
	v6Bits = cmp.Or(v6Bits, 64)
	if !a.Is6() {
		return a
	}
	p, err := a.Prefix(v6Bits)
	if err != nil {
		return a
	}
	return p.Addr()
}

// spread mixes a scope into a hash; 0 means a free way.
func spread(h, scope uint64) uint64 {
	h ^= scope * 0x9E3779B97F4A7C15
	h ^= h >> 29
	h *= 0xBF58476D1CE4E5B9
	h ^= h >> 32
	return max(1, h)
}

// Allow takes one token from the bucket of key. If there is none, wait is how long
// until there will be one, exactly, if no other caller takes it. now is in
// nanoseconds of a clock that all callers share and that does not run backwards.
func (t *Table) Allow(key uint64, q Quota, now int64) (wait time.Duration, ok bool) {
	return t.AllowN(key, q, now, 1)
}

// AllowN is Allow for n tokens, all or none. More than the burst are never there:
// wait is then the longest time there is.
func (t *Table) AllowN(key uint64, q Quota, now, n int64) (wait time.Duration, ok bool) {
	if !q.Limited() || n <= 0 {
		return 0, true
	}
	if n-1 > q.burst/q.step {
		t.refused.Add(1)
		return math.MaxInt64, false
	}
	x := t.sharing.Load()
	if x != nil && q.local {
		x = nil
	}
	if x != nil {
		q = x.split(q, n)
	}
	cost := q.step * n
	s := &t.sets[key&t.mask]
	for {
		way := s.find(key)
		if way < 0 {
			way = t.claim(s, key, now)
		}
		for {
			tat := s.tat[way].Load()
			if s.key[way].Load() != key {
				break // it was given to another key: look again
			}
			next := max(tat, now) + cost
			if over := next - q.step - q.burst - now; over > 0 {
				if x != nil {
					if less := x.debt(q, tat, now); less < tat {
						s.tat[way].CompareAndSwap(tat, less)
						over -= tat - less
					}
				}
				t.refused.Add(1)
				return time.Duration(over), false
			}
			if s.tat[way].CompareAndSwap(tat, next) {
				if x != nil {
					x.spend(key&t.mask, way, cost)
				}
				return 0, true
			}
		}
	}
}

func (s *set) find(key uint64) int {
	for i := range s.key {
		if s.key[i].Load() == key {
			return i
		}
	}
	return -1
}

// claim gives key a way of s and returns it.
func (t *Table) claim(s *set, key uint64, now int64) int {
	mu := &t.locks[key&t.mask%uint64(len(t.locks))]
	mu.Lock()
	defer mu.Unlock()
	best, least := 0, int64(math.MaxInt64)
	for i := range s.key {
		switch s.key[i].Load() {
		case key:
			return i // another goroutine was first
		case 0:
			if least != math.MinInt64 {
				best, least = i, math.MinInt64
			}
			continue
		}
		if tat := s.tat[i].Load(); tat < least {
			best, least = i, tat
		}
	}
	if least > now {
		t.evicted.Add(1)
	}
	// Who has read the old key and its time will find that the time has changed, or
	// has swapped it before and is forgotten with it.
	s.key[best].Store(0)
	s.tat[best].Store(now - 1)
	if x := t.sharing.Load(); x != nil {
		x.spent[key&t.mask][best].Store(0)
	}
	s.key[best].Store(key)
	return best
}

// TableStats are running totals, for metrics.
type TableStats struct {
	Buckets int    // there is room for
	Used    int    // not full again at the time asked
	Evicted uint64 // forgotten before they were full again, to make room
	Refused uint64 // requests that found no token
}

// Stats returns the totals so far. It looks at every bucket.
func (t *Table) Stats(now int64) TableStats {
	st := TableStats{Buckets: len(t.sets) * ways, Evicted: t.evicted.Load(), Refused: t.refused.Load()}
	for i := range t.sets {
		s := &t.sets[i]
		for w := range s.key {
			if s.key[w].Load() != 0 && s.tat[w].Load() > now {
				st.Used++
			}
		}
	}
	return st
}
