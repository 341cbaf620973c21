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

// A duel is a wheel and its model under the same operations.
type duel struct {
	t      *testing.T
	next   func() (uint64, bool)
	m      *model
	w      *Wheel[int]
	timers []Timer[int]
}

// compare plays operations drawn from next on a wheel and on the model until
// next has no more.
func compare(t *testing.T, next func() (uint64, bool)) {
	d := &duel{t: t, next: next, timers: make([]Timer[int], 40)}
	tick := 1 + d.draw(200)
	start := d.draw(1<<40) - 1<<39
	d.m = &model{tick: tick, start: start, now: start, at: map[int]int64{}, overdue: map[int]bool{}}
	d.w = New[int](time.Duration(tick), start)
	for i := range d.timers {
		d.timers[i].Owner = i
	}
	for {
		if _, more := next(); !more {
			return
		}
		for range d.draw(4) {
			d.change(nil)
		}
		now := d.m.now + d.span()
		if d.draw(8) == 0 {
			now = d.m.now - d.span() // a clock that goes back must not matter
		}
		d.advance(now)
		check(t, d.w, d.m, d.timers)
	}
}

func (d *duel) draw(n int64) int64 {
	v, _ := d.next()
	return int64(v % uint64(n))
}

// span draws a distance of any magnitude up to beyond the reach of all levels.
func (d *duel) span() int64 { return d.draw(d.m.tick << d.draw(28)) }

// change schedules or stops a timer; it is then no longer among pending.
func (d *duel) change(pending map[int]bool) {
	id := int(d.draw(int64(len(d.timers))))
	delete(pending, id)
	if d.draw(4) == 0 {
		_, was := d.m.at[id]
		if got := d.w.Stop(&d.timers[id]); got != was {
			d.t.Fatalf("Stop(%d) = %v, want %v", id, got, was)
		}
		delete(d.m.at, id)
		return
	}
	at := d.m.now + d.span() - d.draw(3)*d.m.tick
	d.w.Schedule(&d.timers[id], at)
	d.m.at[id] = at
	d.m.overdue[id] = d.m.tickOf(at) <= (d.m.now-d.m.start)/d.m.tick
}

// advance moves both to now. Some callbacks change timers, due ones among them.
func (d *duel) advance(now int64) {
	pending := map[int]bool{}
	for _, id := range d.m.due(now) {
		pending[id] = true
	}
	want, fired, last := len(pending), 0, int64(0)
	n := d.w.Advance(now, func(id int) {
		if !pending[id] {
			d.t.Fatalf("timer %d fired; still to fire %v", id, pending)
		}
		// Overdue timers come first, the others in the order of their ticks.
		k := d.m.tickOf(d.m.at[id])
		if d.m.overdue[id] {
			k = 0
		}
		if k < last {
			d.t.Fatalf("timer of tick %d fired after one of tick %d", k, last)
		}
		last = k
		fired++
		delete(pending, id)
		delete(d.m.at, id)
		if d.draw(3) == 0 {
			d.change(pending)
		}
	})
	if len(pending) > 0 || n != fired || n > want {
		d.t.Fatalf("Advance(%d) = %d, fired %d of %d, not %v", now, n, fired, want, pending)
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
