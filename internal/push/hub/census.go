package hub

import "context"

// ChannelStats are facts of a channel that this node has subscribers of, or had
// until lately.
type ChannelStats struct {
	Name string
	// Subscribers on this node.
	Subscribers int
	// Messages and their payload bytes that came since this node subscribed.
	Messages, Bytes uint64
}

// censusStep is how many channels a shard is queried about at a time: it is an
// event loop and has other things to do.
const censusStep = 512

// Channels yields every channel that is subscribed on this node, in no order, until
// yield returns false. A whole namespace that is subscribed is among them, by its
// name. Not from the goroutine of a shard: it waits for all of them.
func (h *Hub) Channels(ctx context.Context, yield func(ChannelStats) bool) error {
	for i := range h.table.parts {
		all := h.table.parts[i].all()
		for len(all) > 0 {
			n := min(len(all), censusStep)
			stats, err := h.census(ctx, all[:n])
			if err != nil {
				return err
			}
			for _, st := range stats {
				if !yield(st) {
					return nil
				}
			}
			all = all[n:]
		}
	}
	return nil
}

// ChannelStats returns the facts of one channel: only its name, if no client of this node
// has it subscribed. It waits as Channels does.
func (h *Hub) ChannelStats(ctx context.Context, name string) (ChannelStats, error) {
	ch := h.lookup(name)
	if ch == nil {
		return ChannelStats{Name: name}, nil
	}
	stats, err := h.census(ctx, []*channel{ch})
	if err != nil {
		return ChannelStats{}, err
	}
	return stats[0], nil
}

// census queries every shard how many subscribers it has of each.
func (h *Hub) census(ctx context.Context, channels []*channel) ([]ChannelStats, error) {
	stats := make([]ChannelStats, len(channels))
	for i, ch := range channels {
		ch.mu.Lock()
		stats[i] = ChannelStats{Name: ch.name, Messages: ch.messages, Bytes: ch.bytes}
		ch.mu.Unlock()
	}
	shards := *h.shards.Load()
	answers := make(chan []int, len(shards))
	for _, s := range shards {
		s.post(func() {
			counts := make([]int, len(channels))
			for i, ch := range channels {
				if l := s.locals[ch.name]; l != nil {
					counts[i] = l.subscribers()
				}
			}
			answers <- counts
		})
	}
	for range shards {
		select {
		case counts := <-answers:
			for i, n := range counts {
				stats[i].Subscribers += n
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-h.ctx.Done():
			return nil, ErrClosed
		}
	}
	return stats, nil
}
