package hub

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/net/prefetch"
)

// A table finds channels by name. Changing it takes the lock of a part; finding takes
// none and writes nothing, and the place of a name's entry is known from its hash alone:
// of many names all entries can be prefetched before the first is looked at.
type table struct {
	seed  maphash.Seed
	parts [tableParts]tablePart
}

const (
	tableParts = 64
	partBits   = 6
	leastSlots = 8
)

// tablePart is open addressing with linear probing. What is looked up meanwhile sees each
// slot before or after a change.
type tablePart struct {
	// changes is odd while the part changes. A search that found nothing and saw the same
	// even number before and after has missed nothing.
	changes atomic.Uint64
	slots   atomic.Pointer[[]tableSlot] // replaced as a whole to grow; a power of two

	mu    sync.Mutex
	n     int // channels
	taken int // slots that are not empty: channels, and what gone ones leave
}

// tableSlot is empty while ch is nil. hash is written before ch.
type tableSlot struct {
	hash atomic.Uint64
	ch   atomic.Pointer[channel]
}

// tombstone marks where a channel was, so that those behind it are found.
var tombstone channel

func newTable() *table {
	t := &table{seed: maphash.MakeSeed()}
	for i := range t.parts {
		slots := make([]tableSlot, leastSlots)
		t.parts[i].slots.Store(&slots)
	}
	return t
}

func (t *table) hash(name string) uint64 { return maphash.String(t.seed, name) }

// part returns the part that a name of that hash belongs to.
func (t *table) part(hash uint64) *tablePart { return &t.parts[hash%tableParts] }

// find returns the channel called name, or nil. Any goroutine.
func (t *table) find(name string, hash uint64) *channel {
	p := t.part(hash)
	before := p.changes.Load()
	if ch := p.search(name, hash); ch != nil {
		return ch
	}
	if before&1 == 0 && p.changes.Load() == before {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.search(name, hash)
}

func (p *tablePart) search(name string, hash uint64) *channel {
	slots := *p.slots.Load()
	mask := uint64(len(slots) - 1)
	for i := hash >> partBits; ; i++ {
		s := &slots[i&mask]
		ch := s.ch.Load()
		if ch == nil {
			return nil
		}
		if s.hash.Load() == hash && ch.name == name && ch != &tombstone {
			return ch
		}
	}
}

// prefetch prefetches the slot where the search for hash starts.
func (t *table) prefetch(hash uint64) {
	slots := *t.part(hash).slots.Load()
	prefetch.Object(&slots[hash>>partBits&uint64(len(slots)-1)])
}

// guess returns what find will most probably return, without a look at the channel.
func (t *table) guess(hash uint64) *channel {
	slots := *t.part(hash).slots.Load()
	mask := uint64(len(slots) - 1)
	for i := hash >> partBits; ; i++ {
		s := &slots[i&mask]
		if ch := s.ch.Load(); ch == nil || s.hash.Load() == hash {
			return ch
		}
	}
}

// add puts ch in. p.mu is held, and no channel of that name is there.
func (p *tablePart) add(ch *channel, hash uint64) {
	p.changes.Add(1)
	defer p.changes.Add(1)
	if slots := *p.slots.Load(); 4*(p.taken+1) > 3*len(slots) {
		p.grow()
	}
	p.put(*p.slots.Load(), ch, hash)
	p.n++
}

// put writes ch into the first slot that is empty.
func (p *tablePart) put(slots []tableSlot, ch *channel, hash uint64) {
	mask := uint64(len(slots) - 1)
	i := hash >> partBits
	for slots[i&mask].ch.Load() != nil {
		i++
	}
	slots[i&mask].hash.Store(hash)
	slots[i&mask].ch.Store(ch)
	p.taken++
}

// grow makes room for twice as many channels as there are, and drops the tombstones.
func (p *tablePart) grow() {
	size := leastSlots
	for size < 4*(p.n+1) {
		size *= 2
	}
	old, slots := *p.slots.Load(), make([]tableSlot, size)
	p.taken = 0
	for i := range old {
		if ch := old[i].ch.Load(); ch != nil && ch != &tombstone {
			p.put(slots, ch, old[i].hash.Load())
		}
	}
	p.slots.Store(&slots)
}

// remove takes ch out. p.mu is held, and it is there.
func (p *tablePart) remove(ch *channel, hash uint64) {
	p.changes.Add(1)
	defer p.changes.Add(1)
	slots := *p.slots.Load()
	mask := uint64(len(slots) - 1)
	i := hash >> partBits
	for slots[i&mask].ch.Load() != ch {
		i++
	}
	p.n--
	if slots[(i+1)&mask].ch.Load() != nil {
		slots[i&mask].ch.Store(&tombstone)
		return
	}
	// Nothing is behind it: neither it nor the tombstones before it are needed.
	for {
		slots[i&mask].ch.Store(nil)
		p.taken--
		if i--; slots[i&mask].ch.Load() != &tombstone {
			break
		}
	}
	if len(slots) > leastSlots && 16*p.n < len(slots) {
		p.grow()
	}
}

// all returns every channel of the part.
func (p *tablePart) all() []*channel {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*channel, 0, p.n)
	slots := *p.slots.Load()
	for i := range slots {
		if ch := slots[i].ch.Load(); ch != nil && ch != &tombstone {
			list = append(list, ch)
		}
	}
	return list
}
