package hub

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// join brings one subscriber from where it was to where its shard is, and then
// makes it live, without a hole and without a repeat.
//
// The cut of a namespace is the newest message of the wanted channels that the
// shard has processed. Everything up to the cut is replayed, from the channels'
// rings or from the broker; when a replay has reached the cut and the shard has
// not moved meanwhile (it cannot: both run on its goroutine), the subscriber
// enters the live lists, and what the shard processes next comes next.
type join struct {
	shard  *Shard
	s      *Subscriber
	opt    SubscribeOptions
	spaces []joinSpace
	// missing channels are not active yet; fetching counts broker reads under way.
	missing, fetching int
	waitsForRoom      bool
	running           bool
	dead              bool
}

// joinSpace is the part of a join in one namespace.
type joinSpace struct {
	ns     *namespace
	locals []*local
	epoch  string
	// cur is how far the replay has come.
	cur uint64
	// since is what the subscriber had; empty without one.
	since string
	// pages are broker reads that were made because a ring did not reach back.
	pages map[*local]Page
}

const replayPage = 128 // messages per channel and step

// replayMemo keeps the last batch replayed on a channel: after an outage many
// subscribers resume from the same place.
type replayMemo struct {
	from, upto uint64
	batch      *Batch
}

func (sh *Shard) beginJoin(s *Subscriber, opt SubscribeOptions) error {
	opt.Channels = dedupe(opt.Channels)
	j := &join{shard: sh, s: s, opt: opt}
	for i, name := range opt.Channels {
		ns, _ := sh.hub.namespaceOf(name)
		l, err := sh.local(name, ns)
		if err != nil {
			j.cancel()
			s.sink = nil
			return err
		}
		opt.Channels[i] = l.name // the shard's copy: not one per subscriber
		if !l.active {
			j.missing++
		}
		l.joining = append(l.joining, j) // keeps l from being given up
		sp := slices.IndexFunc(j.spaces, func(x joinSpace) bool { return x.ns == ns })
		if sp < 0 {
			sp = len(j.spaces)
			j.spaces = append(j.spaces, joinSpace{ns: ns})
		}
		j.spaces[sp].locals = append(j.spaces[sp].locals, l)
	}
	sh.subs++
	s.join = j
	if j.missing == 0 {
		j.begin()
	}
	return nil
}

// cancel makes every later callback of j do nothing.
func (j *join) cancel() {
	j.dead = true
	for _, sp := range j.spaces {
		for _, l := range sp.locals {
			if i := slices.Index(l.joining, j); i >= 0 {
				l.joining = slices.Delete(l.joining, i, i+1)
			}
			l.noteIdle()
		}
	}
}

func (j *join) fail(err error) {
	if j.dead {
		return
	}
	s := j.s
	sink := s.sink
	j.shard.Unsubscribe(s)
	sink.Failed(err)
}

func (j *join) channelReady() {
	if j.dead {
		return
	}
	if j.missing--; j.missing == 0 {
		j.begin()
	}
}

// begin decides per namespace where the replay starts. A position past the end
// of the log is looked up at the broker: this node may only be behind.
func (j *join) begin() {
	for i := range j.spaces {
		sp := &j.spaces[i]
		pos, ok := j.wanted(sp.locals[0].epoch)
		if ok && pos.Offset > sp.cut() && pos.Offset > sp.ns.position().Offset {
			j.verify(sp.ns)
			return
		}
	}
	j.start(nil)
}

// wanted returns the position asked for in the log of epoch.
func (j *join) wanted(epoch string) (Position, bool) {
	for _, p := range j.opt.Since {
		if p.Epoch == epoch && epoch != "" {
			return p, true
		}
	}
	return Position{}, false
}

func (j *join) verify(ns *namespace) {
	j.fetching++
	j.shard.hub.goBroker(func(ctx context.Context) {
		top, err := j.shard.hub.broker.Top(ctx, &ns.Namespace)
		j.shard.post(func() {
			j.fetching--
			switch {
			case j.dead:
			case err != nil:
				j.fail(fmt.Errorf("look up the top of namespace %q: %w", ns.Name, err))
			default:
				j.start(map[*namespace]Position{ns: top})
			}
		})
	})
}

