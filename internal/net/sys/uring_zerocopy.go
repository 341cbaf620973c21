//go:build linux

package sys

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the gateway does not use, because the experiments found it to cost more than it saves:
// registered buffers, sends without a copy, and a kernel thread that polls for requests.

// OpWriteFixed writes from a registered buffer, for Supports.
const OpWriteFixed = 5

const (
	setupSQPoll     = 1 << 1
	sqNeedWakeup    = 1 << 0
	enterSQWakeup   = 1 << 1
	registerBuffers = 0
	sendFixedBuffer = 1 << 2
	cqeNotification = 1 << 3
)

// OpenPolledRing is OpenRing for a ring whose requests a kernel thread fetches by itself, until
// none came for idle: WakeRing submits to it. It needs no thread of its own.
func OpenPolledRing(entries, results int, idle time.Duration) (*Ring, error) {
	return setUpRing(entries, ringParams{
		flags: setupBase | setupSQPoll | setupNoSQArray, cqEntries: uint32(results), threadIdle: uint32(idle.Milliseconds()),
	})
}

// WakeRing hands the written requests to the kernel thread of a polled ring, and wakes it if it
// sleeps.
func WakeRing(r *Ring) syscall.Errno {
	atomic.StoreUint32(r.sqTail, r.tail)
	if atomic.LoadUint32(r.sqFlags)&sqNeedWakeup == 0 {
		return 0
	}
	_, _, e := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 0, 0, enterSQWakeup, 0, 0)
	return e
}

// RegisterBuffer pins b for requests that name it as a registered buffer, once per ring. It must not move as
// long as the ring is open.
func RegisterBuffer(r *Ring, b []byte) error {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	if e := r.register(registerBuffers, unsafe.Pointer(&v), 1); e != 0 {
		return fmt.Errorf("register a buffer of %d bytes: %w", len(b), e)
	}
	return nil
}

// PrepWriteFixed sends b, which must lie in the registered buffer, through a direct descriptor.
func (s *SQE) PrepWriteFixed(file uint32, b []byte) {
	s.Opcode, s.Flags, s.FD = OpWriteFixed, sqeFixedFile, int32(file)
	s.Addr, s.Len = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), uint32(len(b))
	s.Off = 1<<64 - 1 // no offset: it is a stream
}

// PrepSendZC sends b without copying it, where the device can. A second result, for which
// Notification is true, says that the kernel needs b no longer. With registered b lies in the
// registered buffer.
func (s *SQE) PrepSendZC(file uint32, b []byte, registered bool) {
	s.PrepSend(file, b)
	s.Opcode = OpSendZC
	if registered {
		s.IoPrio = sendFixedBuffer
	}
}

// Notification reports whether c says that a send's memory is free, and nothing else.
func (c CQE) Notification() bool { return c.Flags&cqeNotification != 0 }
