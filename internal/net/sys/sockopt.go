//go:build linux

package sys

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var socketOptions = [...]struct {
	name       string
	level, opt int
}{
	ReceiveBuffer:  {"SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF},
	SendBuffer:     {"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF},
	NoDelay:        {"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY},
	KeepAlive:      {"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE},
	KeepIdle:       {"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
	KeepInterval:   {"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
	KeepCount:      {"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT},
	UserTimeout:    {"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
	NotSentLowat:   {"TCP_NOTSENT_LOWAT", unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT},
	BusyPoll:       {"SO_BUSY_POLL", unix.SOL_SOCKET, unix.SO_BUSY_POLL},
	PreferBusyPoll: {"SO_PREFER_BUSY_POLL", unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL},
	IPTOS:          {"IP_TOS", unix.IPPROTO_IP, unix.IP_TOS},
	TrafficClass:   {"IPV6_TCLASS", unix.IPPROTO_IPV6, unix.IPV6_TCLASS},
	Priority:       {"SO_PRIORITY", unix.SOL_SOCKET, unix.SO_PRIORITY},
	Congestion:     {"TCP_CONGESTION", unix.IPPROTO_TCP, unix.TCP_CONGESTION},
	DeferAccept:    {"TCP_DEFER_ACCEPT", unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT},
}

// String is the option's name in C.
func (o SocketOption) String() string { return socketOptions[o].name }

// Apply sets s on fd. The error is a *SettingError.
func (s Setting) Apply(fd int) error {
	o := socketOptions[s.Option]
	var err error
	if s.Option == Congestion {
		err = unix.SetsockoptString(fd, o.level, o.opt, s.Text)
	} else {
		err = unix.SetsockoptInt(fd, o.level, o.opt, s.Value)
	}
	if err != nil {
		return &SettingError{s, err}
	}
	return nil
}

// Read returns s with the value that fd has now.
func (s Setting) Read(fd int) (Setting, error) {
	o := socketOptions[s.Option]
	var err error
	if s.Option == Congestion {
		s.Text, err = unix.GetsockoptString(fd, o.level, o.opt)
	} else {
		s.Value, err = unix.GetsockoptInt(fd, o.level, o.opt)
	}
	if err != nil {
		return s, fmt.Errorf("read %s: %w", s.Option, err)
	}
	return s, nil
}

// Error names the option, its value and the cause.
func (e *SettingError) Error() string {
	s := e.Setting
	what := fmt.Sprintf("set %s=%d: ", s.Option, s.Value)
	if s.Option == Congestion {
		what = fmt.Sprintf("set %s=%.40q: ", s.Option, s.Text)
	}
	switch {
	case s.Option == Congestion && errors.Is(e.Err, unix.ENOENT):
		return what + "the kernel has no such algorithm, only " + Sysctl("net.ipv4.tcp_available_congestion_control")
	case errors.Is(e.Err, unix.ENOPROTOOPT), errors.Is(e.Err, unix.EOPNOTSUPP):
		return what + "this kernel does not support the option"
	case errors.Is(e.Err, unix.EPERM), errors.Is(e.Err, unix.EACCES):
		return what + "not allowed without CAP_NET_ADMIN"
	}
	return what + e.Err.Error()
}

// Sysctl returns a kernel setting by its dotted name, "net.core.rmem_max"; ""
// when it cannot be seen, as some cannot in a network namespace.
func Sysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// SteerByCPU makes the listeners that share fd's port take each the connections
// whose packets arrive on its CPU, the first listener those of CPU 0 and so on;
// connections of a CPU without a listener are spread by their hash.
func SteerByCPU(fd int) error {
	const thisCPU = 0xfffff024 // SKF_AD_OFF + SKF_AD_CPU
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: thisCPU},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &prog); err != nil {
		return fmt.Errorf("set SO_ATTACH_REUSEPORT_CBPF: %w", err)
	}
	return nil
}

// CPUs returns the CPUs that the calling thread may run on, in order.
func CPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var list []int
	for i := range len(set) * int(unsafe.Sizeof(set[0])) * 8 {
		if set.IsSet(i) {
			list = append(list, i)
		}
	}
	return list, nil
}

// BindThread keeps the calling thread on one CPU. The goroutine must be locked
// to the thread, and end so: then the thread ends with it.
func BindThread(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bind a thread to CPU %d: %w", cpu, err)
	}
	return nil
}

// epollParams is struct epoll_params of linux/eventpoll.h.
type epollParams struct {
	usecs  uint32
	budget uint16
	prefer uint8
	_      uint8
}

// EpollSetBusyPoll makes waits on ep poll the network card's queue for up to d
// before they sleep (since Linux 6.9). It, not SO_BUSY_POLL, is what waits in
// epoll go by.
func EpollSetBusyPoll(ep int, d time.Duration, prefer bool) error {
	p := epollParams{usecs: uint32(d.Microseconds())}
	if prefer {
		p.prefer = 1
	}
	if e := ioctl(ep, unix.EPIOCSPARAMS, unsafe.Pointer(&p)); e != 0 {
		return fmt.Errorf("set EPIOCSPARAMS: %w", e)
	}
	return nil
}

// EpollBusyPoll reads back what EpollSetBusyPoll set.
func EpollBusyPoll(ep int) (d time.Duration, prefer bool, err error) {
	var p epollParams
	if e := ioctl(ep, unix.EPIOCGPARAMS, unsafe.Pointer(&p)); e != 0 {
		return 0, false, fmt.Errorf("read EPIOCGPARAMS: %w", e)
	}
	return time.Duration(p.usecs) * time.Microsecond, p.prefer != 0, nil
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) syscall.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return e
}
