//go:build linux

package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// ThreadCPUTime is the processor time of the calling thread. It means something only while
// the goroutine is locked to it.
func ThreadCPUTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// CPUTimeOf is the processor time that all threads of a process have used, those
// that have ended included, to the nanosecond: its process clock (see
// clock_getcpuclockid). err is a bare errno.
func CPUTimeOf(pid int) (time.Duration, error) {
	const schedClock = 2 // of the whole process, since bit 2 is not set
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &ts); err != nil {
		return 0, err
	}
	return time.Duration(ts.Nano()), nil
}
