package history

import "fmt"

// A Stream is what one subscriber saw, over all its connections. Its methods are
// called by one goroutine at a time, in the order of what it saw.
type Stream struct {
	// Fixed.
	c        *Checker
	name     string
	channels map[string]subscription
	views    map[string]*view // by namespace

	// Owned by the subscriber's goroutine.
	tally    tally
	received int
	repeats  int // allowed ones
	late     int // came after a later message of another channel, with Options.ByChannel
	cuts     int
	gaps     int
	stopped  bool
}

type subscription struct {
	number int32
	view   *view
}

// A view is a stream's side of one namespace.
type view struct {
	space *space
	// The log the stream started in, by index. Unless fixed, the stream started
	// at the beginning without naming a log, and the first it sees is it.
	first int
	fixed bool
	cur   *segment // the log it reads now; nil before the first
	segs  []*segment
	jumps []jump
}

// A segment is a stream's side of one log.
type segment struct {
	log  *log
	from uint64 // everything after this is expected
	seen bitset
	high uint64 // the largest offset seen, or from
	conn uint64 // the largest offset seen on this connection
	// last is the largest offset seen of each channel; nil unless Options.ByChannel.
	last map[int32]uint64
	// Declared gaps.
	excused []span
}

// A span is what a gap notice excuses: after from, up to and including to.
type span struct {
	from, to uint64
	jump     bool // the notice reported a change of epoch
}

// A jump is a gap notice that leads from one log to another. Which logs lie
// between is known at the end only. from is nil for a stream that had not started.
type jump struct {
	from   *segment
	offset uint64
	to     *segment
}

func (v *view) find(epoch string) *segment {
	for _, sg := range v.segs {
		if sg.log.epoch == epoch {
			return sg
		}
	}
	return nil
}

func (v *view) segment(l *log) *segment {
	if sg := v.find(l.epoch); sg != nil {
		return sg
	}
	sg := &segment{log: l}
	v.segs = append(v.segs, sg)
	return sg
}

// Received records an event.
func (s *Stream) Received(channel string, at Position, id string) {
	s.received++
	sub, subscribed := s.channels[channel]
	if at.Epoch == "" || at.Offset == 0 {
		s.tally.add(Epoch, func() string { return fmt.Sprintf("%q on %q came with position %v", id, channel, at) })
		return
	}
	if !subscribed {
		s.tally.add(WrongChannel, func() string { return fmt.Sprintf("%v %q came on %q, to which it has not subscribed", at, id, channel) })
		if sub = s.foreign(channel); sub.view == nil {
			return
		}
	}
	sg := s.enter(sub.view, at, id)
	known, ok := sg.log.claim(at.Offset, s, sub.number, id)
	if !ok && subscribed {
		s.differs(at, claim{s, sub.number, id}, known)
	}
	s.order(sg, sub.number, at, id)
}

// foreign is the subscription that a channel without one would have.
func (s *Stream) foreign(channel string) subscription {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return subscription{s.c.channel(channel), s.views[namespaceOf(channel)]}
}

// differs records an event that is not the message known at its position.
func (s *Stream) differs(at Position, got claim, known entry) {
	if got.channel != known.channel {
		s.tally.add(WrongChannel, func() string {
			return fmt.Sprintf("%v %q came on %q and was published on %q", at, got.id, s.c.name(got.channel), s.c.name(known.channel))
		})
		return
	}
	s.tally.add(Corrupted, func() string {
		return fmt.Sprintf("%v on %q came as %.80q and was published as %.80q", at, s.c.name(got.channel), got.id, known.id)
	})
}

func (c *Checker) name(channel int32) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[channel]
}

