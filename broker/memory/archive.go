package memory

import (
	"context"
	"fmt"
	"slices"

	"github.com/weir-gateway/weir/hub"
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
	return hub.Position{}, fmt.Errorf("%w: id %.80q in namespace %q", hub.ErrNoMessage, id, l.ns.Name)
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
