package memory

import (
	"iter"
	"slices"
	"sort"
)

// A slot is the place of an entry in the log; e is nil when it was removed.
type slot struct {
	offset uint64
	e      *entry
}

// order is all entries of a log, oldest first, in chunks: nothing that grows with
// the log is ever copied at once, and what is removed from the middle leaves an empty
// slot until its chunk is mostly empty.
type order struct {
	chunks []*chunk // from head on; none is without an entry
	head   int
	live   int
}

type chunk struct {
	slots []slot
	begin int // before it all slots are empty
	live  int
}

const chunkSlots = 512

func (c *chunk) full() bool { return len(c.slots) >= chunkSlots }

// find returns the index of the first slot with an offset above since.
func (c *chunk) find(since uint64) int {
	return sort.Search(len(c.slots), func(i int) bool { return c.slots[i].offset > since })
}

func (o *order) push(e *entry) {
	var c *chunk
	if n := len(o.chunks); n > o.head && !o.chunks[n-1].full() {
		c = o.chunks[n-1]
	} else {
		c = &chunk{}
		if n > o.head { // a log of that length fills another
			c.slots = make([]slot, 0, chunkSlots)
		}
		if o.head > 64 && o.head > len(o.chunks)/2 {
			o.chunks = append(o.chunks[:0], o.chunks[o.head:]...)
			clear(o.chunks[len(o.chunks):cap(o.chunks)])
			o.head = 0
		}
		o.chunks = append(o.chunks, c)
	}
	c.slots = append(c.slots, slot{e.msg.Offset, e})
	c.live++
	o.live++
}

// chunk returns the index of the chunk that offset would be in.
func (o *order) chunk(offset uint64) int {
	rest := o.chunks[o.head:]
	return o.head + max(0, sort.Search(len(rest), func(i int) bool { return rest[i].slots[0].offset > offset })-1)
}

// oldest returns the first entry, or nil.
func (o *order) oldest() *entry {
	if o.live == 0 {
		return nil
	}
	c := o.chunks[o.head]
	return c.slots[c.begin].e
}

// after yields the entries with an offset above since.
func (o *order) after(since uint64) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for i := o.chunk(since); i < len(o.chunks); i++ {
			c := o.chunks[i]
			for _, s := range c.slots[max(c.begin, c.find(since)):] {
				if s.e != nil && !yield(s.e) {
					return
				}
			}
		}
	}
}

// newest returns up to n+1 of the newest entries, the newest first.
func (o *order) newest(n int) []*entry {
	var out []*entry
	for i := len(o.chunks) - 1; i >= o.head; i-- {
		for _, s := range slices.Backward(o.chunks[i].slots) {
			if s.e == nil {
				continue
			}
			if out = append(out, s.e); len(out) > n {
				return out
			}
		}
	}
	return out
}

// get returns the entry at offset, or nil.
func (o *order) get(offset uint64) *entry {
	if o.live == 0 {
		return nil
	}
	c := o.chunks[o.chunk(offset)]
	if i := c.find(offset - 1); i < len(c.slots) && c.slots[i].offset == offset {
		return c.slots[i].e
	}
	return nil
}

// remove removes the entry at offset, which is there.
func (o *order) remove(offset uint64) {
	at := o.chunk(offset)
	c := o.chunks[at]
	c.slots[c.find(offset-1)].e = nil
	c.live--
	o.live--
	switch {
	case o.live == 0:
		*o = order{}
	case c.live == 0 && at == o.head:
		o.chunks[at] = nil
		o.head++
	case c.live == 0:
		o.chunks = slices.Delete(o.chunks, at, at+1)
	case len(c.slots) >= 16 && c.live < len(c.slots)/4 && at < len(o.chunks)-1:
		kept := make([]slot, 0, c.live)
		for _, s := range c.slots {
			if s.e != nil {
				kept = append(kept, s)
			}
		}
		c.slots, c.begin = kept, 0
	default:
		for c.slots[c.begin].e == nil {
			c.begin++
		}
	}
}

// ids are the publishers' own ids of what is retained.
type ids map[string]*places

// places are the offsets of messages with the same id, rising; some may be gone.
type places struct {
	offsets []uint64
	live    int
}

func (x ids) add(id string, offset uint64) {
	p := x[id]
	if p == nil {
		p = &places{}
		x[id] = p
	}
	p.offsets = append(p.offsets, offset)
	p.live++
}

// remove forgets one message with id, which o has no more.
func (x ids) remove(id string, o *order) {
	p := x[id]
	if p.live--; p.live == 0 {
		delete(x, id)
	} else if len(p.offsets) > 2*p.live+8 {
		p.offsets = slices.DeleteFunc(p.offsets, func(at uint64) bool { return o.get(at) == nil })
	}
}

// earliest returns the first offset with id that is retained, 0 if there is none.
func (x ids) earliest(id string, o *order) uint64 {
	p := x[id]
	if p == nil {
		return 0
	}
	for len(p.offsets) > 0 && o.get(p.offsets[0]) == nil {
		p.offsets = p.offsets[1:]
	}
	if len(p.offsets) == 0 {
		return 0
	}
	return p.offsets[0]
}
