package poller

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

func uringServer(t *testing.T, conns, entries, results int) (*Uring, *server) {
	t.Helper()
	p, err := newUring(conns, entries, results)
	if err != nil {
		t.Fatal(err)
	}
	return p, newServer(t, p)
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// ringMaps counts the mappings of io_urings in this process.
func ringMaps(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "io_uring")
}

// With room for fewer results than there are events, the kernel keeps the rest
// and ends multishot requests: nothing may be lost by either.
func TestMoreEventsThanTheQueueHolds(t *testing.T) {
	_, s := uringServer(t, 0, 4, 8)
	s.received = echo
	s.start()
	clients := make([]*net.TCPConn, 200)
	for i := range clients {
		clients[i] = s.dial()
	}
	s.until("all are accepted", func() bool { return s.open == len(clients) })
	for r := range 10 {
		m := bytes.Repeat([]byte{byte(r)}, 50)
		s.do(func() {
			// All of them arrive before the loop looks again.
			for _, c := range clients {
				if _, err := c.Write(m); err != nil {
					t.Error(err)
				}
			}
		})
		for _, c := range clients {
			readAll(t, c, m)
		}
	}
}

func TestBuffersGrowAndShrinkWithUse(t *testing.T) {
	t.Run("as the kernel has it", func(t *testing.T) { testBuffers(t, func(*Uring) {}) })
	t.Run("before Linux 6.7", func(t *testing.T) { testBuffers(t, func(p *Uring) { p.reads = false }) })
}

func testBuffers(t *testing.T, change func(*Uring)) {
	t.Helper()
	p, s := uringServer(t, 0, ringEntries, ringResults)
	change(p)
	s.received = echo
	s.start()
	clients := make([]*net.TCPConn, 300)
	for i := range clients {
		clients[i] = s.dial()
	}
	s.until("all are accepted", func() bool { return s.open == len(clients) })
	m := pattern(4000)
	for range 3 {
		s.do(func() {
			for _, c := range clients {
				if _, err := c.Write(m); err != nil {
					t.Error(err)
				}
			}
		})
		for _, c := range clients {
			readAll(t, c, m)
		}
	}
	s.do(func() {
		if n := p.buffers.Provided(); n <= firstBuffers {
			t.Errorf("%d buffers for 300 connections at once", n)
		}
	})
	s.until("the memory is given back", func() bool { return !p.ring.Deferred() || p.buffers.Provided() == firstBuffers })
	for _, c := range clients { // what there is now was in use before
		if _, err := c.Write(m); err != nil {
			t.Error(err)
		}
	}
	for _, c := range clients {
		readAll(t, c, m)
	}
}

// A full table must hold connections back, not drop them.
func TestAFullTableLeavesConnectionsWaiting(t *testing.T) {
	const room = 8
	_, s := uringServer(t, room, ringEntries, ringResults)
	failed := 0
	s.acceptFailed = func(err syscall.Errno) {
		if err != syscall.ENFILE {
			t.Errorf("accept: %v", err)
		}
		failed++
		s.p.SetAccepting(0, false)
	}
	s.received = echo
	s.start()
	clients := make([]*net.TCPConn, room+3)
	for i := range clients {
		clients[i] = s.dial()
	}
	s.until("the table is full", func() bool { return failed > 0 })
	s.do(func() {
		if s.open != room {
			t.Errorf("%d connections, want %d", s.open, room)
		}
	})
	for _, c := range clients[:3] {
		c.Close()
	}
	s.until("some are closed", func() bool { return s.open == room-3 })
	s.do(func() { s.p.SetAccepting(0, true) })
	for _, c := range clients[3:] {
		_, _ = c.Write([]byte("still here"))
		readAll(t, c, []byte("still here"))
	}
}

func TestConnectionsAreNoDescriptorsOfTheProcess(t *testing.T) {
	_, s := uringServer(t, 0, ringEntries, ringResults)
	s.start()
	before := openFiles(t)
	clients := make([]*net.TCPConn, 100)
	for i := range clients {
		clients[i] = s.dial()
	}
	s.until("all are accepted", func() bool { return s.open == len(clients) })
	if n := openFiles(t) - before; n > len(clients)+5 { // the clients' ends are ours, too
		t.Errorf("%d descriptors for %d connections", n, len(clients))
	}
}

// Send took those bytes: a peer that reads slowly must still get them all.
func TestWhatIsInFlightOutlivesAClose(t *testing.T) {
	p, s := uringServer(t, 0, ringEntries, ringResults)
	s.start()
	c, at := s.pair()
	want := pattern(16 << 20)
	s.do(func() {
		at.send(want)
		at.close()
	})
	s.do(func() {
		if len(p.orphans) != 1 {
			t.Errorf("%d sends in flight, want 1", len(p.orphans))
		}
	})
	readAll(t, c, want)
	readEOF(t, c)
	s.until("the entry is free", func() bool { return p.used == acceptsInFlight && len(p.orphans) == 0 })
}

