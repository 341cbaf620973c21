//go:build linux

package sys

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func (r *Ring) register(op uintptr, arg unsafe.Pointer, n int) syscall.Errno {
	_, _, e := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), op, uintptr(arg), uintptr(n), 0, 0)
	return e
}

// Enable starts the ring and binds it to the calling thread.
func (r *Ring) Enable() error {
	if e := r.register(registerEnableRings, nil, 0); e != 0 {
		return fmt.Errorf("enable io_uring: %w", e)
	}
	return nil
}

// Deferred reports whether the kernel works for the ring, and so fills buffers,
// in calls of Submit, Poll and Wait alone.
func (r *Ring) Deferred() bool { return r.flags&setupDeferTaskrun != 0 }

// Flags reports which setup flags the kernel took, in words, for logs and tests.
func (r *Ring) Flags() string {
	s := ""
	for _, f := range []struct {
		bit  uint32
		name string
	}{{setupSingleIssuer, "single_issuer"}, {setupDeferTaskrun, "defer_taskrun"}, {setupCoopTaskrun, "coop_taskrun"}, {setupNoSQArray, "no_sqarray"}} {
		if r.flags&f.bit != 0 {
			s += " " + f.name
		}
	}
	return s[min(1, len(s)):]
}

// Supports reports whether the kernel knows every one of ops; missing is the
// first it does not know.
func (r *Ring) Supports(ops ...uint8) (missing uint8, ok bool) {
	var p struct {
		last, n uint8
		_       uint16
		_       [3]uint32
		ops     [256]struct {
			op, _ uint8
			flags uint16
			_     uint32
		}
	}
	if r.register(registerProbe, unsafe.Pointer(&p), len(p.ops)) != 0 {
		return 0, false
	}
	for _, op := range ops {
		if op > p.last || p.ops[op].flags&probeSupported == 0 {
			return op, false
		}
	}
	return 0, true
}

// RegisterFiles makes an empty table of n direct descriptors: sockets in it are
// open without counting as the process's descriptors. n cannot exceed
// RLIMIT_NOFILE, but every ring has a table of its own.
func (r *Ring) RegisterFiles(n int) error {
	arg := struct {
		n, flags         uint32
		_, data, tagsPtr uint64
	}{n: uint32(n), flags: registerSparse}
	if e := r.register(registerFiles2, unsafe.Pointer(&arg), int(unsafe.Sizeof(arg))); e != 0 {
		return fmt.Errorf("register %d direct descriptors: %w", n, e)
	}
	return nil
}

// UnregisterFiles closes what is still in the table.
func (r *Ring) UnregisterFiles() { _ = r.register(unregisterFiles, nil, 0) }

// LimitWorkers bounds the kernel threads that carry out what cannot be done
// without blocking.
func (r *Ring) LimitWorkers(n int) {
	max := [2]uint32{uint32(n), uint32(n)}
	_ = r.register(registerWorkers, unsafe.Pointer(&max), 2)
}

// RingBusyPoll makes r's waits poll the network cards' queues of the ring's sockets for up to d before they
// sleep, with prefer without the cards' interrupts meanwhile (Linux 6.9). It returns what the kernel
// made of d.
func RingBusyPoll(r *Ring, d time.Duration, prefer bool) (time.Duration, error) {
	var effective uint32
	for range 2 { // the kernel answers with what it had before
		arg := struct { // struct io_uring_napi
			usecs     uint32
			prefer, _ uint8
			_         uint16
			_, _      uint32
		}{usecs: uint32(d.Microseconds())}
		if prefer {
			arg.prefer = 1
		}
		if e := r.register(registerNAPI, unsafe.Pointer(&arg), 1); e != 0 {
			return 0, fmt.Errorf("set IORING_REGISTER_NAPI: %w", e)
		}
		effective = arg.usecs
	}
	return time.Duration(effective) * time.Microsecond, nil
}

// CancelAll cancels every request, drops all results, returns when nothing is in flight any more, and
// how many requests it had to look for. What is being cancelled one by one ends first: the
// kernel looks at each request in flight for each that it cancels here, with nothing else on that processor
// meanwhile (io_uring/poll.c, io_poll_file_find), which is 0.1 s for 5,000.
func (r *Ring) CancelAll() (cancelled int) {
	arg := struct {
		addr    uint64
		fd      int32
		flags   uint32
		timeout [2]int64
		_       [4]uint64
	}{fd: -1, flags: cancelAll | cancelAny, timeout: [2]int64{2, 0}}
	dropResults(r)
	n, _, _ := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), registerSyncCancel, uintptr(unsafe.Pointer(&arg)), 1, 0, 0)
	dropResults(r)
	return max(int(n), 0)
}

