package loadgen

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

func all(s *schedule) (at []time.Duration) {
	for {
		t, ok := s.next()
		if !ok {
			return at
		}
		at = append(at, t)
	}
}

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func TestUniformArrivalsAreExact(t *testing.T) {
	f := func(c curve, want ...time.Duration) {
		t.Helper()
		if got := all(newSchedule(Uniform, 0, c, nil)); !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", c, got, want)
		}
	}
	ms := time.Millisecond
	f(curve{{time.Second, 4, 4}}, 0, 250*ms, 500*ms, 750*ms)
	f(curve{{time.Second, 0, 0}})
	f(nil)
	// A pause between two pieces takes no arrivals.
	f(curve{{time.Second, 2, 2}, {time.Second, 0, 0}, {time.Second, 2, 2}}, 0, 500*ms, 2000*ms, 2500*ms)
	// From 0 to 4 in two seconds: t² arrivals by t.
	f(curve{{2 * time.Second, 0, 4}}, 0, time.Second, 1414213562, 1732050808)
	// And down again.
	f(curve{{2 * time.Second, 4, 0}}, 0, 267949192, 585786438, time.Second)
}

func TestBurstsComeAtOnce(t *testing.T) {
	at := all(newSchedule(Burst, 5, curve{{time.Second, 20, 20}}, nil))
	if len(at) != 20 {
		t.Fatalf("%d arrivals, want 20", len(at))
	}
	for i, x := range at {
		if want := time.Duration(i/5) * 250 * time.Millisecond; x != want {
			t.Errorf("arrival %d at %v, want %v", i, x, want)
		}
	}
}

func TestPoissonHasTheRateAndTheSpread(t *testing.T) {
	at := all(newSchedule(Poisson, 0, curve{{10 * time.Second, 10_000, 10_000}}, random(7)))
	// 100,000 ± 5 standard deviations.
	if n := float64(len(at)); math.Abs(n-100_000) > 5*math.Sqrt(100_000) {
		t.Errorf("%v arrivals of 100,000", n)
	}
	var sum, squares float64
	for i := 1; i < len(at); i++ {
		if at[i] < at[i-1] {
			t.Fatal("out of order")
		}
		d := (at[i] - at[i-1]).Seconds() * 10_000
		sum += d
		squares += d * d
	}
	n := float64(len(at) - 1)
	if mean, variance := sum/n, squares/n-(sum/n)*(sum/n); math.Abs(mean-1) > 0.02 || math.Abs(variance-1) > 0.05 {
		t.Errorf("gaps have mean %.3f and variance %.3f of the unit; an exponential has 1 and 1", mean, variance)
	}
}

func TestTheSameSeedGivesTheSameArrivals(t *testing.T) {
	c := curve{{time.Second, 100, 500}, {time.Second, 500, 0}}
	a, b := all(newSchedule(Poisson, 0, c, random(3))), all(newSchedule(Poisson, 0, c, random(3)))
	if len(a) == 0 || !slices.Equal(a, b) {
		t.Error("two schedules of one seed differ")
	}
	if slices.Equal(a, all(newSchedule(Poisson, 0, c, random(4)))) {
		t.Error("another seed gave the same")
	}
}

func TestRampHasTheIntegralOfItsRate(t *testing.T) {
	c := curve{{3 * time.Second, 100, 300}, {2 * time.Second, 300, 300}, {time.Second, 300, 0}}
	if n := len(all(newSchedule(Uniform, 0, c, nil))); n != 600+600+150 {
		t.Errorf("%d arrivals, want 1,350", n)
	}
	if got := c.mean(0, 3*time.Second); got != 200 {
		t.Errorf("mean rate of the ramp %v, want 200", got)
	}
	if got := c.at(1500 * time.Millisecond); got != 200 {
		t.Errorf("rate in its middle %v, want 200", got)
	}
}

func TestStagesMoveRateAndConnectionsApart(t *testing.T) {
	s := Spec{Rate: 10, Conns: 5, Warmup: time.Second, Stages: []Stage{
		{Duration: time.Second, Rate: 100}, {Duration: time.Second, Rate: -1, Conns: 50}, {Duration: time.Second, Rate: 0},
	}}
	rate, conns := s.curves()
	f := func(at time.Duration, wantRate, wantConns float64) {
		t.Helper()
		if r, n := rate.at(at), conns.at(at); r != wantRate || n != wantConns {
			t.Errorf("at %v: rate %v, conns %v; want %v and %v", at, r, n, wantRate, wantConns)
		}
	}
	f(0, 10, 5)
	f(1500*time.Millisecond, 55, 5)
	f(2500*time.Millisecond, 100, 27.5)
	f(3500*time.Millisecond, 50, 50)
	f(9*time.Second, 0, 50)
}

// A fakeClock moves only when it is slept on, and then too far.
type fakeClock struct {
	t, over int64
	sleeps  int
	stall   func(*fakeClock)
}

func (c *fakeClock) now() int64 { return c.t }
func (c *fakeClock) sleepUntil(at int64) {
	c.sleeps++
	c.t = max(c.t, at) + c.over
	if c.stall != nil {
		c.stall(c)
	}
}

func TestPacerKeepsTheScheduleWhateverTheClockDoes(t *testing.T) {
	c := curve{{time.Second, 2000, 2000}}
	want := all(newSchedule(Poisson, 0, c, random(9)))
	f := func(name string, clock *fakeClock, maxSleeps int) {
		t.Helper()
		var got []time.Duration
		var held int
		pace(clock, newSchedule(Poisson, 0, c, random(9)), 1000, new(atomic.Bool), always, func(at int64) {
			if at > clock.t {
				t.Errorf("%s: handed out %d ns early", name, at-clock.t)
			}
			got = append(got, time.Duration(at-1000))
			held++
		}, func() { held = 0 })
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d arrivals, which are not the %d intended", name, len(got), len(want))
		}
		if held != 0 {
			t.Errorf("%s: %d were not passed on", name, held)
		}
		if clock.sleeps > maxSleeps {
			t.Errorf("%s: slept %d times", name, clock.sleeps)
		}
	}
	f("exact", &fakeClock{}, 2100)
	f("late by a millisecond", &fakeClock{over: 1e6}, 1000)
	stalled := false
	f("stalled for 300 ms", &fakeClock{stall: func(c *fakeClock) {
		if c.t > 3e8 && !stalled {
			stalled = true
			c.t += 3e8
		}
	}}, 2100)
	f("behind from the start", &fakeClock{t: 2e9}, 0)
}

func TestPacerCoalesces(t *testing.T) {
	clock := &fakeClock{}
	n := 0
	pace(clock, newSchedule(Uniform, 0, curve{{time.Second, 100_000, 100_000}}, nil), 0, new(atomic.Bool), always, func(int64) { n++ }, func() {})
	if n != 100_000 || clock.sleeps > 10_000 {
		t.Errorf("%d arrivals with %d sleeps; want 100,000 with at most 10,000", n, clock.sleeps)
	}
}

func TestPacerStops(t *testing.T) {
	clock := &fakeClock{}
	var stop atomic.Bool
	n := 0
	pace(clock, newSchedule(Uniform, 0, curve{{time.Hour, 10, 10}}, nil), 0, &stop, always, func(int64) {
		if n++; n == 5 {
			stop.Store(true)
		}
	}, func() {})
	if n != 5 {
		t.Errorf("%d arrivals after a stop at 5", n)
	}
}

func always() bool { return true }
