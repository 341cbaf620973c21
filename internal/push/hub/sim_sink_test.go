package hub

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
)

// simSink is a subscriber and its judge: it knows what was stored, and after each
// call that everything up to its stream's position was delivered or reported as a gap.
type simSink struct {
	sim    *sim
	id     int
	r      *rand.Rand
	shard  int
	sub    Subscriber
	opt    SubscribeOptions
	tops   Positions // where the logs ended when it subscribed
	credit int       // batches of replay it takes
	hasty  bool      // leaves in the middle of things
	// meddles: it sends others away and calls others in, in the middle of things.
	meddles bool

	started, live, gone bool

	at   map[string]*simStand // by namespace
	flow []*Message           // without a log
	owed []*Message           // of these, what must come
}

// simStand is a stream's position in one namespace.
type simStand struct {
	Position
	start   Position
	excused uint64            // up to here retention may have removed messages
	never   map[*Message]bool // had been removed when all was asked for
	all     bool              // nothing came since all was asked for
	gaps    []Gap
}

func (s *simSink) fail(format string, a ...any) {
	s.sim.t.Helper()
	s.sim.fail("sink %d %v since %v all %v unknown %q: "+format, append([]any{s.id, s.opt.Channels, s.opt.Since, s.opt.All, s.opt.Unknown}, a...)...)
}

func (s *simSink) enter(what string) {
	s.sim.calls++
	if s.gone {
		s.fail("%s after the end", what)
	}
	if s.started == (what == "Start") && what != "Failed" {
		s.fail("%s, started %v", what, s.started)
	}
	if s.live && what == "Live" {
		s.fail("is live once more")
	}
}

func (s *simSink) leave() {
	if !s.gone {
		s.gone = true
		s.sim.shards[s.shard].Unsubscribe(&s.sub)
	}
}

func (s *simSink) perhapsLeave() {
	if s.hasty && s.r.IntN(20) == 0 {
		s.leave()
	}
	if s.meddles && s.r.IntN(4) == 0 {
		switch x := s.sim.sink(); {
		case s.r.IntN(3) == 0:
			if len(s.sim.sinks) < 200 {
				s.sim.subscribe(s.shard)
			}
		case x.shard == s.shard && !x.gone:
			x.leave()
		}
	}
}

func (s *simSink) follows(channel string) bool {
	return slices.Contains(s.opt.Channels, channel) || slices.Contains(s.opt.Channels, Whole(NamespaceOf(channel)))
}

// wants says the same of a message as the hub has to, in its own words.
func (s *simSink) wants(m *Message) bool {
	a := m.Attributes
	switch {
	case !s.follows(m.Channel) || a != nil && a.Private && s.opt.Public:
		return false
	case s.opt.Select != nil:
		return s.opt.Select(m)
	}
	return a == nil || !slices.ContainsFunc(a.Topics[:a.Index], s.follows)
}

// Start implements Sink.
func (s *simSink) Start(at Positions) {
	s.enter("Start")
	s.started = true
	s.at = map[string]*simStand{}
	for _, p := range at {
		l := s.sim.logOf(p.Epoch)
		if l == nil || s.at[l.ns.Name] != nil {
			s.fail("starts at %v", at)
			return
		}
		st := &simStand{Position: p, start: p, all: s.opt.All}
		s.at[l.ns.Name] = st
		if s.opt.All && p.Offset != 0 {
			s.fail("starts at %v", at)
		}
		for _, since := range s.opt.Since {
			known := slices.ContainsFunc(s.tops, func(t Position) bool { return t.Epoch == since.Epoch && t.Offset >= since.Offset })
			if since.Epoch == p.Epoch && known && !l.refuted(since) && !s.opt.All && s.opt.Unknown == "" && p.Offset != since.Offset {
				s.fail("starts at %v", at)
			}
		}
	}
	for _, ch := range s.opt.Channels {
		if ns := NamespaceOf(ch); s.sim.b.logs[ns].ns.Durability != None && s.at[ns] == nil {
			s.fail("starts nowhere in %q", ns)
		}
	}
	s.perhapsLeave()
}

