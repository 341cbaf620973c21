package poller

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// connect starts to connect to a TCP address, or to the path of a Unix socket. On
// the server's goroutine.
func (s *server) connect(to any) *peer {
	s.t.Helper()
	var a sys.Address
	var err error
	switch to := to.(type) {
	case netip.AddrPort:
		err = a.TCPAddress(to)
	case string:
		err = a.UnixAddress(to)
	}
	if err != nil {
		s.t.Error(err)
	}
	fd, err := sys.OpenStream(&a, netip.Addr{}, nil)
	if err != nil {
		s.t.Error(err)
	}
	c := s.adopt(fd)
	if e := s.p.Connect(c.k, c.fd, &a); e != 0 {
		c.failed = e
		c.close()
	}
	return c
}

func (s *server) adopt(fd int) *peer {
	s.t.Helper()
	fds := []int32{int32(fd)}
	if _, err := s.p.Adopt(fds); err != nil {
		s.t.Error(err)
	}
	return s.enter(int(fds[0]), netip.AddrPort{})
}

// connects is connect from any goroutine, and waits for how it ends.
func (s *server) connects(to any) (c *peer) {
	s.t.Helper()
	s.do(func() { c = s.connect(to) })
	s.until("it is connected, or not", func() bool { return c.connected || c.failed != 0 })
	return c
}

func listen(t *testing.T, network, addr string) net.Listener {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func addrOf(ln net.Listener) netip.AddrPort { return ln.Addr().(*net.TCPAddr).AddrPort() }

func acceptOne(t *testing.T, ln net.Listener) net.Conn {
	t.Helper()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	t.Cleanup(func() { c.Close() })
	return c
}

func TestADialedConnectionIsLikeAnyOther(t *testing.T) {
	f := func(t *testing.T, s *server, network, addr string, to func(net.Listener) any) {
		t.Helper()
		ln := listen(t, network, addr)
		at := s.connects(to(ln))
		if !at.connected {
			t.Fatalf("%s: %v", addr, at.failed)
		}
		c := acceptOne(t, ln)
		want := pattern(2 << 20)
		go func() { _, _ = c.Write(want) }()
		readAll(t, c, want) // the server echoes
		s.do(at.close)
		readEOF(t, c)
	}
	tcp := func(ln net.Listener) any { return addrOf(ln) }
	unix := func(ln net.Listener) any { return ln.Addr().String() }
	each(t, func(t *testing.T, s *server) {
		s.received = echo
		s.start()
		f(t, s, "tcp", "127.0.0.1:0", tcp)
		f(t, s, "tcp", "[::1]:0", tcp)
		f(t, s, "unix", filepath.Join(t.TempDir(), "s"), unix)
		f(t, s, "unix", "@weir-poller-test-"+filepath.Base(t.TempDir())+s.p.Name()+t.Name(), unix)
	})
}

func TestConnectErrorsAreReported(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.start()
		f := func(to any, want syscall.Errno) {
			t.Helper()
			if c := s.connects(to); c.failed != want {
				t.Errorf("%v: %v, want %v", to, c.failed, want)
			}
		}
		ln := listen(t, "tcp", "127.0.0.1:0")
		gone := addrOf(ln)
		ln.Close()
		f(gone, syscall.ECONNREFUSED)
		f(netip.MustParseAddrPort("255.255.255.255:1"), syscall.ENETUNREACH)
		path := filepath.Join(t.TempDir(), "s")
		f(path, syscall.ENOENT)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		f(path, syscall.ECONNREFUSED)
		s.do(func() {
			if s.open != 0 {
				t.Errorf("%d connections are open", s.open)
			}
		})
	})
}

// deafListener takes no connection any more: its backlog is full.
func deafListener(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, addr, err := sys.Listen(netip.MustParseAddrPort("127.0.0.1:0"), sys.ListenOptions{Backlog: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.Close(fd) })
	for {
		c, err := net.DialTimeout("tcp", addr.String(), 300*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { c.Close() })
	}
}

// A connection that is closed while it connects leaves its slot, and with
// io_uring later its entry of the table, to others: they must not feel it.
func TestClosingWhileConnectingTouchesNoSuccessor(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.received = echo
		s.start()
		deaf := deafListener(t)
		for range 30 {
			s.do(func() {
				var cs []*peer
				for range 20 {
					cs = append(cs, s.connect(deaf))
				}
				for i, c := range cs {
					if i%2 == 0 {
						c.close()
					} else {
						c.abort()
					}
				}
			})
			c, _ := s.pair() // in one of those slots
			want := pattern(2000)
			if _, err := c.Write(want); err != nil {
				t.Fatal(err)
			}
			readAll(t, c, want)
		}
		waiting := []*peer{}
		s.do(func() {
			for range 20 {
				waiting = append(waiting, s.connect(deaf))
			}
		})
		s.do(func() {
			for _, c := range waiting {
				if c.connected || c.failed != 0 {
					t.Errorf("a listener with a full backlog answers: %v", c.failed)
				}
				c.close()
			}
		})
	})
}

