//go:build linux

package sys

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ReadTCPInfo queries the kernel about a TCP socket. It costs about a microsecond.
func ReadTCPInfo(fd int) (TCPInfo, syscall.Errno) {
	i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return TCPInfo{}, ErrnoOf(err)
	}
	return tcpInfoOf(i), 0
}

func tcpInfoOf(i *unix.TCPInfo) TCPInfo {
	return TCPInfo{
		Busy:          time.Duration(i.Busy_time) * time.Microsecond,
		ReaderLimited: time.Duration(i.Rwnd_limited) * time.Microsecond,
		BufferLimited: time.Duration(i.Sndbuf_limited) * time.Microsecond,
		Unsent:        i.Notsent_bytes, Unacked: i.Unacked,
		RTT:      time.Duration(i.Rtt) * time.Microsecond,
		Segments: i.Data_segs_out, Retransmits: i.Total_retrans,
		Acked: i.Bytes_acked, Received: i.Bytes_received,
	}
}

// SocketPair is two connected stream sockets that do not block.
func SocketPair() (fds [2]int, err error) {
	return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
}

// FileSize is the size of what an open descriptor names, 0 when it is unknown.
func FileSize(fd int) int64 {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0
	}
	return st.Size
}
