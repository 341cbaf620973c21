package batch

import (
	"slices"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/observe/metrics"
)

// SizeBounds are the upper bounds of the buckets in which the items of calls are counted; one
// more takes what is larger.
var SizeBounds = [...]int{2, 4, 8, 16, 32, 64, 128, 256}

// counters are of one queue. Any goroutine.
type counters struct {
	calls, joined, alone, refused, left, slow, malformed, strays atomic.Uint64

	sizes  [len(SizeBounds) + 1]atomic.Uint64
	items  atomic.Uint64
	waited metrics.Shared
}

// countSize counts a call of so many items.
func (c *counters) countSize(items int) {
	c.items.Add(uint64(items))
	i := slices.IndexFunc(SizeBounds[:], func(top int) bool { return items <= top })
	if i < 0 {
		i = len(SizeBounds)
	}
	c.sizes[i].Add(1)
}

// Stats are totals of a route since the process started, and what is there now.
type Stats struct {
	// Route is its name.
	Route string `json:"route"`
	// Waiting are requests that wait for their call; Running are calls under way, those of a
	// request alone included.
	Waiting int `json:"waiting"`
	Running int `json:"running"`
	// Calls are those of several requests; Joined are the requests in them, Items their items.
	Calls  uint64 `json:"calls"`
	Joined uint64 `json:"joined"`
	Items  uint64 `json:"items"`
	// Alone are requests that were sent by themselves.
	Alone uint64 `json:"alone"`
	// Refused are those that found max_queue requests waiting.
	Refused uint64 `json:"refused"`
	// Left are parts of replies dropped because their client was gone, Slow those of clients
	// that did not read, Malformed those that the backend got wrong, Strays answers with an
	// index of no request and events that cannot be divided.
	Left      uint64 `json:"left"`
	Slow      uint64 `json:"slow"`
	Malformed uint64 `json:"malformed"`
	Strays    uint64 `json:"strays"`
	// Sizes counts calls by items, as SizeBounds says; Waited how long requests waited.
	Sizes  [len(SizeBounds) + 1]uint64 `json:"-"`
	Waited metrics.Counts              `json:"-"`
}

// Stats returns those of all routes that ever batched, in the order of their first use. Any
// goroutine.
func (b *Batcher) Stats() []Stats {
	b.mu.Lock()
	queues := slices.Clone(b.queues)
	b.mu.Unlock()
	list := make([]Stats, 0, len(queues))
	for _, q := range queues {
		list = append(list, q.stats())
	}
	return list
}

func (q *Queue) stats() Stats {
	s := Stats{Route: q.route, Calls: q.calls.Load(), Joined: q.joined.Load(), Items: q.items.Load(), Alone: q.alone.Load(), Refused: q.refused.Load(),
		Left: q.left.Load(), Slow: q.slow.Load(), Malformed: q.malformed.Load(), Strays: q.strays.Load()}
	for i := range q.sizes {
		s.Sizes[i] = q.sizes[i].Load()
	}
	q.waited.AddTo(&s.Waited)
	q.mu.Lock()
	s.Waiting, s.Running = q.waiting, q.running
	q.mu.Unlock()
	return s
}