func TestThousandsAreDialedAtOnce(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.received = echo
		s.start()
		const n = 2000
		cs := make([]*peer, n)
		s.do(func() { // to itself: both ends of each are on this loop
			for i := range cs {
				cs[i] = s.connect(s.addr)
			}
		})
		s.until("all open", func() bool {
			for _, c := range cs {
				if !c.connected && c.failed == 0 {
					return false
				}
			}
			return s.open == 2*n
		})
		s.do(func() {
			for i, c := range cs {
				if c.failed != 0 {
					t.Fatalf("connection %d: %v", i, c.failed)
				}
			}
		})
	})
}

func socketpair(t *testing.T) (ours int, theirs net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fds[1]), "pair")
	defer file.Close()
	theirs, err = net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	_ = theirs.SetDeadline(time.Now().Add(30 * time.Second))
	t.Cleanup(func() { theirs.Close() })
	return fds[0], theirs
}

func TestAnAdoptedSocketIsLikeAnyOther(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.received = echo
		s.start()
		before := openFiles(t)
		for range 50 {
			fd, c := socketpair(t)
			s.do(func() {
				at := s.adopt(fd)
				if err := s.p.Add(at.k, at.fd); err != nil {
					t.Error(err)
				}
			})
			want := pattern(3000)
			if _, err := c.Write(want); err != nil {
				t.Fatal(err)
			}
			readAll(t, c, want)
			c.Close()
		}
		s.until("all are closed", func() bool { return s.open == 0 })
		if after := openFiles(t); after != before {
			t.Errorf("%d descriptors are open, %d were before", after, before)
		}
	})
}

func TestAFullTableTakesNoSocket(t *testing.T) {
	p, s := uringServer(t, acceptsInFlight+1, ringEntries, ringResults)
	s.start()
	before := openFiles(t)
	fd, _ := socketpair(t)
	fd2, _ := socketpair(t)
	fd3, _ := socketpair(t)
	s.do(func() {
		if n, err := p.Adopt([]int32{int32(fd), int32(fd2)}); n != 1 || err != syscall.ENFILE {
			t.Errorf("for one entry: %d taken, %v, want 1, %v", n, err, syscall.ENFILE)
		}
		if n, err := p.Adopt([]int32{int32(fd3)}); n != 0 || err != syscall.ENFILE {
			t.Errorf("without an entry: %d taken, %v, want 0, %v", n, err, syscall.ENFILE)
		}
	})
	if after := openFiles(t); after != before+3 { // the other ends
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}

// When both sides have ended, input that the loop does not want yet stays where
// it is, and does not keep the loop awake.
func TestInputAfterBothEndsWaitsForTheReader(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		ended := false
		s.received = func(c *peer, b []byte) { c.in = append(c.in, b...) }
		s.ended = func(*peer) { ended = true }
		s.start()
		c, at := s.pair()
		s.do(func() {
			at.reading(false)
			s.p.Shutdown(at.k, at.fd)
		})
		readEOF(t, c)
		want := pattern(100_000)
		if _, err := c.Write(want); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		var waits int
		s.do(func() { waits = s.waits })
		time.Sleep(50 * time.Millisecond) // for a loop that would spin
		s.do(func() {
			if s.waits > waits+20 {
				t.Errorf("the loop woke %d times", s.waits-waits)
			}
			if len(at.in) > 0 || ended || at.closed {
				t.Errorf("%d bytes were received, the end was reported: %v", len(at.in), ended)
			}
			at.reading(true)
		})
		s.until("all is received, and the end", func() bool { return ended })
		s.do(func() {
			if !bytes.Equal(at.in, want) {
				t.Errorf("%d bytes, want %d, or others", len(at.in), len(want))
			}
		})
	})
}

func TestAResetWhileNotReadingIsReported(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		var why syscall.Errno
		s.broken = func(_ *peer, err syscall.Errno) { why = err }
		s.start()
		ln := listen(t, "tcp", "127.0.0.1:0")
		at := s.connects(addrOf(ln))
		c := acceptOne(t, ln).(*net.TCPConn)
		s.do(func() { at.reading(false) })
		if _, err := io.WriteString(c, "unread"); err != nil {
			t.Fatal(err)
		}
		_ = c.SetLinger(0)
		c.Close()
		s.until("it is closed", func() bool { return at.closed })
		if why != syscall.ECONNRESET {
			t.Errorf("%v, want %v", why, syscall.ECONNRESET)
		}
	})
}
