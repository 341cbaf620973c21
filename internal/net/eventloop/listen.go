package eventloop

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Listen makes every loop accept on addr, each with a socket of its own
// (SO_REUSEPORT). With port 0 all of them share the port the first one got,
// which is returned. "::" takes IPv4 too. Before Run; after an error nothing
// more is open than before.
func (g *Group) Listen(addr netip.AddrPort) (netip.AddrPort, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.mayListen(1); err != nil {
		return addr, err
	}
	fds, bound, err := g.openListeners(addr)
	if err != nil {
		return addr, g.socks.explain(err)
	}
	if err := g.watchListeners(len(g.socks.listeners)-1, fds); err != nil {
		return addr, err
	}
	g.listeners = append(g.listeners, fds...)
	return bound, nil
}

// ListenOn makes the loops accept on sockets that listen already, all on one address,
// which is returned; order is that in which they were opened. They become the group's,
// also after an error. Each is accepted from by at least one loop, and each loop accepts
// from at least one of them: with fewer sockets than loops some loops share one. Before
// Run.
func (g *Group) ListenOn(sockets []int) (addr netip.AddrPort, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer closeAll(sockets)
	rounds := (len(sockets) + len(g.loops) - 1) / len(g.loops)
	if err := g.mayListen(rounds); err != nil || rounds == 0 {
		return addr, err
	}
	if g.socks.cfg.IncomingCPU && len(sockets) != len(g.loops) {
		return addr, &socketError{
			fmt.Errorf("sockets.incoming_cpu: %d listening sockets were passed for %d loops", len(sockets), len(g.loops)),
			"have the service manager keep the sockets that this process opens (FileDescriptorStoreMax), or leave incoming_cpu out",
		}
	}
	for _, fd := range sockets {
		if addr, err = sys.ListenerAddr(fd); err != nil {
			return addr, err
		}
		if err := sys.Adopt(fd, g.opts); err != nil {
			return addr, g.socks.explain(err)
		}
	}
	if err := g.socks.prepare(sockets, addr); err != nil {
		return addr, err
	}
	for round := range rounds {
		fds, err := dealSockets(sockets, len(g.loops), round)
		if err != nil {
			return addr, err
		}
		if err := g.watchListeners(len(g.socks.listeners)-1, fds); err != nil {
			return addr, err
		}
		g.listeners = append(g.listeners, fds[:min(len(fds), len(sockets)-round*len(g.loops))]...)
	}
	return addr, nil
}

// dealSockets returns a descriptor for each of n loops: in the first round of the first sockets.
func dealSockets(sockets []int, n, round int) (fds []int, err error) {
	for i := range n {
		fd, err := sys.Dup(sockets[(round*n+i)%len(sockets)])
		if err != nil {
			closeAll(fds)
			return nil, fmt.Errorf("duplicate a listening socket: %w", err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func (g *Group) mayListen(times int) error {
	switch {
	case g.started:
		return errors.New("listen: the loops are running")
	case g.released:
		return errReleased
	case g.listens+times > noListener:
		return errors.New("listen: too many addresses")
	}
	return nil
}

// watchListeners gives each loop one of fds, which listen on the group's address of that
// index.
func (g *Group) watchListeners(address int, fds []int) error {
	for i, l := range g.loops {
		if err := l.poller.Listen(g.listens, fds[i]); err != nil {
			// Only for want of kernel memory. What the pollers have is theirs.
			closeAll(fds[i:])
			g.release()
			return err
		}
	}
	g.listens++
	for _, l := range g.loops {
		l.accepting.addresses = append(l.accepting.addresses, uint8(address))
	}
	return nil
}

// Backlog is how many connections can wait in the kernel for each listening socket:
// what is configured, as net.core.somaxconn clips it.
func (g *Group) Backlog() int {
	n := g.opts.Backlog
	if limit, err := strconv.Atoi(sys.Sysctl("net.core.somaxconn")); err == nil {
		n = min(n, limit)
	}
	return n
}

// Listeners returns descriptors of the listening sockets that the caller closes. While the
// loops have not ended only.
func (g *Group) Listeners() (fds []int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, fd := range g.listeners {
		d, err := sys.Dup(fd)
		if err != nil {
			closeAll(fds)
			return nil, fmt.Errorf("duplicate a listening socket: %w", err)
		}
		fds = append(fds, d)
	}
	return fds, nil
}

// openListeners opens a socket per loop. The first claims the port: otherwise a
// second process could share it by SO_REUSEPORT and silently take half of the
// connections.
func (g *Group) openListeners(addr netip.AddrPort) (fds []int, bound netip.AddrPort, err error) {
	opts := g.opts
	opts.Claim = true
	bound = addr
	for range g.loops {
		var fd int
		listen := sys.Listen
		if opts.Claim {
			listen = claim
		}
		if fd, bound, err = listen(bound, opts); err != nil {
			closeAll(fds)
			return nil, addr, err
		}
		fds = append(fds, fd)
		opts.Claim = false
	}
	if err := g.socks.prepare(fds, bound); err != nil {
		closeAll(fds)
		return nil, addr, err
	}
	return fds, bound, nil
}

// claimFor is how long claim tries.
const claimFor = time.Second

// claim is sys.Listen for the first socket of a port. A port in use is tried again: the kernel frees
// the sockets of an io_uring only some time after its process was killed, and a supervisor starts
// the next one at once.
func claim(addr netip.AddrPort, opts sys.ListenOptions) (fd int, bound netip.AddrPort, err error) {
	for end := time.Now().Add(claimFor); ; time.Sleep(20 * time.Millisecond) {
		fd, bound, err = sys.Listen(addr, opts)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return fd, bound, err
		}
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		sys.Close(fd)
	}
}

// StopAccepting closes no connection, but takes no new one. Any goroutine.
func (g *Group) StopAccepting() {
	g.mu.Lock()
	n := g.listens
	g.mu.Unlock()
	for _, l := range g.loops {
		l.Post(func() { l.accepting.stop(n) })
	}
}

// PauseAccepting has the loops accept nothing from the start until ResumeAccepting. Before
// Run only.
func (g *Group) PauseAccepting() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.loops {
		l.accepting.stop(g.listens)
	}
}

// ResumeAccepting undoes StopAccepting and PauseAccepting. Any goroutine.
func (g *Group) ResumeAccepting() {
	g.mu.Lock()
	n := g.listens
	g.mu.Unlock()
	for _, l := range g.loops {
		l.Post(func() {
			l.accepting.stopped = false
			for i := range n {
				l.poller.SetAccepting(i, true)
			}
		})
	}
}

// LimitAcceptRate bounds how many connections are accepted per second, over all loops and
// about evenly; more wait in the kernel. 0 means no bound. Any goroutine.
func (g *Group) LimitAcceptRate(perSecond int) {
	windows := int(int64(time.Second) / paceWindow * int64(len(g.loops)))
	each := (perSecond + windows - 1) / windows
	for _, l := range g.loops {
		l.Post(func() { l.accepting.pace.each = each })
	}
}
