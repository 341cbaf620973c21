package loadgen

import (
	"cmp"
	"math/bits"
	"slices"
)

// A track is what a subscriber knows of one publisher's sequence on its channel:
// the newest number and which of the 64 before it came. What falls out of those
// without having come is lost.
type track struct {
	base  uint64 // up to here nothing is expected
	high  uint64
	mask  uint64 // bit k: high-k came
	holes uint32 // lost ones, which may turn out to be only very late
}

// start makes t expect everything after seq.
func (t *track) start(seq uint64) { *t = track{base: seq, high: seq, mask: ^uint64(0)} }

// A verdict reports what a message is to its subscriber.
type verdict uint8

const (
	fresh     verdict = iota // the next, or after a hole
	reordered                // after a newer one
	found                    // the same, of one that was given up as lost
	repeated
	early // from before the subscription was sure to be established
)

// came notes seq. lost is called with each range of numbers that are now given up.
func (t *track) came(seq uint64, lost func(lo, hi uint64)) verdict {
	switch {
	case seq <= t.base:
		return early
	case seq > t.high:
		t.advance(seq, lost)
		return fresh
	}
	k := t.high - seq
	switch {
	case k >= 64:
		if t.holes > 0 {
			t.holes--
			return found
		}
		return repeated
	case t.mask>>k&1 != 0:
		return repeated
	}
	t.mask |= 1 << k
	return reordered
}

func (t *track) advance(seq uint64, lost func(lo, hi uint64)) {
	d := seq - t.high
	if d == 1 && t.mask>>63 == 1 { // nearly always
		t.high, t.mask = seq, t.mask<<1|1
		return
	}
	// What is shifted out: bits 64-d to 63.
	t.abandon(int(64-min(d, 64)), lost)
	if d > 64 {
		t.miss(t.high+1, seq-64, lost)
	}
	t.high = seq
	if d >= 64 {
		t.mask = 1
	} else {
		t.mask = t.mask<<d | 1
	}
}

// abandon declares the holes at bit from and above lost, and closes them.
func (t *track) abandon(from int, lost func(lo, hi uint64)) {
	open := ^t.mask & (^uint64(0) << from)
	for open != 0 {
		top := 63 - bits.LeadingZeros64(open) // the oldest hole
		n := bits.LeadingZeros64(^(open << (63 - top)))
		low := top - n + 1
		t.miss(t.high-uint64(top), t.high-uint64(low), lost)
		run := ^uint64(0) >> (64 - n) << low
		open &^= run
		t.mask |= run
	}
}

func (t *track) miss(lo, hi uint64, lost func(lo, hi uint64)) {
	if lo <= t.base {
		lo = t.base + 1
	}
	if lo > hi {
		return
	}
	t.holes += uint32(min(hi-lo+1, 1<<31))
	lost(lo, hi)
}

// missing counts what has not come up to last, without giving anything up.
func (t *track) missing(last uint64) (n uint64) {
	n = uint64(bits.OnesCount64(^t.mask))
	if last > t.high {
		n += last - t.high
	}
	return n
}

// A miss is a range of messages that one subscriber did not get.
type miss struct {
	flow   int32
	lo, hi uint64
}

// maxMisses bounds what is remembered to find the message with the least reach.
const maxMisses = 1 << 16

// worst is the greatest number of subscribers that missed one and the same
// message of a flow, and that flow's index.
func worst(misses []miss) (most map[int32]int) {
	type edge struct {
		flow int32
		at   uint64
		step int
	}
	edges := make([]edge, 0, 2*len(misses))
	for _, m := range misses {
		edges = append(edges, edge{m.flow, m.lo, 1}, edge{m.flow, m.hi + 1, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.flow, b.flow), cmp.Compare(a.at, b.at), cmp.Compare(a.step, b.step))
	})
	most = make(map[int32]int)
	depth, flow := 0, int32(-1)
	for _, e := range edges {
		if e.flow != flow {
			depth, flow = 0, e.flow
		}
		depth += e.step
		most[flow] = max(most[flow], depth)
	}
	return most
}
