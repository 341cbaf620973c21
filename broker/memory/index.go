package memory

import (
	"slices"
	"sort"
)

// A slot is the place of an entry in the log; e is nil when it was removed.
type slot struct {
	offset uint64
	e      *entry
}

// order is all entries of a log, oldest first. What retention takes out of the
// middle leaves an empty slot until there are as many of them as entries.
type order struct {
	slots []slot // from head on
	head  int
	live  int
}

func (o *order) push(e *entry) {
	if len(o.slots) == cap(o.slots) && o.head > len(o.slots)/4 {
		o.slide()
	}
	o.slots = append(o.slots, slot{e.msg.Offset, e})
	o.live++
}

// oldest returns the first entry, or nil.
func (o *order) oldest() *entry {
	if o.head == len(o.slots) {
		return nil
	}
	return o.slots[o.head].e
}

// after returns the index of the first slot with an offset above since.
func (o *order) after(since uint64) int {
	rest := o.slots[o.head:]
	return o.head + sort.Search(len(rest), func(i int) bool { return rest[i].offset > since })
}

// get returns the entry at offset, or nil.
func (o *order) get(offset uint64) *entry {
	if i := o.after(offset - 1); i < len(o.slots) && o.slots[i].offset == offset {
		return o.slots[i].e
	}
	return nil
}

// remove takes out the entry at offset, which is there.
func (o *order) remove(offset uint64) {
	i := o.head
	if o.slots[i].offset != offset {
		i = o.after(offset - 1)
	}
	o.slots[i].e = nil
	o.live--
	for o.head < len(o.slots) && o.slots[o.head].e == nil { // the first is never empty
		o.head++
	}
	switch {
	case o.live == 0:
		*o = order{}
	case len(o.slots)-o.head > 64 && o.live < (len(o.slots)-o.head)/2:
		o.slide()
	}
}

// slide closes all gaps. What is far too big for what is left goes.
func (o *order) slide() {
	to := o.slots[:0]
	if cap(o.slots) > 8*o.live+64 {
		to = make([]slot, 0, 2*o.live)
	}
	for _, s := range o.slots[o.head:] {
		if s.e != nil {
			to = append(to, s)
		}
	}
	clear(o.slots[min(len(to), len(o.slots)):])
	o.slots, o.head = to, 0
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
