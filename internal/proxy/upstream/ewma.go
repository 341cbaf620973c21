package upstream

import (
	"math"
	"sync/atomic"
)

// An average is a peak EWMA of latencies in one word: the value in nanoseconds as
// a float32, and the millisecond of its newest sample. A sample above the average
// replaces it at once; below, it is approached by age. So a peer that slows down is
// left at once, and comes back with time.
//
// The zero word has no sample.
type average struct {
	word atomic.Uint64
}

func averageWord(v float32, now int64) uint64 {
	return uint64(math.Float32bits(v))<<32 | uint64(uint32(now/1e6))
}

func splitAverage(w uint64, now int64) (v float64, age int64) {
	v = float64(math.Float32frombits(uint32(w >> 32)))
	return v, int64(int32(uint32(now/1e6)-uint32(w))) * 1e6
}

func (a *average) observe(sample, now, decay int64) {
	x := float64(max(sample, 1))
	for {
		w := a.word.Load()
		next := x
		if w != 0 {
			v, age := splitAverage(w, now)
			if v > x && age <= decay {
				f := math.Exp(-float64(max(age, 0)) / float64(decay))
				next = v*f + x*(1-f)
			}
		}
		if a.word.CompareAndSwap(w, averageWord(float32(next), now)) {
			return
		}
	}
}

// value is the average now, decayed since its newest sample; 0 if there is none or
// it is older than decay.
func (a *average) value(now, decay int64) float64 {
	w := a.word.Load()
	if w == 0 {
		return 0
	}
	v, age := splitAverage(w, now)
	if age > decay {
		return 0
	}
	return v * math.Exp(-float64(max(age, 0))/float64(decay))
}

// punish raises the average after a failure, which may have been fast: twice what
// it was, at least a hundredth and at most ten seconds.
func (a *average) punish(elapsed, now, decay int64) {
	twice := int64(2 * a.value(now, decay))
	a.observe(max(elapsed, min(max(twice, 1e7), 1e10)), now, decay)
}

func (a *average) reset() { a.word.Store(0) }
