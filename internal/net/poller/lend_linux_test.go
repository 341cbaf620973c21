package poller

import (
	"bytes"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// After Quiesce, a connection that is read from again, and one that never was, continue as they were.
func TestQuiescedConnectionsContinue(t *testing.T) {
	for _, paused := range []bool{false, true} {
		each(t, func(t *testing.T, s *server) {
			var got syscall.Errno
			s.broken = func(_ *peer, err syscall.Errno) { got = err }
			s.received = echo
			s.start()
			c, at := s.pair()
			s.do(func() {
				at.reading(!paused)
				s.p.Quiesce([]Loan{{Key: at.k, FD: at.fd}}, s, time.Second, false)
				if !paused {
					at.reading(true)
				}
			})
			if !paused {
				if _, err := c.Write([]byte("after")); err != nil {
					t.Fatal(err)
				}
				readAll(t, c, []byte("after"))
			}
			_ = c.SetLinger(0)
			c.Close()
			s.until("the connection is closed", func() bool { return at.closed })
			if got != syscall.ECONNRESET {
				t.Errorf("paused %v: %v, want ECONNRESET", paused, got)
			}
		})
	}
}

// lent returns a descriptor for the socket of at that stays when the loan is returned, as another process has it.
func lent(t *testing.T, s *server, at *peer) int {
	t.Helper()
	fd := -1
	s.do(func() {
		loans := []Loan{{Key: at.k, FD: at.fd, Part: SocketOnly}}
		s.p.Lend(loans)
		if loans[0].File < 0 {
			return
		}
		fd, _ = syscall.Dup(loans[0].File)
		s.p.EndLend(loans)
	})
	if fd < 0 {
		t.Fatal("the socket cannot be lent")
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	return fd
}

// arrives reads want from fd, which does not block.
func arrives(t *testing.T, fd int, want string) {
	t.Helper()
	var got []byte
	for end := time.Now().Add(20 * time.Second); len(got) < len(want) && time.Now().Before(end); {
		b := make([]byte, len(want)-len(got))
		n, err := syscall.Read(fd, b)
		if err == nil && n == 0 {
			break
		}
		got = append(got, b[:max(n, 0)]...)
	}
	if string(got) != want {
		t.Fatalf("%q is in the socket, want %q", got, want)
	}
}

// In a pause nothing takes what a client sends, although a receive is in flight, until it has left: all of it is
// the other process's, also when the loop turns again.
func TestAPauseTakesNoInput(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.received = echo
		s.start()
		const n = 300 // more than a ring gathers in a call
		var clients []*net.TCPConn
		var conns []*peer
		for range n {
			c, at := s.pair()
			if _, err := c.Write([]byte("before")); err != nil { // the receive in flight is one of many results then
				t.Fatal(err)
			}
			readAll(t, c, []byte("before"))
			clients, conns = append(clients, c), append(conns, at)
		}
		fds := make([]int, n)
		for i, at := range conns {
			fds[i] = lent(t, s, at)
		}
		s.do(func() {
			var loans []Loan
			for _, at := range conns {
				loans = append(loans, Loan{Key: at.k, FD: at.fd, Part: InputOnly})
			}
			s.p.Quiesce(loans, s, time.Second, true)
			for _, c := range clients {
				if _, err := c.Write([]byte("paused ")); err != nil {
					t.Error(err)
				}
			}
			s.p.Lend(loans)
			for i := range loans {
				if loans[i].File < 0 || len(loans[i].Input) > 0 {
					t.Errorf("connection %d: lent as %d, with input %q", i, loans[i].File, loans[i].Input)
				}
			}
			s.p.EndLend(loans)
			for i, at := range conns {
				if i%2 == 0 {
					at.end(s.p.CloseShared)
				} else {
					at.reading(true)
				}
			}
		})
		for i, c := range clients {
			if _, err := c.Write([]byte("after")); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				arrives(t, fds[i], "paused after")
			} else {
				readAll(t, c, []byte("paused after"))
			}
		}
	})
}

// A connection that is closed ends for its client although another process has its socket.
func TestAnEndNeedsNoOtherProcess(t *testing.T) {
	for _, reset := range []bool{false, true} {
		each(t, func(t *testing.T, s *server) {
			s.start()
			c, at := s.pair()
			lent(t, s, at)
			s.do(func() {
				at.send([]byte("last"))
				s.p.ShutdownShared(at.k, at.fd)
				if reset {
					at.abort()
				} else {
					at.close()
				}
			})
			if b, err := io.ReadAll(c); err != nil || !bytes.Equal(b, []byte("last")) {
				t.Errorf("reset %v: %q, %v", reset, b, err)
			}
			_, other := s.pair() // its entry is free for others
			s.do(func() { other.send([]byte("x")) })
		})
	}
}

// So does one that is closed when the poller ends.
func TestAnEndWithThePollerNeedsNoOtherProcess(t *testing.T) {
	for _, last := range []string{"", "last"} {
		each(t, func(t *testing.T, s *server) {
			s.start()
			c, at := s.pair()
			lent(t, s, at)
			s.do(func() {
				if len(last) > 0 {
					at.send([]byte(last))
				}
				s.p.ShutdownShared(at.k, at.fd)
				at.close()
				s.stopped = true
			})
			if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(c); err != nil || string(b) != last {
				t.Errorf("%q, %v; want %q and the end", b, err, last)
			}
		})
	}
}

// A send that waits for its client is lent with its connection: nothing of it goes out here from then on. A connection
// that stays sends it after all, before anything else.
func TestSendsAreLentWithTheirConnections(t *testing.T) {
	for _, paused := range []bool{false, true} {
		each(t, func(t *testing.T, s *server) {
			s.start()
			leaves, left := s.pair()
			stays, stayed := s.pair()
			want := pattern(24 << 20)
			sent := 0
			s.do(func() {
				for sent < len(want) && left.shorts == 0 { // until the socket is full
					left.send(want[sent : sent+64<<10])
					sent += 64 << 10
				}
				stayed.send(want[:sent])
			})
			fd := lent(t, s, left)
			var rest []byte
			s.do(func() {
				loans := []Loan{{Key: left.k, FD: left.fd, Part: InputOnly}, {Key: stayed.k, FD: stayed.fd, Part: InputOnly}}
				s.p.Quiesce(loans, s, time.Second, paused)
				s.p.Lend(loans)
				if loans[0].File < 0 || loans[1].File < 0 {
					t.Errorf("paused %v: lent as %d and %d", paused, loans[0].File, loans[1].File)
				}
				rest = append(bytes.Clone(loans[0].Unsent), left.out...)
				s.p.EndLend(loans)
				left.end(s.p.CloseShared)
				stayed.reading(true)
			})
			s.do(func() { stayed.send([]byte("last")) })
			if len(rest) == 0 {
				t.Errorf("paused %v: nothing of %d bytes waited", paused, sent)
			}
			readAll(t, leaves, want[:sent-len(rest)])
			if n, err := syscall.Write(fd, []byte("there")); n != 5 || err != nil {
				t.Fatalf("the other process sends: %d, %v", n, err)
			}
			readAll(t, leaves, []byte("there"))
			readAll(t, stays, append(bytes.Clone(want[:sent]), "last"...))
		})
	}
}
