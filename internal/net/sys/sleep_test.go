package sys

import (
	"runtime"
	"testing"
	"time"
)

// A signal may end a sleep early (the runtime preempts with some), so not each of
// the sleeps has to last, but a SleepUntil that does not sleep fails.
func TestSleepUntilLastsUntilThen(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	early := 0
	for range 50 {
		due := Monotonic() + 1_000_000
		SleepUntil(due)
		if Monotonic() < due {
			early++
		}
	}
	if early > 10 {
		t.Errorf("%d of 50 sleeps of 1 ms ended early", early)
	}
	before := Monotonic()
	SleepUntil(before - 1e9) // in the past: at once
	if late := Monotonic() - before; late > 5e9 {
		t.Errorf("sleeping until the past took %d ns", late)
	}
}

func TestCPUTimeGrows(t *testing.T) {
	from := CPUTime()
	for CPUTime() < from+2*time.Millisecond { // never ends if it does not count
	}
}
