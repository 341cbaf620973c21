package poller

import (
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// SetBusyPoll makes Wait poll the network card's queue for up to d before it
// sleeps, prefer without its interrupts meanwhile. It returns what the kernel
// made of d. Before Wait.
func (p *Epoll) SetBusyPoll(d time.Duration, prefer bool) (time.Duration, error) {
	if err := sys.EpollSetBusyPoll(p.ep, d, prefer); err != nil {
		return 0, err
	}
	d, _, err := sys.EpollBusyPoll(p.ep)
	return d, err
}
