//go:build linux && (amd64 || arm64)

package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// FutexCall is the number of futex(2).
const FutexCall = unix.SYS_FUTEX

// SyscallName is the kernel's name of a system call, or "syscall N" for one it does not
// have.
func SyscallName(n int) string {
	if n >= 0 && n < len(syscallNames) && syscallNames[n] != "" {
		return syscallNames[n]
	}
	return fmt.Sprintf("syscall %d", n)
}
