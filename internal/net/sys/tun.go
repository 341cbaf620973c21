//go:build linux

package sys

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenTUN makes a TUN device in the network namespace of the calling thread, which lasts until
// the file is closed: what is routed to it is read as IP packets, one each, and what is written
// arrives by it. It needs CAP_NET_ADMIN and /dev/net/tun.
func OpenTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	r, err := unix.NewIfreq(name)
	if err == nil {
		r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make TUN device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
