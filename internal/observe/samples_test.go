package observe

import (
	"testing"
	"time"
)

func TestASilentBrokerIsNoticedWithAnyWaiter(t *testing.T) {
	var s silence
	start := time.Now()
	f := func(at time.Duration, waiting int64, answered uint64, want time.Duration) {
		t.Helper()
		if got := s.look(waiting, answered, start.Add(at*time.Second)); got != want*time.Second {
			t.Errorf("at %d s: silent for %v, want %d s", at, got, want)
		}
	}
	f(0, 0, 5, 0)
	f(1, 3, 5, 0)   // there is a waiter
	f(2, 9, 5, 1)   // and nothing comes
	f(9, 9, 5, 8)   //
	f(10, 9, 6, 0)  // an answer
	f(12, 8, 6, 2)  //
	f(13, 0, 14, 0) // no waiter
	f(20, 1, 14, 0) //
	f(21, 1, 14, 1) //
}