func TestAnOrphanIsGivenUpInTheEnd(t *testing.T) {
	p, s := uringServer(t, 0, ringEntries, ringResults)
	s.start()
	_, at := s.pair()
	s.do(func() {
		at.send(make([]byte, 16<<20))
		at.close()
	})
	s.do(func() { p.orphans[0].until = time.Now() })
	s.until("the entry is free", func() bool { return p.used == acceptsInFlight && len(p.orphans) == 0 })
	s.do(func() {
		for i := range p.sends.all {
			if p.sends.all[i].b != nil {
				t.Error("the bytes are still held")
			}
		}
	})
}

func TestNothingStaysBehind(t *testing.T) {
	one := func() {
		p, s := uringServer(t, 0, ringEntries, ringResults)
		s.received = echo
		s.start()
		for range 20 {
			c := s.dial()
			_, _ = c.Write([]byte("x"))
			readAll(t, c, []byte("x"))
			defer c.Close()
		}
		s.stop()
		p.Release() // again, to no effect
	}
	one()
	files, maps := openFiles(t), ringMaps(t)
	for range 10 {
		one()
	}
	if n := openFiles(t); n > files+2 {
		t.Errorf("%d descriptors, %d before", n, files)
	}
	if n := ringMaps(t); n > maps {
		t.Errorf("%d mappings of rings, %d before", n, maps)
	}
}

// A poller that never waited has no thread; a failed one leaves nothing.
// While connections are lent the ring has nothing in flight for them: neither a receive nor a wait for
// a hang-up, which would have to be cancelled for each before it can leave.
func TestNothingIsInFlightForQuiescedConnections(t *testing.T) {
	p, s := uringServer(t, 0, ringEntries, ringResults)
	s.received = echo
	s.start()
	clients := make([]*net.TCPConn, 100)
	for i := range clients {
		clients[i] = s.dial()
	}
	s.until("all are accepted", func() bool { return s.open == len(clients) })
	s.do(func() {
		var loans []Loan
		for _, c := range s.conns {
			loans = append(loans, Loan{Key: c.k, FD: c.fd})
		}
		p.Quiesce(loans, s, 10*time.Second, false)
		for _, l := range loans {
			if at := p.conns[index(l.FD)].state & (connRecv | connHangup); at != 0 {
				t.Errorf("entry %d: in flight: %b", index(l.FD), at)
			}
			p.SetReading(l.Key, l.FD, true)
		}
	})
	for _, c := range clients {
		if _, err := c.Write([]byte("after")); err != nil {
			t.Fatal(err)
		}
		readAll(t, c, []byte("after"))
	}
}

func TestReleaseBeforeTheFirstWait(t *testing.T) {
	files := openFiles(t)
	p, err := NewUring(10)
	if err != nil {
		t.Fatal(err)
	}
	fd, _, err := sys.Listen(netip.MustParseAddrPort("127.0.0.1:0"), sys.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Listen(0, fd); err != nil {
		t.Fatal(err)
	}
	p.Release()
	p.Release()
	if n := openFiles(t); n != files {
		t.Errorf("%d descriptors, %d before", n, files)
	}
}

// After Release the address is free at once, though accepts were in flight.
func TestReleaseFreesTheAddress(t *testing.T) {
	for range 10 {
		_, s := uringServer(t, 0, ringEntries, ringResults)
		s.start()
		s.pair()
		s.stop()
		fd, _, err := sys.Listen(s.addr, sys.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		sys.Close(fd)
	}
}

func TestRoomIsBoundedByTheDescriptorLimit(t *testing.T) {
	p, err := NewUring(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	if want := int(min(sys.MaxFiles(), maxDirectFiles)); p.files != want {
		t.Errorf("room for %d, want %d", p.files, want)
	}
}

func TestCopiesAreUsedAgain(t *testing.T) {
	var p copyPool
	f := func(n, wantCap int) {
		t.Helper()
		b := p.take(make([]byte, n))
		if len(b) != n || cap(b) != wantCap {
			t.Errorf("a copy of %d bytes has %d of %d", n, len(b), cap(b))
		}
		p.put(b)
		if again := p.take(make([]byte, n)); &again[0] != &b[0] {
			t.Errorf("the buffer of %d bytes was not used again", n)
		}
	}
	f(1, 512)
	f(512, 512)
	f(513, 1024)
	f(64<<10, 64<<10)
	f(128<<10, 128<<10)
	big := p.take(make([]byte, 128<<10+1))
	if p.put(big); len(big) != 128<<10+1 {
		t.Errorf("a big copy has %d bytes", len(big))
	}
	for range 3 * copyKeep >> copySmallest {
		p.put(make([]byte, 0, 512))
	}
	if n := len(p.free[0]) * 512; n > copyKeep {
		t.Errorf("the pool keeps %d bytes of a size", n)
	}
}