// enter returns the segment that at belongs to and makes it the current one if
// that is a step forward.
func (s *Stream) enter(v *view, at Position, id string) *segment {
	if v.cur != nil && v.cur.log.epoch == at.Epoch {
		return v.cur
	}
	s.c.mu.Lock()
	l := s.c.log(v.space.name, at.Epoch)
	s.c.mu.Unlock()
	sg := v.find(at.Epoch)
	switch {
	case v.cur == nil:
		sg = v.segment(l)
		v.begin(sg)
	case sg != nil || l.index < v.cur.log.index:
		s.tally.add(Epoch, func() string { return fmt.Sprintf("%v %q: went back from epoch %s", at, id, v.cur.log.epoch) })
		return v.segment(l)
	default:
		s.tally.add(Epoch, func() string {
			return fmt.Sprintf("%v %q: no gap was declared after %v", at, id, Position{v.cur.log.epoch, v.cur.high})
		})
		sg = v.segment(l)
	}
	v.cur = sg
	return sg
}

// begin makes sg the first log of a stream that had not named one.
func (v *view) begin(sg *segment) {
	if !v.fixed {
		v.first, v.fixed = sg.log.index, true
	}
	v.cur = sg
}

func (s *Stream) order(sg *segment, channel int32, at Position, id string) {
	off := at.Offset
	switch again := sg.seen.has(off); {
	case !again && off > sg.high:
		sg.high = off
	case !again && off > sg.from && s.c.opts.ByChannel && off > sg.last[channel]:
		s.late++
	case !again && off > sg.from:
		s.tally.add(Reordered, func() string { return fmt.Sprintf("%v %q came after %v", at, id, Position{at.Epoch, sg.high}) })
	case s.cuts > 0 && !s.c.opts.ExactlyOnce && off > sg.conn:
		s.repeats++
	case !again:
		s.tally.add(Repeated, func() string {
			return fmt.Sprintf("%v %q is not after the start, %v", at, id, Position{at.Epoch, sg.from})
		})
	default:
		s.tally.add(Repeated, func() string { return fmt.Sprintf("%v %q came again", at, id) })
	}
	sg.seen.set(off)
	sg.conn = max(sg.conn, off)
	if s.c.opts.ByChannel {
		if sg.last == nil {
			sg.last = map[int32]uint64{}
		}
		sg.last[channel] = max(sg.last[channel], off)
	}
}

// Cut records that the connection ended, by whichever side.
func (s *Stream) Cut() {
	s.cuts++
	for _, v := range s.views {
		for _, sg := range v.segs {
			sg.conn = 0
		}
	}
}

// Gap records a gap notice of a namespace: what lies after from, up to and
// including to, may be missing. It excuses what the stream has not passed yet.
// Without a from that names a log, the gap starts at the stream's position.
func (s *Stream) Gap(namespace string, from, to Position) {
	s.gaps++
	v := s.views[namespace]
	if v == nil || to.Epoch == "" {
		s.tally.add(Epoch, func() string { return fmt.Sprintf("gap notice of namespace %q from %v to %v", namespace, from, to) })
		return
	}
	s.c.mu.Lock()
	l := s.c.log(namespace, to.Epoch)
	s.c.mu.Unlock()
	switch {
	case v.cur == nil:
		v.begin(v.segment(l))
		v.jumps = append(v.jumps, jump{to: v.cur})
		v.cur.excuse(0, to.Offset, true)
	case v.cur.log == l:
		after := v.cur.high
		if from.Epoch == to.Epoch {
			after = max(after, from.Offset)
		}
		v.cur.excuse(after, to.Offset, false)
	case v.find(to.Epoch) != nil || l.index < v.cur.log.index:
		s.tally.add(Epoch, func() string { return fmt.Sprintf("gap to %v: went back from epoch %s", to, v.cur.log.epoch) })
	default:
		j := jump{from: v.cur, offset: v.cur.high, to: v.segment(l)}
		if from.Epoch == v.cur.log.epoch {
			j.offset = max(j.offset, from.Offset)
		}
		v.jumps = append(v.jumps, j)
		v.cur = j.to
		v.cur.excuse(0, to.Offset, true)
	}
}

func (sg *segment) excuse(from, to uint64, jump bool) {
	if from < to {
		sg.excused = append(sg.excused, span{from, to, jump})
	}
}

// Stopped records that the subscriber left on its own: what comes after the last
// event it saw is not expected of it. A stream that is not stopped must see
// everything up to the end.
func (s *Stream) Stopped() { s.stopped = true }
