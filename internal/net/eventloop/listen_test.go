package eventloop

import (
	"context"
	"errors"
	"hash"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/weir-gateway/weir/internal/net/poller"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func newDigest() hash.Hash64 { return fnv.New64a() }

func newEcho(t *testing.T, loops int) *Group {
	t.Helper()
	g, err := New(Config{Loops: loops, Engine: os.Getenv(trial.Engine)}, func(*Conn) Handler { return echoer{} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Release)
	return g
}

func TestPortInUseIsRefusedAndLeavesNothingOpen(t *testing.T) {
	first := newEcho(t, 3)
	addr, err := first.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	second := newEcho(t, 3)
	files := descriptors(t)
	f := func(g *Group, addr netip.AddrPort) {
		t.Helper()
		if _, err := g.Listen(addr); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("listen %v: %v", addr, err)
		}
		if n := descriptors(t); n != files {
			t.Errorf("listen %v: %d descriptors, %d before", addr, n, files)
		}
	}
	f(second, addr)
	f(first, addr)
	f(second, netip.AddrPortFrom(netip.IPv6Unspecified(), addr.Port()))
	f(second, netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port()))
	first.Release()
	files = descriptors(t)
	if _, err := second.Listen(addr); err != nil {
		t.Errorf("after a release: %v", err)
	}
	second.Release()
	second.Release()
	if n := descriptors(t); n >= files {
		t.Errorf("%d descriptors after the release, %d before", n, files)
	}
}

// failing is a poller that cannot watch a listener.
type failing struct{ poller.Poller }

func (failing) Listen(int, int) error { return syscall.ENOSPC }

func TestListenerThatCannotBeWatchedIsClosedOnce(t *testing.T) {
	files := descriptors(t)
	made := 0
	g, err := newGroup(Config{Loops: 3}, nil, nil, func() (poller.Poller, error) {
		p, err := poller.NewEpoll()
		if made++; made == 2 {
			return failing{p}, err
		}
		return p, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Listen(netip.MustParseAddrPort("127.0.0.1:0")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Listen: %v", err)
	}
	g.Release()
	if n := descriptors(t); n != files {
		t.Errorf("%d descriptors, %d before", n, files)
	}
}

func TestPollersThatCannotBeMadeLeaveNothingOpen(t *testing.T) {
	files := descriptors(t)
	made := 0
	_, err := newGroup(Config{Loops: 3}, nil, nil, func() (poller.Poller, error) {
		if made++; made == 3 {
			return nil, syscall.EMFILE
		}
		return poller.NewEpoll()
	})
	if !errors.Is(err, syscall.EMFILE) {
		t.Errorf("got %v", err)
	}
	if n := descriptors(t); n != files {
		t.Errorf("%d descriptors, %d before", n, files)
	}
}

func TestUnspecifiedAddressTakesBothFamilies(t *testing.T) {
	g := newEcho(t, 2)
	addr, err := g.Listen(netip.MustParseAddrPort("[::]:0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := g.Run(ctx); err == nil {
			t.Error("a group ran twice")
		}
	}()
	hosts := []string{"127.0.0.1"}
	if ln, err := net.Listen("tcp6", "[::1]:0"); err == nil { // where there is IPv6 at all
		ln.Close()
		hosts = append(hosts, "::1")
	}
	for _, host := range hosts {
		c := dial(t, net.JoinHostPort(host, strconv.Itoa(int(addr.Port()))))
		wantEcho(t, c, "hello "+host)
		for _, l := range g.Loops() {
			on(t, l, func() {
				l.Conns(func(s *Conn) bool {
					if s.Peer().String() == c.LocalAddr().String() {
						s.Write([]byte("found"))
					}
					return true
				})
			})
		}
		wantRead(t, c, "found")
	}
	if _, err := g.Listen(addr); err == nil {
		t.Error("a running group listens")
	}
}

func TestConfigIsValidated(t *testing.T) {
	f := func(c Config, ok bool) {
		t.Helper()
		if err := c.Validate(); (err == nil) != ok {
			t.Errorf("%+v: %v", c, err)
		}
		if !ok {
			if _, err := New(c, nil, nil); err == nil {
				t.Errorf("%+v: New takes it", c)
			}
		}
	}
	f(Config{}, true)
	f(Config{}.WithDefaults(), true)
	f(Config{Engine: "epoll", Loops: 255}, true)
	f(Config{Engine: "select"}, false)
	f(Config{Loops: 256}, false)
	f(Config{Loops: -1}, false)
	f(Config{MaxConns: -1}, false)
	f(Config{MaxQueue: 1}, false)
	f(Config{NotSentLowat: 1}, false)
	f(Config{Backlog: 1 << 20}, false)
	f(Config{WriteStall: -1}, false)
	f(Config{UserTimeout: -1}, false)
}
