package poller

import (
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Quiesce implements Poller: nothing is ever in flight.
func (p *Epoll) Quiesce(Handler, time.Duration) {}

// Lend implements Poller: connections are descriptors.
func (p *Epoll) Lend(_ Key, fd int) (file int, input []byte, err error) { return fd, nil, nil }

// Returned implements Poller.
func (p *Epoll) Returned(int) {}

// Leave implements Poller. An epoll watches open files, not descriptors: it would continue to
// watch what another process has open.
func (p *Epoll) Leave(_ Key, fd int) {
	_ = sys.EpollDel(p.ep, fd)
	sys.Close(fd)
}
