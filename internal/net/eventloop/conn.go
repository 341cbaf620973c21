package eventloop

import (
	"errors"

	"github.com/weir-gateway/weir/internal/net/timerwheel"
)

// Why a connection ended, as Handler.Closed gets it. Other errors are the
// system's (a syscall.Errno), or say that a handler panicked.
var (
	ErrStopped   = errors.New("loop stopped")
	ErrStalled   = errors.New("write stalled")
	ErrQueueFull = errors.New("write queue is full")
	ErrParked    = errors.New("too much unconsumed input")
)

// A Handler is what a connection does: a protocol's state machine. The loop
// calls it on its own goroutine; it must not block. It may call any method of
// its own connection and of others of the loop, from any of its methods.
type Handler interface {
	// Data gets what arrived, after what was left the last time, and returns how
	// many bytes it consumed; the rest comes again with more. b is valid until
	// Data returns and may be changed in place.
	Data(c *Conn, b []byte) int
	// EndOfStream reports that the peer sends no more. A handler that still has to
	// answer returns true and closes later; false closes now, after one attempt
	// to send what was written.
	EndOfStream(c *Conn) bool
	// Drained reports that everything has left for the kernel, after some of it had
	// to wait for the socket or for the end of the tick.
	Drained(c *Conn)
	// Timer comes when the time given to SetTimer has come.
	Timer(c *Conn, now int64)
	// Closed is the last call. err is nil when this side closed in order.
	Closed(c *Conn, err error)
}

// A Conn is one connection. All methods are for its loop's goroutine, except
// where they say otherwise. A closed Conn may be kept: its methods do nothing.
//
// It has 112 bytes, which is a size class of the allocator: an idle connection
// has nothing else here.
type Conn struct {
	socket

	// Fixed at accept, or when it was dialled.
	accepted int64

	// Owned by loop's goroutine. No lock.
	handler Handler
	// parked is input that the handler did not consume; nil when there is none.
	parked *parkedInput
	// out is what waits to be sent; nil when there is nothing.
	out   *outQueue
	timer timerwheel.Timer[*Conn]
}

// Accepted is when c was accepted, adopted or connected, on the loop's clock. Any
// goroutine, but while it is connecting.
func (c *Conn) Accepted() int64 { return c.accepted }

// Handler returns the current handler. Once c is closing it is one of the loop's.
func (c *Conn) Handler() Handler {
	if f, ok := c.handler.(*filtered); ok {
		return f.Handler
	}
	return c.handler
}

// SetHandler changes what the connection does, for example after an upgrade.
func (c *Conn) SetHandler(h Handler) {
	at := &c.handler
	if p, ok := (*at).(*parting); ok {
		at = &p.last
	}
	if f, ok := (*at).(*filtered); ok {
		at = &f.Handler
	}
	*at = h
}

// SetTimer makes Handler.Timer come at now+d nanoseconds on the loop's clock,
// instead of what was set before; 0 clears it. It is exact to 100 ms, never early.
// It works after CloseAfterFlush until everything is sent.
func (c *Conn) SetTimer(d int64) {
	switch {
	case c.isClosed(), c.flags&(flagClosing|flagShut) == flagClosing|flagShut:
	case c.Connecting():
		dial := c.out.dialing()
		dial.timer = 0
		if d > 0 {
			dial.timer = c.loop.now + d
		}
		dial.schedule()
	case d <= 0:
		c.loop.timers.Stop(&c.timer)
	default:
		c.loop.timers.Schedule(&c.timer, c.loop.now+d)
	}
}

// TimerRemaining returns how long it is until Handler.Timer comes; 0 if it does not. It is not
// for a connection that is being dialled.
func (c *Conn) TimerRemaining() int64 { return int64(c.loop.timers.Until(&c.timer, c.loop.now)) }

// Stalled reports whether c waits for its socket to take more, or to be established.
func (c *Conn) Stalled() bool { return c.out != nil && c.out.waits() }

// Unsent returns the bytes that wait for the socket in this process.
func (c *Conn) Unsent() int {
	if c.out == nil {
		return 0
	}
	return c.out.bytes
}

// UnsentKernel returns the bytes that wait in the socket, 0 where several connections share
// it. It is a system call.
func (c *Conn) UnsentKernel() int {
	if c.isClosed() || c.Connecting() || c.fd == carried {
		return 0
	}
	return c.loop.poller.Unsent(c.key, int(c.fd))
}
