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
	h.Woke()
	return nil
}

// Wake implements Poller.
func (p *portable) Wake() {
	select {
	case p.woken <- struct{}{}:
	default:
	}
}

// Name implements Poller.
func (*portable) Name() string { return "portable" }

// Listen implements Poller.
func (*portable) Listen(int, int) error { return errNoSockets }

// Adopt implements Poller.
func (*portable) Adopt(fds []int32) (int, error) {
	for _, fd := range fds {
		sys.Close(int(fd))
	}
	return 0, errNoSockets
}

// Connect implements Poller.
func (*portable) Connect(Key, int, *sys.Address) syscall.Errno { return syscall.ENOTSUP }

// Add implements Poller.
func (*portable) Add(Key, int) error { return errNoSockets }

// The others have nothing to do.

func (*portable) SetAccepting(int, bool)                         {}
func (*portable) SetReading(Key, int, bool)                      {}
func (*portable) Send(Key, int, []byte) (int, syscall.Errno)     { return 0, syscall.ENOTSUP }
func (*portable) SendCopy(Key, int, []byte) (int, syscall.Errno) { return 0, syscall.ENOTSUP }
func (*portable) Flush()                                         {}
func (*portable) Shutdown(Key, int)                              {}
func (*portable) Close(Key, int)                                 {}
func (*portable) Abort(Key, int)                                 {}
func (*portable) Unsent(Key, int) int                            { return 0 }
func (*portable) Quiesce([]Loan, Handler, time.Duration)         {}
func (*portable) Lend([]Loan)                                    {}
func (*portable) Returned([]Loan)                                {}
func (*portable) Leave(Key, int)                                 {}
func (*portable) Release()                                       {}
