package poller

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// engines are what the conformance suite runs over.
var engines = []struct {
	name string
	open func() (Poller, error)
}{
	{"epoll", func() (Poller, error) { return NewEpoll() }},
	{"io_uring", func() (Poller, error) { return NewUring(0) }},
}

// each runs f with every engine.
func each(t *testing.T, f func(t *testing.T, s *server)) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			p, err := e.open()
			if err != nil {
				t.Fatal(err)
			}
			f(t, newServer(t, p))
		})
	}
}

// server is the smallest loop that uses a Poller as the event loop does: slots
// with generations, posted functions, and a queue for what Send does not take.
// Its callbacks may be nil and are set before start.
type server struct {
	t    *testing.T
	p    Poller
	addr netip.AddrPort
	wait time.Duration // of each Wait; fixed before start

	accepted     func(c *peer)
	received     func(c *peer, b []byte)
	ended        func(c *peer)
	broken       func(c *peer, err syscall.Errno)
	acceptFailed func(err syscall.Errno)

	// The server's goroutine only.
	conns   []*peer
	gens    []uint32
	free    []uint32
	open    int
	refuse  bool
	waits   int
	stopped bool

	mu    sync.Mutex
	inbox []func()
	done  chan struct{}
	once  sync.Once
}

// peer is a connection as the server sees it.
type peer struct {
	s         *server
	k         Key
	fd        int
	addr      netip.AddrPort
	out       []byte
	closed    bool
	shorts    int // sends that took too little
	in        []byte
	connected bool          // a dialed one is connected
	failed    syscall.Errno // and why it is not
}

func newServer(t *testing.T, p Poller) *server {
	t.Helper()
	return newServerOn(t, p, "127.0.0.1:0")
}

func newServerOn(t *testing.T, p Poller, addr string) *server {
	t.Helper()
	fd, bound, err := sys.Listen(netip.MustParseAddrPort(addr), sys.ListenOptions{ReusePort: true, Backlog: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Listen(0, fd); err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, p: p, addr: bound, wait: time.Second, done: make(chan struct{})}
	t.Cleanup(s.stop)
	return s
}

func (s *server) start() *server {
	go func() {
		defer close(s.done)
		for !s.stopped {
			if err := s.p.Wait(s.wait, s); err != nil {
				s.t.Errorf("Wait: %v", err)
				break
			}
			s.mu.Lock()
			fs := s.inbox
			s.inbox = nil
			s.mu.Unlock()
			for _, f := range fs {
				f()
			}
			s.p.Flush()
		}
		for _, c := range s.conns {
			if c != nil {
				c.close()
			}
		}
		s.p.Release()
	}()
	return s
}

// post runs f on the server's goroutine.
func (s *server) post(f func()) {
	s.mu.Lock()
	s.inbox = append(s.inbox, f)
	s.mu.Unlock()
	s.p.Wake()
}

// do is post, and waits until f has run.
func (s *server) do(f func()) {
	s.t.Helper()
	ran := make(chan struct{})
	s.post(func() { f(); close(ran) })
	select {
	case <-ran:
	case <-time.After(20 * time.Second):
		s.t.Fatal("the server does not run what was posted")
	}
}

// until waits for a condition of the server's goroutine.
func (s *server) until(what string, cond func() bool) {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		ok := false
		s.do(func() { ok = cond() })
		if ok {
			return
		}
	}
	s.t.Fatalf("not within 20s: %s", what)
}

func (s *server) stop() {
	s.once.Do(func() {
		s.post(func() { s.stopped = true })
		select {
		case <-s.done:
		case <-time.After(20 * time.Second):
			s.t.Error("the server does not stop")
		}
	})
}

func (s *server) dial() *net.TCPConn {
	s.t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(s.addr))
	if err != nil {
		s.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	s.t.Cleanup(func() { c.Close() })
	return c
}

// pair dials and returns both ends.
func (s *server) pair() (*net.TCPConn, *peer) {
	s.t.Helper()
	c := s.dial()
	var p *peer
	s.until("the connection is accepted", func() bool { p = s.find(c); return p != nil })
	return c, p
}

