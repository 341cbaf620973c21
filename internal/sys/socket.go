// Package sys holds the raw system calls and socket options. Nothing else
// imports golang.org/x/sys/unix.
//
// Calls that cannot block (send, receive and accept on non-blocking sockets)
// skip the scheduler's bookkeeping: they are 50 ns cheaper that way, on paths
// that make one per message.
package sys

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors the loops look for.
const (
	EAGAIN       = unix.EAGAIN
	EINTR        = unix.EINTR
	EMFILE       = unix.EMFILE
	ENFILE       = unix.ENFILE
	ENOBUFS      = unix.ENOBUFS
	ENOMEM       = unix.ENOMEM
	ECONNABORTED = unix.ECONNABORTED
	ECONNRESET   = unix.ECONNRESET
	EPIPE        = unix.EPIPE
	ETIMEDOUT    = unix.ETIMEDOUT
)

// ListenOptions are set on a listening socket; accepted sockets inherit them.
type ListenOptions struct {
	// Backlog of not yet accepted connections; 0 means 4,096. The kernel clips
	// it to net.core.somaxconn.
	Backlog int
	// ReusePort lets several sockets listen on one address, one per loop.
	ReusePort bool
	// UserTimeout ends a connection whose sent bytes stay unacknowledged that
	// long (RFC 5482); 0 leaves the kernel's default of about 15 minutes.
	UserTimeout time.Duration
	// NotSentLowat bounds in bytes what waits unsent in the kernel per socket;
	// 0 leaves it unbounded.
	NotSentLowat int
}

// Listen opens a non-blocking TCP socket on addr. Port 0 picks a free one.
func Listen(addr netip.AddrPort, opt ListenOptions) (fd int, bound netip.AddrPort, err error) {
	family := unix.AF_INET
	if addr.Addr().Is6() && !addr.Addr().Is4In6() {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, bound, fmt.Errorf("socket: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
			fd = -1
		}
	}()
	if err = setListenOptions(fd, opt); err != nil {
		return fd, bound, err
	}
	if err = unix.Bind(fd, toSockaddr(addr, family)); err != nil {
		return fd, bound, fmt.Errorf("listen %s: %w", addr, err)
	}
	backlog := opt.Backlog
	if backlog <= 0 {
		backlog = 4096
	}
	if err = unix.Listen(fd, backlog); err != nil {
		return fd, bound, fmt.Errorf("listen %s: %w", addr, err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return fd, bound, fmt.Errorf("getsockname: %w", err)
	}
	return fd, fromSockaddr(sa), nil
}

func setListenOptions(fd int, opt ListenOptions) error {
	set := func(level, name, value int, what string) error {
		if err := unix.SetsockoptInt(fd, level, name, value); err != nil {
			return fmt.Errorf("set %s=%d: %w", what, value, err)
		}
		return nil
	}
	errs := []error{
		set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1, "SO_REUSEADDR"),
		set(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1, "TCP_NODELAY"),
	}
	if opt.ReusePort {
		errs = append(errs, set(unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, "SO_REUSEPORT"))
	}
	if opt.UserTimeout > 0 {
		errs = append(errs, set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(opt.UserTimeout.Milliseconds()), "TCP_USER_TIMEOUT"))
	}
	if opt.NotSentLowat > 0 {
		errs = append(errs, set(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, opt.NotSentLowat, "TCP_NOTSENT_LOWAT"))
	}
	return errors.Join(errs...)
}

func toSockaddr(a netip.AddrPort, family int) unix.Sockaddr {
	if family == unix.AF_INET6 {
		return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	ip := a.Addr()
	if !ip.IsValid() {
		ip = netip.IPv4Unspecified()
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: ip.Unmap().As4()}
}

func fromSockaddr(sa unix.Sockaddr) netip.AddrPort {
	switch s := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr).Unmap(), uint16(s.Port))
	}
	return netip.AddrPort{}
}

// Accept takes one connection from a listening socket, non-blocking. err is a
// bare errno; EAGAIN means there is none.
func Accept(fd int) (conn int, peer netip.AddrPort, err syscall.Errno) {
	var sa unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	r, _, e := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)),
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if e != 0 {
		return -1, peer, e
	}
	switch sa.Addr.Family {
	case unix.AF_INET:
		s := (*unix.RawSockaddrInet4)(unsafe.Pointer(&sa))
		peer = netip.AddrPortFrom(netip.AddrFrom4(s.Addr), swap16(s.Port))
	case unix.AF_INET6:
		s := (*unix.RawSockaddrInet6)(unsafe.Pointer(&sa))
		peer = netip.AddrPortFrom(netip.AddrFrom16(s.Addr).Unmap(), swap16(s.Port))
	}
	return int(r), peer, 0
}

func swap16(v uint16) uint16 { return v<<8 | v>>8 }

// Send writes b to a non-blocking socket without raising SIGPIPE. It never
// blocks; EAGAIN means the socket's buffer is full.
func Send(fd int, b []byte) (int, syscall.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// Recv reads into b from a non-blocking socket; 0 without an error is the end
// of the stream.
func Recv(fd int, b []byte) (int, syscall.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		unix.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// Close closes fd.
func Close(fd int) { _ = unix.Close(fd) }

// ShutdownWrite ends the sending side: the peer reads the end of the stream.
func ShutdownWrite(fd int) { _ = unix.Shutdown(fd, unix.SHUT_WR) }

// Unsent returns how many bytes wait unsent or unacknowledged in the kernel.
func Unsent(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// MaxFiles returns how many descriptors the process may have open.
func MaxFiles() uint64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return r.Cur
}

// SetLingerZero makes the next Close reset the connection.
func SetLingerZero(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}
