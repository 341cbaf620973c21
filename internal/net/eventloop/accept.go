package eventloop

import (
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// An acceptor takes the connections of a loop's listeners, and lets them wait in the
// kernel while there is no room, no descriptor, or when they come faster than the pace.
type acceptor struct {
	loop *Loop
	// addresses are, by the poller's index of a listener, that of its address. Fixed
	// before Run.
	addresses []uint8

	// Owned by the loop's goroutine.
	paused  []pausedListener
	stopped bool // StopAccepting was called
	pace    acceptPace
	// fullSince is since when there has been no room for more connections; 0 means there is.
	fullSince int64
	// refusedLogged is when a refused connection was last logged.
	refusedLogged int64
}

type pausedListener struct {
	index int
	until int64
	room  bool // waits for room
}

const (
	acceptPause = int64(200 * time.Millisecond)
	// roomPause is how often a listener that waits for room looks for it, roomPatience
	// how long it waits.
	roomPause    = int64(5 * time.Millisecond)
	roomPatience = int64(time.Second)
	// refusedLogEvery bounds how often refused connections are logged.
	refusedLogEvery = int64(10 * time.Second)
)

// accepted makes a connection of fd, or refuses it.
func (a *acceptor) accepted(listener, fd int, peer netip.AddrPort) {
	l := a.loop
	if open := l.shared.open.Add(1); open > l.limits.maxConns && (open > l.limits.maxConns+l.limits.burst || a.waitedForRoom()) {
		l.shared.open.Add(-1)
		if l.n.refused++; a.refusedLogged == 0 || l.now-a.refusedLogged >= refusedLogEvery {
			a.refusedLogged = l.now
			l.log.Warn("connections are refused: as many are open as may be", "max_conns", l.limits.maxConns, "refused", l.n.refused, "descriptors", sys.MaxFiles())
		}
		l.poller.Close(0, fd)
		return
	}
	c := &Conn{
		socket:   socket{loop: l, fd: int32(fd), listener: a.addresses[listener], peerIP: peer.Addr().As16(), peerPort: peer.Port()},
		accepted: l.now,
	}
	c.timer.Owner = c
	c.key = l.table.add(c)
	if err := l.poller.Add(c.key, fd); err != nil {
		l.n.acceptErrors++
		l.log.Warn("accept", "err", err)
		c.flags |= flagClosed
		l.release(c)
		l.poller.Close(c.key, fd)
		return
	}
	l.n.accepted++
	if a.pace.each > 0 && a.pace.spent(l.now) {
		a.pause(listener, a.pace.at+paceWindow, false)
	}
	a.waitForRoom(listener)
	var h Handler
	l.guard(c, func() { h = l.accept(c) })
	if h != nil {
		c.SetHandler(h)
	} else if c.handler == nil {
		c.Close(nil)
	}
}

// failed is called when connections wait that cannot be taken. Out of descriptors or
// memory, the listener rests briefly instead of spinning; they wait in the kernel.
func (a *acceptor) failed(listener int, err syscall.Errno) {
	l := a.loop
	l.n.acceptErrors++
	if l.n.acceptErrors == 1 || l.n.acceptErrors%100 == 0 {
		l.log.Warn("accept", "err", err, "failures", l.n.acceptErrors, "limit", sys.MaxFiles())
	}
	a.pause(listener, l.now+acceptPause, false)
}

// pause lets connections wait in the kernel until then.
func (a *acceptor) pause(listener int, until int64, room bool) {
	a.loop.poller.SetAccepting(listener, false)
	if a.stopped || slices.ContainsFunc(a.paused, func(p pausedListener) bool { return p.index == listener }) {
		return
	}
	a.paused = append(a.paused, pausedListener{index: listener, until: until, room: room})
}

// resume accepts again where a pause is over.
func (a *acceptor) resume() {
	l := a.loop
	for i := len(a.paused) - 1; i >= 0; i-- {
		switch p := &a.paused[i]; {
		case l.now < p.until:
		case p.room && l.shared.open.Load() >= l.limits.pauseAt && !a.waitedForRoom():
			p.until = l.now + roomPause
		default:
			l.poller.SetAccepting(p.index, true)
			a.paused = slices.Delete(a.paused, i, i+1)
		}
	}
}

// waitedForRoom reports whether there has been no room for long.
func (a *acceptor) waitedForRoom() bool {
	return a.fullSince != 0 && a.loop.now-a.fullSince >= roomPatience
}

// waitForRoom lets connections wait in the kernel while nearly as many are open as may
// be: those that are answered or refused make room soon. Where none has become
// free within roomPatience, one connection too many is closed at accept.
func (a *acceptor) waitForRoom(listener int) {
	l := a.loop
	switch {
	case l.shared.open.Load() < l.limits.pauseAt:
		a.fullSince = 0
		return
	case a.fullSince == 0:
		a.fullSince = max(l.now, 1)
	}
	if !a.waitedForRoom() {
		l.n.acceptPauses++
		a.pause(listener, l.now+roomPause, true)
	}
}

// stop pauses the first n listeners for good.
func (a *acceptor) stop(n int) {
	a.stopped = true
	a.paused = nil
	for i := range n {
		a.loop.poller.SetAccepting(i, false)
	}
}

// acceptPace bounds how many connections a loop accepts in a window of time.
type acceptPace struct {
	each, n int // in a window; 0 means no bound
	at      int64
}

const paceWindow = int64(100 * time.Millisecond)

// spent counts a connection, and reports whether the window has no more.
func (p *acceptPace) spent(now int64) bool {
	if now-p.at >= paceWindow {
		p.at, p.n = now, 0
	}
	p.n++
	return p.n >= p.each
}
