package history

import (
	"fmt"
	"slices"
	"strings"
)

// A tally counts faults by kind and keeps the first of each in words.
type tally [numKinds]struct {
	n     int
	first string
}

func (t *tally) add(k Kind, words func() string) {
	if t[k].n == 0 {
		t[k].first = words()
	}
	t[k].n++
}

// A Fault is all that is wrong in one way with one stream.
type Fault struct {
	Kind Kind
	// Stream is the stream's name; empty for a fault of the log itself.
	Stream string
	Count  int
	First  string // the first offender, in words
}

// String returns the fault as one line.
func (f Fault) String() string {
	name := f.Stream
	if name == "" {
		name = "log"
	}
	return fmt.Sprintf("%s: %s: %d, first: %s", name, f.Kind, f.Count, f.First)
}

// A Report is the verdict on a history.
type Report struct {
	Streams   int
	Published int // acknowledgements
	Unknown   int // publications without an answer
	Stored    int // of these, found to be stored
	Received  int
	Repeats   int // allowed ones
	Cuts      int
	Gaps      int // gap notices
	Excused   int // messages that did not come and were covered by a gap notice
	Late      int // events behind a later message of another channel, with Options.ByChannel
	// Faults by stream, in the order of the streams' beginning.
	Faults []Fault
}

// OK reports whether nothing is wrong.
func (r *Report) OK() bool { return len(r.Faults) == 0 }

// Count returns how many faults of a kind there are in all streams.
func (r *Report) Count(k Kind) int {
	n := 0
	for _, f := range r.Faults {
		if f.Kind == k {
			n += f.Count
		}
	}
	return n
}

// maxLines bounds the faults that String spells out.
const maxLines = 20

// String returns the counts in one line and the first faults, one line each.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d streams received %d events of %d acknowledged and %d unanswered publications (%d of them stored); "+
		"%d cuts, %d repeats, %d gaps that excuse %d messages", r.Streams, r.Received, r.Published, r.Unknown, r.Stored,
		r.Cuts, r.Repeats, r.Gaps, r.Excused)
	if r.Late > 0 {
		fmt.Fprintf(&b, ", %d events behind later ones of other channels", r.Late)
	}
	if r.OK() {
		b.WriteString("; nothing wrong\n")
		return b.String()
	}
	b.WriteString("; wrong:")
	for k := range numKinds {
		if n := r.Count(k); n > 0 {
			fmt.Fprintf(&b, " %s %d", k, n)
		}
	}
	b.WriteByte('\n')
	for i, f := range r.Faults {
		if i == maxLines {
			fmt.Fprintf(&b, "and %d more lines\n", len(r.Faults)-i)
			break
		}
		fmt.Fprintln(&b, f)
	}
	return b.String()
}

// Report judges everything recorded so far. It is called once, after all streams
// have ended and all publishers have their answers.
func (c *Checker) Report() *Report {
	r := &Report{Streams: len(c.streams), Published: c.acked, Unknown: len(c.unknown)}
	for _, sp := range c.spaces {
		for _, l := range sp.logs {
			c.decide(l, r)
		}
	}
	for _, s := range c.streams {
		for _, v := range s.views {
			v.missing(s, r)
		}
		r.Received += s.received
		r.Repeats += s.repeats
		r.Late += s.late
		r.Cuts += s.cuts
		r.Gaps += s.gaps
	}
	r.collect("", &c.tally)
	for _, s := range c.streams {
		r.collect(s.name, &s.tally)
	}
	return r
}

func (r *Report) collect(stream string, t *tally) {
	for k := range numKinds {
		if t[k].n > 0 {
			r.Faults = append(r.Faults, Fault{k, stream, t[k].n, t[k].first})
		}
	}
}

// decide settles what no acknowledgement settled: an offset that streams saw
// belongs to the publication without an answer that they name, or to none.
// Then it checks what was said about contested offsets before that was known.
func (c *Checker) decide(l *log, r *Report) {
	l.offsets(func(offset uint64, e *entry) {
		if e.state == claimed {
			c.adopt(l, offset, e, r)
		}
		if !e.contested && e.state != void {
			return
		}
		said := l.claims[offset]
		early, ok := l.early[offset]
		if !ok {
			early = claim{nil, e.channel, e.id}
		}
		at := Position{l.epoch, offset}
		for _, cl := range said {
			cl.stream.check(at, cl, e)
		}
		for _, s := range c.streams {
			if s.saw(l, offset) && !slices.ContainsFunc(said, func(cl claim) bool { return cl.stream == s }) {
				s.check(at, early, e)
			}
		}
	})
}

