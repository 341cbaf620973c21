package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// The calls of this file wait for the broker where they must: they are not for the
// goroutine of a shard. Any other may call them.

// HistoryOptions say what to read of a channel.
type HistoryOptions struct {
	// Since is where to read on from, the message there not included. A zero epoch
	// means the current one; with another one, or with a check that is not that of
	// the log, History answers ErrBadEpoch. A zero
	// Since means from the beginning, or from the end if Reverse.
	Since Position
	// Limit is how many messages are wanted: 0 means none, but the top of the log; -1
	// means all, up to MaxHistory, which is also the bound of what may be asked for.
	Limit int
	// Reverse reads towards the beginning: the newest message comes first.
	Reverse bool
}

// Bounds of one History.
const (
	MaxHistory      = 10_000
	maxHistoryBytes = 16 << 20 // of payload, but at least one message
)

// History is a stretch of a channel's log.
type History struct {
	// Top is the end of the namespace's log; zero for one that keeps none.
	Top Position
	// Messages in the order requested. They are shared: do not change them.
	Messages []*Message
	// More reports that there are more in the direction requested.
	More bool
	// Lost reports that retention removed messages that were asked for.
	Lost bool
}

// History reads a stretch of channel, which may be Whole of a namespace. The answer
// takes in all that was stored before the call.
func (h *Hub) History(ctx context.Context, channel string, opt HistoryOptions) (History, error) {
	n, err := h.begin(channel)
	if err != nil {
		return History{}, err
	}
	defer h.work.Done()
	top, err := h.topOf(ctx, n)
	if err != nil || top.Epoch == "" {
		return History{}, err
	}
	opt.Since = n.carry(opt.Since, top.Epoch)
	if e := opt.Since.Epoch; e != "" && e != top.Epoch {
		return History{Top: top}, fmt.Errorf("%w: %q, the log of namespace %q is in %q", ErrBadEpoch, e, n.name, top.Epoch)
	}
	if opt.Limit < 0 || opt.Limit > MaxHistory {
		opt.Limit = MaxHistory
	}
	if opt.Since.Check != 0 {
		ok, err := h.proves(ctx, n, channel, opt.Since)
		if err != nil {
			return History{}, err
		}
		if !ok {
			h.stats.refuted.Add(1)
			return History{Top: top}, fmt.Errorf("%w: what the log of namespace %q has at %v is another message", ErrBadEpoch, n.name, opt.Since)
		}
	}
	r := &reader{h: h, n: n, channel: channel, top: top, limit: opt.Limit}
	switch {
	case opt.Limit == 0:
	case opt.Reverse:
		err = r.backward(ctx, opt.Since.Offset)
	default:
		err = r.forward(ctx, opt.Since.Offset)
	}
	return History{Top: top, Messages: r.got, More: r.more, Lost: r.lost}, err
}

// Latest returns the newest retained message of channel, or ErrNoMessage.
func (h *Hub) Latest(ctx context.Context, channel string) (*Message, error) {
	p, err := h.History(ctx, channel, HistoryOptions{Limit: 1, Reverse: true})
	switch {
	case err != nil:
		return nil, err
	case len(p.Messages) == 0:
		return nil, fmt.Errorf("%w: channel %.60q has none", ErrNoMessage, channel)
	}
	return p.Messages[0], nil
}

// Top returns the end of a namespace's log; zero for one that keeps none.
func (h *Hub) Top(ctx context.Context, namespace string) (Position, error) {
	n, err := h.begin(Whole(namespace))
	if err != nil {
		return Position{}, err
	}
	defer h.work.Done()
	return h.topOf(ctx, n)
}

// Lookup returns the position of the earliest retained message of the namespace whose
// Attributes.ID is id, or ErrNoMessage. What it returns can be resumed from.
func (h *Hub) Lookup(ctx context.Context, namespace, id string) (Position, error) {
	n, err := h.begin(Whole(namespace))
	if err != nil {
		return Position{}, err
	}
	defer h.work.Done()
	a, err := h.archive()
	if err != nil {
		return Position{}, err
	}
	return a.Lookup(ctx, n.options(), id)
}

