package eventloop

import (
	"net/netip"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/poller"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// pollEvents is what a loop's poller calls.
type pollEvents struct{ loop *Loop }

var _ poller.Handler = pollEvents{}

// TickStarted implements poller.Handler: it is the start of a tick.
func (e pollEvents) TickStarted() {
	l := e.loop
	l.slept()
	l.now = int64(time.Since(l.base))
	l.ticking.begin(l.now)
}

// FD implements poller.Handler.
func (e pollEvents) FD(k poller.Key) (int, bool) {
	if c := e.loop.table.find(k); c != nil {
		return int(c.fd), true
	}
	return -1, false
}

// Accepted implements poller.Handler.
func (e pollEvents) Accepted(listener, fd int, peer netip.AddrPort) {
	e.loop.accepting.accepted(listener, fd, peer)
}

// AcceptFailed implements poller.Handler.
func (e pollEvents) AcceptFailed(listener int, err syscall.Errno) {
	e.loop.accepting.failed(listener, err)
}

// Connected implements poller.Handler.
func (e pollEvents) Connected(k poller.Key, err syscall.Errno) {
	l := e.loop
	c := l.table.find(k)
	if c == nil {
		return
	}
	d := c.out.dialing()
	switch {
	case err == sys.EAGAIN && d != nil && d.to.Unix():
		d.retry = l.now + dialRetry // the listener's backlog is full
		d.schedule()
	case err != 0:
		c.Close(err)
	default:
		d.established(&l.n.dialed)
	}
}

// Received implements poller.Handler.
func (e pollEvents) Received(k poller.Key, b []byte, err syscall.Errno) {
	l := e.loop
	c := l.table.find(k)
	if c == nil {
		return
	}
	switch {
	case err != 0:
		c.Close(err)
	case len(b) == 0:
		if f, ok := c.handler.(*filtered); ok {
			f.endOfSocket(c)
		} else {
			c.endOfStream()
		}
	default:
		l.n.reads++
		l.n.bytesIn += uint64(len(b))
		c.arrived(b)
	}
}

// Writable implements poller.Handler.
func (e pollEvents) Writable(k poller.Key) {
	if c := e.loop.table.find(k); c != nil {
		c.flush()
	}
}
