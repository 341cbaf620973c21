package eventloop

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// connector is a script that is notified when its connection is open.
type connector struct {
	script
	connected func(c *Conn)
}

func (h *connector) Connected(c *Conn) {
	h.note("connected")
	if h.connected != nil {
		h.connected(c)
	}
}

var somewhere = Endpoint{Addr: netip.MustParseAddrPort("127.0.0.1:9")}

// dials starts a connection for h.
func (s *stage) dials(h Connector, opt DialOptions) (*Conn, *sock) {
	s.t.Helper()
	c := s.Dial(somewhere, opt, h)
	return c, s.p.socks[c.key]
}

func TestWhatIsWrittenWhileConnectingWaits(t *testing.T) {
	f := func(name string, want string, act func(c *Conn), onConnected func(c *Conn), reported ...string) {
		t.Helper()
		s := newStage(t, Config{})
		h := &connector{connected: onConnected}
		c, k := s.dials(h, DialOptions{})
		s.at(ms, func() { act(c) })
		if len(k.got) > 0 || !c.Connecting() || !c.Stalled() || c.UnsentKernel() != 0 {
			t.Errorf("%s: it is treated as connected", name)
		}
		h.wants(t)
		s.at(2*ms, func() { s.Connected(c.key, 0) })
		wantText(t, k, want)
		h.wants(t, reported...)
		if c.Connecting() || c.Stalled() {
			t.Errorf("%s: it is not treated as connected", name)
		}
	}
	later := func(c *Conn) {
		c.Write([]byte(" later"))
		c.Send([]byte(" still"))
	}
	f("nothing", "", func(*Conn) {}, nil, "connected")
	f("write", "hello", func(c *Conn) { c.Write([]byte("hel")); c.Write([]byte("lo")) }, nil, "connected", "drained")
	f("send", "hello", func(c *Conn) { c.Send([]byte("hello")) }, nil, "connected", "drained")
	f("queue", "hello", func(c *Conn) { c.Queue([]byte("hello")) }, nil, "connected", "drained")
	f("both", "hello later still", func(c *Conn) { c.Write([]byte("hello")) }, later, "connected", "drained")
	f("then", " later still", func(*Conn) {}, later, "connected")
	f("the end", "bye", func(c *Conn) { c.Write([]byte("bye")); c.CloseAfterFlush(); c.Write([]byte("x")) }, nil)
	f("nothing and the end", "", func(c *Conn) { c.CloseAfterFlush() }, nil)
	f("half an end", "bye", func(c *Conn) { c.Write([]byte("bye")); c.CloseWrite(); c.Write([]byte("x")) }, nil, "connected")
	f("nothing and half an end", "", func(c *Conn) { c.CloseWrite() }, func(c *Conn) { c.Write([]byte("x")) }, "connected")
	f("half an end later", "", func(*Conn) {}, func(c *Conn) { c.CloseWrite() }, "connected")
	f("the end later", "x", func(*Conn) {}, func(c *Conn) { c.Write([]byte("x")); c.CloseAfterFlush() }, "connected")
}

func TestADialedConnectionIsAnOrdinaryOne(t *testing.T) {
	s := newStage(t, Config{})
	h := &connector{}
	c, k := s.dials(h, DialOptions{})
	s.at(time.Second, func() { s.Connected(c.key, 0) })
	s.receives(c, "news")
	s.ends(c)
	h.wants(t, "connected", "data news", "eof", "closed <nil>")
	if !k.closed || c.Listener() != -1 || c.Accepted() != int64(time.Second) || c.Peer() != somewhere.Addr {
		t.Errorf("closed %v, listener %d, connected at %d, peer %v", k.closed, c.Listener(), c.Accepted(), c.Peer())
	}
	s.at(time.Second)
	if n := s.Stats(); n.Dialed != 1 || n.DialFailed != 0 || n.Closed != 1 || n.Open != 0 || n.Accepted != 0 {
		t.Errorf("counters %+v", n)
	}
}

