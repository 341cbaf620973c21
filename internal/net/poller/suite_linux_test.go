package poller

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

func echo(c *peer, b []byte) { c.sendCopy(b) }

// pattern is n bytes that show where they belong.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := 0; i+4 <= n; i += 4 {
		binary.BigEndian.PutUint32(b[i:], uint32(i))
	}
	return b
}

func readAll(t *testing.T, r io.Reader, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil {
		t.Fatalf("after %d of %d bytes: %v", n, len(want), err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("other bytes than were sent")
	}
}

func readEOF(t *testing.T, r io.Reader) {
	t.Helper()
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("read %d bytes, %v; want the end of the stream", n, err)
	}
}

func TestEchoKeepsEveryByteInOrder(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.received = echo
		s.start()
		want := pattern(3 << 20)
		c := s.dial()
		go func() {
			for b := want; len(b) > 0; {
				n := min(len(b), 1+rand.IntN(100_000))
				if _, err := c.Write(b[:n]); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				b = b[n:]
			}
			_ = c.CloseWrite()
		}()
		readAll(t, c, want)
		readEOF(t, c)
	})
}

func TestAcceptReportsThePeersAddress(t *testing.T) {
	for _, e := range engines {
		for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
			t.Run(e.name+addr, func(t *testing.T) {
				p, err := e.open()
				if err != nil {
					t.Fatal(err)
				}
				s := newServerOn(t, p, addr).start()
				if s.addr.Addr().IsUnspecified() {
					s.addr = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), s.addr.Port())
				}
				c, at := s.pair()
				if want := c.LocalAddr().(*net.TCPAddr).AddrPort(); at.addr != want {
					t.Errorf("peer %v, want %v", at.addr, want)
				}
			})
		}
	}
}

func TestBroadcastReachesAThousandInOrder(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.start()
		const conns, messages = 1000, 20
		clients := make([]*net.TCPConn, conns)
		for i := range clients {
			clients[i] = s.dial()
		}
		s.until("all are accepted", func() bool { return s.open == conns })
		var want []byte
		for i := range messages {
			m := bytes.Repeat([]byte{byte(i)}, 100)
			want = append(want, m...)
			s.post(func() { // several of these meet in one tick
				for _, c := range s.conns {
					c.send(m)
				}
			})
		}
		for _, c := range clients {
			readAll(t, c, want)
		}
	})
}

func TestAFullSocketTakesLittleUntilItIsRead(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.start()
		c, at := s.pair()
		want := pattern(24 << 20)
		s.do(func() {
			for b := want; len(b) > 0; b = b[64<<10:] {
				at.send(b[:64<<10])
			}
		})
		s.do(func() {
			if at.shorts == 0 {
				t.Error("Send took everything")
			}
		})
		readAll(t, c, want)
		s.until("everything was sent", func() bool { return len(at.out) == 0 })
	})
}

func TestSendCopyLetsTheCallerOverwrite(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.start()
		const conns, rounds = 40, 50
		clients := make([]*net.TCPConn, conns)
		for i := range clients {
			clients[i] = s.dial()
		}
		s.until("all are accepted", func() bool { return s.open == conns })
		scratch := make([]byte, 700)
		var want []byte
		for r := range rounds {
			n := 1 + r*13
			want = append(want, bytes.Repeat([]byte{byte(r)}, n)...)
			s.do(func() {
				for _, c := range s.conns {
					for i := range n {
						scratch[i] = byte(r)
					}
					c.sendCopy(scratch[:n])
					clear(scratch)
				}
			})
		}
		for _, c := range clients {
			readAll(t, c, want)
		}
	})
}

func TestWhatSendTookArrivesBeforeTheClose(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		reply := pattern(5000)
		s.received = func(c *peer, _ []byte) {
			c.sendCopy(reply)
			c.close()
		}
		s.start()
		for range 50 {
			c := s.dial()
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			readAll(t, c, reply)
			readEOF(t, c)
		}
	})
}

func TestShutdownComesAfterWhatSendTook(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.ended = func(*peer) {}
		s.start()
		c, at := s.pair()
		_ = c.SetReadBuffer(8 << 10)
		big := pattern(256 << 10)
		var taken int
		s.do(func() {
			n, err := s.p.Send(at.k, at.fd, big)
			if err != 0 {
				t.Errorf("Send: %v", err)
			}
			taken = n
			s.p.Shutdown(at.k, at.fd)
		})
		readAll(t, c, big[:taken])
		readEOF(t, c)
		// The other direction is still open.
		s.do(func() { s.received = func(c *peer, b []byte) { c.in = append(c.in, b...) } })
		if _, err := c.Write([]byte("late")); err != nil {
			t.Fatal(err)
		}
		s.until("the last words arrive", func() bool { return string(at.in) == "late" })
	})
}

