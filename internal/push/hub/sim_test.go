package hub

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	simSeeds = flag.Int("hub.seeds", 300, "how many simulations TestSimulation runs, with -short a third of them")
	simSeed  = flag.Uint64("hub.seed", 0, "the one seed TestSimulation runs; 0 means hub.seeds of them")
	simFirst = flag.Uint64("hub.first", 1, "the first seed of TestSimulation")
)

// TestSimulation plays random lives of a hub over a broker whose every answer
// and delivery comes when the dice say so, and checks each stream exactly.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		synctest.Test(t, func(t *testing.T) { simulate(t, *simSeed) })
		return
	}
	seeds := *simSeeds
	if testing.Short() {
		seeds /= 3
	}
	for i := range seeds {
		seed := *simFirst + uint64(i)
		synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
		if t.Failed() {
			t.Fatalf("seed %d: run again with -hub.seed=%d", seed, seed)
		}
	}
}

// sim is one simulation. All but the broker's calls runs on the test's goroutine.
type sim struct {
	t        *testing.T
	mu       sync.Mutex
	seed     uint64
	r        *rand.Rand
	h        *Hub
	b        *simBroker
	shards   []*Shard
	sinks    []*simSink
	seenAt   []Position
	messages map[*Message]bool // all that the hub was ever given
	channels []string
	losses   bool
	n        int
	failed   bool

	calls, delivered, replayed, gaps int
}

func simEncode(dst []byte, m *Message) []byte {
	return append(append(append(dst, '<'), m.Data...), '>')
}

func (s *sim) fail(format string, a ...any) {
	if !s.failed { // the first says it; what follows follows
		s.failed = true
		s.t.Errorf("seed %d: "+format, append([]any{s.seed}, a...)...)
	}
}

