package history

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
)

const worlds = 100

func TestCleanHistoriesPass(t *testing.T) {
	var cuts, repeats, gaps, excused, stored, jumps int
	for seed := range uint64(worlds) {
		for _, once := range []bool{false, true} {
			w := newWorld(seed, once)
			r := w.play(Options{})
			if !r.OK() {
				t.Fatalf("seed %d, exactly once %v: %v", seed, once, r)
			}
			if once && r.Repeats > 0 {
				t.Fatalf("seed %d: repeats allowed: %v", seed, r)
			}
			cuts, repeats, gaps, excused, stored = cuts+r.Cuts, repeats+r.Repeats, gaps+r.Gaps, excused+r.Excused, stored+r.Stored
			for _, s := range w.streams {
				for _, st := range s.steps {
					if st.do == "jump" {
						jumps++
					}
				}
			}
		}
	}
	if min(cuts, repeats, gaps, excused, stored, jumps) < worlds {
		t.Errorf("the worlds are too tame: %d cuts, %d repeats, %d gaps, %d excused, %d stored without an answer, %d jumps",
			cuts, repeats, gaps, excused, stored, jumps)
	}
}

// A mutation spoils the script s of w and says what the report must count, or
// nil where this script has no place for it.
type mutation func(w *world, s *script) map[Kind]int