func (s *server) find(c *net.TCPConn) *peer {
	for _, p := range s.conns {
		if p != nil && p.addr == c.LocalAddr().(*net.TCPAddr).AddrPort() {
			return p
		}
	}
	return nil
}

func (s *server) conn(k Key) *peer {
	if int(k.Slot()) < len(s.conns) {
		if c := s.conns[k.Slot()]; c != nil && c.k == k {
			return c
		}
	}
	return nil
}

func (s *server) TickStarted() { s.waits++ }

func (s *server) FD(k Key) (int, bool) {
	if c := s.conn(k); c != nil {
		return c.fd, true
	}
	return -1, false
}

func (s *server) Accepted(_, fd int, addr netip.AddrPort) {
	if s.refuse {
		s.p.Close(0, fd)
		return
	}
	c := s.enter(fd, addr)
	if err := s.p.Add(c.k, fd); err != nil {
		s.t.Errorf("Add: %v", err)
	}
	if s.accepted != nil {
		s.accepted(c)
	}
}

// enter gives a connection its slot.
func (s *server) enter(fd int, addr netip.AddrPort) *peer {
	var slot uint32
	if n := len(s.free); n > 0 {
		slot = s.free[n-1]
		s.free = s.free[:n-1]
	} else {
		slot = uint32(len(s.conns))
		s.conns = append(s.conns, nil)
		s.gens = append(s.gens, 0)
	}
	c := &peer{s: s, k: Key(uint64(s.gens[slot])<<32 | uint64(slot)), fd: fd, addr: addr}
	s.conns[slot] = c
	s.open++
	return c
}

func (s *server) AcceptFailed(_ int, err syscall.Errno) {
	if s.acceptFailed == nil {
		s.t.Errorf("accept: %v", err)
		return
	}
	s.acceptFailed(err)
}

func (s *server) Received(k Key, b []byte, err syscall.Errno) {
	c := s.conn(k)
	switch {
	case c == nil:
	case err != 0:
		if s.broken != nil {
			s.broken(c, err)
		}
		c.close()
	case len(b) == 0:
		if s.ended != nil {
			s.ended(c)
		} else {
			c.close()
		}
	case s.received != nil:
		s.received(c, b)
	}
}

func (s *server) Writable(k Key) {
	if c := s.conn(k); c != nil {
		b := c.out
		c.out = nil
		c.send(b)
	}
}

// send sends b, which must not change, after what waits.
func (c *peer) send(b []byte) { c.sendBy(c.s.p.Send, b) }

// sendCopy sends b, which may be overwritten afterwards.
func (c *peer) sendCopy(b []byte) { c.sendBy(c.s.p.SendCopy, b) }

func (c *peer) sendBy(send func(Key, int, []byte) (int, syscall.Errno), b []byte) {
	if c.closed || len(b) == 0 {
		return
	}
	if len(c.out) > 0 {
		c.out = append(c.out, b...)
		return
	}
	n, err := send(c.k, c.fd, b)
	switch {
	case err != 0:
		if c.s.broken != nil {
			c.s.broken(c, err)
		}
		c.close()
	case n < len(b):
		c.shorts++
		c.out = append([]byte(nil), b[n:]...)
	}
}

func (c *peer) reading(on bool) { c.s.p.SetReading(c.k, c.fd, on) }

func (c *peer) close() { c.end(c.s.p.Close) }

func (c *peer) abort() { c.end(c.s.p.Abort) }

func (c *peer) end(how func(Key, int)) {
	if c.closed {
		return
	}
	c.closed = true
	how(c.k, c.fd)
	slot := c.k.Slot()
	c.s.conns[slot] = nil
	c.s.gens[slot] = (c.s.gens[slot] + 1) & (1<<30 - 1)
	c.s.free = append(c.s.free, slot)
	c.s.open--
}

// isReset reports whether err says that the peer reset the connection.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (s *server) Connected(k Key, err syscall.Errno) {
	c := s.conn(k)
	switch {
	case c == nil:
		s.t.Errorf("Connected for connection %x, which is closed", k)
	case err != 0:
		c.failed = err
		c.close()
	default:
		c.connected = true
		if e := s.p.Add(c.k, c.fd); e != nil {
			s.t.Errorf("Add: %v", e)
		}
	}
}
