package history

import (
	"slices"
	"sync"
)

// pageSize is how many offsets share a page. Offsets come from the outside, so
// an absurd one must cost a page and not an array up to it.
const pageSize = 1024

type page [pageSize]entry

// An entry is what is known of one offset.
type entry struct {
	id      string
	channel int32
	state   state
	// contested reports that two sides disagree about this offset: from then on
	// each reception is kept in log.claims until the report decides.
	contested bool
}

type state uint8

const (
	empty   state = iota
	claimed       // a subscriber says so, no publisher yet
	settled       // acknowledged, or found to be a publication without an answer
	void          // it was never published
)

func (e *entry) is(channel int32, id string) bool { return e.channel == channel && e.id == id }

// A claim is what one stream says about a contested offset.
type claim struct {
	stream  *Stream
	channel int32
	id      string
}

// A log is one epoch of a namespace.
type log struct {
	// Fixed.
	epoch string
	index int // in space.logs

	mu     sync.Mutex
	pages  map[uint64]*page
	claims map[uint64][]claim
	// What streams without a claim of their own said about a contested offset.
	early map[uint64]claim
}

func (l *log) entry(offset uint64) *entry {
	n := offset / pageSize
	p := l.pages[n]
	if p == nil {
		p = new(page)
		l.pages[n] = p
	}
	return &p[offset%pageSize]
}

// settle records what was acknowledged to a publisher. It returns the id that another
// publisher received for the same offset.
func (l *log) settle(offset uint64, channel int32, id string) (other string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(offset)
	switch {
	case e.state == settled && !e.is(channel, id):
		return e.id, false
	case e.state == claimed && !e.is(channel, id):
		l.contest(offset, e)
	}
	e.id, e.channel, e.state = id, channel, settled
	return "", true
}

// claim records what a stream received and reports whether it agrees with what
// is known. While it is open who is right, it agrees and the report decides.
func (l *log) claim(offset uint64, s *Stream, channel int32, id string) (known entry, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(offset)
	switch {
	case e.state == empty:
		e.id, e.channel, e.state = id, channel, claimed
	case e.contested:
		l.claims[offset] = append(l.claims[offset], claim{s, channel, id})
	case e.is(channel, id):
	case e.state == settled:
		return *e, false
	default:
		l.contest(offset, e)
		l.claims[offset] = append(l.claims[offset], claim{s, channel, id})
	}
	return *e, true
}

func (l *log) contest(offset uint64, e *entry) {
	if e.contested {
		return
	}
	if l.claims == nil {
		l.claims, l.early = make(map[uint64][]claim), make(map[uint64]claim)
	}
	e.contested = true
	l.early[offset] = claim{nil, e.channel, e.id}
}

// offsets calls f for each offset that something is known about, rising.
func (l *log) offsets(f func(offset uint64, e *entry)) {
	nums := make([]uint64, 0, len(l.pages))
	for n := range l.pages {
		nums = append(nums, n)
	}
	slices.Sort(nums)
	for _, n := range nums {
		p := l.pages[n]
		for i := range p {
			if p[i].state != empty {
				f(n*pageSize+uint64(i), &p[i])
			}
		}
	}
}

// A bitset holds offsets, by pages as a log does.
type bitset struct {
	pages map[uint64]*bits
	n     uint64 // number of the page in last
	last  *bits
}

type bits [pageSize / 64]uint64

func (b *bitset) page(n uint64) *bits {
	if b.last == nil || b.n != n {
		p := b.pages[n]
		if p == nil {
			return nil
		}
		b.n, b.last = n, p
	}
	return b.last
}

func (b *bitset) has(offset uint64) bool {
	p := b.page(offset / pageSize)
	return p != nil && p[offset%pageSize/64]&(1<<(offset%64)) != 0
}

func (b *bitset) set(offset uint64) {
	n := offset / pageSize
	p := b.page(n)
	if p == nil {
		if b.pages == nil {
			b.pages = make(map[uint64]*bits)
		}
		p = new(bits)
		b.pages[n] = p
		b.n, b.last = n, p
	}
	p[offset%pageSize/64] |= 1 << (offset % 64)
}
