package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// versions are the publications with Attributes.Version that wait for their turn:
// those of a channel are stored one after the other. Any goroutine.
type versions struct {
	hub *Hub // fixed at New

	mu      sync.Mutex
	queues  map[string][]versioned // the first of each is at work
	waiting int
	bytes   int // of what waits
}

type versioned struct {
	p    Publication
	done func(Position, error)
}

const (
	maxVersioned    = 10_000   // that wait at a node
	maxVersionBytes = 32 << 20 // of them, but at least one
	versionAttempts = 50       // at a channel on which other nodes publish as well
)

// publish is Hub.publish for a publication with a version, in a namespace that keeps
// a log: it is stored if its channel has none that is as new.
func (v *versions) publish(n *namespace, p Publication, done func(Position, error)) {
	v.mu.Lock()
	if n := v.waiting; n >= maxVersioned || n > 0 && v.bytes+p.size() > maxVersionBytes {
		v.mu.Unlock()
		v.hub.stats.refused.Add(1)
		done(Position{}, fmt.Errorf("%w: %d publications with a version wait", ErrOverloaded, n))
		return
	}
	if v.queues == nil {
		v.queues = map[string][]versioned{}
	}
	first := len(v.queues[p.Channel]) == 0
	v.queues[p.Channel] = append(v.queues[p.Channel], versioned{p, done})
	v.waiting++
	v.bytes += p.size()
	v.mu.Unlock()
	if first {
		channel := p.Channel
		v.hub.goBroker(func(ctx context.Context) { v.publishAll(ctx, n, channel) })
	}
}

// size is what p counts for in the bound of a queue.
func (p *Publication) size() int { return len(p.Data) + p.Attributes.Size() }

// publishAll publishes what waits for channel, until nothing does.
func (v *versions) publishAll(ctx context.Context, n *namespace, channel string) {
	for {
		v.mu.Lock()
		one := v.queues[channel][0]
		v.mu.Unlock()
		one.done(v.publishOne(ctx, n, one.p))
		v.mu.Lock()
		v.waiting--
		v.bytes -= one.p.size()
		rest := v.queues[channel][1:]
		v.queues[channel] = rest
		if len(rest) == 0 {
			delete(v.queues, channel)
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
	}
}

// publishOne stores p unless its channel has a message that is as new, which is
// answered with the end of the log. A message stored on the channel in between
// makes it look again.
func (v *versions) publishOne(ctx context.Context, n *namespace, p Publication) (Position, error) {
	a, err := v.hub.archive()
	if err != nil {
		return Position{}, err
	}
	for try := range versionAttempts {
		top, newest, err := v.newest(ctx, n, p, try > 0)
		if err == nil && top.Offset != 0 && p.IdempotencyKey != "" {
			return v.publishStale(ctx, a, n, p, top)
		}
		if err != nil || top.Offset != 0 {
			return top, err
		}
		at, err := publishAfter(ctx, a, n, p, newest)
		if !errors.Is(err, ErrConflict) {
			return at, err
		}
	}
	return Position{}, fmt.Errorf("%w: channel %.60q: others publish on it all the time", ErrOverloaded, p.Channel)
}

// publishStale answers p, which is not newer than what its channel has: with what its
// idempotency key says if that is known, otherwise with top.
func (v *versions) publishStale(ctx context.Context, a Archive, n *namespace, p Publication, top Position) (Position, error) {
	at, err := publishAfter(ctx, a, n, p, Never)
	if errors.Is(err, ErrConflict) {
		return top, nil
	}
	return at, err
}

// newest looks for what p must be newer than. If p is not, top is the end of
// the log, otherwise newest is the offset of the channel's newest message, 0 if there
// is none. With sure it does not rely on what is kept here, of which retention may
// have removed something.
func (v *versions) newest(ctx context.Context, n *namespace, p Publication, sure bool) (top Position, newest uint64, err error) {
	opt := HistoryOptions{Limit: 1, Reverse: true}
	for {
		page, err := v.hub.History(ctx, p.Channel, opt)
		if err != nil {
			return Position{}, 0, err
		}
		for _, m := range page.Messages {
			newest = max(newest, m.Offset)
			if a := m.Attributes; a != nil && a.Version != 0 {
				if p.Attributes.isNewer(a) {
					page.More = false
					break
				}
				return page.Top, 0, nil
			}
		}
		if !page.More || len(page.Messages) == 0 {
			break
		}
		opt.Since = page.Messages[len(page.Messages)-1].Position()
		opt.Limit = -1
	}
	if sure && newest != 0 {
		page, err := v.hub.broker.History(ctx, n.options(), p.Channel, newest-1, 1)
		if err != nil {
			return Position{}, 0, err
		}
		if len(page.Messages) == 0 {
			newest = 0
		}
	}
	return Position{}, newest, nil
}

// isNewer reports whether a message with a comes after one with the version of old:
// versions of different epochs have no order, and the later one counts.
func (a *Attributes) isNewer(old *Attributes) bool {
	return a.VersionEpoch != "" && a.VersionEpoch != old.VersionEpoch || a.Version > old.Version
}

// publishAfter waits for Archive.PublishAfter.
func publishAfter(ctx context.Context, a Archive, n *namespace, p Publication, newest uint64) (Position, error) {
	type answer struct {
		at  Position
		err error
	}
	got := make(chan answer, 1)
	a.PublishAfter(n.options(), p, newest, func(at Position, err error) { got <- answer{at, err} })
	select {
	case x := <-got:
		return x.at, x.err
	case <-ctx.Done():
		return Position{}, ErrClosed
	}
}