// start tells the sink where the stream begins, declares what cannot be had and
// begins the replay. tops holds what the broker said about the future.
func (j *join) start(tops map[*namespace]Position) {
	var at Positions
	var gaps []Gap
	for i := range j.spaces {
		sp := &j.spaces[i]
		sp.epoch = sp.locals[0].epoch
		if sp.epoch == "" {
			continue // keeps no log
		}
		cut := sp.cut()
		pos, ok := j.wanted(sp.epoch)
		top := max(cut, sp.ns.position().Offset, tops[sp.ns].Offset)
		switch {
		case j.opt.live():
			sp.cur = cut
		case j.opt.All:
			sp.cur = 0
		case j.opt.Unknown != "":
			sp.cur = cut
			gaps = append(gaps, sp.gap(j.opt.Unknown, cut, GapUnknown))
		case ok && pos.Offset <= top:
			sp.cur, sp.since = pos.Offset, pos.String()
		case ok:
			sp.cur = cut
			gaps = append(gaps, sp.gap(pos.String(), cut, GapUnknown))
		default:
			sp.cur = cut
			if from, lost := j.orphan(); lost {
				gaps = append(gaps, sp.gap(from, cut, GapEpoch))
			}
		}
		at = append(at, Position{Epoch: sp.epoch, Offset: sp.cur})
	}
	sink := j.s.sink
	sink.Start(at)
	for _, g := range gaps {
		if j.dead {
			return
		}
		j.shard.gap(sink, g)
	}
	j.run()
}

// orphan returns a position asked for that belongs to no log of this join.
func (j *join) orphan() (string, bool) {
	for _, p := range j.opt.Since {
		if !slices.ContainsFunc(j.spaces, func(sp joinSpace) bool { return sp.locals[0].epoch == p.Epoch }) {
			return p.String(), true
		}
	}
	return "", false
}

func (sp *joinSpace) gap(from string, to uint64, why GapReason) Gap {
	return Gap{Namespace: sp.ns.Name, From: from, To: Position{Epoch: sp.epoch, Offset: to}, Reason: why}
}

// cut returns the newest offset the shard has processed on the channels of sp.
func (sp *joinSpace) cut() uint64 {
	var c uint64
	for _, l := range sp.locals {
		c = max(c, l.last)
	}
	return c
}

// run replays until the subscriber is live, the sink is full or the broker has
// to be asked.
func (j *join) run() {
	if j.running || j.dead || j.fetching > 0 {
		return
	}
	j.running = true
	defer func() { j.running = false }()
	for {
		behind := false
		for i := range j.spaces {
			sp := &j.spaces[i]
			for !j.dead && sp.behind() {
				behind = true
				if !j.s.sink.Room() {
					j.waitsForRoom = true
					return
				}
				if !j.step(sp) {
					return
				}
			}
			if j.dead {
				return
			}
		}
		if !behind {
			break
		}
	}
	j.enterLive()
}

// behind reports whether sp has messages to replay.
func (sp *joinSpace) behind() bool { return sp.epoch != "" && sp.cur < sp.cut() }

// step replays the next messages of sp. It returns false when it has to wait. A
// log that began anew during the join is a gap; what comes is live.
func (j *join) step(sp *joinSpace) bool {
	if e := sp.locals[0].epoch; e != sp.epoch {
		from := Position{Epoch: sp.epoch, Offset: sp.cur}.String()
		sp.epoch, sp.cur, sp.pages = e, sp.cut(), nil
		j.shard.gap(j.s.sink, sp.gap(from, sp.cur, GapEpoch))
		return !j.dead
	}
	cut := sp.cut()
	single := len(sp.locals) == 1
	if memo := &sp.locals[0].memo; single && memo.batch != nil && memo.from == sp.cur && memo.upto <= cut && !sp.trimmed() {
		j.emit(sp, memo.batch, memo.upto)
		return !j.dead
	}
	msgs, upto, need := sp.gather(cut)
	if len(need) > 0 {
		j.fetch(sp, need)
		return false
	}
	if first := sp.firstRetained(); sp.since != "" && sp.cur+1 < first {
		j.shard.gap(j.s.sink, sp.gap(sp.since, min(first-1, cut), GapRetention))
		if j.dead {
			return false
		}
	}
	sp.since = "" // said once
	if len(msgs) == 0 {
		sp.cur = upto
		return true
	}
	b := &Batch{Messages: msgs, Replay: true, hub: j.shard.hub}
	for _, m := range msgs {
		b.size += len(m.Data)
	}
	if single {
		sp.locals[0].memo = replayMemo{from: sp.cur, upto: upto, batch: b}
	}
	j.emit(sp, b, upto)
	return !j.dead
}

