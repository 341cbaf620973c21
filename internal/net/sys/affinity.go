//go:build linux

package sys

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

func setOf(cpus []int) (set unix.CPUSet) {
	for _, c := range cpus {
		set.Set(c)
	}
	return set
}

// BindProcess keeps all threads of this process, and those that they start, on some CPUs. Threads that are bound
// otherwise are bound to these too.
func BindProcess(cpus []int) error {
	set := setOf(cpus)
	// Twice: a thread that was started meanwhile is of one that was not bound yet.
	for range 2 {
		list, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("bind to CPUs %v: %w", cpus, err)
		}
		for _, e := range list {
			tid, err := strconv.Atoi(e.Name())
			if err == nil {
				err = unix.SchedSetaffinity(tid, &set)
			}
			if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
				return fmt.Errorf("bind thread %s to CPUs %v: %w", e.Name(), cpus, err)
			}
		}
	}
	return nil
}

// StartOn calls start, which starts a process, on a thread that is bound to some CPUs: the process is then too.
func StartOn(cpus []int, start func() error) error {
	runtime.LockOSThread() // then no thread is started from this one
	defer runtime.UnlockOSThread()
	was, err := CPUs()
	if err != nil {
		return err
	}
	set, old := setOf(cpus), setOf(was)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bind to CPUs %v: %w", cpus, err)
	}
	return errors.Join(start(), unix.SchedSetaffinity(0, &old))
}