// pick returns the index of a random step that fits, or -1.
func (w *world) pick(s *script, fits func(i int, st step) bool) int {
	var at []int
	for i, st := range s.steps {
		if fits(i, st) {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return -1
	}
	return at[w.rnd.IntN(len(at))]
}

func event(st step) bool { return st.do == "event" && st.once }

// next returns the next step of the same namespace, or -1 if a cut or the end
// comes first.
func next(s *script, i int) int {
	for j := i + 1; j < len(s.steps) && s.steps[j].do != "cut"; j++ {
		if s.steps[j].ns == s.steps[i].ns {
			return j
		}
	}
	return -1
}

// lastOf reports whether no event of the same namespace follows: a stream that
// stops there has not lost it.
func lastOf(s *script, i int) bool {
	return !slices.ContainsFunc(s.steps[i+1:], func(st step) bool { return st.do == "event" && st.ns == s.steps[i].ns })
}

// excused reports whether a gap notice later in the stream could excuse step i if
// it never came: the notices start at the stream's position.
func excused(s *script, i int) bool {
	for _, st := range s.steps[i+1:] {
		if st.ns == s.steps[i].ns {
			return st.do != "event"
		}
	}
	return false
}

func lose(fits func(s *script, i int, st step) bool) mutation {
	return func(w *world, s *script) map[Kind]int {
		i := w.pick(s, func(i int, st step) bool {
			return event(st) && w.known(s, st.m) && !excused(s, i) && !(s.stops && lastOf(s, i)) && fits(s, i, st)
		})
		if i < 0 {
			return nil
		}
		s.steps = slices.Delete(s.steps, i, i+1)
		return map[Kind]int{Lost: 1, Hole: 1}
	}
}

var mutations = map[string]mutation{
	"loss":                    lose(func(*script, int, step) bool { return true }),
	"loss right after resume": lose(func(_ *script, _ int, st step) bool { return st.resumed }),
	"loss at the very end":    lose(func(s *script, i int, _ step) bool { return lastOf(s, i) }),
	"loss at the very start": lose(func(s *script, i int, st step) bool {
		return !slices.ContainsFunc(s.steps[:i], func(o step) bool { return o.do == "event" && o.ns == st.ns })
	}),
	"loss of what was stored without an answer": func(w *world, s *script) map[Kind]int {
		return lose(func(_ *script, _ int, st step) bool { return st.m.unanswered })(w, s)
	},
	"loss of a run": func(w *world, s *script) map[Kind]int {
		ns := namespaces[w.rnd.IntN(2)]
		from := w.pick(s, func(i int, st step) bool { return event(st) && st.ns == ns })
		if from < 0 {
			return nil
		}
		var gone []int
		for i := from; i >= 0 && event(s.steps[i]) && w.known(s, s.steps[i].m) && len(gone) < 5; i = next(s, i) {
			gone = append(gone, i)
		}
		if len(gone) == 0 {
			return nil
		}
		last := gone[len(gone)-1]
		if excused(s, last) || s.stops && lastOf(s, last) {
			return nil
		}
		for _, i := range slices.Backward(gone) {
			s.steps = slices.Delete(s.steps, i, i+1)
		}
		return map[Kind]int{Lost: len(gone), Hole: 1}
	},
	"loss of a whole log": func(w *world, s *script) map[Kind]int {
		if s.stops {
			return nil
		}
		i := w.pick(s, func(i int, st step) bool { return st.do == "jump" })
		if i < 0 {
			return nil
		}
		ns, n := s.steps[i].ns, 0
		for j := len(s.steps) - 1; j >= i; j-- {
			if st := s.steps[j]; st.ns == ns {
				s.steps = slices.Delete(s.steps, j, j+1)
			}
		}
		for _, st := range s.steps[:i] { // the logs not visited are lost whole
			if st.do == "jump" && st.ns == ns {
				n++
			}
		}
		for _, log := range w.logs[ns][n+1:] {
			if slices.ContainsFunc(log, func(m message) bool { return slices.Contains(s.channels, m.channel) && !m.unanswered }) {
				return map[Kind]int{Lost: -1, Hole: -1}
			}
		}
		return nil
	},
	"repeat": func(w *world, s *script) map[Kind]int {
		i := w.pick(s, func(i int, st step) bool { return event(st) })
		at := i + 1 // anywhere on the same connection, in the same epoch
		for at < len(s.steps) && s.steps[at].do == "event" && w.chance(80) {
			at++
		}
		s.steps = slices.Insert(s.steps, at, s.steps[i])
		return map[Kind]int{Repeated: 1}
	},
	"repeat after resume": func(w *world, s *script) map[Kind]int {
		if !w.exactlyOnce {
			return nil
		}
		i := w.pick(s, func(i int, st step) bool { return event(st) && i+1 < len(s.steps) && s.steps[i+1].do == "cut" })
		if i < 0 {
			return nil
		}
		s.steps = slices.Insert(s.steps, i+2, s.steps[i])
		return map[Kind]int{Repeated: 1}
	},
	"reorder": func(w *world, s *script) map[Kind]int {
		i := w.pick(s, func(i int, st step) bool {
			j := next(s, i)
			return event(st) && j > 0 && event(s.steps[j])
		})
		if i < 0 {
			return nil
		}
		j := next(s, i)
		s.steps[i], s.steps[j] = s.steps[j], s.steps[i]
		return map[Kind]int{Reordered: 1}
	},
	"swap across channels": func(w *world, s *script) map[Kind]int {
		i := w.pick(s, func(_ int, st step) bool { return event(st) && !st.m.unanswered })
		j := w.pick(s, func(_ int, st step) bool {
			return i >= 0 && event(st) && !st.m.unanswered && st.ns == s.steps[i].ns && st.m.channel != s.steps[i].m.channel
		})
		if j < 0 {
			return nil
		}
		a, b := &s.steps[i].m, &s.steps[j].m
		a.channel, b.channel = b.channel, a.channel
		return map[Kind]int{WrongChannel: 2}
	},
	"swap of payloads": func(w *world, s *script) map[Kind]int {
		i := w.pick(s, func(_ int, st step) bool { return event(st) && !st.m.unanswered })
		j := w.pick(s, func(k int, st step) bool { return event(st) && !st.m.unanswered && k != i })
		if i < 0 || j < 0 {
			return nil
		}
		a, b := &s.steps[i].m, &s.steps[j].m
		a.id, b.id = b.id, a.id
		return map[Kind]int{Corrupted: 2}
	},
	"channel without subscription": func(w *world, s *script) map[Kind]int {
		i := w.pick(s, func(_ int, st step) bool { return event(st) && !st.m.unanswered })
		if i < 0 {
			return nil
		}
		s.steps[i].m.channel = "z"
		if s.steps[i].ns == "orders" {
			s.steps[i].m.channel = "orders:z"
		}
		return map[Kind]int{WrongChannel: -1}
	},
	"corruption": func(w *world, s *script) map[Kind]int {
		i := w.pick(s, func(_ int, st step) bool { return event(st) && !st.m.unanswered })
		if i < 0 {
			return nil
		}
		s.steps[i].m.id += "~"
		return map[Kind]int{Corrupted: 1}
	},
	"corruption everywhere": func(w *world, s *script) map[Kind]int {
		i := w.pick(s, func(_ int, st step) bool { return event(st) && !st.m.unanswered })
		if i < 0 {
			return nil
		}
		id, n := s.steps[i].m.id, 0
		for _, o := range w.streams {
			for j := range o.steps {
				if st := &o.steps[j]; st.do == "event" && st.m.id == id {
					st.m.id = "~"
					n++
				}
			}
		}
		return map[Kind]int{Corrupted: -1}
	},
	"phantom": func(w *world, s *script) map[Kind]int {
		i := w.pick(s, func(i int, st step) bool { // before it is an unused offset
			log := w.logOf(st.m.at.Epoch)
			k := slices.IndexFunc(log, func(m message) bool { return m.at == st.m.at })
			return event(st) && k > 0 && log[k-1].at.Offset == st.m.at.Offset-2 && st.m.at.Offset-1 > s.from[st.ns].Offset
		})
		if i < 0 {
			return nil
		}
		st := s.steps[i]
		st.m.at.Offset--
		st.m.id = "unknown"
		s.steps = slices.Insert(s.steps, i, st)
		return map[Kind]int{Phantom: 1}
	},
	"jump without notice": func(w *world, s *script) map[Kind]int {
		i := w.pick(s, func(i int, st step) bool {
			j := next(s, i)
			return st.do == "jump" && j > 0 && event(s.steps[j])
		})
		if i < 0 {
			return nil
		}
		s.steps = slices.Delete(s.steps, i, i+1)
		return map[Kind]int{Epoch: 1}
	},
	"return to an old epoch": func(w *world, s *script) map[Kind]int {
		i := w.pick(s, func(i int, st step) bool { return st.do == "jump" })
		if i < 0 {
			return nil
		}
		back := w.pick(s, func(j int, st step) bool { return j < i && event(st) && st.ns == s.steps[i].ns })
		if back < 0 {
			return nil
		}
		s.steps = slices.Insert(s.steps, i+1, s.steps[back])
		return map[Kind]int{Epoch: 1}
	},
	"event without position": func(w *world, s *script) map[Kind]int {
		s.steps = append(s.steps, step{do: "event", m: message{channel: s.channels[0], id: "x"}})
		return map[Kind]int{Epoch: 1}
	},
}

// known reports whether any other than s reports m. What was stored without an
// answer and was to be seen by one stream alone cannot be missed by anyone.
func (w *world) known(s *script, m message) bool {
	return !m.unanswered || slices.ContainsFunc(w.streams, func(o *script) bool {
		return o != s && slices.ContainsFunc(o.steps, func(st step) bool { return st.do == "event" && st.m.id == m.id })
	})
}

func (w *world) logOf(epoch string) []message {
	for _, logs := range w.logs {
		for _, log := range logs {
			if log[0].at.Epoch == epoch {
				return log
			}
		}
	}
	return nil
}

func TestEveryPlantedFaultIsCaughtExhaustively(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(mutations)) {
		t.Run(name, func(t *testing.T) {
			planted := 0
			for seed := range uint64(worlds) {
				w := newWorld(seed, seed%2 == 0)
				s := w.streams[w.rnd.IntN(len(w.streams))]
				want := mutations[name](w, s)
				if want == nil {
					continue
				}
				planted++
				r := w.play(Options{})
				if err := r.matches(want, s.name); err != nil {
					t.Fatalf("seed %d: %v\n%v", seed, err, r)
				}
			}
			if planted < worlds/10 {
				t.Errorf("planted in %d of %d worlds only", planted, worlds)
			}
		})
	}
}

