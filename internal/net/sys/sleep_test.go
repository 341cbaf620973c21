package sys

import "testing"

func TestSleepUntilIsNeverEarly(t *testing.T) {
	for range 20 {
		due := Monotonic() + 300_000
		for Monotonic() < due {
			SleepUntil(due) // a signal may end one early
		}
	}
	before := Monotonic()
	SleepUntil(before - 1e9) // in the past: at once
	if late := Monotonic() - before; late > 5e9 {
		t.Errorf("sleeping until the past took %d ns", late)
	}
}

func TestCPUTimeGrows(t *testing.T) {
	from := CPUTime()
	x := 0
	for CPUTime() <= from {
		x++
	}
	if x < 0 {
		t.Error("unreachable")
	}
}
