package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// A world is a made-up history that is right in every way, for mutations to
// spoil: two namespaces, several epochs each, publications without an answer,
// streams that start anywhere, get cut, see declared gaps and leave early.
type world struct {
	rnd         *rand.Rand
	exactlyOnce bool
	logs        map[string][][]message // namespace → epoch → messages
	publishes   []message
	streams     []*script
}

type message struct {
	channel    string
	at         Position
	id         string
	unanswered bool
	stored     bool
}

// A script is what one stream will report to the checker.
type script struct {
	name     string
	channels []string
	from     map[string]Position
	steps    []step
	stops    bool
}

type step struct {
	do       string // "event", "cut", "gap", "jump" (a gap into a new epoch)
	ns       string
	m        message
	from, to Position
	// once reports that the event comes once in the whole stream: what happens to
	// it cannot be made good or hidden by a repetition.
	once bool
	// resumed reports that it is the first new event of its namespace after a cut.
	resumed bool
}

var channelsOf = map[string][]string{
	"default": {"a", "b", "c"},
	"orders":  {"orders:1", "orders:2", "orders:3"},
}

var namespaces = []string{"default", "orders"}

func newWorld(seed uint64, exactlyOnce bool) *world {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 77)), exactlyOnce: exactlyOnce, logs: make(map[string][][]message)}
	for _, ns := range namespaces {
		w.publish(ns)
	}
	for i := range 4 + w.rnd.IntN(4) {
		w.streams = append(w.streams, w.subscribe(fmt.Sprintf("s%d", i)))
	}
	return w
}

func (w *world) chance(percent int) bool { return w.rnd.IntN(100) < percent }

func (w *world) publish(ns string) {
	for e := range 1 + w.rnd.IntN(3) {
		epoch, offset := fmt.Sprintf("%s.e%d", ns, e+1), uint64(0)
		var log []message
		for range 30 + w.rnd.IntN(60) {
			offset++
			if w.chance(10) {
				offset++ // an unused offset: removed or never used
			}
			m := message{
				channel: channelsOf[ns][w.rnd.IntN(3)], at: Position{epoch, offset},
				id: fmt.Sprintf("%s/%d", epoch, offset), unanswered: w.chance(10), stored: true,
			}
			log = append(log, m)
			w.publishes = append(w.publishes, m)
			if w.chance(5) {
				w.publishes = append(w.publishes, message{channel: m.channel, id: m.id + "/never", unanswered: true})
			}
		}
		w.logs[ns] = append(w.logs[ns], log)
	}
}

func (w *world) subscribe(name string) *script {
	s := &script{name: name, from: make(map[string]Position), stops: w.chance(25)}
	var parts [][]step
	for _, ns := range namespaces {
		own := slices.Clone(channelsOf[ns])
		w.rnd.Shuffle(3, func(i, j int) { own[i], own[j] = own[j], own[i] })
		own = own[:2+w.rnd.IntN(2)]
		s.channels = append(s.channels, own...)
		parts = append(parts, w.read(s, ns, own))
	}
	// The order between namespaces is free, that within one is not.
	for len(parts[0])+len(parts[1]) > 0 {
		i := w.rnd.IntN(2)
		if len(parts[i]) == 0 {
			i = 1 - i
		}
		s.steps = append(s.steps, parts[i][0])
		parts[i] = parts[i][1:]
	}
	if s.stops {
		s.steps = s.steps[:len(s.steps)*3/4]
	}
	w.cut(s)
	return s
}

// read is what a stream sees of a namespace without cuts.
func (w *world) read(s *script, ns string, own []string) (steps []step) {
	var at Position
	for e, log := range w.logs[ns] {
		if e == 0 {
			at.Epoch = log[0].at.Epoch
			if w.chance(50) {
				at.Offset = log[w.rnd.IntN(10)].at.Offset
			}
			s.from[ns] = at
		} else {
			// The end of the last log died with it, and the new one starts anywhere.
			if tail := w.rnd.IntN(8); tail < len(steps)-4 {
				steps = steps[:len(steps)-tail]
			}
			for _, st := range steps {
				if st.do == "event" {
					at = st.m.at
				}
			}
			to := Position{log[0].at.Epoch, uint64(w.rnd.IntN(6))}
			steps = append(steps, step{do: "jump", ns: ns, from: at, to: to})
			at = to
		}
		for i := 0; i < len(log); i++ {
			if m := log[i]; m.at.Offset > at.Offset && slices.Contains(own, m.channel) {
				steps = append(steps, step{do: "event", ns: ns, m: m, once: true})
				at = m.at
			}
			if w.chance(3) && i+8 < len(log) && log[i].at.Offset >= at.Offset {
				to := log[i+1+w.rnd.IntN(6)].at
				steps = append(steps, step{do: "gap", ns: ns, from: at, to: to})
				at = to
			}
		}
	}
	return steps
}

// cut puts cuts into a script and, where it is allowed, what comes again after one.
func (w *world) cut(s *script) {
	var out []step
	fresh := make(map[string]bool)
	for _, st := range s.steps {
		if st.do == "event" && fresh[st.ns] {
			st.resumed, fresh[st.ns] = true, false
		}
		out = append(out, st)
		if !w.chance(6) {
			continue
		}
		out = append(out, step{do: "cut"})
		fresh["default"], fresh["orders"] = true, true
		if w.exactlyOnce {
			continue
		}
		again := out[max(0, len(out)-1-w.rnd.IntN(5)) : len(out)-1]
		for i := len(again) - 1; i >= 0; i-- { // the last stretch of one namespace's events
			if again[i].do != "event" || again[i].ns != st.ns {
				again = again[i+1:]
				break
			}
		}
		for i := range again {
			again[i].once = false
		}
		for _, a := range slices.Clone(again) {
			a.resumed = false
			out = append(out, a)
		}
	}
	s.steps = out
}

// play reports everything to a checker: publications and streams in any order, as
// they would come from their goroutines.
func (w *world) play(opts Options) *Report {
	opts.ExactlyOnce = w.exactlyOnce
	c := New(opts)
	for _, ns := range namespaces { // logs appear in the order of their life
		for _, log := range w.logs[ns] {
			c.mu.Lock()
			c.log(ns, log[0].at.Epoch)
			c.mu.Unlock()
		}
	}
	publishes := slices.Clone(w.publishes)
	w.rnd.Shuffle(len(publishes), func(i, j int) { publishes[i], publishes[j] = publishes[j], publishes[i] })
	streams := make([]*Stream, len(w.streams))
	done := make([]int, len(w.streams))
	for i, s := range w.streams {
		streams[i] = c.Stream(s.name, s.channels, s.from)
	}
	for left := len(streams); left > 0 || len(publishes) > 0; {
		if len(publishes) > 0 && w.chance(40) {
			publishes[0].report(c)
			publishes = publishes[1:]
		}
		i := w.rnd.IntN(len(streams))
		switch n := done[i]; {
		case n < len(w.streams[i].steps):
			w.streams[i].steps[n].report(streams[i])
			done[i]++
		case n == len(w.streams[i].steps):
			if w.streams[i].stops {
				streams[i].Stopped()
			}
			done[i]++
			left--
		}
	}
	return c.Report()
}

func (m message) report(c *Checker) {
	if m.unanswered {
		c.Unanswered(m.channel, m.id)
		return
	}
	c.Published(m.channel, m.at, m.id)
}

func (st step) report(s *Stream) {
	switch st.do {
	case "event":
		s.Received(st.m.channel, st.m.at, st.m.id)
	case "cut":
		s.Cut()
	default:
		s.Gap(st.ns, st.from, st.to)
	}
}
