package sys

import (
	"errors"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sizes of include/uapi/linux/io_uring.h.
func TestStructsHaveTheKernelsSize(t *testing.T) {
	f := func(name string, got, want uintptr) {
		t.Helper()
		if got != want {
			t.Errorf("%s has %d bytes, want %d", name, got, want)
		}
	}
	f("io_uring_sqe", unsafe.Sizeof(SQE{}), 64)
	f("io_uring_cqe", unsafe.Sizeof(CQE{}), 16)
	f("io_uring_params", unsafe.Sizeof(ringParams{}), 120)
	f("io_uring_getevents_arg", unsafe.Sizeof(waitArg{}), 24)
	f("sqe.user_data", unsafe.Offsetof(SQE{}.UserData), 32)
	f("sqe.file_index", unsafe.Offsetof(SQE{}.FileIndex), 44)
	f("sqe.addr3", unsafe.Offsetof(SQE{}.Addr3), 48)
}

// onThread runs f on a thread of its own, which ends with it.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}

func TestEverySetOfFlagsWorks(t *testing.T) {
	for _, flags := range ringFlagSets {
		onThread(func() {
			r, err := openRing(8, 16, flags)
			if err != nil {
				t.Errorf("flags %#x: %v", flags, err)
				return
			}
			defer r.Close()
			if err := r.Enable(); err != nil {
				t.Error(err)
			}
			fd, err := EventFD()
			if err != nil {
				t.Error(err)
				return
			}
			defer Close(fd)
			r.Next().PrepWatch(fd)
			r.Next().PrepCancel(77) // there is none: a result says so
			if e := r.Submit(); e != 0 {
				t.Error(e)
			}
			EventFDSignal(fd)
			for got := 0; got < 2; {
				if e := r.Wait(5e9); e != 0 {
					t.Errorf("%s: after %d results: %v", r.Flags(), got, e)
					return
				}
				for c, ok := r.Pop(); ok; c, ok = r.Pop() {
					if got++; c.Errno() != 0 && c.Errno() != unix.ENOENT || c.Errno() == 0 && !c.More() {
						t.Errorf("%s: result %+v", r.Flags(), c)
					}
				}
				r.Popped()
			}
			if e := r.Wait(1e6); e != ETIME {
				t.Errorf("%s: %v, want ETIME", r.Flags(), e)
			}
		})
	}
}

func TestTheRequestQueueIsBounded(t *testing.T) {
	onThread(func() {
		r, err := OpenRing(4, 8)
		if err != nil {
			t.Error(err)
			return
		}
		defer r.Close()
		for range 4 {
			if r.Next() == nil {
				t.Error("the queue is full too early")
			}
		}
		if r.Next() != nil || r.Pending() != 4 {
			t.Errorf("a fifth of four requests; %d pending", r.Pending())
		}
	})
}

func TestUnknownOperationsAreFound(t *testing.T) {
	r, err := OpenRing(4, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if op, ok := r.Supports(OpSend, OpRecv); !ok {
		t.Errorf("operation %d is missing", op)
	}
	if op, ok := r.Supports(OpSend, 250); ok || op != 250 {
		t.Errorf("operation 250 is supported: %v, %d", ok, op)
	}
}

func TestRefusalsAreInWords(t *testing.T) {
	f := func(e syscall.Errno, disabled, want string) {
		t.Helper()
		err := ringRefused(e, disabled)
		if !strings.Contains(err.Error(), want) || !errors.Is(err, e) {
			t.Errorf("%v with %q: %v", e, disabled, err)
		}
	}
	f(unix.ENOSYS, "", "has no io_uring")
	f(unix.EPERM, "2", "turns it off for all")
	f(unix.EPERM, "1", "io_uring_group")
	f(unix.EPERM, "0", "seccomp")
	f(unix.EPERM, "", "seccomp")
	f(unix.ENOMEM, "0", "RLIMIT_MEMLOCK")
	f(unix.EMFILE, "0", "descriptor")
	f(unix.EINVAL, "0", "older than Linux 6.0")
}

// Container runtimes forbid io_uring by seccomp. The filter here is a real one,
// on a thread that ends with the test.
func TestSeccompIsARefusalInWords(t *testing.T) {
	var got error
	onThread(func() {
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IO_URING_SETUP, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		}
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			t.Error(err)
			return
		}
		if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
			t.Error(err)
			return
		}
		r, err := OpenRing(8, 16)
		if err == nil {
			r.Close()
		}
		got = err
	})
	if got == nil || !strings.Contains(got.Error(), "seccomp") || !errors.Is(got, unix.EPERM) {
		t.Errorf("a ring under a filter: %v", got)
	}
}

func TestShrunkBuffersAreFewAndEmpty(t *testing.T) {
	r, err := OpenRing(4, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := NewBuffers(r, 0, 16, 4096, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	b.Grow()
	b.Grow()
	for i := range b.mem {
		b.mem[i] = 1
	}
	b.Shrink(4)
	if b.Provided() != 4 || b.tail != 4 {
		t.Errorf("%d buffers, tail %d, want 4", b.Provided(), b.tail)
	}
	if b.mem[0] != 0 || b.mem[8*4096-1] != 0 {
		t.Error("the memory is still there")
	}
	if b.mem[8*4096] != 1 {
		t.Error("memory beyond the buffers was taken")
	}
}

// The kernel looks at all requests in flight for each that it has to look for, so that those that
// are being cancelled one by one must have ended by then.
func TestCancelAllLooksForWhatIsLeft(t *testing.T) {
	onThread(func() {
		const cancelled, left = 200, 3
		r, err := OpenRing(64, 64) // more results than the queue has room for
		if err == nil {
			err = r.Enable()
		}
		if err != nil {
			t.Error(err)
			return
		}
		defer r.Close()
		fd, err := EventFD()
		if err != nil {
			t.Error(err)
			return
		}
		defer Close(fd)
		each := func(n int, prepare func(s *SQE, i uint64)) {
			for i := range uint64(n) {
				s := r.Next()
				if s == nil {
					if e := r.Submit(); e != 0 {
						t.Error(e)
					}
					s = r.Next()
				}
				prepare(s, i)
			}
			if e := r.Submit(); e != 0 {
				t.Error(e)
			}
		}
		each(cancelled+left, func(s *SQE, i uint64) { s.PrepWatch(fd); s.UserData = i })
		each(cancelled, func(s *SQE, i uint64) { s.PrepCancel(i) })
		if n := r.CancelAll(); n != left {
			t.Errorf("%d requests were looked for, want %d", n, left)
		}
		if n := r.CancelAll(); n != 0 || r.Work() {
			t.Errorf("%d requests are left", n)
		}
	})
}
