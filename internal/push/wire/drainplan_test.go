package wire

import (
	"testing"
	"time"
)

func TestReconnectsReachNoFurtherThanTheAbsence(t *testing.T) {
	f := func(p DrainPlan, since time.Duration, refused bool, lo, hi time.Duration) {
		t.Helper()
		for range 1000 {
			if got := p.Reconnect(since, refused); got < lo || got > hi {
				t.Fatalf("%+v, %v after the start, refused %v: %v, want %v to %v", p, since, refused, got, lo, hi)
			}
		}
	}
	const ms = time.Millisecond
	f(DrainPlan{}, 0, false, 0, 0)
	f(DrainPlan{Over: time.Hour, Spread: 100 * ms}, time.Minute, false, 0, 100*ms)
	f(DrainPlan{Away: 1000 * ms, Spread: 300 * ms}, 0, false, 1000*ms, 1300*ms)
	f(DrainPlan{Away: 1000 * ms, Spread: 300 * ms}, 400*ms, false, 600*ms, 900*ms)
	f(DrainPlan{Away: 1000 * ms, Spread: 300 * ms}, 400*ms, true, 600*ms, 900*ms)
	// It is still here though it should have gone, or something leads to it still.
	f(DrainPlan{Away: 1000 * ms}, time.Minute, true, 250*ms, 1000*ms)
	f(DrainPlan{}, 0, true, 250*ms, 1000*ms)
}
