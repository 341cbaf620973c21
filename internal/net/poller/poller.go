// Package poller moves bytes between the kernel and one event loop. It is
// shaped by completion: the loop passes bytes and is notified of what arrived.
// Epoll imitates that in a page (epoll_linux.go); an io_uring can do it
// natively behind the same interface.
package poller

import (
	"net/netip"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// A Key names a connection: its slot in the loop's table in the low 32 bits,
// and the slot's generation above, so that an event for a closed connection is
// never treated as its successor's.
type Key uint64

// Slot returns the slot of k.
func (k Key) Slot() uint32 { return uint32(k) }

// A Handler is notified of what happened during Wait. It may call any method of the
// Poller but Wait.
type Handler interface {
	// TickStarted comes first in every Wait, before any event.
	TickStarted()
	// Accepted passes on a new connection of a listener; it belongs to the loop.
	Accepted(listener int, fd int, peer netip.AddrPort)
	// AcceptFailed reports that connections wait and cannot be taken. The loop
	// pauses the listener, or it would be called again at once.
	AcceptFailed(listener int, err syscall.Errno)
	// Connected reports that a connection is open, or why not. The loop may Add it.
	Connected(k Key, err syscall.Errno)
	// Received passes on bytes, valid until it returns. err is non-zero when the
	// connection broke; no bytes and no error is the end of the peer's stream.
	Received(k Key, b []byte, err syscall.Errno)
	// FD returns the descriptor of a connection that is still open.
	FD(k Key) (int, bool)
	// Writable reports that a Send that took too little may be tried again.
	Writable(k Key)
}

// A Loan is a connection that is to be sent to another process.
type Loan struct {
	Key  Key
	FD   int
	Part Part

	// File is a descriptor of the process for it, or for InputOnly 0; -1: it cannot be lent, because
	// something is in flight or the kernel is too old.
	File int
	// Input is what was received of it and not passed on, Unsent what Send took and the kernel has not.
	Input, Unsent []byte
}

// A Part says what is lent of a connection.
type Part uint8

const (
	// SocketAndInput is the socket and the input that was not passed on. Quiesce comes first.
	SocketAndInput Part = iota
	// SocketOnly is the socket alone, of a connection that continues here meanwhile.
	SocketOnly
	// InputOnly is the input alone: the other process has the socket. Quiesce comes first.
	InputOnly
)

// A Poller serves one loop. All methods but Wake belong to the loop's goroutine,
// which the first Wait may lock to its thread (an io_uring belongs to one);
// Release unlocks it. Before the first Wait any one goroutine may call them.
//
// A descriptor that Accepted passes on is for the Poller's methods only: with
// io_uring it is none of the process's.
type Poller interface {
	// Listen starts to accept from a listening socket; index comes back with
	// each connection. The socket is the poller's unless there is an error.
	Listen(index, fd int) error
	// SetAccepting pauses and resumes a listener.
	SetAccepting(index int, on bool)
	// Adopt takes over sockets that the process opened, and replaces each descriptor by what
	// the socket is called from then on. n of them, the first, were taken; err is why the
	// others were not, which are closed.
	Adopt(fds []int32) (n int, err error)
	// Connect starts to connect a socket that Adopt returned; Connected follows
	// unless there is an error. EAGAIN, from here or there, says that a Unix listener's
	// backlog is full: it may be called again. to is the poller's until then.
	Connect(k Key, fd int, to *sys.Address) syscall.Errno
	// Add starts to receive from a connection.
	Add(k Key, fd int) error
	// AddLater is Add for one of many that arrive at once. What is to be sent to them can be sent first: each Wait starts
	// to receive from a bounded number of them, and waits a millisecond at most as long as some are left. If that
	// fails, Received reports it.
	AddLater(k Key, fd int)
	// SetReading pauses and resumes receiving.
	SetReading(k Key, fd int, on bool)
	// Send takes as much of b as it can and returns how much; when that is less
	// than all of it, Writable is called later. The bytes taken must not be
	// changed afterwards. An error means the connection is broken.
	Send(k Key, fd int, b []byte) (int, syscall.Errno)
	// SendCopy is Send for bytes that the caller will overwrite.
	SendCopy(k Key, fd int, b []byte) (int, syscall.Errno)
	// Flush hands to the kernel what Send may have gathered.
	Flush()
	// Shutdown ends the sending side after what was taken has been sent.
	Shutdown(k Key, fd int)
	// Close closes the connection; no event comes for k afterwards. One that was
	// accepted and not added is closed with key 0.
	Close(k Key, fd int)
	// Abort is Close with a reset.
	Abort(k Key, fd int)
	// Unsent returns how many bytes that Send took the peer has not acknowledged.
	// It is a system call.
	Unsent(k Key, fd int) int
	// SetOption sets an option of a connection that is a number. It is a system call.
	SetOption(k Key, fd int, s sys.Setting) error
	// Quiesce receives nothing more from connections that are to be lent, until SetReading,
	// and returns when nothing is in flight for them, or after within. What broke meanwhile
	// is reported to h. paused says that Wait is not called before each of them has left or is
	// read from again: receives that only Wait would let continue may stay in flight then.
	Quiesce(loans []Loan, h Handler, within time.Duration, paused bool)
	// Lend fills in File and Input of each, which are valid until EndLend.
	Lend(loans []Loan)
	// EndLend releases what Lend filled in.
	EndLend(loans []Loan)
	// CloseShared is Close for a connection that is open in another process, too.
	CloseShared(k Key, fd int)
	// ShutdownShared precedes Close or Abort of a connection whose socket another process has, too: the peer
	// sees the end without that process.
	ShutdownShared(k Key, fd int)
	// Wait dispatches events to h. It waits up to timeout for the first one;
	// negative means for ever, 0 not at all.
	Wait(timeout time.Duration, h Handler) error
	// Wake makes a Wait return. Any goroutine may call it.
	Wake()
	// Release closes what the poller itself holds, listeners included. Nothing
	// may be called afterwards, Wake included.
	Release()
	// Name is what the engine is called in configuration.
	Name() string
}
