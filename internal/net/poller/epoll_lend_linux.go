package poller

import (
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Quiesce implements Poller: nothing is ever in flight, and what is received is received in Wait.
func (p *Epoll) Quiesce([]Loan, Handler, time.Duration) {}

// Lend implements Poller: connections are descriptors.
func (p *Epoll) Lend(loans []Loan) {
	for i := range loans {
		loans[i].File = loans[i].FD
	}
}

// Returned implements Poller.
func (p *Epoll) Returned([]Loan) {}

// Leave implements Poller. An epoll watches open files, not descriptors: it would continue to
// watch what another process has open.
func (p *Epoll) Leave(_ Key, fd int) {
	_ = sys.EpollDel(p.ep, fd)
	sys.Close(fd)
}
