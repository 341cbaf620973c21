package eventloop

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/poller"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// scripted is a Poller without a kernel: a test says what arrives and how much
// a socket takes, and it holds the loop to the Poller's rules.
type scripted struct {
	t           *testing.T
	socks       map[poller.Key]*sock
	unwanted    []int // descriptors closed without a key
	unwatched   map[int]bool
	refuseAdd   bool
	refuseAdopt bool
	adopted     int
	connects    []syscall.Errno
	wait        func(time.Duration, poller.Handler) error
	wake        func()
	released    int
}

// sock is the other side of a connection.
type sock struct {
	fd                    int
	reading, shut, closed bool
	aborted, connecting   bool
	got                   []byte
	sends                 int
	room                  int // what it still takes; negative: everything
	owed                  bool
	err                   syscall.Errno
	unsent                int
}

var _ poller.Poller = (*scripted)(nil)

func (p *scripted) sock(k poller.Key, fd int) *sock {
	p.t.Helper()
	s := p.socks[k]
	if s == nil || s.closed || s.fd != fd {
		p.t.Fatalf("a call for connection %x, descriptor %d, which is not open", k, fd)
	}
	return s
}

func (p *scripted) Name() string          { return "scripted" }
func (p *scripted) Listen(int, int) error { return nil }
func (p *scripted) SetAccepting(i int, on bool) {
	p.unwatched[i] = !on
}
func (p *scripted) Add(k poller.Key, fd int) error {
	if p.refuseAdd {
		p.socks[k] = &sock{fd: fd}
		return syscall.ENOSPC
	}
	if s := p.socks[k]; s != nil && s.connecting && !s.closed && s.fd == fd {
		s.connecting, s.reading, s.room = false, true, -1
		return nil
	} else if s != nil {
		p.t.Errorf("key %x was used before", k)
	}
	p.socks[k] = &sock{fd: fd, reading: true, room: -1}
	return nil
}
func (p *scripted) AddLater(k poller.Key, fd int)            { _ = p.Add(k, fd) }
func (p *scripted) SetReading(k poller.Key, fd int, on bool) { p.connected(k, fd).reading = on }

// connected is sock for what may not be done while it is connecting.
func (p *scripted) connected(k poller.Key, fd int) *sock {
	p.t.Helper()
	s := p.sock(k, fd)
	if s.connecting {
		p.t.Errorf("a call for connection %x, which is still connecting", k)
	}
	return s
}

func (p *scripted) Send(k poller.Key, fd int, b []byte) (int, syscall.Errno) {
	s := p.connected(k, fd)
	switch {
	case s.shut:
		p.t.Errorf("a send after the shutdown")
	case s.owed:
		p.t.Errorf("a send while the socket is full")
	}
	s.sends++
	if s.err != 0 {
		return 0, s.err
	}
	n := len(b)
	if s.room >= 0 {
		n = min(n, s.room)
		s.room -= n
	}
	s.got = append(s.got, b[:n]...)
	s.owed = n < len(b)
	return n, 0
}
func (p *scripted) SendCopy(k poller.Key, fd int, b []byte) (int, syscall.Errno) {
	return p.Send(k, fd, b)
}
func (p *scripted) Flush()                                                     {}
func (p *scripted) Quiesce([]poller.Loan, poller.Handler, time.Duration, bool) {}
func (p *scripted) Lend(loans []poller.Loan) {
	for i := range loans {
		loans[i].File = loans[i].FD
	}
}
func (p *scripted) EndLend([]poller.Loan)            {}
func (p *scripted) CloseShared(k poller.Key, fd int) { p.Close(k, fd) }
func (p *scripted) ShutdownShared(poller.Key, int)   {}
func (p *scripted) Unsent(k poller.Key, fd int) int  { return p.connected(k, fd).unsent }
func (p *scripted) SetOption(k poller.Key, fd int, _ sys.Setting) error {
	p.connected(k, fd)
	return nil
}
func (p *scripted) Shutdown(k poller.Key, fd int) {
	s := p.connected(k, fd)
	if s.shut {
		p.t.Errorf("a second shutdown")
	}
	s.shut = true
}
func (p *scripted) Close(k poller.Key, fd int) {
	if k == 0 && (p.socks[k] == nil || p.socks[k].fd != fd) {
		p.unwanted = append(p.unwanted, fd)
		return
	}
	p.sock(k, fd).closed = true
}
func (p *scripted) Abort(k poller.Key, fd int) {
	p.Close(k, fd)
	p.socks[k].aborted = true
}
func (p *scripted) Wait(d time.Duration, h poller.Handler) error { return p.wait(d, h) }
func (p *scripted) Wake()                                        { p.wake() }
func (p *scripted) Release()                                     { p.released++ }

