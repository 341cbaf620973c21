package poller

import (
	"errors"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// portable waits and wakes, and moves no bytes: the connections of its loop have no sockets
// (eventloop.Carried). It works on every system and opens no descriptor.
type portable struct {
	noSockets
	woken chan struct{} // holds one: Wake was called
	timer *time.Timer   // nil until the first Wait
}

var _ Poller = (*portable)(nil)

// NewPortable returns a Poller for a loop without sockets.
func NewPortable() Poller { return &portable{woken: make(chan struct{}, 1)} }

var errNoSockets = errors.New("this loop has no sockets")

// Wait implements Poller.
func (p *portable) Wait(timeout time.Duration, h Handler) error {
	if timeout >= 0 {
		if p.timer == nil {
			p.timer = time.NewTimer(timeout)
		} else {
			p.timer.Reset(timeout)
		}
		select {
		case <-p.woken:
			p.timer.Stop()
		case <-p.timer.C:
		}
	} else {
		<-p.woken
	}
	h.TickStarted()
	return nil
}

// Wake implements Poller.
func (p *portable) Wake() {
	select {
	case p.woken <- struct{}{}:
	default:
	}
}

// AddLater implements Poller: there is nothing to receive from.
func (*portable) AddLater(Key, int) {}

// Name implements Poller.
func (*portable) Name() string { return "portable" }

// noSockets are the methods of a Poller that concern sockets, for one that has none.
type noSockets struct{}

// Listen implements Poller.
func (noSockets) Listen(int, int) error { return errNoSockets }

// Adopt implements Poller.
func (noSockets) Adopt(fds []int32) (int, error) {
	for _, fd := range fds {
		sys.Close(int(fd))
	}
	return 0, errNoSockets
}

// Connect implements Poller.
func (noSockets) Connect(Key, int, *sys.Address) syscall.Errno { return syscall.ENOTSUP }

// Add implements Poller.
func (noSockets) Add(Key, int) error { return errNoSockets }

// The others have nothing to do.

func (noSockets) SetAccepting(int, bool)                         {}
func (noSockets) SetReading(Key, int, bool)                      {}
func (noSockets) Send(Key, int, []byte) (int, syscall.Errno)     { return 0, syscall.ENOTSUP }
func (noSockets) SendCopy(Key, int, []byte) (int, syscall.Errno) { return 0, syscall.ENOTSUP }
func (noSockets) Flush()                                         {}
func (noSockets) Shutdown(Key, int)                              {}
func (noSockets) Close(Key, int)                                 {}
func (noSockets) Abort(Key, int)                                 {}
func (noSockets) Unsent(Key, int) int                            { return 0 }
func (noSockets) SetOption(Key, int, sys.Setting) error          { return errNoSockets }
func (noSockets) Quiesce([]Loan, Handler, time.Duration, bool)   {}
func (noSockets) Lend([]Loan)                                    {}
func (noSockets) EndLend([]Loan)                                 {}
func (noSockets) CloseShared(Key, int)                           {}
func (noSockets) ShutdownShared(Key, int)                        {}
func (noSockets) Release()                                       {}
