package eventloop

import (
	"errors"
	"net/netip"

	"github.com/weir-gateway/weir/internal/poller"
	"github.com/weir-gateway/weir/internal/sys"
	"github.com/weir-gateway/weir/internal/timerwheel"
)

// Why a connection ended, as Handler.Closed gets it.
var (
	ErrStopped  = errors.New("loop stopped")
	ErrStalled  = errors.New("write stalled")
	ErrQueueFul = errors.New("write queue is full")
	ErrParked   = errors.New("too much unconsumed input")
)

// A Handler is what a connection does: a protocol's state machine. The loop
// calls it on its own goroutine; it must not block.
type Handler interface {
	// Data gets what arrived, after what was left the last time, and returns how
	// many bytes it consumed; the rest comes again with more. b is valid until
	// Data returns and may be changed in place.
	Data(c *Conn, b []byte) int
	// EndOfStream says that the peer sends no more. A handler that still has to
	// answer returns true and closes later; false closes now.
	EndOfStream(c *Conn) bool
	// Drained says that everything has left for the kernel, after some of it had
	// to wait for the socket or for the end of the tick.
	Drained(c *Conn)
	// Timer comes when the time given to SetTimer has come.
	Timer(c *Conn, now int64)
	// Closed is the last call. err is nil when this side closed in order.
	Closed(c *Conn, err error)
}

// A Conn is one connection. All methods are for its loop's goroutine, except
// where they say otherwise.
type Conn struct {
	// Fixed at accept.
	loop     *Loop
	key      poller.Key
	accepted int64
	peerIP   netip.Addr
	fd       int32
	peerPort uint16
	listener uint8

	// Owned by loop's goroutine. No lock.
	flags   flags
	handler Handler
	// parked is input that the handler did not consume; nil when there is none.
	parked []byte
	// out is what the socket did not take; nil when there is nothing.
	out   *outQueue
	timer timerwheel.Timer[*Conn]
}

type flags uint8

const (
	flagClosed      flags = 1 << iota
	flagClosing           // close once out is empty
	flagDirty             // in loop.dirty
	flagStalled           // in loop.stalled
	flagNoRead            // reading is paused
	flagEOF               // the peer sends no more
	flagDispatching       // a Data call is running
	flagWaiting           // the socket did not take everything: Writable will come
)

// Loop returns the loop that owns c. Any goroutine.
func (c *Conn) Loop() *Loop { return c.loop }

// Peer returns the other side's address. Any goroutine.
func (c *Conn) Peer() netip.AddrPort { return netip.AddrPortFrom(c.peerIP, c.peerPort) }

// ID is unique among the open connections of the process. Any goroutine.
func (c *Conn) ID() uint64 { return uint64(c.loop.id)<<56 | uint64(c.key) }

// Listener is the index of the listener that accepted c. Any goroutine.
func (c *Conn) Listener() int { return int(c.listener) }

// Accepted is when c was accepted, on the loop's clock. Any goroutine.
func (c *Conn) Accepted() int64 { return c.accepted }

// Handler returns the current handler.
func (c *Conn) Handler() Handler { return c.handler }

// SetHandler changes what the connection does, for example after an upgrade.
func (c *Conn) SetHandler(h Handler) { c.handler = h }

// SetTimer makes Handler.Timer come at now+d nanoseconds on the loop's clock,
// instead of what was set before; 0 clears it. It is exact to 100 ms, never early.
func (c *Conn) SetTimer(d int64) {
	if d <= 0 {
		c.loop.timers.Stop(&c.timer)
		return
	}
	c.loop.timers.Schedule(&c.timer, c.loop.now+d)
}

// Again shows the handler once more what it left unconsumed.
func (c *Conn) Again() {
	if c.flags&(flagDispatching|flagNoRead|flagClosed) == 0 && len(c.parked) > 0 {
		c.received(nil)
	}
}

// Stalled reports whether c waits for its socket to take more.
func (c *Conn) Stalled() bool { return c.flags&flagWaiting != 0 }

func (c *Conn) isClosed() bool { return c.flags&flagClosed != 0 }

// Closing reports whether c is closed or about to be: nothing more is sent.
func (c *Conn) Closing() bool { return c.flags&(flagClosed|flagClosing) != 0 }

// PauseReading stops Data calls until ResumeReading; the peer is held back by
// the socket's window.
func (c *Conn) PauseReading() {
	if c.flags&(flagNoRead|flagClosed|flagEOF) == 0 {
		c.flags |= flagNoRead
		c.loop.poller.SetReading(c.key, int(c.fd), false)
	}
}

// ResumeReading undoes PauseReading. What was left unconsumed is shown again at once.
func (c *Conn) ResumeReading() {
	if c.isClosed() || c.flags&flagNoRead == 0 {
		return
	}
	c.flags &^= flagNoRead
	if c.flags&flagEOF == 0 {
		c.loop.poller.SetReading(c.key, int(c.fd), true)
	}
	if c.flags&flagDispatching == 0 && len(c.parked) > 0 {
		c.received(nil)
	}
	if c.flags&flagEOF != 0 && !c.isClosed() && c.flags&(flagNoRead|flagDispatching) == 0 {
		c.tellEndOfStream()
	}
}

