package sys

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAddressesThatAreNoneAreRefused(t *testing.T) {
	f := func(err error, want syscall.Errno) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	var a Address
	f(a.TCPAddress(netip.AddrPort{}), unix.EDESTADDRREQ)
	f(a.TCPAddress(netip.MustParseAddrPort("[fe80::1%nosuchinterface]:1")), unix.ENODEV)
	f(a.UnixAddress(""), unix.EDESTADDRREQ)
	f(a.UnixAddress(strings.Repeat("x", 108)), unix.ENAMETOOLONG)
	f(a.UnixAddress("@"+strings.Repeat("x", 108)), unix.ENAMETOOLONG)
}

// The kernel is asked what it understood.
func TestUnixAddressesAreReadAsMeant(t *testing.T) {
	f := func(path string) {
		t.Helper()
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			t.Fatal(err)
		}
		if err := unix.Listen(fd, 1); err != nil {
			t.Fatal(err)
		}
		var a Address
		if err := a.UnixAddress(path); err != nil || !a.Unix() {
			t.Fatal(err)
		}
		c, err := OpenStream(&a, netip.Addr{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer Close(c)
		if e := Connect(c, &a); e != 0 {
			t.Errorf("connect %s: %v", path, e)
		}
	}
	dir := t.TempDir()
	long := filepath.Join("/tmp", strings.Repeat("l", 107-len("/tmp/")))
	t.Cleanup(func() { _ = unix.Unlink(long) })
	_ = unix.Unlink(long)
	f(filepath.Join(dir, "s"))
	f(long)
	f("@weir" + dir)
	f("@" + strings.Repeat("a", 106))
}

func TestConnectingFromAnAddressLeavesThePortToTheConnection(t *testing.T) {
	one, to := listening(t), listening(t)
	local := netip.MustParseAddr("127.0.0.77")
	for _, at := range []netip.AddrPort{one, to} {
		var a Address
		if err := a.TCPAddress(at); err != nil {
			t.Fatal(err)
		}
		fd, err := OpenStream(&a, local, []Setting{{Option: UserTimeout, Value: 7000}})
		if err != nil {
			t.Fatal(err)
		}
		defer Close(fd)
		sa, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		if got := fromSockaddr(sa); got.Addr() != local || got.Port() != 0 {
			t.Errorf("bound to %v before it connects", got)
		}
		if e := Connect(fd, &a); e != 0 && e != EINPROGRESS {
			t.Error(e)
		}
		for o, want := range map[SocketOption]int{NoDelay: 1, UserTimeout: 7000} {
			if got, err := (Setting{Option: o}).Read(fd); err != nil || got.Value != want {
				t.Errorf("%v is %d, %v; want %d", o, got.Value, err, want)
			}
		}
	}
	var a Address
	_ = a.TCPAddress(one)
	if _, err := OpenStream(&a, netip.MustParseAddr("192.0.2.1"), nil); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("from a foreign address: %v", err)
	}
	if _, err := OpenStream(&a, netip.IPv6Loopback(), nil); !errors.Is(err, unix.EAFNOSUPPORT) {
		t.Errorf("from an address of the other family: %v", err)
	}
}

func listening(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, addr, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Close(fd) })
	return addr
}