func TestNoEventIsReportedForAClosedConnection(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		var reported, closed atomic.Int64
		s.received = func(c *peer, _ []byte) {
			if c.closed {
				reported.Add(1)
			}
			// More is on its way, and a send is in flight.
			c.send(make([]byte, 300<<10))
			c.close()
			closed.Add(1)
		}
		s.start()
		for range 200 {
			c := s.dial()
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			for range 4 {
				_, _ = c.Write(make([]byte, 10_000))
			}
			_ = c.SetLinger(0)
			c.Close()
		}
		s.until("all are closed", func() bool { return s.open == 0 })
		if reported.Load() != 0 || closed.Load() == 0 {
			t.Errorf("%d events for closed connections, %d closed", reported.Load(), closed.Load())
		}
	})
}

func TestSlotsAreUsedAgainWithoutMixingConnections(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.received = echo
		s.start()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 150 {
					c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(s.addr))
					if err != nil {
						t.Error(err)
						return
					}
					_ = c.SetDeadline(time.Now().Add(20 * time.Second))
					want := []byte(c.LocalAddr().String())
					_, _ = c.Write(want)
					got := make([]byte, len(want))
					if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
						t.Errorf("got %q, %v; want %q", got, err, want)
					}
					if rand.IntN(2) == 0 {
						_ = c.SetLinger(0)
					}
					c.Close()
				}
			})
		}
		wg.Wait()
		s.until("all are closed", func() bool { return s.open == 0 })
		s.do(func() {
			if len(s.conns) > 300 {
				t.Errorf("%d slots for 8 connections at a time", len(s.conns))
			}
		})
	})
}

func TestReadingCanBePaused(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		pauses := 0
		paused := false
		s.received = func(c *peer, b []byte) {
			if paused {
				t.Error("received while paused")
			}
			c.in = append(c.in, b...)
			if pauses++; pauses%3 == 0 {
				paused = true
				c.reading(false)
				go s.post(func() { paused = false; c.reading(true) })
			}
		}
		ended := false
		s.ended = func(*peer) { ended = true }
		s.start()
		c, at := s.pair()
		want := pattern(2 << 20)
		if _, err := c.Write(want); err != nil {
			t.Fatal(err)
		}
		_ = c.CloseWrite()
		s.until("everything arrives, then the end", func() bool {
			if ended && len(at.in) < len(want) {
				t.Fatal("the end came before the bytes")
			}
			return ended
		})
		if !bytes.Equal(at.in, want) {
			t.Error("other bytes than were sent")
		}
	})
}

func TestReadingOffAndOnInOneTickLosesNothing(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.received = func(c *peer, b []byte) {
			c.reading(false)
			c.reading(true)
			c.reading(false)
			c.reading(true)
			echo(c, b)
		}
		s.start()
		c := s.dial()
		want := pattern(400 << 10)
		go func() { _, _ = c.Write(want) }()
		readAll(t, c, want)
	})
}

func TestABrokenConnectionIsNoticed(t *testing.T) {
	for _, paused := range []bool{false, true} {
		each(t, func(t *testing.T, s *server) {
			var got syscall.Errno
			s.broken = func(_ *peer, err syscall.Errno) { got = err }
			s.start()
			c, at := s.pair()
			s.do(func() { at.reading(!paused) })
			_ = c.SetLinger(0)
			c.Close()
			s.until("the connection is closed", func() bool { return at.closed })
			if got != syscall.ECONNRESET {
				t.Errorf("paused %v: %v, want ECONNRESET", paused, got)
			}
		})
	}
}

func TestSendingToAClosedPeerFails(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		var got syscall.Errno
		s.broken = func(_ *peer, err syscall.Errno) { got = err }
		s.ended = func(c *peer) { c.reading(false) }
		s.start()
		c, at := s.pair()
		c.Close()
		s.until("the connection is broken", func() bool {
			at.send([]byte("anyone there?"))
			return at.closed
		})
		if !isReset(got) && got != 0 { // 0: the hang-up was seen first
			t.Errorf("%v, want EPIPE or ECONNRESET", got)
		}
	})
}

func TestHalfClosedConnectionsCanBeAnswered(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.ended = func(c *peer) {
			c.reading(false)
			c.send([]byte("answer"))
			s.p.Shutdown(c.k, c.fd)
		}
		s.start()
		c := s.dial()
		_ = c.CloseWrite()
		readAll(t, c, []byte("answer"))
		readEOF(t, c)
	})
}