func simulate(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	s := &sim{t: t, seed: seed, r: r, messages: map[*Message]bool{}, losses: r.IntN(3) == 0}
	s.b = &simBroker{sim: s, r: r, logs: map[string]*simLog{}, errs: r.IntN(3) == 0, shared: r.IntN(2) == 0, reads: map[string]int{}}
	s.channels = []string{"a", "b", "c", "o:x", "o:y", "f:z"}
	names := []Namespace{{Name: "default"}, {Name: "o"}, {Name: "f", Durability: None}}
	for i := range names {
		names[i].Recent = 1 + r.IntN(6)
		names[i] = names[i].WithDefaults()
		s.b.logs[names[i].Name] = &simLog{
			ns: &names[i], epochs: []string{fmt.Sprintf("%.1s0", names[i].Name)}, stored: map[string][]*Message{}, gone: map[*Message]bool{},
			known: map[string]bool{}, subscribed: map[string]bool{}, keep: 2 + r.IntN(20), firsts: r.IntN(2) == 0,
		}
	}
	h, err := New(Config{Namespaces: names, Encoders: []Encoder{simEncode, simEncode}, WireBudget: int64(1 + r.IntN(60)), RecentBudget: int64(r.IntN(2) * r.IntN(5000))}, s.b)
	if err != nil {
		t.Fatal(err)
	}
	h.page, h.maxEarly = 1+r.IntN(5), 2+r.IntN(4)
	s.h = h
	if err := h.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	for range 1 + r.IntN(3) {
		s.shards = append(s.shards, h.NewShard(func() {}))
	}
	for range 100 + r.IntN(300) {
		s.step()
		synctest.Wait()
		s.watch()
		if s.failed {
			break
		}
	}
	s.settle()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// step does one random thing.
func (s *sim) step() {
	switch k := s.r.IntN(100); {
	case k < 25:
		s.publish(s.channels[s.r.IntN(len(s.channels))])
	case k < 45:
		s.b.hand(s.log())
	case k < 62:
		s.b.step()
	case k < 80:
		s.shards[s.r.IntN(len(s.shards))].Run()
	case k < 88:
		s.subscribe(s.r.IntN(len(s.shards)))
	case k < 92:
		if x := s.sink(); x != nil && !x.gone {
			s.stand(x)
			x.leave()
		}
	case k < 97:
		if x := s.sink(); x != nil && !x.gone {
			x.credit += s.r.IntN(3)
			x.sub.Continue()
		}
	case k < 98:
		time.Sleep(time.Duration(s.r.IntN(20)) * time.Second)
	case s.losses:
		if l := s.log(); l.ns.Durability != None && len(l.epochs) < 4 {
			l.lose(uint64(s.r.IntN(2) * s.r.IntN(30)))
		}
	}
}

// log returns a namespace, often the first: by name, since maps have no order.
func (s *sim) log() *simLog {
	return s.b.logs[[]string{"default", "default", "default", "o", "o", "f"}[s.r.IntN(6)]]
}

func (s *sim) logOf(epoch string) *simLog {
	for _, l := range s.b.logs {
		if l.ns.Durability != None && slices.Contains(l.epochs, epoch) {
			return l
		}
	}
	return nil
}

func (s *sim) sink() *simSink {
	if len(s.sinks) == 0 {
		return nil
	}
	return s.sinks[s.r.IntN(len(s.sinks))]
}

// publish publishes on channel, and now and then on others of its namespace as well.
func (s *sim) publish(channel string) {
	s.n++
	l := s.b.logs[NamespaceOf(channel)]
	data := fmt.Sprintf("%s%d", channel, s.n)
	switch s.r.IntN(6) {
	case 0:
		l.publish(channel, data, &Attributes{Private: s.r.IntN(2) == 0, ID: data})
	case 1:
		topics := []string{channel}
		for _, other := range s.channels {
			if NamespaceOf(other) == l.ns.Name && s.r.IntN(2) == 0 {
				topics = append(topics, other)
			}
		}
		if topics = dedupe(nil, topics); len(topics) > 1 {
			var first uint64
			for i, topic := range topics {
				m := l.publish(topic, data, &Attributes{Topics: topics, Index: i, First: first, ID: data})
				if i == 0 {
					first = m.Offset
				}
			}
			return
		}
		fallthrough
	default:
		l.publish(channel, data, nil)
	}
}

// delivering notes which live sinks are owed m, which has no place in a log.
func (s *sim) delivering(m *Message) {
	if m.Offset != 0 {
		return
	}
	for _, x := range s.sinks {
		if !x.gone && x.wants(m) && x.sub.isLive() {
			x.owed = append(x.owed, m)
		}
	}
}

// stand remembers x's position, for others to resume from.
func (s *sim) stand(x *simSink) {
	for _, ns := range []string{"default", "o"} {
		if st := x.at[ns]; st != nil {
			s.seenAt = append(s.seenAt, st.Position)
		}
	}
}

func (s *sim) subscribe(shard int) {
	x := &simSink{sim: s, id: len(s.sinks), r: rand.New(rand.NewPCG(s.r.Uint64(), 1)), shard: shard}
	x.credit, x.hasty, x.meddles = s.r.IntN(4), s.r.IntN(3) == 0, s.r.IntN(4) == 0
	names := s.channels
	if s.r.IntN(3) == 0 {
		names = append(slices.Clone(names), "default:", "default:", "o:", "f:")
	}
	for range 1 + s.r.IntN(2)*s.r.IntN(5) {
		x.opt.Channels = append(x.opt.Channels, names[s.r.IntN(len(names))])
	}
	if s.r.IntN(4) == 0 {
		x.opt.Public = true
	}
	if s.r.IntN(4) == 0 {
		rest := byte(s.r.IntN(3))
		x.opt.Select = func(m *Message) bool { return (m.Data[len(m.Data)-1]+m.Channel[0])%3 != rest }
	}
	for _, ns := range []string{"default", "o"} {
		x.tops = append(x.tops, s.b.logs[ns].top())
	}
	switch s.r.IntN(8) {
	case 0, 1:
	case 2:
		x.opt.All = true
	case 3:
		x.opt.Unknown = "?"
	case 4: // the future
		p := s.b.logs["default"].top()
		p.Offset += uint64(s.r.IntN(4))
		x.opt.Since = Positions{p}
	default:
		x.opt.Since = s.positions()
	}
	s.sinks = append(s.sinks, x)
	if err := s.shards[x.shard].Subscribe(&x.sub, x, x.opt); err != nil {
		x.fail("subscribe: %v", err)
	}
}

// positions returns places to resume from, of streams that were or of any.
func (s *sim) positions() Positions {
	var ps Positions
	for _, ns := range []string{"default", "o"} {
		l := s.b.logs[ns]
		p := Position{Epoch: l.epochs[len(l.epochs)-1-s.r.IntN(min(2, len(l.epochs)))], Offset: uint64(s.r.IntN(int(l.last) + 1))}
		if n := len(s.seenAt); n > 0 && s.r.IntN(2) == 0 {
			if q := s.seenAt[s.r.IntN(n)]; s.logOf(q.Epoch) == l {
				p = q
			}
		}
		switch s.r.IntN(8) {
		case 0, 1:
			continue
		case 2:
			p.Check = check(p) % 7 // of another message
		case 3, 4, 5:
			p.Check = check(p)
		}
		ps = append(ps, p)
	}
	return ps
}

// watch checks what must hold between any two steps.
func (s *sim) watch() {
	var kept int64
	for m := range s.messages {
		kept += int64(m.kept)
		if m.pending < 0 || m.kept > 0 && m.rings == 0 || m.kept < 0 {
			s.fail("%v: kept %d pending %d rings %d", m.Position(), m.kept, m.pending, m.rings)
		}
	}
	if got := s.h.Stats().WireBytes; got != kept {
		s.fail("%d bytes of wire forms, counted %d", kept, got)
	}
	rings := map[*Message]int16{}
	for i := range s.h.table.parts {
		for _, ch := range s.h.table.parts[i].all() {
			if len(ch.early) > s.h.maxEarly || len(ch.ring)-ch.start > ch.ns.options().Recent || len(ch.pages) > maxPages {
				s.fail("%s: %d early, %d in its ring, %d pages", ch.name, len(ch.early), len(ch.ring)-ch.start, len(ch.pages))
			}
			for _, m := range ch.ring[ch.start:] {
				rings[m]++
			}
		}
	}
	for m := range s.messages {
		if m.rings != rings[m] {
			s.fail("%v: rings %d, is in %d", m.Position(), m.rings, rings[m])
		}
	}
	st := s.h.Stats()
	if int(st.Delivered) != s.delivered || int(st.Replayed) != s.replayed || int(st.Gaps) != s.gaps {
		s.fail("stats %+v, counted %d delivered %d replayed %d gaps", st, s.delivered, s.replayed, s.gaps)
	}
}

// quiet lets everything come to its end.
func (s *sim) quiet() {
	for idle := 0; idle < 3 && !s.failed; idle++ {
		for before := -1; before != s.progress() && !s.failed; {
			before = s.progress()
			for len(s.b.calls) > 0 {
				s.b.step()
				synctest.Wait()
			}
			for _, ns := range []string{"default", "o", "f"} {
				for l := s.b.logs[ns]; len(l.next) > 0; {
					s.b.hand(l)
				}
			}
			for _, sh := range s.shards {
				sh.Run()
			}
			synctest.Wait()
			for _, x := range s.sinks {
				if !x.gone {
					x.credit = 1 << 30
					x.sub.Continue()
				}
			}
			synctest.Wait()
		}
	}
}

func (s *sim) progress() int {
	n := s.calls + s.b.steps
	for _, l := range s.b.logs {
		n += len(l.done)
	}
	return n
}

// settle ends a simulation: everything arrives, everyone leaves, nothing is left.
func (s *sim) settle() {
	s.b.errs = false
	s.quiet()
	for _, ch := range s.channels {
		s.publish(ch)
	}
	s.quiet()
	s.watch()
	live := 0
	for _, x := range s.sinks {
		if s.failed {
			return
		}
		x.settled()
		if !x.gone {
			live++
		}
	}
	for _, sh := range s.shards {
		live -= sh.Subscribers()
	}
	if live != 0 {
		s.fail("%d subscribers too few", live)
	}
	for _, x := range s.sinks {
		if !x.gone {
			x.leave()
		}
	}
	for range 12 { // linger and more
		time.Sleep(10 * time.Second)
		for _, sh := range s.shards {
			sh.Run()
		}
		synctest.Wait()
	}
	if st := s.h.Stats(); st.Channels != 0 || st.WireBytes != 0 || st.QueueDepth != 0 {
		s.fail("in the end %+v", st)
	}
	for m := range s.messages {
		if m.pending != 0 || m.rings != 0 || m.kept != 0 || m.forms.head.Load() != nil {
			s.fail("%v in the end: kept %d pending %d rings %d", m.Position(), m.kept, m.pending, m.rings)
		}
	}
	for _, sh := range s.shards {
		if len(sh.locals)+len(sh.joins)+sh.subs > 0 {
			s.fail("a shard has %d locals, %d joins, %d subscribers", len(sh.locals), len(sh.joins), sh.subs)
		}
	}
	for _, l := range s.b.logs {
		if len(l.subscribed) > 0 {
			s.fail("still subscribed: %v", l.subscribed)
		}
	}
}
