package eventloop

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// client is a Connector of functions, any of which may be nil.
type client struct {
	funcs
	connected func(c *Conn)
	ended     func(c *Conn) bool
}

func (h *client) Connected(c *Conn) {
	if h.connected != nil {
		h.connected(c)
	}
}

func (h *client) EndOfStream(c *Conn) bool { return h.ended != nil && h.ended(c) }

func TestEnginesDialThousandsAtOnceFromManyAddresses(t *testing.T) {
	eachEngine(t, Config{Loops: 2}, echoing, func(t *testing.T, r *real) {
		const each = 1000
		var answered, failed, from atomic.Int64
		r.onLoops(func(l *Loop) {
			for i := range each {
				want := []byte{byte(i), byte(i >> 8)}
				local := netip.AddrFrom4([4]byte{127, 0, 1, byte(i)})
				h := &client{connected: func(c *Conn) { c.Write(want[1:]) }}
				h.data = func(_ *Conn, b []byte) int {
					if len(b) == len(want) && bytes.Equal(b, want) {
						answered.Add(1)
					}
					return len(b) / len(want) * len(want)
				}
				h.closed = func(_ *Conn, err error) { failed.Add(1); t.Log(err) }
				c := l.Dial(Endpoint{Addr: r.addr}, DialOptions{Local: local}, h)
				c.Write(want[:1])
			}
		})
		r.until("all are answered", func() bool { return answered.Load()+failed.Load() == 2*each })
		r.onLoops(func(l *Loop) {
			l.Conns(func(c *Conn) bool {
				if a := c.Peer().Addr(); c.Listener() == 0 && a.As4()[2] == 1 {
					from.Add(1)
				}
				return true
			})
		})
		if failed.Load() != 0 || from.Load() != 2*each {
			t.Errorf("%d failed; %d come from the addresses that were asked for, want %d", failed.Load(), from.Load(), 2*each)
		}
		if n := r.Open(); n != 4*each { // both ends are here
			t.Errorf("%d are open, want %d", n, 4*each)
		}
	})
}

func TestEnginesReportWhyADialFails(t *testing.T) {
	t.Parallel()
	eachEngine(t, Config{Loops: 1}, echoing, func(t *testing.T, r *real) {
		f := func(to Endpoint, opt DialOptions, want error) {
			t.Helper()
			why := make(chan error, 1)
			r.onLoops(func(l *Loop) {
				h := &client{}
				h.closed = func(_ *Conn, err error) { why <- err }
				l.Dial(to, opt, h).Write([]byte("x"))
			})
			if err := <-why; !errors.Is(err, want) {
				t.Errorf("%v: %v, want %v", to, err, want)
			}
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		gone := Endpoint{Addr: ln.Addr().(*net.TCPAddr).AddrPort()}
		ln.Close()
		f(gone, DialOptions{}, syscall.ECONNREFUSED)
		f(Endpoint{Path: filepath.Join(t.TempDir(), "none")}, DialOptions{}, syscall.ENOENT)
		f(gone, DialOptions{Local: netip.MustParseAddr("192.0.2.1")}, syscall.EADDRNOTAVAIL)
		full := fullListener(t)
		f(Endpoint{Addr: full}, DialOptions{Timeout: 200 * time.Millisecond}, ErrDialTimeout)
	})
}

// fullListener answers no one: its backlog is full.
func fullListener(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	sa := &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if err := errors.Join(syscall.Bind(fd, sa), syscall.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	got, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(got.(*syscall.SockaddrInet4).Port))
	for {
		c, err := net.DialTimeout("tcp", addr.String(), 300*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { c.Close() })
	}
}

// A Unix listener with a full backlog is waited for.
func TestEnginesWaitForAFullUnixListener(t *testing.T) {
	eachEngine(t, Config{Loops: 1}, echoing, func(t *testing.T, r *real) {
		path := filepath.Join(t.TempDir(), "s")
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 1)); err != nil {
			t.Fatal(err)
		}
		const n = 6 // more than a backlog of 1 takes
		var stand, failed atomic.Int64
		r.onLoops(func(l *Loop) {
			for range n {
				h := &client{connected: func(*Conn) { stand.Add(1) }}
				h.closed = func(_ *Conn, err error) { failed.Add(1); t.Log(err) }
				l.Dial(Endpoint{Path: path}, DialOptions{Timeout: time.Minute}, h)
			}
		})
		if err := syscall.SetNonblock(fd, true); err != nil {
			t.Fatal(err)
		}
		r.until("all open", func() bool {
			if c, _, err := syscall.Accept(fd); err == nil {
				t.Cleanup(func() { syscall.Close(c) })
			}
			return stand.Load()+failed.Load() == n
		})
		if failed.Load() != 0 {
			t.Errorf("%d failed", failed.Load())
		}
	})
}