// removedTopic is where nodes notify each other of what Remove removed.
const removedTopic = "hub.removed"

// removal reports that what was in the log of channel up to At is gone.
type removal struct {
	Channel string `json:"channel"`
	Epoch   string `json:"epoch"`
	Offset  uint64 `json:"offset"`
}

// Remove deletes what is retained of channel, on all nodes. Anyone who resumes from before
// gets a gap event.
func (h *Hub) Remove(ctx context.Context, channel string) error {
	if err := CheckChannel(channel); err != nil {
		return err
	}
	n, err := h.begin(channel)
	if err != nil {
		return err
	}
	defer h.work.Done()
	a, err := h.archive()
	if err != nil {
		return err
	}
	top, err := h.topOf(ctx, n)
	if err != nil {
		return err
	}
	if err := a.Remove(ctx, n.options(), channel); err != nil {
		return err
	}
	r := removal{channel, top.Epoch, top.Offset}
	h.purge(n, r)
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return h.bus.Broadcast(removedTopic, b)
}

// removed is called for a Remove on any node.
func (h *Hub) removed(_ string, data []byte) {
	var r removal
	if json.Unmarshal(data, &r) != nil {
		return
	}
	if n, err := h.namespaceOf(r.Channel); err == nil {
		h.purge(n, r)
	}
}

// purge takes what was removed out of what is kept here.
func (h *Hub) purge(n *namespace, r removal) {
	if ch := h.lookup(r.Channel); ch != nil {
		ch.purge(r)
	}
	if w := n.whole.Load(); w != nil {
		w.purge(r)
	}
}

// purge drops the messages of r. The ring of a whole namespace goes up to there with
// all that is in it: what is left is read from the broker then.
func (ch *channel) purge(r removal) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.state != chanActive || ch.epoch != r.Epoch {
		return
	}
	for ch.start < len(ch.ring) && ch.ring[ch.start].Offset <= r.Offset {
		ch.dropOldest()
	}
	ch.floor = max(ch.floor, min(ch.last, r.Offset))
	ch.forgetPages()
	ch.purges++
	for _, l := range ch.locals {
		l.shard.post(func() { l.memo = replayMemo{} })
	}
}

// Bus returns what connects the nodes: the broker's, or for a broker that has none
// one that reaches this node alone. Not before Start.
func (h *Hub) Bus() Bus { return h.bus }

func (h *Hub) archive() (Archive, error) {
	if a, ok := h.broker.(Archive); ok {
		return a, nil
	}
	return nil, fmt.Errorf("%w: this broker keeps no archive", errors.ErrUnsupported)
}

// begin starts a call about channel, which may be Whole of a namespace, and returns
// that namespace. Without an error Close waits for h.work.Done.
func (h *Hub) begin(channel string) (*namespace, error) {
	if !IsWhole(channel) {
		if err := CheckChannel(channel); err != nil {
			return nil, err
		}
	}
	n, err := h.namespaceOf(channel)
	if err != nil {
		return nil, err
	}
	h.gate.RLock()
	defer h.gate.RUnlock()
	if h.closed.Load() {
		return nil, ErrClosed
	}
	h.work.Add(1)
	return n, nil
}

// topOf looks up the end of n's log, together with others who want to know.
func (h *Hub) topOf(ctx context.Context, n *namespace) (Position, error) {
	type answer struct {
		at  Position
		err error
	}
	got := make(chan answer, 1)
	h.top(n, func(at Position, err error) { got <- answer{at, err} })
	select {
	case a := <-got:
		return a.at, a.err
	case <-ctx.Done():
		return Position{}, ctx.Err()
	}
}

