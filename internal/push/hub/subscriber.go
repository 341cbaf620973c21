package hub

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Sink is where a subscriber's messages go: a connection, or anything else.
// The hub calls it on the shard's goroutine only. A sink may subscribe and
// unsubscribe any subscribers of its shard from any of these calls, its own too: who
// has left is not called again, and who came gets what comes after.
type Sink interface {
	// Start comes once, before all else: what follows comes after at, one
	// position per namespace that keeps a log.
	Start(at Positions)
	// Live comes once, after Start, when the replay is complete: everything requested
	// that the log had when the subscriber joined was delivered, or a Gap reported it
	// missing. What follows is delivered as it is published. Without a replay it comes
	// right after Start. A log that starts anew later does not repeat it.
	Live()
	// Deliver passes on messages in order. It must not block. The batch is valid
	// until it returns; its messages, and what Bytes gave, stay so.
	Deliver(b *Batch)
	// Gap reports that messages may be missing between what came before and what
	// comes next.
	Gap(g Gap)
	// Failed reports that the subscription cannot be had or kept. It is the last call.
	Failed(err error)
	// Room reports whether more replay is welcome. After false the hub waits
	// for Subscriber.Continue. Live messages come regardless.
	Room() bool
}

// A Gap is a stretch of a log that a subscriber requested and cannot get.
type Gap struct {
	Namespace string
	From      string   // what the subscriber had, as it said it
	To        Position // up to here messages may be missing
	// At is the stream's position after the gap: what follows comes after it,
	// and it is safe to resume from. It is before To when other channels of the
	// stream still have messages from in between.
	At     Position
	Reason GapReason
}

// GapReason is a word for why messages may be missing.
type GapReason string

const (
	GapRetention GapReason = "retention" // older than what the namespace keeps
	GapEpoch     GapReason = "epoch"     // the log was lost or started anew
	GapUnknown   GapReason = "unknown"   // the position requested is not known
	GapOverflow  GapReason = "overflow"  // dropped because the subscriber was too slow
)

// A Subscriber is one sink's place in the hub. It is embedded by value in what
// owns it; the zero value is not subscribed. Owned by its shard's goroutine.
type Subscriber struct {
	sink Sink
	// local and pos are set while it is in local.single.
	local *local
	pos   int32
	// starting is set from Subscribe until Sink.Live is called.
	starting bool
	// more is set while it is in the filtered lists of its channels: a pointer,
	// since most subscribers follow one channel.
	more *following
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
	// Channels to follow, 1 to MaxSubscriberChannels; repeats are ignored, and so are
	// channels of a namespace that is followed by its Whole.
	Channels []string
	// Since are the positions to resume after, one per namespace. Empty means
	// live messages only.
	Since Positions
	// All requests everything retained; Since is ignored.
	All bool
	// Unknown is a position that could not be understood: the subscriber gets a
	// gap and live messages. Since is ignored.
	Unknown string
	// Select reports which messages this subscriber gets; nil means all. It is called by
	// the shard's goroutine for each, so it must be quick, and also for each copy of a
	// publication to several channels that arrives on one that is followed: without
	// it the hub picks one, with it that is for Select to do.
	Select func(*Message) bool
	// Public keeps private messages from this subscriber.
	Public bool
	// SkipID is the id of the message that Since was found by (Hub.Lookup), if the
	// subscriber had that message: when its publication was to several channels, no
	// other copy of it is delivered. Empty means that there is nothing to skip. It
	// must be an id that came with a message: a checkpoint of the same words is not.
	SkipID string
}

func (o *SubscribeOptions) live() bool { return !o.All && o.Unknown == "" && len(o.Since) == 0 }

// Subscribe starts a subscription of sink. Only the shard's goroutine may call
// it; sink may be called before it returns. An error means nothing was started.
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
		if !IsWhole(name) {
			if err := CheckChannel(name); err != nil {
				return err
			}
		}
		if _, err := sh.hub.namespaceOf(name); err != nil {
			return err
		}
	}
	s.sink, s.starting = sink, true
	if len(opt.Channels) == 1 && opt.live() && opt.filter() == nil {
		// The common case without a join: the channel is warm already.
		if l := sh.locals[opt.Channels[0]]; l != nil && l.active {
			sh.subs++
			if l.flush(); s.sink == nil || s.join != nil || s.local != nil || s.more != nil {
				return nil // another's sink was called, and sent s away
			}
			s.enterSingle(l)
			sink.Start(l.positions())
			s.announceLive()
			return nil
		}
	}
	return sh.beginJoin(s, opt)
}

