package hub

import (
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
	filter *filter // nil: it wants everything
	spaces []joinSpace
	// missing channels are not active yet; fetching counts broker reads under way.
	missing, fetching int
	retries           int // of reads that came to nothing
	pos               int // in shard.joins
	started           bool
	waitsForRoom      bool
	running           bool
	dead              bool

	// room is what spaces, its locals and the channels' names are made of in a join of one channel, as most are.
	room struct {
		space [1]joinSpace
		local [1]*local
		name  [1]string
	}
}

// joinSpace is the part of a join in one log.
type joinSpace struct {
	ns     *namespace
	locals []*local
	epoch  string
	// cur is how far the replay has come.
	cur uint64
	// since is what the subscriber had, for a gap; 0 without one.
	since Position
	// refuted is a position requested that is not a place in the log: its check is wrong.
	refuted Position
	// all reports that whatever is retained was asked for: the first step may find
	// the beginning gone, to where skipped says. Missing messages are reported up to
	// reported.
	all      bool
	skipped  map[*local]uint64
	reported uint64
	// pages are broker reads that were made because a ring did not reach back.
	pages map[*local]Page
}

const replayPage = 128 // messages per channel and step

// replayMemo keeps the last batch replayed on a channel: after an outage many
// subscribers resume from the same place.
type replayMemo struct {
	from, upto uint64
	first      uint64 // FirstRetained when the batch was made
	batch      *Batch
}

func (sh *Shard) beginJoin(s *Subscriber, opt SubscribeOptions) error {
	j := &join{shard: sh, s: s, opt: opt, filter: opt.filter(), pos: len(sh.joins)}
	opt.Channels = dedupe(j.room.name[:0], opt.Channels)
	j.opt.Channels, j.spaces = opt.Channels, j.room.space[:0]
	sh.subs++
	s.join = j
	sh.joins = append(sh.joins, j)
	for i, name := range opt.Channels {
		ns := sh.hub.space(name) // it may have been removed meanwhile
		l, err := sh.local(name, ns, opt.resumes())
		if j.dead { // another's sink was called, and sent s away
			return nil
		}
		if err != nil {
			sh.Unsubscribe(s)
			return err
		}
		opt.Channels[i] = l.name // the shard's copy: not one per subscriber
		if !l.active {
			j.missing++
			l.waiting = append(l.waiting, j)
		}
		l.joins++ // keeps l from being given up
		sp := slices.IndexFunc(j.spaces, func(x joinSpace) bool { return x.ns == ns })
		if sp < 0 {
			sp = len(j.spaces)
			j.spaces = append(j.spaces, joinSpace{ns: ns})
			if sp == 0 {
				j.spaces[sp].locals = j.room.local[:0]
			}
		}
		j.spaces[sp].locals = append(j.spaces[sp].locals, l)
	}
	if j.missing == 0 {
		j.begin()
	}
	return nil
}

// cancel takes j out of the shard and makes every later callback do nothing.
func (j *join) cancel() {
	all := j.shard.joins
	last := len(all) - 1
	all[j.pos], all[last].pos = all[last], j.pos
	all[last] = nil
	j.shard.joins = all[:last]
	j.leave()
}

