//go:build linux

package sys

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// EINPROGRESS reports that a connection is being made.
const EINPROGRESS = unix.EINPROGRESS

// An Address is what a socket connects to, as the kernel reads it. It must not
// move while an io_uring request that names it is not submitted.
type Address struct {
	raw  unix.RawSockaddrAny
	size uint32
}

// TCPAddress makes a the address. err is a bare errno.
func (s *Address) TCPAddress(a netip.AddrPort) error {
	*s = Address{}
	ip := a.Addr().Unmap()
	switch {
	case !ip.IsValid():
		return unix.EDESTADDRREQ
	case ip.Is4():
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw))
		sa.Family, sa.Port, sa.Addr = unix.AF_INET, swap16(a.Port()), ip.As4()
		s.size = unix.SizeofSockaddrInet4
	default:
		sa := (*unix.RawSockaddrInet6)(unsafe.Pointer(&s.raw))
		sa.Family, sa.Port, sa.Addr = unix.AF_INET6, swap16(a.Port()), ip.As16()
		s.size = unix.SizeofSockaddrInet6
		if zone := ip.Zone(); zone != "" {
			ifi, err := net.InterfaceByName(zone)
			if err != nil {
				return unix.ENODEV
			}
			sa.Scope_id = uint32(ifi.Index)
		}
	}
	return nil
}

// UnixAddress makes the path of a Unix socket the address; one that starts with
// @ has no file (unix(7), abstract). err is a bare errno.
func (s *Address) UnixAddress(path string) error {
	*s = Address{}
	sa := (*unix.RawSockaddrUnix)(unsafe.Pointer(&s.raw))
	abstract := path != "" && path[0] == '@'
	switch n := len(path); {
	case n == 0:
		return unix.EDESTADDRREQ
	case n > len(sa.Path) || n == len(sa.Path) && !abstract:
		return unix.ENAMETOOLONG
	}
	sa.Family = unix.AF_UNIX
	for i := range len(path) {
		sa.Path[i] = int8(path[i])
	}
	s.size = uint32(unsafe.Offsetof(sa.Path)) + uint32(len(path)) + 1
	if abstract { // its name is all bytes that are given, without an end
		sa.Path[0] = 0
		s.size--
	}
	return nil
}

// Unix reports whether the address is a Unix socket's.
func (s *Address) Unix() bool { return s.raw.Addr.Family == unix.AF_UNIX }

// OpenStream opens a non-blocking stream socket for connecting to the address,
// bound to the IP address local if that is valid. TCP_NODELAY is set on one of
// TCP, then settings. err is a bare errno, but for a setting that the kernel
// refuses.
func OpenStream(to *Address, local netip.Addr, settings []Setting) (fd int, err error) {
	family := int(to.raw.Addr.Family)
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if family != unix.AF_UNIX {
		err = prepareStream(fd, family, local, settings)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func prepareStream(fd, family int, local netip.Addr, settings []Setting) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	for _, o := range settings {
		if o.Option != TrafficClass || family == unix.AF_INET6 {
			if err := o.Apply(fd); err != nil {
				return err
			}
		}
	}
	if !local.IsValid() {
		return nil
	}
	if err := portAtConnect(fd); err != nil {
		return err
	}
	if local = local.Unmap(); local.Is4() != (family == unix.AF_INET) {
		return unix.EAFNOSUPPORT
	}
	sa, err := toSockaddr(netip.AddrPortFrom(local, 0), family)
	if err != nil {
		return unix.ENODEV
	}
	return unix.Bind(fd, sa)
}

// portAtConnect has connect choose the port of a socket that is bound to an address, so that two connections
// may have the same if they go to different places or come from different addresses.
func portAtConnect(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
}

// PortAtConnect is a net.Dialer's Control that has connections from a local address share its
// ports with those to other places, ip(7), IP_BIND_ADDRESS_NO_PORT.
func PortAtConnect(_, _ string, c syscall.RawConn) (err error) {
	if e := c.Control(func(fd uintptr) { err = portAtConnect(int(fd)) }); e != nil {
		return e
	}
	return err
}

// Connect starts to connect. EINPROGRESS says that the socket becomes writable
// when it is done, or broken; EAGAIN, of a Unix socket only, that the listener's
// backlog is full.
func Connect(fd int, to *Address) syscall.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to.raw)), uintptr(to.size))
	return e
}

// SocketError returns the error that a socket met, and clears it.
func SocketError(fd int) syscall.Errno {
	v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return unix.EBADF
	}
	return syscall.Errno(v)
}

// SetNonblock makes calls on fd return instead of waiting.
func SetNonblock(fd int) error { return unix.SetNonblock(fd, true) }

// ErrnoOf returns the errno in err, or EIO.
func ErrnoOf(err error) syscall.Errno {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return unix.EIO
}
