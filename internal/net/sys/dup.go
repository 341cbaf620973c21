//go:build linux

package sys

import "golang.org/x/sys/unix"

// Dup returns another descriptor of fd's open file, which child processes do not get.
func Dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }
