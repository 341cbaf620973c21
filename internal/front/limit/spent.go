package limit

import (
	"math"
	"math/bits"
	"sync/atomic"
)

// A sharing is what a Table has more while nodes share its buckets: the hash that they all use,
// and what was taken here and the others do not know yet. It takes 8 bytes for each bucket.
type sharing struct {
	// Fixed.
	key   sipKey
	share *Share

	// Any goroutine.
	spent []spentSet      // by set of the table
	dirty []atomic.Uint64 // a bit for each set: there is something in spent

	// Owned by Share.Tick.
	next int // the word of dirty to continue with
}

// spentSet is what was taken from the buckets of a set, in nanoseconds at their rates.
type spentSet [ways]atomic.Int64

// shareWith has t's buckets shared by s under a key. Buckets until now, which have another hash,
// are forgotten.
func (t *Table) shareWith(s *Share, key sipKey) {
	if was := t.sharing.Load(); was != nil && was.key == key {
		return
	}
	t.sharing.Store(&sharing{key: key, share: s, spent: make([]spentSet, len(t.sets)), dirty: make([]atomic.Uint64, (len(t.sets)+63)/64)})
}

// split returns the part of q that this node has by itself: all of it while the nodes know what
// the others take, and one of as many parts as there are nodes otherwise. n tokens at once are
// possible all the same.
func (x *sharing) split(q Quota, n int64) Quota {
	d := x.share.parts.Load()
	if d <= 1 {
		return q
	}
	tokens := max((q.burst/q.step+1)/d, n)
	q.step *= d
	q.burst = q.step * (tokens - 1)
	return q
}

// spend notes what was taken from a bucket here.
func (x *sharing) spend(set uint64, way int, cost int64) {
	x.spent[set][way].Add(cost)
	word, bit := &x.dirty[set/64], uint64(1)<<(set%64)
	if word.Load()&bit == 0 { // looked at after the addition: see collect
		word.Or(bit)
	}
}

// debt bounds how far ahead of the clock tat may be under q. A bucket is as far ahead as all nodes
// together can take before they know of each other, and one whose rate was lowered, or about which
// another node sent nonsense, is not ahead for longer.
func (x *sharing) debt(q Quota, tat, now int64) int64 {
	n := x.share.nodes.Load() + 1
	one := q.burst + q.step + int64(shareStale)
	if one > math.MaxInt64/4/n {
		return tat
	}
	return min(tat, now+n*one)
}

// A spending is what was taken from one bucket.
type spending struct {
	key  uint64
	cost int64 // nanoseconds at the bucket's rate
	set  uint32
	way  uint8
	t    uint8 // the table, by its number
}

// collect appends what was taken since the last call, of up to most buckets, and forgets it; of
// what it leaves, a later call begins with the first. A bucket that is given to another key
// just then counts for the other: that is as rare as it is small.
func (t *Table) collect(list []spending, number uint8, most int) []spending {
	x := t.sharing.Load()
	if x == nil {
		return list
	}
	for range x.dirty {
		if most <= 0 {
			break
		}
		i := x.next
		x.next = (i + 1) % len(x.dirty)
		if x.dirty[i].Load() == 0 {
			continue
		}
		for word := x.dirty[i].Swap(0); word != 0; word &= word - 1 {
			set := i*64 + bits.TrailingZeros64(word)
			for w := range ways {
				if x.spent[set][w].Load() == 0 {
					continue
				}
				cost := x.spent[set][w].Swap(0)
				if key := t.sets[set].key[w].Load(); cost > 0 && key != 0 {
					list = append(list, spending{key, cost, uint32(set), uint8(w), number})
					most--
				}
			}
		}
	}
	return list
}

// putBack is for what collect returned and is not sent yet. It reports whether the bucket is
// still there.
func (t *Table) putBack(s spending) bool {
	x := t.sharing.Load()
	if x == nil || int(s.set) >= len(x.spent) || t.sets[s.set].key[s.way].Load() != s.key {
		return false
	}
	x.spend(uint64(s.set), int(s.way), s.cost)
	return true
}

// advance takes from the bucket of key what was taken on another node. It may be more than there is.
func (t *Table) advance(key uint64, cost, now int64) {
	s := &t.sets[key&t.mask]
	for {
		way := s.find(key)
		if way < 0 {
			way = t.claim(s, key, now)
		}
		tat := s.tat[way].Load()
		if s.key[way].Load() != key {
			continue // it was given to another key: look again
		}
		next := min(max(tat, now)+cost, now+2*maxCost)
		if next <= tat || s.tat[way].CompareAndSwap(tat, next) {
			return
		}
	}
}
