package nats

import (
	"context"
	"fmt"
	"slices"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// History reads a stretch of channel. Covered is exact. FirstRetained is exact
// or too high, never too low: it is too high where a channel has just as many
// messages as its bound allows and none was removed, and where the neighbours'
// removed messages cannot be distinguished from this channel's (JetStream only says which
// message is the oldest of all), which begins when the log is as old as
// history_ttl, half as large as history_bytes, or history_bytes is under 64
// MiB. For the whole namespace it is exact, but that of the
// messages removed above Covered it knows only as long as they are few.
func (b *Broker) History(ctx context.Context, ns *hub.Namespace, channel string, since uint64, limit int) (hub.Page, error) {
	s, err := b.stream(ns)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil || !s.durable() {
		return hub.Page{}, err
	}
	var p hub.Page
	err = b.again(ctx, func() (err error) {
		p, err = s.history(ctx, channel, since, limit)
		return err
	})
	if err != nil {
		return hub.Page{}, fmt.Errorf("history of %q: %w", channel, err)
	}
	return p, nil
}

func (s *readable) history(ctx context.Context, channel string, since uint64, limit int) (hub.Page, error) {
	in, err := s.info(ctx)
	if err != nil {
		return hub.Page{}, err
	}
	tok := token(s.opts.Load().Name, channel)
	r, err := s.reader(ctx, tok)
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
	ms, lacksUpTo, err := r.check(ctx, in, tok, ms, since, page.Covered)
	if err != nil {
		return hub.Page{}, err
	}
	if len(ms) > limit {
		ms = ms[:limit]
		page.Covered = ms[limit-1].seq
	}
	if err := s.verifyRead(ctx, in); err != nil {
		return hub.Page{}, err
	}
	if tok == anyToken {
		page.FirstRetained, err = s.firstOfAll(ctx, in, ms, since, page.Covered)
		page.Messages = s.messages(tok, ms, in.epoch)
		return page, err
	}
	var last gone
	if in.gone {
		if last, err = s.lastGone(ctx, tok); err != nil {
			return hub.Page{}, err
		}
		ms = slices.DeleteFunc(ms, func(st stored) bool { return st.seq <= last.upTo }) // a replica may have it still
	}
	page.Messages = s.messages(tok, ms, in.epoch)
	page.FirstRetained, err = r.firstRetained(ctx, in, since)
	if since < lacksUpTo {
		page.FirstRetained = max(page.FirstRetained, lacksUpTo+1)
	}
	if last.upTo > 0 {
		page.FirstRetained = max(page.FirstRetained, last.upTo+1)
	}
	return page, err
}

// maxDeleted bounds the list of removed sequences that is asked for.
const maxDeleted = 20_000

// firstOfAll is firstRetained for the whole namespace. ms is all of the log between
// since and covered. What is missing there was removed, and what is missing later
// is said by a later page; it is said here already as long as the list is short.
func (s *readable) firstOfAll(ctx context.Context, in info, ms []stored, since, covered uint64) (uint64, error) {
	first := in.first
	if hole := lastHole(ms, since, covered); hole > 0 {
		first = max(first, hole+1)
	}
	if covered < in.last && in.deleted > 0 && in.deleted <= maxDeleted {
		var a struct {
			State struct {
				Deleted []uint64 `json:"deleted"`
			} `json:"state"`
		}
		if err := s.request(ctx, "STREAM.INFO."+s.name(), map[string]bool{"deleted_details": true}, &a); err != nil {
			return 0, err
		}
		if n := len(a.State.Deleted); n > 0 {
			first = max(first, a.State.Deleted[n-1]+1)
		}
	}
	return first, nil
}

// firstRetained says from where on the channel is whole. It must be asked after
// the messages were read, or what retention removed in between would go unsaid.
func (r *reader) firstRetained(ctx context.Context, in info, since uint64) (uint64, error) {
	oldest, count, err := r.oldest(ctx, since)
	if err != nil {
		return 0, err
	}
	// The bound on the channel removes its oldest when it is reached; so may have a
	// smaller bound that it had before.
	if oldest > 0 && (oldest <= since+1 || count >= min(in.least, r.s.opts.Load().HistorySize)) {
		return oldest, nil
	}
	// What age and bytes remove is older than all that is retained.
	if !in.whole {
		if in, err = newer(ctx, r.s, in); err != nil {
			return 0, err
		}
	}
	if in.whole && in.gone {
		last, err := r.s.lastGone(ctx, anyToken)
		if err != nil {
			return 0, err
		}
		in.whole = last.whole
	}
	if in.whole && !r.s.trimmed(in) {
		return 1, nil
	}
	return in.first, nil
}

// trimmed reports whether the log lacks its oldest messages and neither retention nor
// Remove can have removed them: no channel has as many messages as its bound allows.
// Then another client of NATS has, which does not show whose they were.
func (s *readable) trimmed(in info) bool {
	return !in.gone && in.first > in.base+1 && in.messages < uint64(min(in.least, s.opts.Load().HistorySize))
}

// oldest returns the channel's oldest retained message, 0 if there is none, and how
// many there are, which counts only if the oldest comes later than next after since. A
// replica that is behind may have what the log has not any more: its leader is asked.
func (r *reader) oldest(ctx context.Context, since uint64) (seq uint64, count int, err error) {
	if r.s.opts.Load().Replicas <= 1 {
		p, err := r.s.b.reads.get(ctx, r.s.direct(), query{Seq: 1, NextFor: r.subject, Batch: 1})
		if err != nil || len(p.messages) == 0 {
			return 0, 0, err
		}
		return p.messages[0].seq, int(p.pending) + len(p.messages), nil
	}
	first, err := r.s.leaderMessage(ctx, map[string]any{"seq": 1, "next_by_subj": r.subject})
	if err != nil || first.seq <= since+1 {
		return first.seq, 0, err
	}
	var a struct {
		State struct {
			Subjects map[string]int `json:"subjects"`
		} `json:"state"`
	}
	err = r.s.request(ctx, "STREAM.INFO."+r.s.name(), map[string]string{"subjects_filter": r.subject}, &a)
	return first.seq, a.State.Subjects[r.subject], err
}