// Live implements Sink: what its shard has processed was delivered, or reported missing.
func (s *simSink) Live() {
	s.enter("Live")
	s.live = true
	if !s.sub.isLive() {
		s.fail("is notified before it is live: %+v", s.sub.join)
	}
	cut := map[*simStand]uint64{}
	for _, name := range dedupe(nil, s.opt.Channels) {
		l := s.sim.shards[s.shard].locals[name]
		if st := s.at[l.ch.ns.name]; st != nil && st.Epoch == l.epoch {
			cut[st] = max(cut[st], l.last)
		}
	}
	for st, upto := range cut {
		s.missing(st, upto, "before it is live")
	}
	s.perhapsLeave()
}

// Room implements Sink.
func (s *simSink) Room() bool { return s.credit > 0 }

// Deliver implements Sink.
func (s *simSink) Deliver(b *Batch) {
	s.enter("Deliver")
	s.sim.delivered += len(b.Messages)
	if b.Replay == s.live {
		s.fail("a batch of replay %v, live %v", b.Replay, s.live)
	}
	if b.Replay {
		s.sim.replayed += len(b.Messages)
		s.credit--
	}
	var want []byte
	for _, m := range b.Messages {
		s.one(m)
		want = simEncode(want, m)
	}
	switch s.r.IntN(4) {
	case 3:
		got, ok := b.Once(Format(s.r.IntN(2)))
		if ok && (!bytes.Equal(got, want) || b.Replay) {
			s.fail("once %q, want %q; a replay: %v", got, want, b.Replay)
		}
		clear(got) // it is ours
	case 0:
		if got := b.Bytes(Format(s.r.IntN(2))); !bytes.Equal(got, want) {
			s.fail("bytes %q, want %q", got, want)
		}
	case 1:
		m := b.Messages[s.r.IntN(len(b.Messages))]
		if got := s.sim.h.Encode(m, Format(s.r.IntN(2))); !bytes.Equal(got, simEncode(nil, m)) {
			s.fail("encoded %q", got)
		}
	}
	s.perhapsLeave()
}

func (s *simSink) one(m *Message) {
	if !s.wants(m) {
		s.fail("got %v of %s, %+v", m.Position(), m.Channel, m.Attributes)
		return
	}
	if m.Offset == 0 {
		if slices.Contains(s.flow, m) {
			s.fail("got %q again", m.Data)
		}
		s.flow = append(s.flow, m)
		return
	}
	st := s.at[NamespaceOf(m.Channel)]
	if m.Epoch != st.Epoch || m.Offset <= st.Offset {
		s.fail("got %v when it was at %v", m.Position(), st.Position)
		return
	}
	s.missing(st, m.Offset-1, "before "+m.Position().String())
	found := false
	for _, x := range s.sim.b.logs[NamespaceOf(m.Channel)].stored[m.Epoch] {
		found = found || x.Offset == m.Offset && x.Channel == m.Channel && string(x.Data) == string(m.Data)
	}
	if !found {
		s.fail("got %v %q that was never stored", m.Position(), m.Data)
	}
	st.Offset = m.Offset
}

// missing reports what should have come after the stream's position, up to upto.
func (s *simSink) missing(st *simStand, upto uint64, when string) {
	l := s.sim.logOf(st.Epoch)
	if st.all {
		st.all = false
		st.never = map[*Message]bool{}
		for _, m := range l.stored[st.Epoch] {
			st.never[m] = l.gone[m]
		}
	}
	for _, m := range l.stored[st.Epoch] {
		if m.Offset <= st.Offset || m.Offset > upto || !s.wants(m) || st.never[m] {
			continue
		}
		if !l.gone[m] || m.Offset > st.excused {
			s.fail("%v of %s %+v is missing %s, was at %v, excused to %d", m.Position(), m.Channel, m.Attributes, when, st.Position, st.excused)
		}
	}
}

