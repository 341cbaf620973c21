package timerwheel

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"
)

const tick = int64(100 * time.Millisecond)

// fires schedules one timer for at on a wheel that began at 0, advances to each
// of times and returns the index of the one at which it fired, or -1.
func fires(at int64, times ...int64) int {
	w := New[int](time.Duration(tick), 0)
	var t Timer[int]
	w.Schedule(&t, at)
	for i, now := range times {
		if w.Advance(now, func(int) {}) > 0 {
			return i
		}
	}
	return -1
}

func TestTimerFiresAtTheFirstTickNotBeforeItsTime(t *testing.T) {
	f := func(at int64, want int, times ...int64) {
		t.Helper()
		if got := fires(at, times...); got != want {
			t.Errorf("timer for %d, advanced to %v: fired at index %d, want %d", at, times, got, want)
		}
	}
	f(tick, 1, tick-1, tick)
	f(tick+1, 2, tick, tick+1, 2*tick)
	f(tick+1, 2, tick, 2*tick-1, 2*tick)
	f(0, 0, 0)
	f(-5, 0, 0)
	f(5, -1, 0, 4, tick-1)
	f(5, 1, -7, tick)
	// The last and the first tick of each level.
	for _, span := range []int64{64, 64 * 64, 64 * 64 * 64, 64 * 64 * 64 * 64} {
		for _, n := range []int64{span - 1, span, span + 1, 3*span + 7} {
			f(n*tick, 1, n*tick-1, n*tick)
			f(n*tick, 2, span/2*tick, n*tick-1, n*tick)
			f(n*tick, 3, span/2*tick, (span-1)*tick-1, n*tick-1, n*tick)
		}
	}
	f(math.MaxInt64, -1, tick, math.MaxInt64/2)
}

func TestTimerIsNoLargerThanFourWords(t *testing.T) {
	if n := unsafe.Sizeof(Timer[*int]{}); n > 32 {
		t.Errorf("a timer with a pointer to its owner takes %d bytes, want at most 32", n)
	}
}

func TestZeroTickIsTheDefault(t *testing.T) {
	w := New[int](0, 0)
	var tm Timer[int]
	w.Schedule(&tm, 1)
	if wait, ok := w.Next(0); !ok || wait != DefaultTick {
		t.Errorf("Next = %v, %v, want %v", wait, ok, DefaultTick)
	}
}

func TestStoppedTimerDoesNotFire(t *testing.T) {
	w := New[string](time.Duration(tick), 0)
	a, b := Timer[string]{Owner: "a"}, Timer[string]{Owner: "b"}
	w.Schedule(&a, tick)
	w.Schedule(&b, tick)
	if !w.Stop(&a) || w.Stop(&a) || a.Scheduled() || w.Len() != 1 {
		t.Error("Stop did not report or count")
	}
	w.Advance(tick, func(s string) {
		if s != "b" {
			t.Errorf("%s fired", s)
		}
	})
	if w.Len() != 0 || b.Scheduled() {
		t.Error("a fired timer is still there")
	}
	if _, ok := w.Next(tick); ok {
		t.Error("Next has something to wait for on an empty wheel")
	}
}

func TestStoppedTimerCausesNoWakeUp(t *testing.T) {
	w := New[int](time.Duration(tick), 0)
	var a, b Timer[int]
	w.Schedule(&a, 3*tick)
	w.Schedule(&b, 40*tick)
	w.Stop(&a)
	if wait, _ := w.Next(0); wait != time.Duration(40*tick) {
		t.Errorf("Next = %v, want %v", wait, time.Duration(40*tick))
	}
}

func TestCallbackStopsATimerDueInTheSameAdvance(t *testing.T) {
	w := New[int](time.Duration(tick), 0)
	ts := make([]Timer[int], 3)
	for i := range ts {
		ts[i].Owner = i
		w.Schedule(&ts[i], int64(i+1)*tick)
	}
	n := w.Advance(10*tick, func(i int) {
		if i == 0 {
			w.Stop(&ts[1])
			w.Schedule(&ts[2], 20*tick)
		}
	})
	if n != 1 || w.Len() != 1 {
		t.Errorf("%d fired and %d left, want 1 and 1", n, w.Len())
	}
	if n := w.Advance(20*tick, func(int) {}); n != 1 {
		t.Errorf("%d fired later, want 1", n)
	}
}

func TestCallbackReschedulingIntoThePastFiresOncePerAdvance(t *testing.T) {
	w := New[int](time.Duration(tick), 0)
	var tm Timer[int]
	again := func(int) { w.Schedule(&tm, 0) }
	w.Schedule(&tm, tick)
	for now := tick; now < 5*tick; now += tick {
		if n := w.Advance(now, again); n != 1 {
			t.Fatalf("fired %d times, want once", n)
		}
		if wait, ok := w.Next(now); wait != 0 || !ok {
			t.Fatalf("Next = %v, %v with a timer overdue", wait, ok)
		}
	}
}

