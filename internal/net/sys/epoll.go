//go:build linux

package sys

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Epoll event bits.
const (
	EpollIn  = unix.EPOLLIN
	EpollOut = unix.EPOLLOUT
	EpollErr = unix.EPOLLERR
	EpollHup = unix.EPOLLHUP
)

// An EpollEvent is what the kernel reports: bits and the caller's 64-bit data.
type EpollEvent unix.EpollEvent

// Data returns the value given at EpollAdd.
func (e *EpollEvent) Data() uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// EpollCreate opens an epoll instance.
func EpollCreate() (int, error) { return unix.EpollCreate1(unix.EPOLL_CLOEXEC) }

func epollCtl(ep, op, fd int, events uint32, data uint64) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(uint32(data)), Pad: int32(uint32(data >> 32))}
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(ep), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&ev)), 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// EpollAdd watches fd for events and hands back data with each.
func EpollAdd(ep, fd int, events uint32, data uint64) error {
	return epollCtl(ep, unix.EPOLL_CTL_ADD, fd, events, data)
}

// EpollMod changes what fd is watched for.
func EpollMod(ep, fd int, events uint32, data uint64) error {
	return epollCtl(ep, unix.EPOLL_CTL_MOD, fd, events, data)
}

// EpollDel stops watching fd. Closing fd does the same.
func EpollDel(ep, fd int) error { return epollCtl(ep, unix.EPOLL_CTL_DEL, fd, 0, 0) }

// EpollPoll returns what is ready now, without blocking.
func EpollPoll(ep int, evs []EpollEvent) (int, syscall.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(unsafe.SliceData(evs))), uintptr(len(evs)), 0, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// EpollWait blocks for up to msec milliseconds, for ever when negative.
func EpollWait(ep int, evs []EpollEvent, msec int) (int, syscall.Errno) {
	n, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(unsafe.SliceData(evs))), uintptr(len(evs)), uintptr(msec), 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// EventFD opens a counter that makes an epoll instance ready.
func EventFD() (int, error) { return unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) }

// EventFDSignal adds one to the counter.
func EventFDSignal(fd int) {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

// EventFDDrain resets the counter.
func EventFDDrain(fd int) {
	var b [8]byte
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b)), 8)
}