// matches compares the counts of the wanted kinds (-1: at least one) and wants
// the offender named. A count of 1 or 2 must be all there is: one fault is not
// to be reported as another as well. Notices that a fault makes wrong may add
// holes: they are the consequence, and only of faults about epochs.
func (r *Report) matches(want map[Kind]int, stream string) error {
	for k := range numKinds {
		n, expected := r.Count(k), want[k]
		switch {
		case expected < 0 && n > 0:
		case expected == n:
		case expected == 0 && (k == Lost || k == Hole || k == Repeated || k == Reordered) && want[Epoch] > 0:
		default:
			return fmt.Errorf("%v: counted %d, want %d", k, n, expected)
		}
	}
	for k := range want {
		if !slices.ContainsFunc(r.Faults, func(f Fault) bool { return f.Kind == k && f.Stream == stream && f.First != "" }) {
			return fmt.Errorf("%v is not said of stream %s", k, stream)
		}
	}
	return nil
}

func TestGapNoticeIsAFaultWhereNothingExpires(t *testing.T) {
	caught := 0
	for seed := range uint64(worlds) {
		r := newWorld(seed, false).play(Options{NoGaps: true})
		for k := range numKinds {
			if n := r.Count(k); k != Gap && n > 0 {
				t.Fatalf("seed %d: %v", seed, r)
			}
		}
		caught += r.Count(Gap)
	}
	if caught < worlds {
		t.Errorf("%d gaps in %d worlds", caught, worlds)
	}
	w := newWorld(3, false)
	for _, s := range w.streams { // jumps alone are no fault
		if slices.ContainsFunc(s.steps, func(st step) bool { return st.do == "gap" }) {
			s.steps, s.stops = nil, true
		}
	}
	if r := w.play(Options{NoGaps: true}); !r.OK() {
		t.Error(r)
	}
}

