//go:build linux

package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic reads CLOCK_MONOTONIC, in nanoseconds.
func Monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// SleepUntil blocks the calling thread until Monotonic has reached t. A time.Timer
// is a millisecond late on Linux (golang.org/issue/53824), this some 60 µs; the
// goroutine should be locked to its thread. A signal may end it early.
func SleepUntil(t int64) {
	ts := unix.NsecToTimespec(t)
	_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil) // EINTR at most: the caller looks at the clock
}

// CPUTime is the processor time that the process has used.
func CPUTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
