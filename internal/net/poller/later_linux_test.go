package poller

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// arriving returns n clients whose connections the server has by AddLater, more than a Wait receives from. before runs on
// the server's goroutine, after AddLater and before the next Wait.
func arriving(t *testing.T, s *server, n int, before func(clients []net.Conn, conns []*peer)) ([]net.Conn, []*peer) {
	t.Helper()
	s.start()
	clients, fds, conns := make([]net.Conn, n), make([]int, n), make([]*peer, n)
	for i := range n {
		fds[i], clients[i] = socketpair(t)
	}
	s.do(func() {
		for i, fd := range fds {
			conns[i] = s.adopt(fd)
			s.p.AddLater(conns[i].k, conns[i].fd)
		}
		before(clients, conns)
	})
	return clients, conns
}

const manyLate = 3*addsPerWait + 88

// What arrives many at a time is sent to before it is received from, and then received from, some with each Wait:
// also what its peer sent before.
func TestConnectionsAddedLaterAreReceivedFromSomeAtATime(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		most := addsPerWait
		if s.p.Name() == "io_uring" {
			most *= 2 // a Wait has the results of the one before and its own
		}
		wait, received := 0, 0
		s.received = func(c *peer, b []byte) {
			if s.waits != wait {
				wait, received = s.waits, 0
			}
			if received++; received > most {
				t.Errorf("%d connections were received from in a Wait, want at most %d", received, most)
			}
			c.sendCopy(b)
		}
		clients, _ := arriving(t, s, manyLate, func(clients []net.Conn, conns []*peer) {
			for i, c := range conns {
				if _, err := clients[i].Write([]byte("input")); err != nil {
					t.Error(err)
				}
				c.send([]byte("first "))
			}
		})
		for _, c := range clients {
			readAll(t, c, []byte("first input"))
		}
	})
}

// A Wait with nothing to report ends while some are not received from.
func TestTheLastConnectionAddedLaterNeedsNoEvent(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		s.wait, s.received = -1, echo
		clients, _ := arriving(t, s, manyLate, func(clients []net.Conn, _ []*peer) {
			if _, err := clients[manyLate-1].Write([]byte("input")); err != nil {
				t.Error(err)
			}
		})
		readAll(t, clients[manyLate-1], []byte("input"))
	})
}

// Each is, before it is received from, what any other connection is.
func TestAConnectionAddedLaterCanDoAllAtOnce(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		var got [manyLate + 1]string
		place := map[Key]int{}
		s.received = func(c *peer, b []byte) { got[place[c.k]] += string(b) }
		const ( // behind those that the first Wait receives from
			off = addsPerWait + 10 + iota
			offAndOn
			closed
			full
			ended
		)
		var again *peer
		large := pattern(8 << 20)
		fd, client := socketpair(t)
		if _, err := client.Write([]byte("input")); err != nil {
			t.Fatal(err)
		}
		clients, conns := arriving(t, s, manyLate, func(clients []net.Conn, conns []*peer) {
			for i, c := range conns {
				place[c.k] = i
				if i == ended {
					clients[i].Close()
				} else if _, err := clients[i].Write([]byte("input")); err != nil {
					t.Error(err)
				}
			}
			conns[off].reading(false)
			conns[offAndOn].reading(false)
			conns[offAndOn].reading(true)
			conns[closed].close()
			again = s.adopt(fd) // has the slot of what is closed
			s.p.AddLater(again.k, again.fd)
			place[again.k] = manyLate
			conns[full].send(large)
		})
		s.until("the one that has ended is closed", func() bool { return conns[ended].closed })
		readAll(t, clients[full], large)
		for i := range got {
			if i != off && i != closed && i != ended {
				s.until("input is received", func() bool { return got[i] == "input" })
			}
		}
		if _, err := clients[closed].Read(make([]byte, 1)); err == nil {
			t.Error("the closed connection is open")
		}
		s.do(func() {
			if again.k.Slot() != conns[closed].k.Slot() {
				t.Errorf("slot %d, want the closed one's, %d", again.k.Slot(), conns[closed].k.Slot())
			}
			if got[off] != "" || got[closed] != "" {
				t.Errorf("received %q, which was not wanted, and %q of a closed connection", got[off], got[closed])
			}
			conns[off].reading(true)
		})
		s.until("input is received when it is wanted", func() bool { return got[off] == "input" })
	})
}

// A connection that cannot be watched is broken, and not silent for ever.
func TestAConnectionThatCannotBeWatchedIsBroken(t *testing.T) {
	p, err := NewEpoll()
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, p)
	var broken syscall.Errno
	s.broken = func(_ *peer, err syscall.Errno) { broken = err }
	fd, err := syscall.Open(filepath.Join(t.TempDir(), "file"), os.O_CREATE|os.O_RDWR, 0o600) // epoll watches none
	if err != nil {
		t.Fatal(err)
	}
	s.start()
	s.do(func() {
		c := s.enter(fd, netip.AddrPort{})
		p.AddLater(c.k, c.fd)
	})
	s.until("it is broken", func() bool { return broken == syscall.EPERM })
}
