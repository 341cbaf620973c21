package poller

import (
	"errors"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// SetBusyPoll makes Wait poll the network cards' queues for up to d before it
// sleeps, prefer without their interrupts meanwhile. It returns what the kernel
// made of d. Before Wait.
func SetBusyPoll(p Poller, d time.Duration, prefer bool) (time.Duration, error) {
	switch p := p.(type) {
	case *Epoll:
		if err := sys.EpollSetBusyPoll(p.ep, d, prefer); err != nil {
			return 0, err
		}
		d, _, err := sys.EpollBusyPoll(p.ep)
		return d, err
	case *Uring:
		return sys.RingBusyPoll(p.ring, d, prefer)
	}
	return 0, errors.ErrUnsupported
}
