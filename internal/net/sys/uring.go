//go:build linux

package sys

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Ring is an io_uring: requests go in through a queue of SQE, results come
// back through a queue of CQE, both in memory shared with the kernel.
//
// A ring is opened disabled and belongs to the thread that calls Enable, which
// must be locked to its goroutine: all other methods but Close are for that
// thread then (IORING_SETUP_SINGLE_ISSUER). Before Enable any one goroutine may
// register things and write requests.
type Ring struct {
	fd       int
	flags    uint32
	features uint32
	rings    []byte
	requests []byte

	sqHead, sqTail, sqFlags *uint32
	sqes                    []SQE
	tail                    uint32 // written requests; sqTail follows at submission

	cqHead, cqTail *uint32
	cqes           []CQE
	head           uint32

	arg waitArg // what the kernel reads while waiting
	ts  unix.Timespec
}

// An SQE is a request, as include/uapi/linux/io_uring.h lays it out.
type SQE struct {
	Opcode      uint8
	Flags       uint8
	IoPrio      uint16
	FD          int32
	Off         uint64
	Addr        uint64
	Len         uint32
	OpFlags     uint32
	UserData    uint64
	BufGroup    uint16
	Personality uint16
	FileIndex   uint32
	Addr3       uint64
	_           uint64
}

// A CQE is a result: a negative Res is an errno.
type CQE struct {
	UserData uint64
	Res      int32
	Flags    uint32
}

// Errno returns the error that c carries, or 0.
func (c CQE) Errno() syscall.Errno {
	if c.Res < 0 {
		return syscall.Errno(-c.Res)
	}
	return 0
}

// More reports whether the request will have further results.
func (c CQE) More() bool { return c.Flags&cqeMore != 0 }

// Buffer returns the provided buffer that a receive filled.
func (c CQE) Buffer() (id uint16, ok bool) {
	return uint16(c.Flags >> cqeBufferShift), c.Flags&cqeBuffer != 0
}

type ringOffsets struct{ head, tail, mask, entries, flags, dropped, array, _ uint32 }

type ringParams struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wqFD uint32
	_                                                                  [3]uint32
	sq                                                                 ringOffsets
	_                                                                  uint64
	cq                                                                 struct{ head, tail, mask, entries, overflow, cqes, flags, _ uint32 }
	_                                                                  uint64
}

type waitArg struct {
	sigmask   uint64
	sigmaskSz uint32
	minWait   uint32
	ts        uint64
}

// Setup flags in the order in which they are given up when the kernel refuses:
// each set is a subset of the one before it.
var ringFlagSets = []uint32{
	setupBase | setupSingleIssuer | setupDeferTaskrun | setupTaskrunFlag | setupNoSQArray, // Linux 6.6
	setupBase | setupSingleIssuer | setupDeferTaskrun | setupTaskrunFlag,                  // 6.1
	setupBase | setupSingleIssuer | setupCoopTaskrun | setupTaskrunFlag,                   // 6.0
}

