package upstream

import "sync/atomic"

const (
	windowBuckets = 32 // of a second each
	bucketWidth   = int64(1e9)

	countBits = 20
	countMax  = 1<<countBits - 1
	tickMask  = 1<<24 - 1
)

// A window counts requests and their failures by the second, for the last half
// minute. Each bucket is one word (tick, total, failed), so that any goroutine adds
// to it and none waits.
type window struct {
	buckets [windowBuckets]atomic.Uint64
}

func (w *window) add(now int64, failed bool) {
	tick := uint64(now / bucketWidth)
	b := &w.buckets[tick%windowBuckets]
	for {
		old := b.Load()
		word := old
		if old>>(2*countBits) != tick&tickMask {
			word = (tick & tickMask) << (2 * countBits)
		}
		if word>>countBits&countMax == countMax {
			return // a million a second: the ratio is known well enough
		}
		word += 1 << countBits
		if failed {
			word++
		}
		if b.CompareAndSwap(old, word) {
			return
		}
	}
}

// sum counts the last d nanoseconds, less what is not wholly after since.
func (w *window) sum(now, d, since int64) (total, failed int) {
	tick := now / bucketWidth
	from := tick - d/bucketWidth + 1
	if since > 0 {
		from = max(from, since/bucketWidth+1)
	}
	for t := max(from, 0); t <= tick; t++ {
		word := w.buckets[uint64(t)%windowBuckets].Load()
		if word>>(2*countBits) == uint64(t)&tickMask {
			total += int(word >> countBits & countMax)
			failed += int(word & countMax)
		}
	}
	return total, failed
}
