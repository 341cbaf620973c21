package poller

import (
	"math/bits"
	"time"
)

// Rest. A burst makes the loop's memory grow: buffers to receive into, copies of
// what is sent. A gateway is quiet most of the time and has many connections, for
// which that memory is not there then.

// restAfter is how long use is watched before memory is given back for want of it.
const restAfter = 250 * time.Millisecond

// resting is what was used since the last look.
type resting struct {
	since time.Time // zero while there is nothing to give back
	most  int       // results in one dispatch
}

// rest is called before the loop sleeps for up to timeout. It returns what
// was not needed for a while, and returns when to look again at the latest.
func (p *Uring) rest(timeout time.Duration) time.Duration {
	r := &p.resting
	if r.most == 0 && r.since.IsZero() || !p.ring.Deferred() {
		return timeout
	}
	now := time.Now()
	if r.since.IsZero() {
		r.since = now
	}
	left := restAfter - now.Sub(r.since)
	if left <= 0 && !p.ring.Work() { // or results may be about that hold buffers
		left = restAfter
		r.since = now
		if r.most == 0 {
			r.since = time.Time{} // all is given back
		}
		giveBack(p, r.most)
		r.most = 0
	}
	if left = max(left, time.Millisecond); timeout < 0 || timeout > left {
		return left
	}
	return timeout
}

// giveBack keeps what a dispatch of up to most results needs; 0: nothing at all.
// No result is waiting, so no buffer is filled.
func giveBack(p *Uring, most int) {
	keep := max(firstBuffers, 2<<bits.Len(uint(most)))
	if most > 0 && keep >= p.buffers.Provided() {
		return
	}
	p.buffers.Shrink(min(keep, maxBuffers))
	if most > 0 {
		return
	}
	p.copies = copyPool{}
	if b := p.bulk.buffers; b != nil {
		b.Shrink(firstBulkBuffers)
	}
	p.ready, p.notes, p.notesNext = nil, nil, nil
	if len(p.sends.free) == len(p.sends.all) {
		p.sends = inflights{}
	}
}