// OpenRing opens a disabled ring for entries requests and results results. The
// error says in words why the system has none to give.
func OpenRing(entries, results int) (*Ring, error) {
	var last error
	for _, flags := range ringFlagSets {
		r, err := openRing(entries, results, flags)
		if err == nil {
			return r, nil
		}
		last = err
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return nil, last
}

func openRing(entries, results int, flags uint32) (*Ring, error) {
	return setUpRing(entries, ringParams{flags: flags, cqEntries: uint32(results)})
}

func setUpRing(entries int, p ringParams) (*Ring, error) {
	flags := p.flags
	fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	if e != 0 {
		return nil, ringRefused(e, uringDisabled())
	}
	r := &Ring{fd: int(fd), flags: flags, features: p.features}
	if need := uint32(featSingleMmap | featNoDrop | featSubmitStable | featExtArg | featCQESkip); p.features&need != need {
		r.Close()
		return nil, fmt.Errorf("io_uring of this kernel lacks features (has %#x of %#x): Linux 6.0 is needed", p.features&need, need)
	}
	if err := r.mmap(&p); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Ring) mmap(p *ringParams) (err error) {
	size := p.cq.cqes + p.cqEntries*uint32(unsafe.Sizeof(CQE{}))
	if r.flags&setupNoSQArray == 0 {
		size = max(size, p.sq.array+p.sqEntries*4)
	}
	const prot, how = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	if r.rings, err = unix.Mmap(r.fd, offSQRing, int(size), prot, how); err != nil {
		return fmt.Errorf("map io_uring: %w", err)
	}
	if r.requests, err = unix.Mmap(r.fd, offSQEs, int(p.sqEntries)*int(unsafe.Sizeof(SQE{})), prot, how); err != nil {
		return fmt.Errorf("map io_uring requests: %w", err)
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqHead, r.sqTail, r.sqFlags = at(p.sq.head), at(p.sq.tail), at(p.sq.flags)
	r.cqHead, r.cqTail = at(p.cq.head), at(p.cq.tail)
	r.sqes = unsafe.Slice((*SQE)(unsafe.Pointer(&r.requests[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*CQE)(unsafe.Pointer(&r.rings[p.cq.cqes])), p.cqEntries)
	if r.flags&setupNoSQArray == 0 {
		for i := range p.sqEntries {
			*at(p.sq.array + 4*i) = i
		}
	}
	return nil
}

// ringRefused puts a refusal of io_uring_setup into words. disabled is what
// kernel.io_uring_disabled says, empty when there is none.
func ringRefused(e syscall.Errno, disabled string) error {
	why := ""
	switch {
	case e == unix.ENOSYS:
		why = "this kernel has no io_uring, or a sandbox hides it"
	case e == unix.EPERM && disabled == "2":
		why = "kernel.io_uring_disabled=2 turns it off for all processes"
	case e == unix.EPERM && disabled == "1":
		why = "kernel.io_uring_disabled=1 allows it only to members of kernel.io_uring_group and CAP_SYS_ADMIN"
	case e == unix.EPERM || e == unix.EACCES:
		why = "a seccomp filter or a security module forbids it, as container runtimes do by default"
	case e == unix.ENOMEM:
		why = "its memory exceeds RLIMIT_MEMLOCK or the memory limit"
	case e == unix.EMFILE || e == unix.ENFILE:
		why = "no descriptor is left"
	case e == unix.EINVAL:
		why = "this kernel is older than Linux 6.0"
	}
	return fmt.Errorf("io_uring_setup: %s: %w", why, e)
}

func uringDisabled() string {
	b, err := os.ReadFile("/proc/sys/kernel/io_uring_disabled")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Close releases the ring and its memory. The kernel gives up what is still in
// flight shortly after; see CancelAll.
func (r *Ring) Close() {
	if r.rings != nil {
		_ = unix.Munmap(r.rings)
	}
	if r.requests != nil {
		_ = unix.Munmap(r.requests)
	}
	r.rings, r.requests, r.sqes, r.cqes = nil, nil, nil, nil
	_ = unix.Close(r.fd)
}

// Next returns the next free request, zeroed, or nil when the queue is full.
func (r *Ring) Next() *SQE {
	if r.tail-atomic.LoadUint32(r.sqHead) == uint32(len(r.sqes)) {
		return nil
	}
	s := &r.sqes[r.tail&uint32(len(r.sqes)-1)]
	r.tail++
	*s = SQE{}
	return s
}

// Pending returns how many requests were written and not yet submitted.
func (r *Ring) Pending() int { return int(r.tail - atomic.LoadUint32(r.sqHead)) }

// Pop takes the next result out of the queue; false when there is none.
func (r *Ring) Pop() (CQE, bool) {
	if r.head == atomic.LoadUint32(r.cqTail) {
		return CQE{}, false
	}
	c := r.cqes[r.head&uint32(len(r.cqes)-1)]
	r.head++
	return c, true
}

// Popped gives the space of popped results back to the kernel.
func (r *Ring) Popped() { atomic.StoreUint32(r.cqHead, r.head) }

// Work reports whether the kernel has results to make for which Poll must be
// called: work that waits for this thread, or results the queue had no room for.
func (r *Ring) Work() bool { return atomic.LoadUint32(r.sqFlags)&(sqTaskrun|sqCQOverflow) != 0 }

// Submit hands the written requests over. Those that can be done at once are
// done when it returns. It does not block.
func (r *Ring) Submit() syscall.Errno { return r.enterNow(0) }

// Poll is Submit, and makes the results that are ready appear.
func (r *Ring) Poll() syscall.Errno { return r.enterNow(enterGetEvents) }

func (r *Ring) enterNow(flags uintptr) syscall.Errno {
	atomic.StoreUint32(r.sqTail, r.tail)
	_, _, e := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(r.Pending()), 0, flags, 0, 0)
	return e
}

// Wait is Poll, and blocks until there is a result, for up to d, for ever when
// negative. ETIME says that none came.
func (r *Ring) Wait(d time.Duration) syscall.Errno {
	atomic.StoreUint32(r.sqTail, r.tail)
	r.arg = waitArg{}
	if d >= 0 {
		r.ts = unix.NsecToTimespec(int64(d))
		r.arg.ts = uint64(uintptr(unsafe.Pointer(&r.ts)))
	}
	_, _, e := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(r.Pending()), 1,
		enterGetEvents|enterExtArg, uintptr(unsafe.Pointer(&r.arg)), unsafe.Sizeof(r.arg))
	return e
}
