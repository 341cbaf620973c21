package chaos

import (
	"syscall"
	"unsafe"
)

// prlimit sets a limit of another process.
func prlimit(pid, resource int, limit *[2]uint64) error {
	_, _, e := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), uintptr(resource), uintptr(unsafe.Pointer(limit)), 0, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}
