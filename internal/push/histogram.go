package push

import (
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// Bounds of the lag histograms: a subscriber counts below the first bound that
// its lag does not exceed. They are the same for all loops and never change.
var (
	LagMessageBounds = [...]float64{0, 1, 10, 100, 1000, 10_000}
	LagByteBounds    = [...]float64{0, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}
	LagSecondBounds  = [...]float64{0, 0.1, 1, 5, 15, 60}
)

// A Histogram is how many subscribers lag by how much, now.
type Histogram struct {
	// Counts are per bound, not cumulative; the last is for what exceeds all.
	Counts [7]uint64
	Sum    float64
}

func (h *Histogram) add(bounds [6]float64, v float64) {
	i := 0
	for i < len(bounds) && v > bounds[i] {
		i++
	}
	h.Counts[i]++
	h.Sum += v
}

// Merge adds what other counted.
func (h *Histogram) Merge(other Histogram) {
	for i := range h.Counts {
		h.Counts[i] += other.Counts[i]
	}
	h.Sum += other.Sum
}

// LagHistograms is how far the subscribers of one loop, or of all, are behind in
// what waits for them in this process.
type LagHistograms struct {
	Messages, Bytes, Seconds Histogram
}

// Add counts a subscriber for whom so much waits.
func (h *LagHistograms) Add(messages, bytes int, age float64) {
	h.Messages.add(LagMessageBounds, float64(messages))
	h.Bytes.add(LagByteBounds, float64(bytes))
	h.Seconds.add(LagSecondBounds, age)
}

// Histograms makes every loop look at its subscribers and call f, on its
// goroutine, once. It returns at once; a loop that has ended calls f with nothing.
func (all loopStates) Histograms(f func(LagHistograms)) {
	for _, loopState := range all {
		ok := loopState.loop.Post(func() {
			var h LagHistograms
			now := time.Now()
			loopState.loop.Conns(func(c *eventloop.Conn) bool {
				if l, ok := c.Handler().(lagging); ok {
					l.count(&h, now)
				}
				return true
			})
			f(h)
		})
		if !ok {
			f(LagHistograms{})
		}
	}
}

// count implements lagging.
func (s *session) count(h *LagHistograms, now time.Time) {
	messages, bytes, age := 0, s.conn.Unsent(), 0.0
	if q := s.backlog; q != nil {
		messages, bytes, age = q.Len(), bytes+q.Bytes(), q.Age(now).Seconds()
	}
	h.Add(messages, bytes, age)
}