// However it fails, the handler is notified once, and not from Dial.
func TestAFailedDialIsReportedAfterDialReturns(t *testing.T) {
	var s *stage
	f := func(cfg Config, to Endpoint, opt DialOptions, want error, prepare, events func(c *Conn)) {
		t.Helper()
		s = newStage(t, cfg)
		prepare(nil)
		h := &connector{}
		c := s.Dial(to, opt, h)
		h.wants(t)
		c.Write([]byte("in vain"))
		s.at(ms, func() { events(c) })
		h.wants(t, fmt.Sprint("closed ", want))
		s.at(2 * ms)
		if n := s.Stats(); n.DialFailed != 1 || n.Dialed != 0 || n.Closed != 0 || n.Open != 0 || s.g.Open() != 0 {
			t.Errorf("%v: counters %+v, %d open", want, n, s.g.Open())
		}
		for _, k := range s.p.socks {
			if !k.closed {
				t.Errorf("%v: its descriptor %d stays", want, k.fd)
			}
		}
	}
	nothing := func(*Conn) {}
	tcp := DialOptions{}
	f(Config{}, somewhere, tcp, syscall.ECONNREFUSED, nothing, func(c *Conn) { s.Connected(c.key, syscall.ECONNREFUSED) })
	f(Config{}, somewhere, tcp, syscall.ENETUNREACH, func(*Conn) { s.p.connects = []syscall.Errno{syscall.ENETUNREACH} }, nothing)
	f(Config{}, somewhere, tcp, syscall.EAGAIN, func(*Conn) { s.p.connects = []syscall.Errno{syscall.EAGAIN} }, nothing)
	f(Config{}, somewhere, tcp, syscall.ENFILE, func(*Conn) { s.p.refuseAdopt = true }, nothing)
	f(Config{}, Endpoint{}, tcp, syscall.EDESTADDRREQ, nothing, nothing)
	f(Config{}, somewhere, DialOptions{Local: netip.MustParseAddr("192.0.2.1")}, syscall.EADDRNOTAVAIL, nothing, nothing)
	f(Config{}, somewhere, tcp, syscall.ENOSPC, func(*Conn) { s.p.refuseAdd = true }, func(c *Conn) { s.Connected(c.key, 0) })
	f(Config{}, somewhere, tcp, errBroken, nothing, func(c *Conn) { c.Close(errBroken) })
	f(Config{}, somewhere, tcp, errBroken, nothing, func(c *Conn) { c.Abort(errBroken) })
	f(Config{}, Endpoint{}, tcp, errBroken, nothing, func(c *Conn) { c.Abort(errBroken) })
}

func TestDialingCountsAgainstMaxConns(t *testing.T) {
	s := newStage(t, Config{MaxConns: 2})
	h := &connector{}
	s.connect(&script{})
	s.dials(h, DialOptions{})
	if c, _ := s.connect(&script{}); c != nil {
		t.Error("a third connection is accepted")
	}
	third := &connector{}
	s.dials(third, DialOptions{})
	s.at(ms)
	third.wants(t, "closed "+ErrTooManyConns.Error())
	if n := s.Stats(); n.Refused != 2 || n.Open != 2 {
		t.Errorf("counters %+v", n)
	}
}

func TestAHandlerMayDialAgainWhenItFails(t *testing.T) {
	s := newStage(t, Config{})
	tries := 0
	h := &connector{}
	h.closed = func(*Conn, error) {
		if tries++; tries < 3 {
			s.Dial(Endpoint{}, DialOptions{}, h)
		}
	}
	s.Dial(Endpoint{}, DialOptions{}, h)
	for i := range 3 {
		if s.timeout() != 0 {
			t.Error("the loop sleeps on a failure")
		}
		s.at(time.Duration(i))
		if tries != i+1 {
			t.Errorf("%d tries after %d ticks", tries, i+1)
		}
	}
}

