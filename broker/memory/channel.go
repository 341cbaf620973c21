package memory

import (
	"sort"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/net/prefetch"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A channel is its retained messages and what is remembered of the removed ones.
type channel struct {
	log        *log
	name       string
	subscribed bool
	last       uint64 // offset of the newest message ever, for Prev
	removed    uint64 // offset of the newest message that retention removed
	ring       ring
}

// Prefetch implements hub.Prefetcher.
func (c *channel) Prefetch(step int) {
	if step == 0 {
		prefetch.Object(c)
		return
	}
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	r := &c.ring
	if r.n < len(r.buf) {
		prefetch.Object(&r.buf[(r.head+r.n)&(len(r.buf)-1)])
	}
	if r.n > 0 && r.n >= c.log.opts.Load().HistorySize {
		prefetch.Object(r.at(0))
	}
}

// idle reports whether the record is kept for last and removed alone.
func (c *channel) idle() bool { return !c.subscribed && c.ring.n == 0 }

// channel returns the record of name, made as idle if there was none. l.mu is held.
func (l *log) channel(name string) *channel {
	c := l.channels[name]
	if c == nil {
		// A forgotten channel may have lost messages up to l.forgot, and its last
		// offset is not known any more: Prev is then 0, as the interface allows.
		c = &channel{log: l, name: strings.Clone(name), removed: l.forgot}
		l.channels[c.name] = c
		l.empty++
	}
	return c
}

// spareChannels is how many idle records may be kept besides as many as are in use.
const spareChannels = 1 << 16

// forget drops the idle records when there are too many: channels come and go,
// and their names must not stay for ever. What was removed from them is from
// then on remembered in common, which is right but coarse: a reader of a new
// channel may be notified of a gap that is none. l.mu is held.
func (l *log) forget() {
	if l.empty <= len(l.channels)/2 || l.empty <= spareChannels {
		return
	}
	for name, c := range l.channels {
		if c.idle() {
			l.forgot = max(l.forgot, c.removed)
			delete(l.channels, name)
		}
	}
	l.empty = 0
}

// A ring is a queue of entries with rising offsets. It grows as it needs and
// lets its memory go when it is empty.
type ring struct {
	buf  []*entry // len is a power of two, or 0
	head int
	n    int
}

func (r *ring) at(i int) *entry { return r.buf[(r.head+i)&(len(r.buf)-1)] }

func (r *ring) push(e *entry) {
	if r.n == len(r.buf) {
		buf := make([]*entry, max(8, 2*len(r.buf)))
		for i := range r.n {
			buf[i] = r.at(i)
		}
		r.buf, r.head = buf, 0
	}
	r.buf[(r.head+r.n)&(len(r.buf)-1)] = e
	r.n++
}

func (r *ring) pop() {
	r.buf[r.head] = nil
	r.head = (r.head + 1) & (len(r.buf) - 1)
	if r.n--; r.n == 0 {
		*r = ring{}
	}
}

// after returns the index of the first entry with an offset above since.
func (r *ring) after(since uint64) int {
	return sort.Search(r.n, func(i int) bool { return r.at(i).msg.Offset > since })
}

func (r *ring) messages(from, to int) []*hub.Message {
	if from >= to {
		return nil
	}
	ms := make([]*hub.Message, 0, to-from)
	for i := from; i < to; i++ {
		ms = append(ms, &r.at(i).msg)
	}
	return ms
}

// keys remembers idempotency keys in the order they came.
type keys struct {
	used  map[hub.KeyID]use
	queue []key // from head on
	head  int
}

// A use is the message that has a key.
type use struct {
	offset  uint64
	content hub.ContentID
}

type key struct {
	id hub.KeyID
	at time.Duration
}

func (k *keys) add(id hub.KeyID, u use, at time.Duration, bound int) {
	if k.used == nil {
		k.used = map[hub.KeyID]use{}
	}
	for len(k.used) >= bound {
		k.pop()
	}
	k.used[id] = u
	k.queue = append(k.queue, key{id, at})
}

// expire forgets the keys that came before age.
func (k *keys) expire(before time.Duration) {
	for k.head < len(k.queue) && k.queue[k.head].at < before {
		k.pop()
	}
}

// forget forgets the keys for which is holds. It looks at all of them.
func (k *keys) forget(is func(hub.KeyID) bool) {
	kept := k.queue[:0]
	for _, x := range k.queue[k.head:] {
		if is(x.id) {
			delete(k.used, x.id)
		} else {
			kept = append(kept, x)
		}
	}
	clear(k.queue[len(kept):])
	k.queue, k.head = kept, 0
}

func (k *keys) pop() {
	delete(k.used, k.queue[k.head].id)
	k.queue[k.head] = key{}
	k.head++
	switch {
	case k.head == len(k.queue):
		*k = keys{}
	case k.head > len(k.queue)/2 && k.head > 1024:
		k.queue = append(k.queue[:0:0], k.queue[k.head:]...)
		k.head = 0
	}
}