func TestAListenerCanBePaused(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.start()
		s.pair()
		s.do(func() { s.p.SetAccepting(0, false) })
		for range 3 { // let what was requested end
			s.do(func() {})
		}
		var before int
		s.do(func() { before = s.open })
		c := s.dial() // the kernel takes it
		for range 20 {
			s.do(func() {})
		}
		s.do(func() {
			if s.open != before {
				t.Error("accepted while paused")
			}
			s.p.SetAccepting(0, true)
		})
		s.until("it is accepted", func() bool { return s.find(c) != nil })
	})
}

func TestARefusedConnectionIsClosed(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.refuse = true
		s.start()
		for range 100 {
			readEOF(t, s.dial())
		}
	})
}

// timed calls Wait on the goroutine of the test, with nothing else going on.
func timed(t *testing.T, s *server, timeout time.Duration) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := s.p.Wait(timeout, s); err != nil {
		t.Error(err)
	}
	return time.Since(begin)
}

func TestWakeEndsAWait(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			p, err := e.open()
			if err != nil {
				t.Fatal(err)
			}
			defer p.Release()
			s := &server{t: t, p: p}
			for range 3 { // one that comes first is not lost
				p.Wake()
				if d := timed(t, s, 20*time.Second); d > 10*time.Second {
					t.Errorf("a Wait after a Wake took %v", d)
				}
			}
			time.AfterFunc(20*time.Millisecond, p.Wake)
			if d := timed(t, s, 20*time.Second); d > 10*time.Second {
				t.Errorf("a Wait with a Wake took %v", d)
			}
		})
	}
}

func TestEveryWakeIsSeenFromAnyGoroutine(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.start()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 500 {
					s.do(func() {})
				}
			})
		}
		wg.Wait()
	})
}

func TestWaitEndsAtItsTimeout(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			p, err := e.open()
			if err != nil {
				t.Fatal(err)
			}
			defer p.Release()
			s := &server{t: t, p: p}
			f := func(timeout time.Duration) {
				t.Helper()
				for range 50 { // a signal may end one early
					d := timed(t, s, timeout)
					if d > timeout+10*time.Second {
						t.Errorf("Wait(%v) took %v", timeout, d)
					}
					if d >= timeout {
						return
					}
				}
				t.Errorf("Wait(%v) always ends early", timeout)
			}
			f(0)
			f(30 * time.Millisecond)
			f(1500 * time.Microsecond)
		})
	}
}

func TestAThousandConnectionsEcho(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.received = echo
		s.start()
		clients := make([]*net.TCPConn, 1000)
		for i := range clients {
			clients[i] = s.dial()
		}
		for r := range 5 {
			for i, c := range clients {
				if _, err := c.Write(binary.BigEndian.AppendUint32(nil, uint32(r<<16+i))); err != nil {
					t.Fatal(err)
				}
			}
			for i, c := range clients {
				readAll(t, c, binary.BigEndian.AppendUint32(nil, uint32(r<<16+i)))
			}
		}
	})
}

func TestAbortResets(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.start()
		c, at := s.pair()
		s.do(func() {
			at.send([]byte("half of"))
			at.abort()
		})
		for {
			if _, err := c.Read(make([]byte, 100)); err != nil {
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the peer reads %v, want a reset", err)
				}
				return
			}
		}
	})
}

func TestUnsentCountsWhatThePeerDoesNotTake(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.start()
		c, at := s.pair()
		const total = 16 << 20
		unsent := func() int { return s.p.Unsent(at.k, at.fd) + len(at.out) }
		s.do(func() {
			if n := unsent(); n != 0 {
				t.Errorf("%d bytes unsent before any was sent", n)
			}
			at.send(make([]byte, total))
		})
		s.do(func() {
			if n := unsent(); n < 1<<20 || n > total {
				t.Errorf("%d bytes unsent of %d that are not read", n, total)
			}
		})
		readAll(t, c, make([]byte, total))
		s.until("all is sent", func() bool { return unsent() == 0 })
	})
}

func TestSetOptionReachesTheSocket(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.start()
		_, at := s.pair()
		set := func(o sys.SocketOption, v int) error {
			return s.p.SetOption(at.k, at.fd, sys.Setting{Option: o, Value: v})
		}
		s.do(func() {
			if err := errors.Join(set(sys.IPTOS, 46<<2), set(sys.Priority, 5)); err != nil {
				t.Error(err)
			}
			if err := set(sys.TrafficClass, 46<<2); !errors.Is(err, syscall.ENOPROTOOPT) {
				t.Errorf("IPv6's option on a socket of IPv4: %v", err)
			}
			if s.p.Name() != "epoll" {
				return // the socket is not a descriptor of the process: internal/app reads it by sock_diag
			}
			if o, err := (sys.Setting{Option: sys.Priority}).Read(at.fd); err != nil || o.Value != 5 {
				t.Errorf("%+v, %v", o, err)
			}
		})
	})
}