func TestFaultsOfTheLogItself(t *testing.T) {
	f := func(k Kind, report func(c *Checker)) {
		t.Helper()
		c := New(Options{})
		c.Published("a", Position{"e", 1}, "m1")
		c.Published("a", Position{"e", 1}, "m1") // a retry with the same answer is fine
		report(c)
		if r := c.Report(); r.Count(k) != 1 || len(r.Faults) != 1 || r.Faults[0].Stream != "" {
			t.Errorf("want one %v: %v", k, r)
		}
	}
	f(Repeated, func(c *Checker) { c.Published("a", Position{"e", 2}, "m1") })
	f(Repeated, func(c *Checker) { c.Published("a", Position{"f", 1}, "m1") })
	f(Corrupted, func(c *Checker) { c.Published("a", Position{"e", 1}, "m2") })
	f(Corrupted, func(c *Checker) { c.Published("b", Position{"e", 1}, "m2") })
	f(Epoch, func(c *Checker) { c.Published("a", Position{"", 1}, "m2") })
	f(Epoch, func(c *Checker) { c.Published("a", Position{"e", 0}, "m2") })
	f(Repeated, func(c *Checker) { // a retry without idempotency: stored twice, answered once
		s := c.Stream("s", []string{"a"}, nil)
		c.Unanswered("a", "m2")
		s.Received("a", Position{"e", 1}, "m1")
		s.Received("a", Position{"e", 2}, "m2")
		s.Received("a", Position{"e", 3}, "m2")
		c.Published("a", Position{"e", 3}, "m2")
	})
}

