//go:build linux

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
	"net"
	"net/netip"
	"syscall"
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
	EPROTO       = unix.EPROTO
	ENETDOWN     = unix.ENETDOWN
	ENETUNREACH  = unix.ENETUNREACH
	EHOSTDOWN    = unix.EHOSTDOWN
	EHOSTUNREACH = unix.EHOSTUNREACH
	ECONNRESET   = unix.ECONNRESET
	EPIPE        = unix.EPIPE
	ETIMEDOUT    = unix.ETIMEDOUT
)

// Listen opens a non-blocking TCP socket on addr. Port 0 picks a free one. The
// unspecified IPv6 address takes IPv4 too, and only that where there is no IPv6.
func Listen(addr netip.AddrPort, opt ListenOptions) (fd int, bound netip.AddrPort, err error) {
	fd, bound, err = listen(addr, opt)
	if addr.Addr() == netip.IPv6Unspecified() && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)) {
		return listen(netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port()), opt)
	}
	return fd, bound, err
}

func listen(addr netip.AddrPort, opt ListenOptions) (_ int, bound netip.AddrPort, err error) {
	family := unix.AF_INET
	if addr.Addr().Is6() && !addr.Addr().Is4In6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, bound, fmt.Errorf("socket: %w", err)
	}
	if bound, err = bindAndListen(fd, family, addr, opt); err != nil {
		_ = unix.Close(fd)
		return -1, bound, err
	}
	return fd, bound, nil
}

func bindAndListen(fd, family int, addr netip.AddrPort, opt ListenOptions) (bound netip.AddrPort, err error) {
	if family == unix.AF_INET6 {
		// net.ipv6.bindv6only has no say in what "::" means here.
		if err := setInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0, "IPV6_V6ONLY"); err != nil {
			return bound, err
		}
	}
	if err := setListenOptions(fd, family, opt); err != nil {
		return bound, err
	}
	sa, err := toSockaddr(addr, family)
	if err != nil {
		return bound, fmt.Errorf("listen %s: %w", addr, err)
	}
	if err := unix.Bind(fd, sa); err != nil {
		return bound, fmt.Errorf("listen %s: %w", addr, err)
	}
	if opt.ReusePort && opt.Claim { // bound without it, so no other process listens
		if err := setInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, "SO_REUSEPORT"); err != nil {
			return bound, err
		}
	}
	if err := listenOn(fd, opt.Backlog); err != nil {
		return bound, fmt.Errorf("listen %s: %w", addr, err)
	}
	if sa, err = unix.Getsockname(fd); err != nil {
		return bound, fmt.Errorf("getsockname: %w", err)
	}
	bound = fromSockaddr(sa)
	return netip.AddrPortFrom(bound.Addr().WithZone(addr.Addr().Zone()), bound.Port()), nil
}

// ListenerAddr returns the address on which fd, a descriptor of any kind, listens for TCP.
func ListenerAddr(fd int) (netip.AddrPort, error) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("not a socket: %w", err)
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || kind != unix.IPPROTO_TCP || listens == 0 {
		return netip.AddrPort{}, errors.New("not a listening TCP socket")
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("getsockname: %w", err)
	}
	return fromSockaddr(sa), nil
}

// Adopt prepares fd, which listens already, as Listen does a socket of its own. What is
// in its backlog stays there.
func Adopt(fd int, opt ListenOptions) error {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return fmt.Errorf("SO_DOMAIN: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("O_NONBLOCK: %w", err)
	}
	opt.ReusePort = false // as it was opened: there is no joining a group later
	if err := setListenOptions(fd, family, opt); err != nil {
		return err
	}
	return listenOn(fd, opt.Backlog)
}

// listenOn also changes the backlog of a socket that listens.
func listenOn(fd, backlog int) error {
	if backlog <= 0 {
		backlog = 4096
	}
	return unix.Listen(fd, backlog)
}

func setInt(fd, level, name, value int, what string) error {
	if err := unix.SetsockoptInt(fd, level, name, value); err != nil {
		return fmt.Errorf("set %s=%d: %w", what, value, err)
	}
	return nil
}

func setListenOptions(fd, family int, opt ListenOptions) error {
	set := func(level, name, value int, what string) error { return setInt(fd, level, name, value, what) }
	errs := []error{
		set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1, "SO_REUSEADDR"),
		set(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1, "TCP_NODELAY"),
	}
	if opt.ReusePort && !opt.Claim {
		errs = append(errs, set(unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, "SO_REUSEPORT"))
	}
	for _, o := range opt.Settings {
		if o.Option != TrafficClass || family == unix.AF_INET6 {
			errs = append(errs, o.Apply(fd))
		}
	}
	return errors.Join(errs...)
}

func toSockaddr(a netip.AddrPort, family int) (unix.Sockaddr, error) {
	ip := a.Addr()
	if family == unix.AF_INET6 {
		sa := &unix.SockaddrInet6{Port: int(a.Port()), Addr: ip.As16()}
		if zone := ip.Zone(); zone != "" {
			ifi, err := net.InterfaceByName(zone)
			if err != nil {
				return nil, err
			}
			sa.ZoneId = uint32(ifi.Index)
		}
		return sa, nil
	}
	if !ip.IsValid() {
		ip = netip.IPv4Unspecified()
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: ip.Unmap().As4()}, nil
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

// ReserveDescriptors has the kernel make room for n open descriptors at once. Otherwise its
// table grows as they come, and each time waits until no thread of the process reads the old
// one, which takes milliseconds. It changes nothing else.
func ReserveDescriptors(n int) {
	n = int(min(uint64(max(n, 0)), MaxFiles())) - 1
	if fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, n); err == nil {
		Close(fd)
	}
}

// ShutdownWrite ends the sending side: the peer reads the end of the stream.
func ShutdownWrite(fd int) { _ = unix.Shutdown(fd, unix.SHUT_WR) }

// Shutdown ends both sides, of every descriptor for the socket.
func Shutdown(fd int) { _ = unix.Shutdown(fd, unix.SHUT_RDWR) }

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