// proves reports whether p, which has a check, is a place in the log, for a caller
// that waits and reads channel.
func (h *Hub) proves(ctx context.Context, n *namespace, channel string, p Position) (bool, error) {
	if ch := h.lookup(channel); ch != nil {
		if ok, known := ch.proves(p); known {
			return ok, nil
		}
	}
	type answer struct {
		check Check
		err   error
	}
	got := make(chan answer, 1)
	h.prove(n, p, func(c Check, err error) { got <- answer{c, err} })
	select {
	case a := <-got:
		return a.check == p.Check, a.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// reader is one History under way.
type reader struct {
	h       *Hub
	n       *namespace
	channel string
	top     Position
	limit   int

	got        []*Message
	bytes      int
	more, lost bool
}

// add adds m and reports whether another is welcome.
func (r *reader) add(m *Message) bool {
	if len(r.got) == r.limit || len(r.got) > 0 && r.bytes+m.size() > maxHistoryBytes {
		r.more = true
		return false
	}
	r.got = append(r.got, m)
	r.bytes += m.size()
	return true
}

func (r *reader) forward(ctx context.Context, since uint64) error {
	for from := since; from < r.top.Offset; {
		p, err := r.page(ctx, from, r.top.Offset)
		if err != nil {
			return err
		}
		r.lost = r.lost || from+1 < p.FirstRetained
		for _, m := range p.Messages {
			if !r.add(m) {
				return nil
			}
		}
		from = p.Covered
	}
	return nil
}

// backward reads windows that end where the one before began, each much larger than
// that: a busy channel is found in the first, a quiet one in few.
func (r *reader) backward(ctx context.Context, before uint64) error {
	end := r.top.Offset
	if before != 0 {
		end = min(end, before-1)
	}
	const wider = 16
	for width := uint64(max(4*r.limit, 256)); end > 0; width *= wider {
		begin := end - min(end, width)
		if from, ok := r.ringFloor(); ok && from < end {
			begin = max(begin, from) // what the ring has costs nothing
		}
		window, err := r.window(ctx, begin, end)
		if err != nil {
			return err
		}
		for _, m := range slices.Backward(window) {
			if !r.add(m) {
				r.lost = false // what was removed is older than what was asked for
				return nil
			}
		}
		end = begin
	}
	return nil
}

// window returns the messages with start < offset <= end. Of many only the newest
// are kept, one more than is wanted.
func (r *reader) window(ctx context.Context, begin, end uint64) ([]*Message, error) {
	var all []*Message
	for from := begin; from < end; {
		p, err := r.page(ctx, from, end)
		if err != nil {
			return nil, err
		}
		all = append(all, p.Messages...)
		if extra := len(all) - (r.limit + 1); extra > 0 {
			all = slices.Delete(all, 0, extra)
		}
		r.lost = r.lost || from+1 < p.FirstRetained
		from = p.Covered
	}
	return all, nil
}

// ringFloor returns from where on the channel's ring is complete, if it is up to date.
func (r *reader) ringFloor() (uint64, bool) {
	ch := r.h.lookup(r.channel)
	if ch == nil || !r.n.hasDelivered(r.top) {
		return 0, false
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.floor, ch.state == chanActive && ch.epoch == r.top.Epoch
}

// page returns messages with since < offset <= upto, from the ring if it has them.
func (r *reader) page(ctx context.Context, since, upto uint64) (Page, error) {
	if floor, ok := r.ringFloor(); ok && since >= floor {
		ch := r.h.lookup(r.channel)
		if ch != nil {
			msgs, first, ok := ch.recent(nil, r.top.Epoch, since, upto, MaxHistory)
			if ok {
				p := Page{Epoch: r.top.Epoch, Messages: msgs, Covered: upto, FirstRetained: first}
				if len(msgs) == MaxHistory {
					p.Covered = msgs[len(msgs)-1].Offset
				}
				return p, nil
			}
		}
	}
	p, err := r.h.broker.History(ctx, r.n.options(), r.channel, since, r.h.page)
	switch {
	case err != nil:
		return Page{}, fmt.Errorf("history of %.60q: %w", r.channel, err)
	case p.Epoch != r.top.Epoch || p.Covered <= since:
		return Page{}, fmt.Errorf("%w: history of %.60q: its log was restarted", ErrUnavailable, r.channel)
	}
	for len(p.Messages) > 0 && p.Messages[len(p.Messages)-1].Offset > upto {
		p.Messages = p.Messages[:len(p.Messages)-1]
	}
	p.Covered = min(p.Covered, upto)
	return p, nil
}
