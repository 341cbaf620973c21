package hub

import "slices"

// late notifies those who are joining and have passed it of a message that came after
// later ones; and everybody, if it is in doubt.
func (l *local) late(it *item) {
	s := l.shard
	for _, j := range slices.Clone(s.joins) {
		if !j.dead {
			j.passedHole(l, it.m.Offset-1)
		}
	}
	if !it.doubt {
		return
	}
	l.flush()
	at := Position{Epoch: l.epoch, Offset: l.last}
	g := Gap{Namespace: l.ch.ns.name, From: at.String(), To: at, At: at, Reason: GapUnknown}
	l.walk()
	for _, sub := range l.single {
		if sub != nil && sub.sink != nil {
			s.gap(sub.sink, g)
		}
	}
	for _, e := range l.filtered {
		if e.s != nil && it.m.Offset > e.s.more.members[e.index].after {
			s.gap(e.s.sink, g)
		}
	}
	l.walked()
}

// missed sends a gap to all subscribers of l that have not passed it.m, or may have been taken
// past what is missing by a message of another channel: messages of l before it are missing.
// The streams continue behind everything that is before it.m.
func (l *local) missed(it *item) {
	l.flush()
	s, m := l.shard, it.m
	from, at := Position{Epoch: l.epoch, Offset: l.last}, Position{Epoch: l.epoch, Offset: m.Offset}
	if m.Missing {
		l.last = max(l.last, m.Offset)
	} else {
		at.Offset--
	}
	at.Offset = max(at.Offset, from.Offset)
	for _, j := range slices.Clone(s.joins) {
		if !j.dead {
			j.passedHole(l, from.Offset)
		}
	}
	g := Gap{Namespace: l.ch.ns.name, From: from.String(), To: at, At: at, Reason: GapUnknown}
	l.walk()
	for _, sub := range l.single {
		if sub != nil && sub.sink != nil {
			s.gap(sub.sink, g)
		}
	}
	for _, e := range l.filtered {
		if e.s == nil {
			continue
		}
		after := e.s.more.members[e.index].after
		if m.Offset > after || e.s.mixes(l) && l.ch.ns.tookPast(l, after) {
			had := Position{Epoch: l.epoch, Offset: e.s.reached(l, from.Offset)}
			to := Position{Epoch: l.epoch, Offset: max(at.Offset, had.Offset)}
			s.gap(e.s.sink, Gap{Namespace: g.Namespace, From: had.String(), To: to, At: to, Reason: GapUnknown})
		}
	}
	l.walked()
}

// mixes reports whether messages of other channels than l move the position of s.
func (s *Subscriber) mixes(l *local) bool { return l.whole || len(s.memberships()) > 1 }

// reached returns where s is in the log of l, which is at an offset itself: other channels may
// have taken it further.
func (s *Subscriber) reached(l *local, at uint64) uint64 {
	for _, m := range s.memberships() {
		if m.l.ch.ns != l.ch.ns {
			continue
		}
		if at = max(at, m.after); m.l != l {
			at = max(at, m.l.last)
		}
	}
	return at
}

// passedHole notifies j that it lacks messages of l after offset, if it has passed it.
func (j *join) passedHole(l *local, offset uint64) {
	for i := range j.spaces {
		sp := &j.spaces[i]
		if j.started && sp.epoch == l.epoch && sp.cur > offset && (l.whole || len(sp.locals) > 1) && slices.Contains(sp.locals, l) {
			at := Position{Epoch: sp.epoch, Offset: sp.cur}
			j.shard.gap(j.s.sink, Gap{Namespace: sp.ns.name, From: at.String(), To: at, At: at, Reason: GapUnknown})
			return
		}
	}
}
