package sys

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// accept connects to a listener with settings and returns both server sockets.
func accept(t *testing.T, listen, host string, settings ...Setting) (listener, conn int) {
	t.Helper()
	listener, bound, err := Listen(netip.MustParseAddrPort(listen), ListenOptions{Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Close(listener) })
	c, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr(host), bound.Port()).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
	if n, err := unix.Poll(ready, 10_000); n != 1 {
		t.Fatalf("no connection to accept: %v", err)
	}
	conn, _, errno := Accept(listener)
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { Close(conn) })
	return listener, conn
}

// ipv6 reports whether this machine has it at all; containers may not.
func ipv6() bool {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// TestWhatAcceptedSocketsInherit is the table that eventloop's sockets go by.
func TestWhatAcceptedSocketsInherit(t *testing.T) {
	both := func(o SocketOption, value, listener, accepted int) {
		t.Helper()
		f := func(listen, host string) {
			t.Helper()
			l, c := accept(t, listen, host, Setting{Option: o, Value: value})
			for _, x := range []struct {
				where    string
				fd, want int
			}{{"listener", l, listener}, {"accepted", c, accepted}} {
				if got, err := (Setting{Option: o}).Read(x.fd); err != nil || got.Value != x.want {
					t.Errorf("%s=%d on %s, asked from %s: the %s socket has %d, %v; want %d", o, value, listen, host, x.where, got.Value, err, x.want)
				}
			}
		}
		if o != TrafficClass {
			f("127.0.0.1:0", "127.0.0.1")
		}
		if ipv6() {
			f("[::1]:0", "::1")
			f("[::]:0", "127.0.0.1")
		}
	}
	both(ReceiveBuffer, 16<<10, 32<<10, 32<<10)
	both(SendBuffer, 16<<10, 32<<10, 32<<10)
	both(NoDelay, 0, 0, 0)
	both(NoDelay, 1, 1, 1)
	both(KeepAlive, 1, 1, 1)
	both(KeepIdle, 41, 41, 41)
	both(KeepInterval, 7, 7, 7)
	both(KeepCount, 3, 3, 3)
	both(UserTimeout, 20_000, 20_000, 20_000)
	both(NotSentLowat, 64<<10, 64<<10, 64<<10)
	both(IPTOS, 46<<2, 46<<2, 46<<2)
	both(TrafficClass, 46<<2, 46<<2, 46<<2)
	both(Priority, 5, 5, 0)
	both(DeferAccept, 3, 3, 0)
}

func TestCongestionControlIsInherited(t *testing.T) {
	// Reno is part of every kernel, and open to everybody.
	l, c := accept(t, "127.0.0.1:0", "127.0.0.1", Setting{Option: Congestion, Text: "reno"})
	for _, fd := range []int{l, c} {
		if got, err := (Setting{Option: Congestion}).Read(fd); err != nil || got.Text != "reno" {
			t.Errorf("%q, %v", got.Text, err)
		}
	}
}

func TestRefusedSettingsAreExplained(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fd)
	f := func(s Setting, cause error, text string) {
		t.Helper()
		err := s.Apply(fd)
		if !errors.Is(err, cause) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v; want %v and %q", err, cause, text)
		}
	}
	f(Setting{Option: TrafficClass, Value: 8}, syscall.ENOPROTOOPT, "set IPV6_TCLASS=8: this kernel does not support the option")
	f(Setting{Option: Congestion, Text: "nosuch"}, syscall.ENOENT, `set TCP_CONGESTION="nosuch": the kernel has no such algorithm, only `+Sysctl("net.ipv4.tcp_available_congestion_control"))
	f(Setting{Option: KeepCount, Value: 1000}, syscall.EINVAL, "set TCP_KEEPCNT=1000: invalid argument")
	e := &SettingError{Setting{Option: Priority, Value: 7}, syscall.EPERM}
	if e.Error() != "set SO_PRIORITY=7: not allowed without CAP_NET_ADMIN" {
		t.Error(e)
	}
	if _, err := (Setting{Option: TrafficClass}).Read(fd); err == nil || !strings.Contains(err.Error(), "read IPV6_TCLASS: ") {
		t.Error(err)
	}
}

func TestEveryOptionHasAName(t *testing.T) {
	seen := map[string]bool{}
	for o := range DeferAccept + 1 {
		if name := o.String(); name == "" || seen[name] {
			t.Errorf("option %d: %q", o, name)
		}
		seen[o.String()] = true
	}
}

func TestBusyPollOfEpollIsReadBack(t *testing.T) {
	ep, err := EpollCreate()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(ep)
	if err := EpollSetBusyPoll(ep, 50*time.Microsecond, true); err != nil {
		if !errors.Is(err, syscall.ENOTTY) && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Error(err) // before Linux 6.9 there is no such request
		}
		return
	}
	if d, prefer, err := EpollBusyPoll(ep); d != 50*time.Microsecond || !prefer || err != nil {
		t.Errorf("%v, %v, %v", d, prefer, err)
	}
}

func TestSysctlThatIsNotThereIsEmpty(t *testing.T) {
	if s := Sysctl("net.ipv4.tcp_nosuch"); s != "" {
		t.Errorf("%q", s)
	}
	if s := Sysctl("net.core.somaxconn"); s == "" || strings.TrimSpace(s) != s {
		t.Errorf("%q", s)
	}
}
