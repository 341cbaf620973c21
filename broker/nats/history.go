package nats

import (
	"context"
	"fmt"

	"github.com/weir-gateway/weir/hub"
)

// History reads a stretch of channel. Covered is exact. FirstRetained is exact
// or too high, never too low: it is too high where a channel has just as many
// messages as its bound allows and none was removed, and where the neighbours'
// removed messages cannot be told from this channel's (JetStream only says which
// message is the oldest of all), which begins when the log is as old as
// history_ttl, half as large as history_bytes, or history_bytes is under 64 MiB.
func (b *Broker) History(ctx context.Context, ns *hub.Namespace, channel string, since uint64, limit int) (hub.Page, error) {
	s, err := b.stream(ns)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil || !s.durable() {
		return hub.Page{}, err
	}
	p, err := s.history(ctx, channel, since, limit)
	if err != nil {
		return hub.Page{}, fmt.Errorf("history of %q: %w", channel, err)
	}
	return p, nil
}

func (s *stream) history(ctx context.Context, channel string, since uint64, limit int) (hub.Page, error) {
	in, err := s.info(ctx)
	if err != nil {
		return hub.Page{}, err
	}
	r, err := s.reader(ctx, token(s.ns.Name, channel))
	if err != nil {
		return hub.Page{}, err
	}
	page := hub.Page{Epoch: in.epoch, Covered: in.last}
	var ms []stored
	for at := since; at < in.last && limit > 0; at = page.Covered {
		more, pending, err := r.next(ctx, at, limit-len(ms))
		if err != nil {
			return hub.Page{}, err
		}
		if ms = append(ms, more...); len(more) == 0 || pending == 0 {
			page.Covered = in.last
			break
		}
		if page.Covered = more[len(more)-1].seq; len(ms) >= limit {
			break
		}
	}
	if n := len(ms); n > 0 {
		page.Covered = max(page.Covered, ms[n-1].seq) // stored since the end was asked for
	}
	if s.epochNow() != in.epoch {
		return hub.Page{}, fmt.Errorf("%w: the log was replaced meanwhile", hub.ErrUnavailable)
	}
	page.Messages = s.messages(channel, ms, in.epoch, 0)
	page.FirstRetained, err = s.firstRetained(ctx, r, in, since)
	return page, err
}

// firstRetained says from where on the channel is whole. It must be asked after
// the messages were read, or what retention removed in between would go unsaid.
func (s *stream) firstRetained(ctx context.Context, r reader, in info, since uint64) (uint64, error) {
	p, err := s.b.reads.get(ctx, s.name(), query{Seq: 1, NextFor: r.subject, Batch: 1})
	if err != nil {
		return 0, err
	}
	if n := len(p.messages); n > 0 {
		oldest := p.messages[0].seq
		// The bound on the channel removes its oldest when it is reached; so may
		// have a smaller bound that it had before.
		if oldest <= since+1 || int(p.pending)+n >= min(in.least, s.ns.HistorySize) {
			return oldest, nil
		}
	}
	// What age and bytes remove is older than all that is retained.
	if !in.whole {
		if in, err = s.info(ctx); err != nil {
			return 0, err
		}
	}
	if in.whole {
		return 1, nil
	}
	return in.first, nil
}