// received shows b, after what is parked, to the handler until it stops
// consuming, and parks the rest.
func (c *Conn) received(b []byte) {
	if len(c.parked) > 0 {
		if len(c.parked)+len(b) > c.loop.limits.maxParked {
			c.Close(ErrParked)
			return
		}
		b = append(c.parked, b...)
		c.parked = nil
	}
	defer func() {
		if r := recover(); r != nil {
			c.flags &^= flagDispatching
			c.loop.panicked(c, r)
		}
	}()
	c.flags |= flagDispatching
	for len(b) > 0 && c.flags&(flagNoRead|flagClosed) == 0 {
		n := c.handler.Data(c, b)
		b = b[n:]
		if n == 0 {
			break
		}
	}
	c.flags &^= flagDispatching
	if len(b) > 0 && !c.isClosed() {
		c.park(b)
	}
}

// park keeps unconsumed input. The buffer grows with what is there, at most to
// the limit, and is given up as soon as it is consumed.
func (c *Conn) park(b []byte) {
	if len(b) > c.loop.limits.maxParked {
		c.Close(ErrParked)
		return
	}
	c.parked = append(make([]byte, 0, max(256, len(b)+len(b)/2)), b...)
}

func (c *Conn) endOfStream() {
	if c.flags&flagEOF != 0 {
		c.Close(nil)
		return
	}
	c.flags |= flagEOF
	c.loop.poller.SetReading(c.key, int(c.fd), false)
	if c.flags&flagNoRead == 0 {
		c.tellEndOfStream()
	}
}

func (c *Conn) tellEndOfStream() {
	stay := false
	c.loop.guard(c, func() { stay = c.handler.EndOfStream(c) })
	if !stay && !c.isClosed() {
		c.loop.flushGather()
		if c.out == nil || !c.isClosed() && c.flags&flagClosing == 0 {
			c.Close(nil)
		}
	}
}

// CloseAfterFlush closes once everything written has been taken by the kernel.
// Nothing can be written any more.
func (c *Conn) CloseAfterFlush() {
	if c.Closing() {
		return
	}
	c.loop.flushGatherOf(c)
	if c.isClosed() {
		return
	}
	c.flags |= flagClosing
	if c.out == nil {
		c.linger()
	}
}

// linger ends the sending side and reads on for a moment: closing with unread
// input would reset the connection and could take the answer with it
// (RFC 9112 §9.6).
func (c *Conn) linger() {
	if c.flags&flagEOF != 0 {
		c.Close(nil)
		return
	}
	c.loop.poller.Shutdown(c.key, int(c.fd))
	c.handler = &lingering{last: c.handler}
	c.parked = nil
	if c.flags&flagNoRead != 0 {
		c.flags &^= flagNoRead
		c.loop.poller.SetReading(c.key, int(c.fd), true)
	}
	c.SetTimer(lingerTime)
}

// Close closes at once. What was not sent is lost. err is what Handler.Closed gets.
func (c *Conn) Close(err error) {
	if c.isClosed() {
		return
	}
	l := c.loop
	if l.gathering == c {
		l.gather, l.gathering = l.gather[:0], nil
	}
	c.flags |= flagClosed
	l.timers.Stop(&c.timer)
	l.poller.Close(c.key, int(c.fd))
	l.release(c)
	c.parked, c.out = nil, nil
	l.n.closed++
	if c.handler != nil {
		l.guard(nil, func() { c.handler.Closed(c, err) })
	}
}

// Abort closes with a reset, so that the peer cannot take what it got for whole.
func (c *Conn) Abort(err error) {
	if !c.isClosed() {
		sys.SetLingerZero(int(c.fd))
		c.Close(err)
	}
}

// Unsent returns the bytes that wait for the socket in this process.
func (c *Conn) Unsent() int {
	if c.out == nil {
		return 0
	}
	return c.out.bytes
}

// UnsentKernel returns the bytes that wait in the socket. It is a system call.
func (c *Conn) UnsentKernel() int { return sys.Unsent(int(c.fd)) }

const (
	lingerTime  = int64(2e9)
	lingerBytes = 256 << 10
)

// lingering discards input until the peer closes, sends too much or takes too long.
type lingering struct {
	last  Handler
	bytes int
}

func (h *lingering) Data(c *Conn, b []byte) int {
	if h.bytes += len(b); h.bytes > lingerBytes {
		c.Close(nil)
	}
	return len(b)
}
func (h *lingering) EndOfStream(*Conn) bool    { return false }
func (h *lingering) Drained(*Conn)             {}
func (h *lingering) Timer(c *Conn, _ int64)    { c.Close(nil) }
func (h *lingering) Closed(c *Conn, err error) { h.last.Closed(c, err) }

type nopHandler struct{}

func (nopHandler) Data(_ *Conn, b []byte) int { return len(b) }
func (nopHandler) EndOfStream(*Conn) bool     { return false }
func (nopHandler) Drained(*Conn)              {}
func (nopHandler) Timer(*Conn, int64)         {}
func (nopHandler) Closed(*Conn, error)        {}
