package loadgen

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// flows are all publishers' sequences: one per publisher and channel. Any goroutine.
type flows struct {
	publishers, channels int
	last                 []atomic.Uint64 // sent so far, by publisher and channel
	standing             []atomic.Int64  // subscribers, by channel

	// What was sent and not acknowledged may have come or not: it is not expected.
	failures atomic.Int64
	mu       sync.Mutex
	failed   map[page]*[pageWords]uint64
}

// A page is a stretch of a flow's numbers, a bit for each.
type page struct {
	flow int32
	at   uint64 // the number of the page
}

const (
	pageWords = 64
	pageBits  = 64 * pageWords
	// maxPages bounds what is remembered: 64 MiB, for half a billion publishes in a row.
	maxPages = 1 << 17
)

func newFlows(publishers, channels int) *flows {
	return &flows{
		publishers: publishers, channels: channels, last: make([]atomic.Uint64, publishers*channels),
		standing: make([]atomic.Int64, channels), failed: make(map[page]*[pageWords]uint64),
	}
}

func (f *flows) index(publisher, channel int) int { return channel*f.publishers + publisher }

// fail notes that seq was not acknowledged. What does not fit is forgotten, and
// then counts as lost where it did not come.
func (f *flows) fail(flow int, seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := page{int32(flow), seq / pageBits}
	p := f.failed[at]
	if p == nil {
		if len(f.failed) >= maxPages {
			return
		}
		p = new([pageWords]uint64)
		f.failed[at] = p
	}
	word, bit := &p[seq%pageBits/64], uint64(1)<<(seq%64)
	if *word&bit == 0 {
		*word |= bit
		f.failures.Add(1)
	}
}

// acknowledged is how many of lo..hi were.
func (f *flows) acknowledged(flow int, lo, hi uint64) uint64 {
	n := hi - lo + 1
	if f.failures.Load() == 0 {
		return n
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for at := lo / pageBits; at <= hi/pageBits; at++ {
		p := f.failed[page{int32(flow), at}]
		if p == nil {
			continue
		}
		from, to := uint64(0), uint64(pageBits-1) // within the page
		if at == lo/pageBits {
			from = lo % pageBits
		}
		if at == hi/pageBits {
			to = hi % pageBits
		}
		for w := from / 64; w <= to/64; w++ {
			word := p[w]
			if w == from/64 {
				word &= ^uint64(0) << (from % 64)
			}
			if w == to/64 {
				word &= ^uint64(0) >> (63 - to%64)
			}
			n -= uint64(bits.OnesCount64(word))
		}
	}
	return n
}
