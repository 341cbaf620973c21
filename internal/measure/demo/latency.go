package demo

import (
	"math"
	"time"
)

// A latency counts durations in buckets that each reach 1/16 of a doubling
// farther than the one before, 4.4 %: from a microsecond to beyond an hour.
// The zero latency is empty. One goroutine at a time may use it.
type latency struct {
	buckets [32 * bucketsPerDoubling]uint64
	count   uint64
}

const bucketsPerDoubling = 16

func (l *latency) add(d time.Duration) {
	i := 0
	if us := float64(d) / float64(time.Microsecond); us > 1 {
		i = min(int(math.Ceil(math.Log2(us)*bucketsPerDoubling)), len(l.buckets)-1)
	}
	l.buckets[i]++
	l.count++
}

// quantile returns the upper end of the bucket that q, 0 to 1, of all durations
// do not exceed; 0 if there are none.
func (l *latency) quantile(q float64) time.Duration {
	rank := uint64(math.Ceil(q * float64(l.count)))
	for i, n := range l.buckets {
		if n >= rank && n > 0 {
			return time.Duration(math.Exp2(float64(i)/bucketsPerDoubling) * float64(time.Microsecond))
		}
		rank -= min(rank, n)
	}
	return 0
}