// The peer reads to the end of what was written, and its answer after that
// arrives complete, though it is read late.
func TestEnginesCloseTheSendingSide(t *testing.T) {
	answer := bytes.Repeat([]byte("answer"), 50_000)
	for _, pause := range []bool{false, true} {
		eachEngine(t, Config{Loops: 1, MaxQueue: 64 << 20}, echoing, func(t *testing.T, r *real) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			request := bytes.Repeat([]byte("request"), 1<<20)
			var mu sync.Mutex
			var got []byte
			var conn *Conn
			done := make(chan error, 1)
			r.onLoops(func(l *Loop) {
				h := &client{}
				h.connected = func(c *Conn) {
					if pause {
						c.PauseReading()
					}
					c.Send(request)
					c.CloseWrite()
				}
				h.data = func(_ *Conn, b []byte) int {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, b...)
					return len(b)
				}
				h.ended = func(*Conn) bool { return true }
				h.closed = func(_ *Conn, err error) { done <- err }
				conn = l.Dial(Endpoint{Addr: ln.Addr().(*net.TCPAddr).AddrPort()}, DialOptions{}, h)
			})
			c, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if b, err := io.ReadAll(c); err != nil || !bytes.Equal(b, request) {
				t.Errorf("the peer read %d bytes of %d, %v", len(b), len(request), err)
			}
			if _, err := c.Write(answer); err != nil {
				t.Fatal(err)
			}
			c.Close()
			if pause {
				for range 20 {
					r.onLoops(func(*Loop) {})
				}
				mu.Lock()
				if len(got) > 0 || len(done) > 0 {
					t.Errorf("%d bytes were shown while paused; closed: %d", len(got), len(done))
				}
				mu.Unlock()
				r.onLoops(func(*Loop) { conn.ResumeReading() })
			}
			if err := <-done; err != nil || !bytes.Equal(got, answer) {
				t.Errorf("%d bytes of %d arrived, then %v", len(got), len(answer), err)
			}
		})
	}
}

func TestEnginesAdopt(t *testing.T) {
	eachEngine(t, Config{Loops: 1}, echoing, func(t *testing.T, r *real) {
		ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		c, err := net.DialTCP("tcp", nil, ln.Addr().(*net.TCPAddr))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		accepted, err := ln.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		fd := dup(t, accepted)
		accepted.Close()
		if _, err := c.Write([]byte("late ")); err != nil {
			t.Fatal(err)
		}
		l := r.Loops()[0]
		if !l.Adopt(fd, c.LocalAddr().(*net.TCPAddr).AddrPort(), []byte("early "), echoing(nil)) {
			t.Fatal("not adopted")
		}
		got := make([]byte, len("early late "))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "early late " {
			t.Errorf("%q, %v", got, err)
		}
		r.until("it is counted", func() bool { return l.Stats().Adopted == 1 })
	})
}

// dup returns a descriptor of c's socket that is the caller's.
func dup(t *testing.T, c *net.TCPConn) (fd int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(p uintptr) { fd, err = syscall.Dup(int(p)) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}
