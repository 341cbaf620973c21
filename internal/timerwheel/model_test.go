package timerwheel

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A model is the wheel without the wheel: a list that is searched whole.
type model struct {
	tick, start, now int64
	at               map[int]int64
	overdue          map[int]bool // scheduled for a time that had passed
}

// due returns what an Advance to now must fire, by the definition: a timer
// fires when the first tick not before its time is over.
func (m *model) due(now int64) (ids []int) {
	m.now = max(m.now, now)
	for id, at := range m.at {
		if m.tickOf(at) <= (m.now-m.start)/m.tick {
			ids = append(ids, id)
		}
	}
	return ids
}

func (m *model) tickOf(at int64) int64 { return (max(0, at-m.start) + m.tick - 1) / m.tick }

// compare plays operations drawn from next on a wheel and on the model until
// next has no more. Some callbacks play operations too.
func compare(t *testing.T, next func() (uint64, bool)) {
	draw := func(n int64) int64 {
		v, _ := next()
		return int64(v % uint64(n))
	}
	tick := 1 + draw(200)
	start := draw(1<<40) - 1<<39
	m := &model{tick: tick, start: start, now: start, at: map[int]int64{}, overdue: map[int]bool{}}
	w := New[int](time.Duration(tick), start)
	timers := make([]Timer[int], 40)
	for i := range timers {
		timers[i].Owner = i
	}
	// span draws a distance of any magnitude up to beyond the reach of all levels.
	span := func() int64 { return draw(tick << draw(28)) }
	change := func(pending map[int]bool) {
		id := int(draw(int64(len(timers))))
		if draw(4) == 0 {
			_, was := m.at[id]
			if got := w.Stop(&timers[id]); got != was {
				t.Fatalf("Stop(%d) = %v, want %v", id, got, was)
			}
			delete(m.at, id)
		} else {
			at := m.now + span() - draw(3)*tick
			w.Schedule(&timers[id], at)
			m.at[id] = at
			m.overdue[id] = m.tickOf(at) <= (m.now-start)/tick
		}
		delete(pending, id)
	}
	for {
		if _, more := next(); !more {
			return
		}
		for range draw(4) {
			change(nil)
		}
		now := m.now + span()
		if draw(8) == 0 {
			now = m.now - span() // a clock that goes back must not matter
		}
		due := m.due(now)
		pending := map[int]bool{}
		for _, id := range due {
			pending[id] = true
		}
		last := int64(0)
		n := w.Advance(now, func(id int) {
			if !pending[id] {
				t.Fatalf("timer %d fired; still to fire %v", id, pending)
			}
			// Overdue timers come first, the others in the order of their ticks.
			k := m.tickOf(m.at[id])
			if m.overdue[id] {
				k = 0
			}
			if k < last {
				t.Fatalf("timer of tick %d fired after one of tick %d", k, last)
			}
			last = k
			delete(pending, id)
			delete(m.at, id)
			if draw(3) == 0 {
				change(pending)
			}
		})
		if len(pending) > 0 {
			t.Fatalf("Advance(%d) fired %d, not %v", now, n, pending)
		}
		check(t, w, m, timers)
	}
}

// check compares what can be asked of both.
func check(t *testing.T, w *Wheel[int], m *model, timers []Timer[int]) {
	t.Helper()
	if w.Len() != len(m.at) {
		t.Fatalf("Len = %d, want %d", w.Len(), len(m.at))
	}
	for i := range timers {
		if _, want := m.at[i]; timers[i].Scheduled() != want {
			t.Fatalf("timer %d: Scheduled = %v, want %v", i, !want, want)
		}
	}
	wait, ok := w.Next(m.now)
	if ok != (len(m.at) > 0) {
		t.Fatalf("Next: ok = %v with %d timers", ok, len(m.at))
	}
	if !ok {
		return
	}
	first := int64(1 << 62)
	for _, at := range m.at {
		first = min(first, m.start+m.tickOf(at)*m.tick)
	}
	if until := max(0, first-m.now); int64(wait) > until {
		t.Fatalf("Next = %d, but a timer is due in %d", wait, until)
	}
}

func TestWheelFiresWhatAListWould(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 0))
		left := 2000
		ok := t.Run("", func(t *testing.T) {
			compare(t, func() (uint64, bool) {
				left--
				return rng.Uint64(), left > 0
			})
		})
		if !ok {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzWheel(f *testing.F) {
	f.Add([]byte{})
	f.Add(slices.Repeat([]byte{7, 1, 200, 3, 90}, 60))
	rng := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		b := make([]byte, 800)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		compare(t, func() (uint64, bool) {
			var v [8]byte
			n := copy(v[:4], b)
			b = b[n:]
			return binary.LittleEndian.Uint64(v[:]), n > 0
		})
	})
}
