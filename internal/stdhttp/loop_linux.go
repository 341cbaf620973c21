package stdhttp

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/tlsterm"
)

// TakeFromLoop serves c, a connection of an event loop, from now on: what its
// client says goes through the loop to net/http. early is what came already and is
// not the loop's any more. It is for c's loop, and for c's handler at that; local
// is the address that the client connected to.
func (f *Front) TakeFromLoop(c *eventloop.Conn, early []byte, local netip.AddrPort) {
	lc := &loopConn{c: c, loop: c.Loop(), peer: c.Peer(), local: local, encrypted: c.Filtered(), in: append([]byte(nil), early...)}
	if p := tlsterm.PeerOf(c); p != nil {
		lc.certificate = p.Certificate
	}
	lc.changed = sync.NewCond(&lc.mu)
	lc.push, _ = f.push.(*push.Push) // UseTurns's; nothing else is stored
	c.SetTimer(0)
	c.SetHandler(lc)
	go f.Take(lc) // it may have to wait for its turn; a loop must not
}

// loopConn is an event loop's connection as a net.Conn.
type loopConn struct {
	// Fixed at TakeFromLoop.
	c           *eventloop.Conn // for its loop
	loop        *eventloop.Loop
	peer, local netip.AddrPort
	encrypted   bool
	certificate *auth.Certificate // the client's; nil: none
	push        *push.Push        // nil: nothing waits for its turn

	mu      sync.Mutex
	changed *sync.Cond
	in      []byte // read by the loop, not yet by us
	paused  bool   // in is at its bound
	ended   bool   // the client sends no more
	closed  bool   // by either side
	failed  error  // why the loop closed it
	// posted is what was handed to the loop in all, taken what the socket took of it.
	posted, taken   uint64
	readBy, writeBy time.Time
	timers          [2]*time.Timer
}

const (
	maxLoopIn  = 64 << 10
	maxLoopOut = 256 << 10
)

var (
	_ net.Conn          = (*loopConn)(nil)
	_ eventloop.Handler = (*loopConn)(nil)
)

// Encrypted reports whether the client speaks TLS to the loop.
func (l *loopConn) Encrypted() bool { return l.encrypted }

// Certificate returns what the client's TLS handshake with the loop has proven.
func (l *loopConn) Certificate() *auth.Certificate { return l.certificate }

// OnlyHTTP2 says that the loops hand over nothing but HTTP/2.
func (l *loopConn) OnlyHTTP2() bool { return true }

// Data implements eventloop.Handler.
func (l *loopConn) Data(c *eventloop.Conn, b []byte) int {
	l.mu.Lock()
	l.in = append(l.in, b...)
	if len(l.in) >= maxLoopIn && !l.paused {
		l.paused = true
		c.PauseReading()
	}
	l.changed.Broadcast()
	l.mu.Unlock()
	return len(b)
}

// EndOfStream implements eventloop.Handler.
func (l *loopConn) EndOfStream(*eventloop.Conn) bool {
	l.mu.Lock()
	l.ended = true
	l.changed.Broadcast()
	l.mu.Unlock()
	return true
}

// Drained implements eventloop.Handler.
func (l *loopConn) Drained(*eventloop.Conn) { l.sent() }

// sent tells that the socket has taken all that was posted so far. Loop only.
func (l *loopConn) sent() {
	l.mu.Lock()
	l.taken = l.posted
	l.changed.Broadcast()
	l.mu.Unlock()
}

// Timer implements eventloop.Handler.
func (l *loopConn) Timer(*eventloop.Conn, int64) {}

// Closed implements eventloop.Handler.
func (l *loopConn) Closed(_ *eventloop.Conn, err error) {
	l.mu.Lock()
	l.closed, l.failed = true, err
	l.changed.Broadcast()
	l.mu.Unlock()
}

// Read implements net.Conn.
func (l *loopConn) Read(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.in) == 0 {
		switch {
		case l.failed != nil:
			return 0, l.failed
		case l.closed:
			return 0, net.ErrClosed
		case l.ended:
			return 0, io.EOF
		case late(l.readBy):
			return 0, os.ErrDeadlineExceeded
		}
		l.changed.Wait()
	}
	n := copy(b, l.in)
	if l.in = l.in[n:]; len(l.in) == 0 {
		l.in = nil
	}
	if l.paused && len(l.in) < maxLoopIn/2 {
		l.paused = false
		l.loop.Post(l.c.ResumeReading)
	}
	return n, nil
}

// Write implements net.Conn. It waits while too much is on its way already.
func (l *loopConn) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := 0
	for done < len(b) {
		for l.posted-l.taken >= maxLoopOut && !l.closed && !late(l.writeBy) {
			l.changed.Wait()
		}
		switch {
		case l.closed:
			return done, net.ErrClosed
		case late(l.writeBy):
			return done, os.ErrDeadlineExceeded
		}
		piece := append([]byte(nil), b[done:min(len(b), done+maxLoopOut)]...)
		done += len(piece)
		l.posted += uint64(len(piece))
		l.loop.Post(func() {
			l.c.Send(piece)
			if l.c.Unsent() == 0 {
				l.sent()
			}
		})
	}
	return done, nil
}

// late reports whether a deadline is over.
func late(by time.Time) bool { return !by.IsZero() && !time.Now().Before(by) }

// Close implements net.Conn. What was written still goes out.
func (l *loopConn) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.timers {
		if t != nil {
			t.Stop()
		}
	}
	if l.closed {
		return nil
	}
	l.closed = true
	l.changed.Broadcast()
	l.loop.Post(l.c.CloseAfterFlush)
	return nil
}

// LocalAddr implements net.Conn.
func (l *loopConn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(l.local) }

// RemoteAddr implements net.Conn.
func (l *loopConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(l.peer) }

// SetDeadline implements net.Conn.
func (l *loopConn) SetDeadline(t time.Time) error {
	l.setBy(&l.readBy, 0, t)
	l.setBy(&l.writeBy, 1, t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (l *loopConn) SetReadDeadline(t time.Time) error { l.setBy(&l.readBy, 0, t); return nil }

// SetWriteDeadline implements net.Conn.
func (l *loopConn) SetWriteDeadline(t time.Time) error { l.setBy(&l.writeBy, 1, t); return nil }

func (l *loopConn) setBy(by *time.Time, timer int, t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*by = t
	if old := l.timers[timer]; old != nil {
		old.Stop()
		l.timers[timer] = nil
	}
	switch {
	case t.IsZero() || l.closed:
	case late(t):
		l.changed.Broadcast()
	default:
		l.timers[timer] = time.AfterFunc(time.Until(t), func() {
			l.mu.Lock()
			l.changed.Broadcast()
			l.mu.Unlock()
		})
	}
}