// script is a handler whose calls are written down, and answered as a test likes.
type script struct {
	data    func(c *Conn, b []byte) int
	eof     func(c *Conn) bool
	drained func(c *Conn)
	timer   func(c *Conn, now int64)
	closed  func(c *Conn, err error)
	log     []string
}

func (h *script) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *script) Data(c *Conn, b []byte) int {
	h.note("data %s", b)
	if h.data != nil {
		return h.data(c, b)
	}
	return len(b)
}

func (h *script) EndOfStream(c *Conn) bool {
	h.note("eof")
	return h.eof != nil && h.eof(c)
}

func (h *script) Drained(c *Conn) {
	h.note("drained")
	if h.drained != nil {
		h.drained(c)
	}
}

func (h *script) Timer(c *Conn, now int64) {
	h.note("timer")
	if h.timer != nil {
		h.timer(c, now)
	}
}

func (h *script) Closed(c *Conn, err error) {
	h.note("closed %v", err)
	if h.closed != nil {
		h.closed(c, err)
	}
}

// wants compares the calls of the handler since the last time.
func (h *script) wants(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(h.log, want) {
		t.Errorf("the handler's calls were\n\t%s\nand not\n\t%s", strings.Join(h.log, "\n\t"), strings.Join(want, "\n\t"))
	}
	h.log = nil
}

// stage is a loop under a test's hand: no goroutine, no clock of its own.
type stage struct {
	t *testing.T
	*Loop
	pollEvents
	p      *scripted
	g      *Group
	fd     int
	accept func(*Conn) Handler
}

func newStage(t *testing.T, cfg Config) *stage {
	t.Helper()
	s := &stage{t: t, fd: 1 << 20}
	s.p = &scripted{t: t, socks: map[poller.Key]*sock{}, unwatched: map[int]bool{}, wake: func() {}}
	cfg.Loops = 1
	g, err := newGroup(cfg, func(c *Conn) Handler { return s.accept(c) }, nil, func() (poller.Poller, error) { return s.p, nil })
	if err != nil {
		t.Fatal(err)
	}
	s.g, s.Loop = g, g.loops[0]
	s.pollEvents = pollEvents{s.Loop}
	s.accepting.addresses = []uint8{0, 1, 2, 3}
	return s
}

// connect accepts a connection for h.
func (s *stage) connect(h Handler) (*Conn, *sock) {
	s.t.Helper()
	var c *Conn
	s.accept = func(got *Conn) Handler {
		c = got
		return h
	}
	s.fd++
	s.Accepted(0, s.fd, netip.MustParseAddrPort("192.0.2.1:1234"))
	if c == nil {
		return nil, nil
	}
	return c, s.p.socks[c.key]
}

// at makes a tick at a time of the loop's clock, with the given events.
func (s *stage) at(now time.Duration, events ...func()) {
	s.t.Helper()
	s.now = int64(now)
	for _, e := range events {
		e()
	}
	if err := s.tick(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) receives(c *Conn, text string) { s.Received(c.key, []byte(text), 0) }
func (s *stage) ends(c *Conn)                  { s.Received(c.key, nil, 0) }

// takes makes a socket that was full take n more bytes; negative: everything.
func (s *stage) takes(c *Conn, n int) {
	k := s.p.socks[c.key]
	k.room = n
	if k.owed {
		k.owed = false
		s.Writable(c.key)
	}
}

func wantText(t *testing.T, s *sock, want string) {
	t.Helper()
	if string(s.got) != want {
		t.Errorf("the peer got %q, want %q", s.got, want)
	}
	s.got = nil
}

const ms = time.Millisecond

func shortStall(d time.Duration) Config { return Config{WriteStall: hub.Duration(d)} }

func (p *scripted) Adopt(fds []int32) (int, error) {
	for i := range fds {
		sys.Close(int(fds[i])) // there is no kernel here
		if p.refuseAdopt {
			return 0, syscall.ENFILE
		}
		p.adopted++
		fds[i] = 1<<24 + int32(p.adopted)
	}
	return len(fds), nil
}

// Connect takes the next of p.connects as its answer; none means that it starts.
func (p *scripted) Connect(k poller.Key, fd int, to *sys.Address) syscall.Errno {
	var e syscall.Errno
	if len(p.connects) > 0 {
		e, p.connects = p.connects[0], p.connects[1:]
	}
	p.socks[k] = &sock{fd: fd, connecting: true}
	return e
}