func TestConnectingIsBoundedInTime(t *testing.T) {
	f := func(opt DialOptions, before, after time.Duration) {
		t.Helper()
		s := newStage(t, Config{})
		h := &connector{}
		c, k := s.dials(h, opt)
		c.SetTimer(int64(300 * ms))
		c.SetTimer(0)
		s.at(before)
		h.wants(t)
		s.at(after)
		h.wants(t, "closed "+ErrDialTimeout.Error())
		if !k.closed {
			t.Error("its socket stays")
		}
		s.Connected(c.key, 0) // too late
		h.wants(t)
	}
	f(DialOptions{}, 9900*ms, 10200*ms)
	f(DialOptions{Timeout: 500 * ms}, 400*ms, 700*ms)
}

func TestAHandlersTimerRunsWhileConnecting(t *testing.T) {
	s := newStage(t, Config{})
	h := &connector{}
	c, _ := s.dials(h, DialOptions{Timeout: time.Second})
	c.SetTimer(int64(300 * ms))
	s.at(450 * ms)
	h.wants(t, "timer")
	c.SetTimer(int64(2 * time.Second))
	s.at(600*ms, func() { s.Connected(c.key, 0) })
	h.wants(t, "connected")
	s.at(1500 * ms) // the dial's own time is over, and means nothing
	h.wants(t)
	s.at(2600 * ms)
	h.wants(t, "timer")
}

func TestPausedWhileDialingIsPausedAfter(t *testing.T) {
	s := newStage(t, Config{})
	h := &connector{}
	c, k := s.dials(h, DialOptions{})
	c.PauseReading()
	c.ResumeReading()
	c.PauseReading()
	s.Connected(c.key, 0)
	if k.reading {
		t.Error("it reads")
	}
	c.ResumeReading()
	if !k.reading {
		t.Error("it does not read")
	}
}

func TestAFullUnixListenerIsTriedAgain(t *testing.T) {
	s := newStage(t, Config{})
	h := &connector{}
	s.p.connects = []syscall.Errno{syscall.EAGAIN, syscall.EAGAIN, 0}
	c := s.Dial(Endpoint{Path: "@weir"}, DialOptions{Timeout: time.Second}, h)
	s.at(150 * ms)
	s.at(150 * ms)
	if len(s.p.connects) != 1 {
		t.Errorf("%d answers are left, want 1", len(s.p.connects))
	}
	s.at(300 * ms)
	if len(s.p.connects) != 0 {
		t.Error("it was not tried again")
	}
	s.Connected(c.key, 0)
	h.wants(t, "connected")
	if c.Peer().IsValid() {
		t.Errorf("the peer of a Unix socket is %v", c.Peer())
	}

	s.p.connects = bytes2errno(bytes.Repeat([]byte{byte(syscall.EAGAIN)}, 20))
	late := &connector{}
	s.Dial(Endpoint{Path: "@weir"}, DialOptions{Timeout: time.Second}, late)
	for d := 400 * ms; d < 2*time.Second; d += 100 * ms {
		s.at(d)
	}
	late.wants(t, "closed "+ErrDialTimeout.Error())
}

func bytes2errno(b []byte) (list []syscall.Errno) {
	for _, e := range b {
		list = append(list, syscall.Errno(e))
	}
	return list
}

func TestMoreThanTheQueueHoldsEndsTheDial(t *testing.T) {
	s := newStage(t, Config{MaxQueue: 64 << 10})
	h := &connector{}
	c, k := s.dials(h, DialOptions{})
	c.Send(make([]byte, 64<<10))
	c.Write([]byte("x"))
	h.wants(t, "closed "+ErrQueueFull.Error())
	if !k.closed {
		t.Error("its socket stays")
	}
}

func TestAPanicWhenConnectedEndsThatConnection(t *testing.T) {
	s := newStage(t, Config{})
	h := &connector{connected: func(*Conn) { panic("oops") }}
	c, k := s.dials(h, DialOptions{})
	c.Write([]byte("x"))
	s.at(ms, func() { s.Connected(c.key, 0) })
	h.wants(t, "connected", "closed panic: oops")
	if !k.closed {
		t.Error("it stays")
	}
}