// By channel, a message may come behind a later one of another channel, and of its own it may not.
func TestOrderByChannel(t *testing.T) {
	for _, byChannel := range []bool{false, true} {
		c := New(Options{ExactlyOnce: true, ByChannel: byChannel})
		s := c.Stream("s", []string{"a", "b"}, nil)
		for i, ch := range []string{"a", "b", "a", "b"} {
			c.Published(ch, Position{"e", uint64(i + 1)}, fmt.Sprint("m", i+1))
		}
		for _, m := range []struct {
			channel string
			offset  uint64
		}{{"b", 2}, {"a", 1}, {"b", 4}, {"a", 3}} {
			s.Received(m.channel, Position{"e", m.offset}, fmt.Sprint("m", m.offset))
		}
		r := c.Report()
		if faults := r.Count(Reordered); byChannel != r.OK() || !byChannel && faults != 2 || byChannel && r.Late != 2 {
			t.Errorf("by channel %v: %v", byChannel, r)
		}
	}
	c := New(Options{ExactlyOnce: true, ByChannel: true})
	s := c.Stream("s", []string{"a"}, nil)
	c.Published("a", Position{"e", 1}, "m1")
	c.Published("a", Position{"e", 2}, "m2")
	s.Received("a", Position{"e", 2}, "m2")
	s.Received("a", Position{"e", 1}, "m1")
	if r := c.Report(); r.Count(Reordered) != 1 {
		t.Errorf("in one channel: %v", r)
	}
}

func TestReportReadsWell(t *testing.T) {
	c := New(Options{})
	s := c.Stream("ws-7", []string{"a"}, map[string]Position{"default": {"e1", 0}})
	for i := range uint64(6) {
		c.Published("a", Position{"e1", i + 1}, fmt.Sprint("m", i+1))
	}
	for _, i := range []uint64{1, 2, 5, 5} {
		s.Received("a", Position{"e1", i}, fmt.Sprint("m", i))
	}
	got := c.Report().String()
	want := `1 streams received 4 events of 6 acknowledged and 0 unanswered publications (0 of them stored); ` +
		`0 cuts, 0 repeats, 0 gaps that excuse 0 messages; wrong: lost 3 hole 2 repeated 1
ws-7: lost: 3, first: e1-3 "m3" on "a", after e1-2
ws-7: hole: 2, first: e1-3 "m3" on "a", after e1-2
ws-7: repeated: 1, first: e1-5 "m5" came again
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for i := range 50 {
		c.Stream(fmt.Sprint("x", i), []string{"a"}, nil)
	}
	if r := c.Report().String(); strings.Count(r, "\n") != maxLines+2 || !strings.Contains(r, "more lines") {
		t.Errorf("a long report is not cut:\n%s", r)
	}
}

func TestAbsurdOffsetCostsNoMemory(t *testing.T) {
	c := New(Options{})
	s := c.Stream("s", []string{"a"}, nil)
	s.Received("a", Position{"e", never - 1}, "x")
	if r := c.Report(); r.Count(Phantom) != 1 {
		t.Error(r)
	}
}

func TestManyStreamsAtOnce(t *testing.T) {
	const streams, messages = 50, 5000
	c, victim := New(Options{ExactlyOnce: true, NoGaps: true}), rand.IntN(streams)
	ids := make([]string, messages)
	for i := range ids {
		ids[i] = fmt.Sprint("m", i)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i, id := range ids {
			c.Published("a", Position{"e", uint64(i + 1)}, id)
		}
	})
	for n := range streams {
		s := c.Stream(fmt.Sprint("s", n), []string{"a"}, map[string]Position{"default": {"e", 0}})
		wg.Go(func() {
			for i, id := range ids {
				if n != victim || i != messages-1 {
					s.Received("a", Position{"e", uint64(i + 1)}, id)
				}
			}
		})
	}
	wg.Wait()
	if err := c.Report().matches(map[Kind]int{Lost: 1, Hole: 1}, fmt.Sprint("s", victim)); err != nil {
		t.Error(err)
	}
}

func BenchmarkReceived(b *testing.B) {
	c := New(Options{})
	ids := make([]string, 100_000)
	for i := range ids {
		ids[i] = fmt.Sprint("m", i)
		c.Published("a", Position{"e", uint64(i + 1)}, ids[i])
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		s, i := c.Stream("s", []string{"a"}, map[string]Position{"default": {"e", 0}}), 0
		for pb.Next() {
			if i == len(ids) {
				s, i = c.Stream("s", []string{"a"}, map[string]Position{"default": {"e", 0}}), 0
			}
			s.Received("a", Position{"e", uint64(i + 1)}, ids[i])
			i++
		}
	})
}