// leave ends j's interest in its channels.
func (j *join) leave() {
	j.dead = true
	for _, sp := range j.spaces {
		for _, l := range sp.locals {
			l.joins--
			if len(l.waiting) > 2*l.joins+16 { // those that come and go while the broker is away
				l.waiting = slices.DeleteFunc(l.waiting, func(x *join) bool { return x.dead })
			}
			l.noteIdle()
		}
	}
	j.s, j.spaces = nil, nil
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

// begin looks up at the broker what cannot be evaluated here: a position past the
// known end of the log, or of an unknown epoch. This node may only be behind.
func (j *join) begin() {
	carryOver(j)
	var ask []*namespace
	for i := range j.spaces {
		sp := &j.spaces[i]
		if !j.checked(sp) {
			ask = append(ask, sp.ns)
		}
	}
	if len(ask) == 0 {
		j.prove()
		return
	}
	lookUp(j, ask, func() {
		carryOver(j) // what was looked up may be of an epoch that is newer than theirs
		j.prove()
	})
}

// lookUp queries the broker for the ends of the logs and takes the shard to the epochs that they have.
// Then it calls next, unless j has ended.
func lookUp(j *join, logs []*namespace, next func()) {
	j.fetching = len(logs)
	for _, ns := range logs {
		j.shard.hub.top(ns, func(top Position, err error) {
			j.shard.post(func() {
				j.shard.moveTo(ns, top.Epoch)
				j.fetching--
				switch {
				case j.dead:
				case err != nil:
					j.fail(err)
				case j.fetching == 0:
					next()
				}
			})
		})
	}
}

// carryOver takes the positions requested to the epochs that continue theirs, and reports whether there were any.
func carryOver(j *join) (carried bool) {
	for i := range j.spaces {
		epoch := j.spaces[i].locals[0].epoch
		for k, p := range j.opt.Since {
			if q := j.spaces[i].ns.carry(p, epoch); q != p {
				j.opt.Since = slices.Clone(j.opt.Since) // others have it as it came
				j.opt.Since[k] = q
				carried = true
			}
		}
	}
	if j.filter != nil {
		j.filter.since = j.opt.Since
	}
	return carried
}

// checked reports whether what was requested in sp can be evaluated without a look
// at the end of the log.
func (j *join) checked(sp *joinSpace) bool {
	epoch := sp.locals[0].epoch
	if pos, ok := j.opt.position(epoch); ok || epoch == "" {
		return !ok || sp.reached(pos)
	}
	if j.opt.All || j.opt.Unknown != "" {
		return true
	}
	from, lost := j.orphan()
	return !lost || sp.ns.isOver(from.Epoch)
}

// position returns the position to resume from in the log of epoch.
func (o *SubscribeOptions) position(epoch string) (Position, bool) {
	if o.All || o.Unknown != "" {
		return Position{}, false
	}
	for _, p := range o.Since {
		if p.Epoch == epoch && epoch != "" {
			return p, true
		}
	}
	return Position{}, false
}

// resumes returns the positions to resume from; nil for none.
func (o *SubscribeOptions) resumes() Positions {
	if o.All || o.Unknown != "" {
		return nil
	}
	return o.Since
}

// reached reports whether the log is known to have come to pos. Of an epoch that
// is over it cannot be known, nor matters it: the gap of the next one follows.
func (sp *joinSpace) reached(pos Position) bool {
	return pos.Offset <= sp.cut() || sp.ns.knows(pos) || sp.ns.isOver(pos.Epoch)
}

// start notifies the sink where the stream starts, declares what cannot be had and
// begins the replay.
func (j *join) start() {
	var at Positions
	var gaps []Gap
	for i := range j.spaces {
		sp := &j.spaces[i]
		sp.epoch = sp.locals[0].epoch
		if sp.epoch == "" {
			continue // keeps no log
		}
		from, why := j.place(sp)
		if why != "" {
			gaps = append(gaps, sp.gap(from, sp.cur, why))
		}
		begin := sp.at(sp.cur)
		if pos, ok := j.opt.position(sp.epoch); ok && why == "" && begin.Check == 0 && pos.Check.onWire() {
			begin.Check = pos.Check // it was proved
		}
		at = append(at, begin)
	}
	j.started = true
	sink := j.s.sink
	j.shard.busy++
	sink.Start(at)
	for _, g := range gaps {
		if !j.dead {
			j.shard.gap(sink, g)
		}
	}
	j.shard.busy--
	j.run()
}

// place decides where the stream starts in sp. With a reason it cannot continue
// from what was asked for.
func (j *join) place(sp *joinSpace) (from string, why GapReason) {
	sp.cur = sp.cut()
	pos, ok := j.opt.position(sp.epoch)
	switch {
	case j.opt.live():
	case j.opt.All:
		sp.cur, sp.all = 0, true
	case j.opt.Unknown != "":
		return j.opt.Unknown, GapUnknown
	case ok && pos == sp.refuted:
		j.shard.hub.stats.refuted.Add(1)
		return pos.String(), GapEpoch
	case ok && sp.reached(pos):
		sp.cur, sp.since = pos.Offset, pos
		if sp.ns.doubtful(pos, sp.locals) {
			return pos.String(), GapUnknown
		}
	case ok:
		return pos.String(), GapUnknown
	default:
		if from, lost := j.orphan(); lost {
			return from.String(), GapEpoch
		}
	}
	return "", ""
}

// restart takes j to a new epoch of ns and returns where it was, if it had started. With
// carriesOn the messages up to upTo are the same there.
func (j *join) restart(ns *namespace, epoch string, upTo uint64, carriesOn bool) (from uint64, ok bool) {
	if !j.started {
		return 0, false
	}
	for i := range j.spaces {
		if sp := &j.spaces[i]; sp.ns == ns {
			from = sp.cur
			next := joinSpace{ns: ns, locals: sp.locals, epoch: epoch, cur: upTo}
			if carriesOn {
				next.cur, next.all, next.reported = min(from, upTo), sp.all, sp.reported
			}
			*sp = next
			return from, true
		}
	}
	return 0, false
}

// orphan returns a position requested that belongs to no log of this join.
func (j *join) orphan() (Position, bool) {
	for _, p := range j.opt.Since {
		if !slices.ContainsFunc(j.spaces, func(sp joinSpace) bool { return sp.locals[0].epoch == p.Epoch }) {
			return p, true
		}
	}
	return Position{}, false
}

func (sp *joinSpace) gap(from string, to uint64, why GapReason) Gap {
	p := sp.at(to)
	return Gap{Namespace: sp.ns.name, From: from, To: p, At: p, Reason: why}
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
	sh := j.shard
	j.running = true
	sh.busy++
	defer func() { j.running = false; sh.busy-- }()
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

// step replays the next messages of sp. It returns false when it has to wait or
// the subscriber is gone.
func (j *join) step(sp *joinSpace) bool {
	cut := sp.cut()
	single := len(sp.locals) == 1
	if memo := &sp.locals[0].memo; single && memo.batch != nil && memo.from == sp.cur && memo.upto <= cut {
		batch, upto := memo.batch, memo.upto
		if j.reportMissing(sp, sp.lacks(sp.locals[0], memo.first), cut, batch.Messages[0].Offset-1) {
			j.emit(sp, batch, upto)
		}
		return !j.dead
	}
	st := sp.gather(cut)
	if len(st.need) > 0 {
		j.fetch(sp, st.need)
		return false
	}
	from := sp.cur
	next := st.upto
	if len(st.msgs) > 0 {
		next = st.msgs[0].Offset - 1
	}
	if !j.reportMissing(sp, st.news, cut, next) {
		return false
	}
	if len(st.msgs) == 0 {
		sp.cur = st.upto
		return true
	}
	b := j.shard.replay(st.msgs)
	if single {
		sp.locals[0].memo = replayMemo{from: from, upto: st.upto, first: st.first, batch: b}
	}
	j.emit(sp, b, st.upto)
	return !j.dead
}

// reportMissing declares what retention removed after sp.cur, if only what is not
// before first is there. next is such that what follows comes after it. It
// returns false when the subscriber has left.
func (j *join) reportMissing(sp *joinSpace, first, cut, next uint64) bool {
	sp.all = false
	to := min(max(first, 1)-1, cut) // what comes after the cut comes from the ring
	if sp.cur+1 >= first || to <= sp.reported {
		return true
	}
	sp.reported = to
	from := sp.since
	if from == (Position{}) {
		from = Position{Epoch: sp.epoch, Offset: sp.cur}
	}
	g := sp.gap(from.String(), to, GapRetention)
	if next < to {
		g.At = sp.at(next)
	}
	sp.since = Position{}
	j.shard.gap(j.s.sink, g)
	return !j.dead
}

func (j *join) emit(sp *joinSpace, b *Batch, upto uint64) {
	b = sp.sift(b, j.filter, j.shard)
	sp.cur = upto
	sp.since = Position{}
	if b == nil {
		return
	}
	n := uint64(len(b.Messages))
	j.shard.delivered.Add(n)
	j.shard.replayed.Add(n)
	j.s.sink.Deliver(b)
}

// enterLive puts the subscriber into the live lists of its channels and notifies its sink.
func (j *join) enterLive() {
	spaces := j.spaces
	alone := len(spaces) == 1 && len(spaces[0].locals) == 1 && j.filter == nil
	if alone {
		if spaces[0].locals[0].flush(); j.dead { // what waits there is older than the subscriber
			return
		}
	}
	s := j.s
	s.join = nil
	j.cancel()
	switch l := spaces[0].locals[0]; {
	case !alone:
		for i := range spaces {
			s.enterFiltered(spaces[i].locals, spaces[i].cur, j.filter)
		}
	case spaces[0].cur > l.last:
		s.enterFiltered(spaces[0].locals, spaces[0].cur, nil)
		l.ahead++
	default:
		s.enterSingle(l)
	}
	s.announceLive()
}
