package hub

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/net/prefetch"
)

// A Prefetcher is what a Sink, or a broker's Snapshot.Handle, may be besides: Prefetch has the processor fetch
// memory that it will need soon, without waiting. It is called for many of them before the
// first is used: of a handle first for itself, with step 0, then for what it knows to look
// for once that has come, with step 1; of a sink with step 1 only, since the hub knows where
// it is. It must change nothing.
type Prefetcher interface{ Prefetch(step int) }

// prefetchBatch is how many are requested ahead: not more than the nearest caches hold.
const prefetchBatch = 64

// Prefetch looks up where pubs go and prefetches what publishing them needs. Publish does so itself: this is for anyone who publishes on many
// channels at once. Each takes some ten lines of memory that the processor has not seen
// for long, and here they come side by side. Publish what was prefetched soon. Any
// goroutine.
func (h *Hub) Prefetch(pubs []Publication) {
	for i := 0; i < len(pubs); i += prefetchBatch {
		h.prefetchAll(pubs[i:min(i+prefetchBatch, len(pubs))])
	}
}

func (h *Hub) prefetchAll(pubs []Publication) {
	var hashes [prefetchBatch]uint64
	for i := range pubs {
		hashes[i] = h.table.hash(pubs[i].Channel)
		h.table.prefetch(hashes[i])
	}
	for i := range pubs {
		if ch := h.table.guess(hashes[i]); ch != nil {
			prefetch.Object(ch)
		}
	}
	for i := range pubs {
		if h.resolve(&pubs[i], hashes[i]); pubs[i].to != nil {
			pubs[i].to.prefetch()
		}
		if n, ok := pubs[i].Handle.(Prefetcher); ok {
			n.Prefetch(0)
		}
	}
	now := time.Now()
	for i := range pubs {
		if pubs[i].Now = now; pubs[i].Handle == nil {
			continue
		}
		if n, ok := pubs[i].Handle.(Prefetcher); ok {
			n.Prefetch(1)
		}
	}
}

// prefetchOne is Prefetch for one: what is needed in the end comes while the way there is gone.
func (h *Hub) prefetchOne(p *Publication) {
	hash := h.table.hash(p.Channel)
	if ch := h.table.guess(hash); ch != nil {
		prefetch.Object(ch)
	}
	if h.resolve(p, hash); p.to == nil {
		return
	}
	p.to.prefetch()
	if n, ok := p.Handle.(Prefetcher); ok {
		n.Prefetch(0)
	}
}

// resolve looks up where p goes.
func (h *Hub) resolve(p *Publication, hash uint64) {
	p.Handle = nil
	if p.to = h.table.find(p.Channel, hash); p.to != nil {
		p.to.mu.Lock()
		p.Handle = p.to.handle
		p.to.mu.Unlock()
	}
}

// prefetch prefetches what the next message of ch needs besides ch.
func (ch *channel) prefetch() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if len(ch.locals) == 1 {
		prefetch.Object(ch.locals[0])
	}
	if n := len(ch.ring); n < cap(ch.ring) {
		prefetch.Object(&ch.ring[:n+1][n])
	}
	if n := len(ch.ring) - ch.start; n > 0 && n >= ch.ns.options().Recent {
		prefetch.Object(ch.ring[ch.start])
	}
}

// An Outcome is the answer to a publication.
type Outcome struct {
	At  Position
	Err error
}

// PublishAll publishes pubs in order, without waiting for one before the next, and returns
// what each was answered. When ctx ends, those that have no answer yet are
// ErrUnavailable in an UncertainError: they may or may not have been stored. It waits, so it is not for the
// goroutine of a shard.
func (h *Hub) PublishAll(ctx context.Context, pubs []Publication) []Outcome {
	if len(pubs) == 0 {
		return nil
	}
	a := &answers{left: len(pubs), outcomes: make([]Outcome, len(pubs)), all: make(chan struct{})}
	late := fmt.Errorf("%w: no answer in time", ErrUnavailable)
	for i := range pubs {
		a.outcomes[i].Err = &UncertainError{Key: pubs[i].IdempotencyKey, Err: late}
	}
	for i := range pubs {
		if i%prefetchBatch == 0 {
			h.prefetchAll(pubs[i:min(i+prefetchBatch, len(pubs))])
		}
		h.Publish(pubs[i], func(at Position, err error) { a.set(i, Outcome{at, err}) })
	}
	select {
	case <-a.all:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	outcomes := a.outcomes
	a.outcomes = nil
	return outcomes
}

// answers gathers those of PublishAll, from any goroutine.
type answers struct {
	all chan struct{} // closed with the last

	mu       sync.Mutex
	left     int
	outcomes []Outcome // nil: no longer awaited
}

func (a *answers) set(i int, o Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.outcomes != nil {
		a.outcomes[i] = o
	}
	if a.left--; a.left == 0 {
		close(a.all)
	}
}
