package poller

import (
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// descriptors are the methods of a Poller whose connections are descriptors of the process with
// nothing in flight: the system calls alone.
type descriptors struct{}

// Adopt implements Poller.
func (descriptors) Adopt(fds []int32) (int, error) { return len(fds), nil }

// Quiesce implements Poller: nothing is ever in flight, and what is received is received in Wait.
func (descriptors) Quiesce([]Loan, Handler, time.Duration, bool) {}

// Lend implements Poller: connections are descriptors.
func (descriptors) Lend(loans []Loan) {
	for i := range loans {
		loans[i].File = loans[i].FD
	}
}

// EndLend implements Poller.
func (descriptors) EndLend([]Loan) {}

// Flush implements Poller: Send has sent.
func (descriptors) Flush() {}

// Shutdown implements Poller.
func (descriptors) Shutdown(_ Key, fd int) { sys.ShutdownWrite(fd) }

// Close implements Poller.
func (descriptors) Close(_ Key, fd int) { sys.Close(fd) }

// Abort implements Poller.
func (descriptors) Abort(_ Key, fd int) {
	sys.SetLingerZero(fd)
	sys.Close(fd)
}

// Unsent implements Poller.
func (descriptors) Unsent(_ Key, fd int) int { return sys.Unsent(fd) }

// SetOption implements Poller.
func (descriptors) SetOption(_ Key, fd int, s sys.Setting) error { return s.Apply(fd) }

// ShutdownShared implements Poller.
func (p *Epoll) ShutdownShared(_ Key, fd int) {
	_ = sys.EpollDel(p.ep, fd) // see CloseShared
	sys.Shutdown(fd)
}

// CloseShared implements Poller. An epoll watches open files, not descriptors: it would continue to
// watch what another process has open.
func (p *Epoll) CloseShared(_ Key, fd int) {
	_ = sys.EpollDel(p.ep, fd)
	sys.Close(fd)
}
