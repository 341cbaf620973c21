package hub

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"unsafe"
)

// messageBytes is what a message is counted for besides its payload and attributes: its
// struct and its place in a ring.
const messageBytes = int64(unsafe.Sizeof(Message{})) + 8

// cost is what m takes in a ring or a page.
func (m *Message) cost() int64 { return int64(m.size()) + messageBytes }

// recent counts what all channels keep of their newest messages, and bounds it.
type recent struct {
	budget int64
	over   chan struct{} // holds a token when the budget is exceeded

	rings, pages atomic.Int64 // bytes
	evicted      atomic.Uint64
}

func (r *recent) init(budget int64) {
	r.budget, r.over = cmp.Or(budget, 256<<20), make(chan struct{}, 1)
}

func (r *recent) add(n int64) {
	if sum := r.rings.Add(n); n > 0 && sum+r.pages.Load() > r.budget {
		r.wake()
	}
}

func (r *recent) addPage(n int64) {
	if sum := r.pages.Add(n); n > 0 && sum+r.rings.Load() > r.budget {
		r.wake()
	}
}

func (r *recent) wake() {
	select {
	case r.over <- struct{}{}:
	default:
	}
}

func (r *recent) used() int64 { return r.rings.Load() + r.pages.Load() }

// exceeded reports whether n bytes more would be an eighth past the budget: then who
// brings them makes place itself.
func (r *recent) exceeded(n int64) bool { return r.used()+n > r.budget+r.budget/8 }

// run is the goroutine that keeps the budget.
func (r *recent) run(ctx context.Context, t *table) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.over:
			r.evict(t)
		}
	}
}

// evict drops the recent messages of the channels that were used longest ago, until
// an eighth of the budget is free.
func (r *recent) evict(t *table) {
	type candidate struct {
		ch   *channel
		used int64
	}
	var all []candidate
	for i := range t.parts {
		for _, ch := range t.parts[i].all() {
			if used, any := ch.lastUsed(); any {
				all = append(all, candidate{ch, used})
			}
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(a.ch.name, b.ch.name))
	})
	for _, c := range all {
		if r.used() <= r.budget-r.budget/8 {
			return
		}
		c.ch.shed()
	}
}

// lastUsed returns when a message came last or was read, in Unix milliseconds; false
// when nothing is kept.
func (ch *channel) lastUsed() (at int64, any bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if n := len(ch.ring); n > ch.start {
		return max(ch.readAt, ch.ring[n-1].Time), true
	}
	return ch.readAt, len(ch.pages) > 0
}

// shed drops what is kept of the channel.
func (ch *channel) shed() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	n := len(ch.ring) - ch.start
	for _, p := range ch.pages {
		n += len(p.page.Messages)
	}
	ch.forgetPages()
	for len(ch.ring) > ch.start {
		ch.dropOldest()
	}
	ch.forget()
	ch.hub.recent.evicted.Add(uint64(n))
}

// forgetPages drops the pages. ch.mu is held.
func (ch *channel) forgetPages() {
	for _, p := range ch.pages {
		ch.hub.recent.addPage(-p.cost)
	}
	ch.pages = nil
}