// Gap implements Sink.
func (s *simSink) Gap(g Gap) {
	s.enter("Gap")
	s.sim.gaps++
	st := s.at[g.Namespace]
	if st == nil || s.sim.logOf(g.To.Epoch) == nil || g.To.Epoch != g.At.Epoch || g.To.Offset < g.At.Offset {
		s.fail("gap %+v", g)
		return
	}
	l := s.sim.logOf(g.To.Epoch)
	if l.ns.Name != g.Namespace {
		s.fail("gap of the wrong log: %+v", g)
	}
	first := len(st.gaps) == 0 && st.Position == st.start
	from, err := ParsePosition(g.From)
	switch g.Reason {
	case GapRetention:
		s.retention(st, l, g, from)
	case GapEpoch:
		switch {
		case first && g.To == st.start && slices.Contains(s.opt.Since, from) && (from.Epoch != g.To.Epoch || l.refuted(from)):
		case slices.Index(l.epochs, g.To.Epoch) > slices.Index(l.epochs, st.Epoch) && g.To.Offset == 0 && from.Epoch == st.Epoch && from.Offset >= st.Offset:
			*st = simStand{Position: g.At, start: g.At, gaps: st.gaps}
		default:
			s.fail("gap %+v when it was at %v", g, st.Position)
		}
	case GapUnknown:
		future := err == nil && slices.Contains(s.opt.Since, from) && !slices.ContainsFunc(s.tops, func(t Position) bool {
			return t.Epoch == from.Epoch && t.Offset >= from.Offset
		})
		if !first || g.To != st.start || !future && g.From != s.opt.Unknown {
			s.fail("gap %+v when it was at %v", g, st.Position)
		}
	default:
		s.fail("gap %+v", g)
	}
	st.gaps = append(st.gaps, g)
	s.perhapsLeave()
}

// retention checks a gap that says that messages were removed: some were.
func (s *simSink) retention(st *simStand, l *simLog, g Gap, from Position) {
	if from.Epoch != st.Epoch || from.Offset < st.Offset || g.To.Epoch != st.Epoch || g.At.Offset < st.Offset {
		s.fail("gap %+v when it was at %v", g, st.Position)
		return
	}
	lost := false
	for _, m := range l.stored[st.Epoch] {
		lost = lost || l.gone[m] && m.Offset > st.Offset && s.follows(m.Channel)
	}
	if !lost {
		s.fail("gap %+v when nothing after %v was removed", g, st.Position)
	}
	st.excused = max(st.excused, g.To.Offset)
	s.missing(st, g.At.Offset, "before the gap's end")
	st.Offset = g.At.Offset
}

// Failed implements Sink.
func (s *simSink) Failed(err error) {
	s.enter("Failed")
	s.gone = true
	if s.sub.sink != nil {
		s.fail("is subscribed after it failed")
	}
	switch {
	case errors.Is(err, errInjected):
	case errors.Is(err, ErrUnavailable) && strings.Contains(err.Error(), "all the time") && s.sim.losses:
	default:
		s.fail("failed: %v", err)
	}
}

// settled checks the stream when all is quiet.
func (s *simSink) settled() {
	if s.gone {
		return
	}
	if !s.started || !s.live || !s.sub.isLive() {
		s.fail("is not live in the end: started %v, %+v", s.started, s.sub.join)
		return
	}
	for ns, st := range s.at {
		l := s.sim.b.logs[ns]
		if st.Epoch != l.epoch() {
			s.fail("is in epoch %s in the end", st.Epoch)
			continue
		}
		s.missing(st, l.last, "in the end")
	}
	for _, m := range s.owed {
		if !slices.Contains(s.flow, m) {
			s.fail("never got %q", m.Data)
		}
	}
}
