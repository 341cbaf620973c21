//go:build linux

package sys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SocketDiag queries the kernel about TCP sockets by their addresses (sock_diag(7)): for
// sockets of this machine that no descriptor of the process names, as those of io_uring.
// One goroutine at a time.
type SocketDiag struct {
	fd  int
	seq uint32
	buf []byte
}

// ErrNoSocket is returned for addresses that no socket has.
var ErrNoSocket = errors.New("no such socket")

// Sizes of the kernel's structures (linux/inet_diag.h).
const (
	diagRequest   = 8 + diagID      // inet_diag_req_v2
	diagMessage   = 4 + diagID + 20 // inet_diag_msg
	diagID        = 48              // inet_diag_sockid
	diagInfo      = 2               // INET_DIAG_INFO
	diagAllStates = 0xffffffff
)

// NewSocketDiag opens a socket to the kernel.
func NewSocketDiag() (*SocketDiag, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	// The kernel answers within the call that sends; a second is for what cannot be.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	return &SocketDiag{fd: fd, buf: make([]byte, 8<<10)}, nil
}

// Close gives the socket back.
func (d *SocketDiag) Close() error { return unix.Close(d.fd) }

// TCPInfo returns what the kernel says of the socket between local and peer, or
// ErrNoSocket. It costs some microseconds.
func (d *SocketDiag) TCPInfo(local, peer netip.AddrPort) (TCPInfo, error) {
	d.seq++
	if err := unix.Sendto(d.fd, diagQuestion(local, peer, d.seq), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return TCPInfo{}, fmt.Errorf("sock_diag: %w", err)
	}
	for {
		n, _, err := unix.Recvfrom(d.fd, d.buf, 0)
		if err != nil {
			return TCPInfo{}, fmt.Errorf("sock_diag: %w", err)
		}
		kind, seq, body, err := netlinkMessage(d.buf[:n])
		switch {
		case err != nil:
			return TCPInfo{}, err
		case seq != d.seq:
			continue // the late answer of one that was given up
		case kind == unix.NLMSG_ERROR:
			if errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body))); errno != unix.ENOENT {
				return TCPInfo{}, fmt.Errorf("sock_diag: %w", errno)
			}
			return TCPInfo{}, ErrNoSocket
		}
		return diagAnswer(body, peer.Port())
	}
}

// diagQuestion is a request for the one socket between two addresses.
func diagQuestion(local, peer netip.AddrPort, seq uint32) []byte {
	const size = unix.SizeofNlMsghdr + diagRequest
	b := make([]byte, 0, size)
	b = binary.NativeEndian.AppendUint32(b, size)
	b = binary.NativeEndian.AppendUint16(b, unix.SOCK_DIAG_BY_FAMILY)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	family := byte(unix.AF_INET6)
	if peer.Addr().Unmap().Is4() {
		family = unix.AF_INET
	}
	b = append(b, family, unix.IPPROTO_TCP, 1<<(diagInfo-1), 0)
	b = binary.NativeEndian.AppendUint32(b, diagAllStates)
	b = binary.BigEndian.AppendUint16(b, local.Port())
	b = binary.BigEndian.AppendUint16(b, peer.Port())
	for _, a := range []netip.Addr{local.Addr().Unmap(), peer.Addr().Unmap()} {
		var ip [16]byte
		copy(ip[:], a.AsSlice())
		b = append(b, ip[:]...)
	}
	b = binary.NativeEndian.AppendUint32(b, 0)             // any interface
	return binary.NativeEndian.AppendUint64(b, ^uint64(0)) // and no cookie
}

// netlinkMessage takes the first message of b apart.
func netlinkMessage(b []byte) (kind uint16, seq uint32, body []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr+4 {
		return 0, 0, nil, fmt.Errorf("sock_diag: an answer of %d bytes", len(b))
	}
	n := int(binary.NativeEndian.Uint32(b))
	if n < unix.SizeofNlMsghdr+4 || n > len(b) {
		return 0, 0, nil, fmt.Errorf("sock_diag: a message of %d bytes in %d", n, len(b))
	}
	return binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:]), b[unix.SizeofNlMsghdr:n], nil
}

// diagAnswer finds the tcp_info among the attributes of an answer. A kernel may know
// less than we do, or more.
func diagAnswer(b []byte, peer uint16) (TCPInfo, error) {
	if len(b) < diagMessage {
		return TCPInfo{}, fmt.Errorf("sock_diag: an answer of %d bytes", len(b))
	}
	if binary.BigEndian.Uint16(b[6:]) != peer {
		return TCPInfo{}, ErrNoSocket // it is the listener, which matches what no other socket does
	}
	for b = b[diagMessage:]; len(b) >= 4; {
		n, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if n < 4 || n > len(b) {
			break
		}
		if kind == diagInfo {
			var i unix.TCPInfo
			copy(unsafe.Slice((*byte)(unsafe.Pointer(&i)), unsafe.Sizeof(i)), b[4:n])
			return tcpInfoOf(&i), nil
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return TCPInfo{}, errors.New("sock_diag: an answer without tcp_info")
}
