package hub

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Sink is where a subscriber's messages go: a connection, or anything else.
// The hub calls it on the shard's goroutine only. A sink may unsubscribe its own
// subscriber from any of these calls, but no other, and subscribe none.
type Sink interface {
	// Start comes once, before all else: what follows comes after at, one
	// position per namespace that keeps a log.
	Start(at Positions)
	// Deliver hands over messages in order. It must not block. The batch is valid
	// until it returns; its messages, and what Bytes gave, stay so.
	Deliver(b *Batch)
	// Gap says that messages may be missing between what came before and what
	// comes next.
	Gap(g Gap)
	// Failed says that the subscription cannot be had or kept. It is the last call.
	Failed(err error)
	// Room reports whether more replay is welcome. After false the hub waits
	// for Subscriber.Continue. Live messages come regardless.
	Room() bool
}

// A Gap is a stretch of a log that a subscriber asked for and cannot get.
type Gap struct {
	Namespace string
	From      string   // what the subscriber had, as it said it
	To        Position // up to here messages may be missing
	// At is where the stream stands after the gap: what follows comes after it,
	// and it is safe to resume from. It is before To when other channels of the
	// stream still have messages from in between.
	At     Position
	Reason GapReason
}

// GapReason is a word for why messages may be missing.
type GapReason string

const (
	GapRetention GapReason = "retention" // older than what the namespace keeps
	GapEpoch     GapReason = "epoch"     // the log was lost or begun anew
	GapUnknown   GapReason = "unknown"   // the position asked for is not known
	GapOverflow  GapReason = "overflow"  // dropped because the subscriber was too slow
)

// A Subscriber is one sink's place in the hub. It is embedded by value in what
// owns it; the zero value is not subscribed. Owned by its shard's goroutine.
type Subscriber struct {
	sink Sink
	// local and pos are set while it is in local.single.
	local *local
	pos   int32
	// more is set while it is in the filtered lists of its channels: a pointer,
	// since most subscribers follow one channel.
	more *[]membership
	// join is set until the subscriber is live.
	join *join
}

// membership is one channel of a subscriber on the filtered path.
type membership struct {
	l     *local
	pos   int32
	after uint64 // messages up to here were delivered
}

// MaxSubscriberChannels bounds the channels of one subscriber.
const MaxSubscriberChannels = 128

// ErrTooManyChannels is returned by Subscribe.
var ErrTooManyChannels = errors.New("too many channels")

// SubscribeOptions say what a subscriber wants.
type SubscribeOptions struct {
	// Channels to follow, 1 to MaxSubscriberChannels; repeats are ignored.
	Channels []string
	// Since are the positions to resume after, one per namespace. Empty means
	// live messages only.
	Since Positions
	// All asks for everything retained; Since is ignored.
	All bool
	// Unknown is a position that could not be understood: the subscriber gets a
	// gap and live messages. Since is ignored.
	Unknown string
}

func (o *SubscribeOptions) live() bool { return !o.All && o.Unknown == "" && len(o.Since) == 0 }

// Subscribe begins a subscription of sink. Only the shard's goroutine may call
// it; sink may be called before it returns. An error means nothing was begun.
func (sh *Shard) Subscribe(s *Subscriber, sink Sink, opt SubscribeOptions) error {
	switch {
	case s.sink != nil:
		return errors.New("subscribe: already subscribed")
	case sh.hub.closed.Load():
		return ErrClosed
	}
	if len(opt.Channels) == 0 || len(opt.Channels) > MaxSubscriberChannels {
		return fmt.Errorf("%w: %d, want 1 to %d", ErrTooManyChannels, len(opt.Channels), MaxSubscriberChannels)
	}
	for _, name := range opt.Channels {
		if err := CheckChannel(name); err != nil {
			return err
		}
		if _, err := sh.hub.namespaceOf(name); err != nil {
			return err
		}
	}
	s.sink = sink
	if len(opt.Channels) == 1 && opt.live() {
		// The common case without a join: the channel is warm already.
		if l := sh.locals[opt.Channels[0]]; l != nil && l.active {
			sh.subs++
			s.enterSingle(l)
			sink.Start(l.positions())
			return nil
		}
	}
	return sh.beginJoin(s, opt)
}

// positions returns where the shard stands on the channel, for Sink.Start.
func (l *local) positions() Positions {
	if l.epoch == "" {
		return nil
	}
	return Positions{{Epoch: l.epoch, Offset: l.last}}
}

// Unsubscribe ends the subscription; the sink is not called again. It may be
// called for a subscriber that is not subscribed.
func (sh *Shard) Unsubscribe(s *Subscriber) {
	if s.sink == nil {
		return
	}
	if s.join != nil {
		s.join.cancel()
		s.join = nil
	}
	s.leave()
	s.sink, s.more = nil, nil
	sh.subs--
}

// Continue resumes a replay that waited for room in the sink.
func (s *Subscriber) Continue() {
	if j := s.join; j != nil && j.waitsForRoom {
		j.waitsForRoom = false
		j.run()
	}
}

// Channels returns the names of the channels s follows.
func (s *Subscriber) Channels() []string {
	var names []string
	switch {
	case s.join != nil:
		names = append(names, s.join.opt.Channels...)
	case s.local != nil:
		names = append(names, s.local.name)
	}
	for _, m := range s.memberships() {
		names = append(names, m.l.name)
	}
	return names
}

// Live reports whether the subscriber has caught up with its channels.
func (s *Subscriber) Live() bool { return s.sink != nil && s.join == nil }

// enterSingle puts s on the straight path of l. What l has not flushed yet is
// older than s and goes to the others first.
func (s *Subscriber) enterSingle(l *local) {
	l.flush()
	s.local, s.pos = l, int32(len(l.single))
	l.single = append(l.single, s)
}

// enterFiltered puts s on the filtered path of its channels, from after on.
func (s *Subscriber) enterFiltered(locals []*local, after uint64) {
	if s.more == nil {
		s.more = &[]membership{}
	}
	for _, l := range locals {
		*s.more = append(*s.more, membership{l: l, pos: int32(len(l.filtered)), after: after})
		l.filtered = append(l.filtered, member{s: s, index: int32(len(*s.more) - 1)})
	}
}

func (s *Subscriber) memberships() []membership {
	if s.more == nil {
		return nil
	}
	return *s.more
}

// leave takes s out of the lists of its channels.
func (s *Subscriber) leave() {
	if l := s.local; l != nil {
		last := len(l.single) - 1
		moved := l.single[last]
		l.single[s.pos], moved.pos = moved, s.pos
		l.single[last] = nil
		l.single = l.single[:last]
		s.local = nil
		l.noteIdle()
	}
	if more := s.memberships(); len(more) == 1 {
		more[0].l.ahead--
	}
	for _, m := range s.memberships() {
		l, last := m.l, len(m.l.filtered)-1
		moved := l.filtered[last]
		l.filtered[m.pos] = moved
		(*moved.s.more)[moved.index].pos = m.pos
		l.filtered[last] = member{}
		l.filtered = l.filtered[:last]
		l.noteIdle()
	}
	s.more = nil
}

func (l *local) noteIdle() {
	if l.unused() {
		l.idle = time.Now()
		if cap(l.single) > 64 {
			l.single = l.one[:0]
		}
	}
}

// dedupe returns names without repeats, in order of first appearance.
func dedupe(names []string) []string {
	var out []string
	for _, n := range names {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}