func TestPanickingCallbackLosesNoOtherTimer(t *testing.T) {
	w := New[int](time.Duration(tick), 0)
	ts := make([]Timer[int], 5)
	for i := range ts {
		ts[i].Owner = i
		w.Schedule(&ts[i], tick)
	}
	func() {
		defer func() { _ = recover() }()
		w.Advance(tick, func(i int) {
			if i == 1 {
				panic("handler")
			}
		})
	}()
	if n := w.Advance(tick, func(int) {}); n != 3 || w.Len() != 0 {
		t.Errorf("%d fired after the panic, want 3; %d left", n, w.Len())
	}
}

func TestTimeThatGoesBackChangesNothing(t *testing.T) {
	w := New[int](time.Duration(tick), 1000*tick)
	var tm Timer[int]
	w.Schedule(&tm, 1010*tick)
	for _, now := range []int64{1005 * tick, 3 * tick, -tick, 1009 * tick} {
		if w.Advance(now, func(int) {}) != 0 {
			t.Fatalf("fired at tick %d", now/tick)
		}
	}
	if w.Advance(1010*tick, func(int) {}) != 1 {
		t.Error("did not fire")
	}
}

// TestSleepingAsLongAsNextSaysIsAtMostOneTickLate runs wheels of random timers
// the way a loop does, and bounds how often that wakes for nothing.
func TestSleepingAsLongAsNextSaysIsAtMostOneTickLate(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		start := rng.Int64N(1 << 40)
		now := start
		w := New[int64](time.Duration(tick), now)
		ts := make([]Timer[int64], 1+rng.IntN(20))
		for i := range ts {
			at := start + rng.Int64N(tick<<rng.IntN(30))
			ts[i].Owner = at
			w.Schedule(&ts[i], at)
		}
		wakes := 0
		for {
			wait, ok := w.Next(now)
			if !ok {
				break
			}
			now += int64(wait)
			wakes++
			w.Advance(now, func(at int64) {
				if now < at || now-at >= tick {
					t.Errorf("timer for %d fired at %d", at, now)
				}
			})
		}
		// One for each level, and for each block of the highest beyond its reach.
		if most := len(ts)*(levels+1) + int((now-start)/tick>>reach); w.Len() != 0 || wakes > most {
			t.Errorf("%d timers: %d wakes, want at most %d; %d left", len(ts), wakes, most, w.Len())
		}
	}
}

func TestNothingAllocates(t *testing.T) {
	w := New[int](time.Duration(tick), 0)
	ts := make([]Timer[int], 100)
	now := int64(0)
	n := testing.AllocsPerRun(100, func() {
		for i := range ts {
			w.Schedule(&ts[i], now+int64(i*i)*tick)
			w.Schedule(&ts[i], now+int64(i)*tick)
		}
		w.Stop(&ts[50])
		now += 60 * tick
		w.Advance(now, func(int) {})
		w.Next(now)
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkSchedule(b *testing.B) {
	f := func(name string, step int64) {
		b.Run(name, func(b *testing.B) {
			w := New[int](time.Duration(tick), 0)
			ts := make([]Timer[int], 10_000)
			for i := range ts {
				w.Schedule(&ts[i], int64(i)*tick)
			}
			i, at := 0, int64(1<<50)
			b.ReportAllocs()
			for b.Loop() {
				w.Schedule(&ts[i%len(ts)], at)
				at += step
				i++
			}
		})
	}
	f("later", tick)
	f("sooner", -tick)
}

func BenchmarkAdvance(b *testing.B) {
	w := New[int](time.Duration(tick), 0)
	ts := make([]Timer[int], 10_000)
	now := int64(0)
	for i := range ts {
		ts[i].Owner = i
		w.Schedule(&ts[i], int64(i%250)*tick)
	}
	b.ReportAllocs()
	for b.Loop() {
		now += tick
		// Every timer again in 25 s: 40 fire in each tick.
		w.Advance(now, func(i int) { w.Schedule(&ts[i], now+250*tick) })
	}
}

func TestUntilATimerFires(t *testing.T) {
	w := New[*int](100*time.Millisecond, 0)
	var timer Timer[*int]
	f := func(now int64, want time.Duration) {
		t.Helper()
		if got := w.Until(&timer, now); got != want {
			t.Errorf("at %v: %v, want %v", time.Duration(now), got, want)
		}
	}
	f(0, 0)
	w.Schedule(&timer, int64(950*time.Millisecond))
	f(0, time.Second)
	f(int64(400*time.Millisecond), 600*time.Millisecond)
	f(int64(2*time.Second), 0)
	w.Stop(&timer)
	f(0, 0)
}