// adopt finds the publication without an answer that e is, among what was said
// about it.
func (c *Checker) adopt(l *log, offset uint64, e *entry, r *Report) {
	here := place{l, offset}
	said := append([]claim{{nil, e.channel, e.id}}, l.claims[offset]...)
	for _, cl := range said {
		ch, requested := c.unknown[cl.id]
		if !requested || ch != cl.channel {
			continue
		}
		e.channel, e.id, e.state = cl.channel, cl.id, settled
		if first, ok := c.placed[cl.id]; ok && first != here {
			c.tally.add(Repeated, func() string { return fmt.Sprintf("%q is stored at %v and at %v", cl.id, first, here) })
			return
		}
		c.placed[cl.id] = here
		r.Stored++
		return
	}
	e.state = void
}

// check compares what the stream said about a position with the truth.
func (s *Stream) check(at Position, said claim, truth *entry) {
	switch {
	case truth.state == void:
		s.tally.add(Phantom, func() string {
			return fmt.Sprintf("%v %.80q on %q was never published", at, said.id, s.c.name(said.channel))
		})
	case !truth.is(said.channel, said.id):
		s.differs(at, said, *truth)
	}
}

// saw reports whether the stream got anything at the offset.
func (s *Stream) saw(l *log, offset uint64) bool {
	for _, v := range s.views {
		for _, sg := range v.segs {
			if sg.log == l && sg.seen.has(offset) {
				return true
			}
		}
	}
	return false
}

// missing counts what the stream should have seen of the namespace and has not.
func (v *view) missing(s *Stream, r *Report) {
	wanted := make([]bool, len(s.c.names))
	for _, sub := range s.channels {
		wanted[sub.number] = true
	}
	m := walk{s: s, v: v, r: r, wanted: wanted}
	for _, l := range v.space.logs[min(v.first, len(v.space.logs)):] {
		if s.stopped && (v.cur == nil || l.index > v.cur.log.index) {
			break
		}
		m.log(l)
	}
}

// A walk goes through the logs of a namespace as one stream should have.
type walk struct {
	s      *Stream
	v      *view
	r      *Report
	wanted []bool
	inHole bool
	seen   Position // the last message that was there
}

func (m *walk) log(l *log) {
	sg := m.v.find(l.epoch)
	if sg == nil {
		sg = &segment{log: l} // never visited: nothing seen
	}
	jumped := m.v.jumpOver(l)
	l.offsets(func(offset uint64, e *entry) {
		switch {
		case e.state != settled || !m.wanted[e.channel] || offset <= sg.from:
		case sg.seen.has(offset):
			m.inHole, m.seen = false, Position{l.epoch, offset}
		case offset > jumped:
			m.r.Excused++
		case m.s.stopped && sg == m.v.cur && offset > sg.high:
		default:
			m.absent(sg, Position{l.epoch, offset}, e)
		}
	})
}

// absent checks a message that should have come and has not.
func (m *walk) absent(sg *segment, at Position, e *entry) {
	sp, excused := sg.excuses(at.Offset)
	if !excused {
		m.lost(at, e)
		return
	}
	m.r.Excused++
	if m.s.c.opts.NoGaps && !sp.jump {
		m.s.tally.add(Gap, func() string { return fmt.Sprintf("%v %q was given up by a gap notice", at, e.id) })
	}
}

func (m *walk) lost(at Position, e *entry) {
	words := func() string {
		after := "at the start"
		if m.seen.Epoch != "" {
			after = "after " + m.seen.String()
		}
		return fmt.Sprintf("%v %q on %q, %s", at, e.id, m.s.c.name(e.channel), after)
	}
	m.s.tally.add(Lost, words)
	if !m.inHole {
		m.s.tally.add(Hole, words)
		m.inHole = true
	}
}

// never is beyond every offset.
const never = ^uint64(0)

// jumpOver returns the offset of l after which a declared change of epoch
// excuses everything, or never.
func (v *view) jumpOver(l *log) uint64 {
	for _, j := range v.jumps {
		switch {
		case j.from == nil || l.index < j.from.log.index || l.index >= j.to.log.index:
		case j.from.log == l:
			return j.offset
		default:
			return 0
		}
	}
	return never
}

func (sg *segment) excuses(offset uint64) (sp span, ok bool) {
	for _, sp := range sg.excused {
		if sp.from < offset && offset <= sp.to {
			return sp, true
		}
	}
	return span{}, false
}