// trimmed reports whether a replay from sp.cur would have to declare a gap.
func (sp *joinSpace) trimmed() bool { return sp.since != "" && sp.cur+1 < sp.firstRetained() }

func (j *join) emit(sp *joinSpace, b *Batch, upto uint64) {
	sp.cur = upto
	sp.since = ""
	n := uint64(len(b.Messages))
	j.shard.delivered.Add(n)
	j.shard.replayed.Add(n)
	j.s.sink.Deliver(b)
}

// gather collects the next messages of all channels of sp in the order of the
// log, and how far they reach. need are the channels to ask the broker for.
func (sp *joinSpace) gather(cut uint64) (msgs []*Message, upto uint64, need []*local) {
	upto = cut
	for _, l := range sp.locals {
		before := len(msgs)
		covered := cut
		if page, ok := sp.pages[l]; ok && page.Covered > sp.cur {
			covered = min(covered, page.Covered)
			for _, m := range page.Messages {
				if m.Offset > sp.cur && m.Offset <= cut {
					msgs = append(msgs, m)
				}
			}
		} else {
			var ok bool
			if msgs, ok = l.ch.recent(msgs, sp.cur, cut, replayPage); !ok || !sp.ringReaches(l, cut) {
				msgs = msgs[:before]
				need = append(need, l)
				continue
			}
			if len(msgs)-before == replayPage {
				covered = msgs[len(msgs)-1].Offset
			}
		}
		upto = min(upto, covered)
	}
	if len(sp.locals) > 1 {
		slices.SortFunc(msgs, func(a, b *Message) int { return cmp.Compare(a.Offset, b.Offset) })
	}
	for len(msgs) > 0 && msgs[len(msgs)-1].Offset > upto {
		msgs = msgs[:len(msgs)-1]
	}
	return msgs, upto, need
}

// ringReaches reports whether l's ring holds everything of its channel up to
// cut. It does up to its own last message, and up to whatever the broker has
// delivered in the namespace; past that, something stored may still be on its way.
func (sp *joinSpace) ringReaches(l *local, cut uint64) bool {
	if l.last >= cut {
		return true
	}
	return sp.ns.hasDelivered(Position{Epoch: sp.epoch, Offset: cut})
}

func (sp *joinSpace) firstRetained() uint64 {
	var first uint64
	for _, l := range sp.locals {
		if page, ok := sp.pages[l]; ok {
			first = max(first, page.FirstRetained)
			continue
		}
		l.ch.mu.Lock()
		first = max(first, l.ch.firstRetained)
		l.ch.mu.Unlock()
	}
	return first
}

// fetch asks the broker for the channels whose rings do not reach.
func (j *join) fetch(sp *joinSpace, need []*local) {
	since, epoch := sp.cur, sp.epoch
	for _, l := range need {
		j.fetching++
		l.ch.history(since, func(page Page, err error) {
			j.shard.post(func() {
				j.fetching--
				switch {
				case j.dead:
				case err != nil:
					j.fail(err)
				case page.Epoch != epoch || page.Covered <= since:
					// This node is behind a change of the log; the next try finds it settled.
					j.fail(fmt.Errorf("%w: history of %q is of epoch %q and reaches %d, wanted %q after %d",
						ErrUnavailable, l.name, page.Epoch, page.Covered, epoch, since))
				default:
					if sp.pages == nil {
						sp.pages = map[*local]Page{}
					}
					sp.pages[l] = page
					j.run()
				}
			})
		})
	}
}

// enterLive puts the subscriber into the live lists of its channels.
func (j *join) enterLive() {
	s := j.s
	s.join = nil
	j.cancel()
	if sp := &j.spaces[0]; len(j.spaces) == 1 && len(sp.locals) == 1 && sp.cur <= sp.locals[0].last {
		s.enterSingle(sp.locals[0])
		return
	}
	for i := range j.spaces {
		s.enterFiltered(j.spaces[i].locals, j.spaces[i].cur)
	}
}

// history reads from the broker; readers that ask for the same at the same time
// share one read.
func (ch *channel) history(since uint64, got func(Page, error)) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.reads[since] = append(ch.reads[since], got)
	if len(ch.reads[since]) > 1 {
		return
	}
	ch.hub.goBroker(func(ctx context.Context) {
		page, err := ch.hub.broker.History(ctx, &ch.ns.Namespace, ch.name, since, replayPage)
		ch.mu.Lock()
		waiting := ch.reads[since]
		delete(ch.reads, since)
		ch.mu.Unlock()
		for _, f := range waiting {
			f(page, err)
		}
	})
}
