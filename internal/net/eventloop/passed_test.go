package eventloop

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// passed opens n sockets on one address and returns duplicates of them, as a service
// manager that holds them passes to each process.
func passed(t *testing.T, n int) (addr netip.AddrPort, pass func() []int) {
	t.Helper()
	addr = netip.MustParseAddrPort("127.0.0.1:0")
	var held []int
	for i := range n {
		fd, bound, err := sys.Listen(addr, sys.ListenOptions{Backlog: 1, ReusePort: true, Claim: i == 0})
		if err != nil {
			t.Fatal(err)
		}
		addr, held = bound, append(held, fd)
	}
	t.Cleanup(func() { closeAll(held) })
	return addr, func() (fds []int) {
		for _, fd := range held {
			d, err := sys.Dup(fd)
			if err != nil {
				t.Fatal(err)
			}
			fds = append(fds, d)
		}
		return fds
	}
}

// Connections that are made while no process has the sockets wait for the next one,
// however many sockets and loops there are: none is refused, reset or left waiting.
func TestEnginesServeWhatWaitedOnPassedSockets(t *testing.T) {
	const loops, clients = 3, 60
	f := func(engine string, sockets int) {
		t.Helper()
		t.Run(fmt.Sprintf("%s, %d sockets", engine, sockets), func(t *testing.T) {
			addr, pass := passed(t, sockets)
			serve := func() (end func()) {
				g, err := New(Config{Engine: engine, Loops: loops}, echoing, nil)
				if err != nil {
					t.Fatal(err)
				}
				if at, err := g.ListenOn(pass()); err != nil || at != addr {
					t.Fatalf("ListenOn: %v, %v, want %v", at, err, addr)
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- g.Run(ctx) }()
				return func() {
					g.StopAccepting()
					cancel()
					if err := <-done; err != nil {
						t.Errorf("Run: %v", err)
					}
				}
			}
			talk := func(all []net.Conn) {
				t.Helper()
				for i, c := range all {
					wantEcho(t, c, fmt.Sprint("hello ", i))
				}
			}
			connect := func() (all []net.Conn) {
				for range clients {
					all = append(all, dial(t, addr.String()))
				}
				return all
			}
			end := serve()
			talk(connect())
			end()
			waiting := connect() // more than the backlog that the holder had set
			end = serve()
			talk(waiting)
			talk(connect())
			end()
		})
	}
	for _, engine := range []string{engineEpoll, engineUring} {
		f(engine, 1)
		f(engine, 2)
		f(engine, loops)
		f(engine, 2*loops+1)
	}
}

func TestPassedSocketsThatCannotServe(t *testing.T) {
	files := descriptors(t)
	f := func(cfg Config, fds []int, want string) {
		t.Helper()
		g, err := New(cfg, echoing, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Release()
		if _, err := g.ListenOn(fds); err == nil || err.Error() != want {
			t.Errorf("ListenOn: %v, want %q", err, want)
		}
	}
	pair, err := sys.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	sys.Close(pair[1])
	f(Config{Loops: 2}, pair[:1], "not a listening TCP socket")
	fd, _, err := sys.Listen(netip.MustParseAddrPort("127.0.0.1:0"), sys.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f(Config{Loops: 2, Sockets: SocketConfig{IncomingCPU: true}}, []int{fd}, "sockets.incoming_cpu: 1 listening sockets were passed for 2 loops")
	trial.Eventually(t, "nothing stays open", func() bool { return descriptors(t) == files })
}