// positions returns the shard's position on the channel, for Sink.Start.
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
	s.sink, s.more, s.starting = nil, nil, false
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

// isLive reports whether the subscriber has caught up with its channels.
func (s *Subscriber) isLive() bool { return s.sink != nil && s.join == nil }

// announceLive calls Sink.Live if the subscription is live and its sink was not
// notified yet: Start may have ended it, and started another.
func (s *Subscriber) announceLive() {
	if s.starting && s.isLive() {
		s.starting = false
		s.sink.Live()
	}
}

// enterSingle puts s on the straight path of l. What waited there was older than s
// and has been flushed.
func (s *Subscriber) enterSingle(l *local) {
	s.local, s.pos = l, int32(len(l.single))
	l.single = append(l.single, s)
}

// enterFiltered puts s on the filtered path of its channels, from after on.
func (s *Subscriber) enterFiltered(locals []*local, after uint64, f *filter) {
	if s.more == nil {
		s.more = &following{filter: f}
	}
	for _, l := range locals {
		s.more.members = append(s.more.members, membership{l: l, pos: int32(len(l.filtered)), after: after})
		l.filtered = append(l.filtered, member{s: s, index: int32(len(s.more.members) - 1)})
	}
}

func (s *Subscriber) memberships() []membership {
	if s.more == nil {
		return nil
	}
	return s.more.members
}

// ahead reports whether s is on the filtered path only until its shard has come to
// where it is.
func (s *Subscriber) ahead() bool {
	return s.more != nil && len(s.more.members) == 1 && s.more.filter == nil
}

// leave takes s out of the lists of its channels.
func (s *Subscriber) leave() {
	if s.ahead() {
		s.more.members[0].l.ahead--
	}
	if l := s.local; l != nil {
		l.leaveSingle(s.pos)
		s.local = nil
	}
	for _, m := range s.memberships() {
		m.l.leaveFiltered(m.pos)
	}
	s.more = nil
}

// leaveSingle removes the subscriber at pos: the last takes its place, unless the
// list is being walked.
func (l *local) leaveSingle(pos int32) {
	last := len(l.single) - 1
	if l.walking > 0 {
		l.single[pos] = nil
		l.holes = true
		return
	}
	moved := l.single[last]
	l.single[pos], moved.pos = moved, pos
	l.single[last] = nil
	l.single = l.single[:last]
	l.noteIdle()
}

// leaveFiltered is the same for the filtered path.
func (l *local) leaveFiltered(pos int32) {
	last := len(l.filtered) - 1
	if l.walking > 0 {
		l.filtered[pos] = member{}
		l.holes = true
		return
	}
	moved := l.filtered[last]
	l.filtered[pos] = moved
	moved.s.more.members[moved.index].pos = pos
	l.filtered[last] = member{}
	l.filtered = l.filtered[:last]
	l.noteIdle()
}

// walk starts a walk of l's lists, in which sinks are called.
func (l *local) walk() {
	l.walking++
	l.shard.busy++
}

// walked ends it. The last closes the holes of those who left.
func (l *local) walked() {
	l.shard.busy--
	if l.walking--; l.walking > 0 || !l.holes {
		return
	}
	l.holes = false
	n := 0
	for _, s := range l.single {
		if s != nil {
			l.single[n], s.pos = s, int32(n)
			n++
		}
	}
	clear(l.single[n:])
	l.single = l.single[:n]
	n = 0
	for _, e := range l.filtered {
		if e.s != nil {
			l.filtered[n] = e
			e.s.more.members[e.index].pos = int32(n)
			n++
		}
	}
	clear(l.filtered[n:])
	l.filtered = l.filtered[:n]
	l.noteIdle()
}

// subscribers returns how many l has.
func (l *local) subscribers() int { return len(l.single) + len(l.filtered) + l.joins }

func (l *local) noteIdle() {
	if l.unused() {
		l.idle = time.Now()
		if cap(l.single) > 64 {
			l.single = l.one[:0]
		}
	}
}

// dedupe appends names to out, which is empty, without repeats, in order of first appearance, and without
// those that are in a whole namespace of them.
func dedupe(out, names []string) []string {
	whole := slices.ContainsFunc(names, IsWhole)
	for _, n := range names {
		if whole && !IsWhole(n) && slices.Contains(names, Whole(NamespaceOf(n))) {
			continue
		}
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}