// dropResults returns when what is cancelled has ended, which it does in this thread.
func dropResults(r *Ring) {
	const rounds = 1000 // or who connects could keep it
	for i, more := 0, true; more && i < rounds; i++ {
		if e := r.Poll(); e != 0 && e != unix.EINTR && e != unix.EBUSY {
			return
		}
		more = r.Work()
		for _, ok := r.Pop(); ok; _, ok = r.Pop() {
			more = true
		}
		r.Popped()
	}
}

// Buffers are memory that the kernel puts received bytes into: it takes a
// buffer of the group when bytes arrive, so that a connection that waits has none.
type Buffers struct {
	ring     []byte // entries {addr uint64, len uint32, id uint16, _ uint16}; the tail is the last field of entry 0
	mem      []byte
	size     int
	mask     uint16
	group    uint16
	tail     uint16
	provided int // buffers that exist; the rest of mem is untouched
	waiting  bool
}

const bufferEntry = 16

// NewBuffers makes group of up to n (a power of two) buffers of size bytes for r,
// first of which are given at once. Memory of the others is not used before Grow.
func NewBuffers(r *Ring, group uint16, n, size, first int) (*Buffers, error) {
	b := &Buffers{size: size, mask: uint16(n - 1), group: group}
	const prot, how = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	var err error
	if b.ring, err = unix.Mmap(-1, 0, n*bufferEntry, prot, how); err != nil {
		return nil, fmt.Errorf("map the buffer ring: %w", err)
	}
	if b.mem, err = unix.Mmap(-1, 0, n*size, prot, how); err != nil {
		b.Free()
		return nil, fmt.Errorf("map the buffers: %w", err)
	}
	arg := struct {
		addr    uint64
		entries uint32
		group   uint16
		flags   uint16
		_       [3]uint64
	}{addr: uint64(uintptr(unsafe.Pointer(&b.ring[0]))), entries: uint32(n), group: group}
	if e := r.register(registerPbufRing, unsafe.Pointer(&arg), 1); e != 0 {
		b.Free()
		return nil, fmt.Errorf("register the buffer ring: %w", e)
	}
	b.provide(min(first, n))
	b.Publish()
	return b, nil
}

// Free unmaps the memory. The ring must be closed, or nothing in flight.
func (b *Buffers) Free() {
	if b.ring != nil {
		_ = unix.Munmap(b.ring)
	}
	if b.mem != nil {
		_ = unix.Munmap(b.mem)
	}
	b.ring, b.mem = nil, nil
}

// Bytes returns the first n bytes of a buffer.
func (b *Buffers) Bytes(id uint16, n int) []byte {
	off := int(id) * b.size
	return b.mem[off : off+n : off+b.size]
}

// Provided returns how many buffers are in use or waiting for use.
func (b *Buffers) Provided() int { return b.provided }

// Grow doubles the buffers up to the maximum.
func (b *Buffers) Grow() { b.provide(min(b.provided, int(b.mask)+1-b.provided)) }

// Shrink leaves n buffers, if there are more, and gives the memory of all to the
// system: what is used again comes back as zeros. No buffer may be filled and not
// recycled, nor the kernel fill one meanwhile: see Ring.Deferred.
func (b *Buffers) Shrink(n int) {
	used := b.mem[:b.provided*b.size]
	if n < b.provided {
		b.tail -= uint16(b.provided) // all of them are in the ring
		b.provided = 0
		b.provide(n)
		b.Publish()
	}
	_ = unix.Madvise(used, unix.MADV_DONTNEED) // otherwise the memory stays
}

func (b *Buffers) provide(n int) {
	for range n {
		b.provided++
		b.Recycle(uint16(b.provided - 1))
	}
}

// Recycle gives a buffer back; the kernel sees it after Publish.
func (b *Buffers) Recycle(id uint16) {
	e := b.ring[int(b.tail&b.mask)*bufferEntry:][:bufferEntry]
	binary.NativeEndian.PutUint64(e, uint64(uintptr(unsafe.Pointer(&b.mem[int(id)*b.size]))))
	binary.NativeEndian.PutUint32(e[8:], uint32(b.size))
	binary.NativeEndian.PutUint16(e[12:], id)
	b.tail++
	b.waiting = true
}

// Publish shows the kernel what was recycled. The tail is 16 bits wide and has
// the id of entry 0 before it: one 32-bit store writes both, as there is none of 16.
func (b *Buffers) Publish() {
	if !b.waiting {
		return
	}
	b.waiting = false
	var w [4]byte
	copy(w[:2], b.ring[12:14])
	binary.NativeEndian.PutUint16(w[2:], b.tail)
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b.ring[12])), binary.NativeEndian.Uint32(w[:]))
}