func TestALoopThatEndsDialsNoMore(t *testing.T) {
	s := newStage(t, Config{})
	h, again := &connector{}, &connector{}
	var late *Conn
	h.closed = func(*Conn, error) { late = s.Dial(somewhere, DialOptions{}, again) }
	c, k := s.dials(h, DialOptions{})
	s.shutDown()
	h.wants(t, "closed "+ErrStopped.Error())
	again.wants(t)
	if !k.closed || !c.Closing() || !late.Closing() || s.p.adopted != 1 || s.g.Open() != 0 {
		t.Error("something is open")
	}
	if s.Adopt(-1, netip.AddrPort{}, nil, again) {
		t.Error("it adopts")
	}
}

func TestAFilterMayBeSetBeforeTheConnectionIsOpen(t *testing.T) {
	s := newStage(t, Config{})
	h := &connector{}
	h.connected = func(c *Conn) { c.Write([]byte("b")) }
	c, k := s.dials(h, DialOptions{})
	c.Write([]byte("raw"))
	c.SetFilter(&brackets{}, nil)
	c.Write([]byte("a"))
	s.at(ms, func() { s.Connected(c.key, 0) })
	if got := string(k.got); got != "raw<ab>" && got != "raw<a><b>" {
		t.Errorf("the peer got %q", got)
	}
	h.wants(t, "connected", "drained")
	if c.Handler() != Handler(h) {
		t.Error("another handler")
	}
}

func TestWhatWasReadBeforeTheAdoptionComesFirst(t *testing.T) {
	f := func(h Handler, log *[]string, want ...string) {
		t.Helper()
		s := newStage(t, Config{})
		peer := netip.MustParseAddrPort("192.0.2.1:80")
		fd := newSocket(t)
		if !s.Adopt(fd, peer, []byte("early"), h) {
			t.Fatal("not adopted")
		}
		if len(*log) > 0 {
			t.Error("the handler was notified at once")
		}
		s.at(ms)
		if fmt.Sprint(*log) != fmt.Sprint(want) {
			t.Errorf("notified %q, want %q", *log, want)
		}
		s.at(2 * ms)
		if n := s.Stats(); n.Adopted != 1 || n.Open != 1 || n.BytesIn != 5 {
			t.Errorf("counters %+v", n)
		}
		if got := s.table.conns[0].Peer(); got != peer {
			t.Errorf("peer %v, want %v", got, peer)
		}
	}
	plain, reported := &script{}, &connector{}
	f(plain, &plain.log, "data early")
	f(reported, &reported.log, "connected", "data early")
}

func TestASocketThatCannotBeAdoptedIsReportedAndClosed(t *testing.T) {
	f := func(cfg Config, fd int, prepare func(s *stage), want error) {
		t.Helper()
		s := newStage(t, cfg)
		prepare(s)
		h := &script{}
		s.Adopt(fd, netip.AddrPort{}, []byte("early"), h)
		s.at(ms)
		h.wants(t, fmt.Sprint("closed ", want))
		s.at(ms)
		if n := s.Stats(); n.Adopted != 0 || n.DialFailed != 1 {
			t.Errorf("counters %+v", n)
		}
		if fd >= 0 && syscall.SetNonblock(fd, true) == nil {
			t.Errorf("%v: the descriptor is open", want)
		}
	}
	f(Config{MaxConns: 1}, newSocket(t), func(s *stage) { s.connect(&script{}) }, ErrTooManyConns)
	f(Config{}, newSocket(t), func(s *stage) { s.p.refuseAdopt = true }, syscall.ENFILE)
	f(Config{}, -1, func(*stage) {}, syscall.EBADF)
}

func newSocket(t *testing.T) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestErrorsOfDialsAreTheSystems(t *testing.T) {
	s := newStage(t, Config{})
	var why error
	h := &connector{}
	h.closed = func(_ *Conn, err error) { why = err }
	s.Dial(somewhere, DialOptions{Local: netip.MustParseAddr("192.0.2.1")}, h)
	s.at(ms)
	if e, ok := why.(syscall.Errno); !ok || !errors.Is(e, syscall.EADDRNOTAVAIL) {
		t.Errorf("%#v", why)
	}
}
