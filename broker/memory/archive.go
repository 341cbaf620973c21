package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weir-gateway/weir/internal/push/hub"
)

var _ hub.Archive = (*Broker)(nil)

// Lookup returns the position of the earliest retained message with id. It is one
// look into an index.
func (b *Broker) Lookup(ctx context.Context, ns *hub.Namespace, id string) (hub.Position, error) {
	l, err := b.ready(ctx, ns)
	if err != nil {
		return hub.Position{}, err
	}
	return l.lookup(id)
}

// Remove deletes what is retained of channel.
func (b *Broker) Remove(ctx context.Context, ns *hub.Namespace, channel string) error {
	l, err := b.ready(ctx, ns)
	if err != nil {
		return err
	}
	return l.removeAll(channel)
}

// PublishAfter stores p if newest is the channel's newest message. It answers before it
// returns.
func (b *Broker) PublishAfter(ns *hub.Namespace, p hub.Publication, newest uint64, done func(hub.Position, error)) {
	l, err := b.log(ns)
	if err != nil {
		done(hub.Position{}, err)
		return
	}
	done(l.publishAfter(&p, newest))
}

// Bus returns a bus of this node alone. It lives from New to Close.
func (b *Broker) Bus() hub.Bus { return b.bus }

func (l *log) lookup(id string) (hub.Position, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return hub.Position{}, l.closed
	}
	l.expireTo(l.age())
	if at := l.ids.earliest(id, &l.order); id != "" && at != 0 {
		return hub.Position{Epoch: l.epoch, Offset: at}, nil
	}
	return hub.Position{}, fmt.Errorf("%w: id %.80q in namespace %q", hub.ErrNoMessage, id, l.opts.Load().Name)
}

// publishAfter is publish with a condition, in a namespace that keeps a log.
func (l *log) publishAfter(p *hub.Publication, newest uint64) (hub.Position, error) {
	if l.opts.Load().Durability == hub.None {
		return hub.Position{}, fmt.Errorf("%w: namespace %q keeps no log", errors.ErrUnsupported, l.opts.Load().Name)
	}
	return l.store(p, nil, func(c *channel) error {
		at := uint64(0)
		if c.ring.n > 0 {
			at = c.ring.at(c.ring.n - 1).msg.Offset
		}
		if at != newest {
			return fmt.Errorf("%w: %d, not %d, is the newest of %.60q", hub.ErrConflict, at, newest, p.Channel)
		}
		return nil
	})
}

func (l *log) removeAll(name string) error {
	if name == "" || hub.IsWhole(name) {
		return fmt.Errorf("%w: %q", hub.ErrBadChannel, name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return l.closed
	}
	if c := l.channels[name]; c != nil {
		for c.ring.n > 0 {
			l.remove(c.ring.at(0))
		}
	}
	l.forget()
	return nil
}

// subscribeWhole subscribes to all channels. l.mu is held.
func (l *log) subscribeWhole(name string, tail int) (hub.Snapshot, error) {
	if l.whole {
		return hub.Snapshot{}, fmt.Errorf("subscribe %q: it is subscribed already", name)
	}
	l.whole = true
	s := hub.Snapshot{Top: l.top(), FirstRetained: l.removed + 1}
	newest := l.order.newest(max(0, tail))
	if len(newest) > max(0, tail) {
		s.Floor = newest[len(newest)-1].msg.Offset
		newest = newest[:len(newest)-1]
	}
	for _, e := range slices.Backward(newest) {
		s.Messages = append(s.Messages, &e.msg)
	}
	return s, nil
}

// historyWhole is history of all channels. l.mu is held.
func (l *log) historyWhole(since uint64, limit int) hub.Page {
	p := hub.Page{Epoch: l.epoch, Covered: l.last, FirstRetained: l.removed}
	for e := range l.order.after(since) {
		if len(p.Messages) >= max(0, limit) {
			p.Covered = e.msg.Offset - 1
			break
		}
		p.Messages = append(p.Messages, &e.msg)
	}
	return p
}
