package observe

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/governor"
)

// socketInfo queries the kernel about clients' sockets by their addresses: those of io_uring
// have no descriptor that could be queried by. Any goroutine but a loop's.
type socketInfo struct {
	mu     sync.Mutex
	diag   *sys.SocketDiag
	failed bool // there is none to be had here
	// locals are addresses that clients may have connected to, the one found last first.
	locals []netip.Addr
}

// of returns what the kernel says of the connection of peer to the listener at.
func (s *socketInfo) of(at, peer netip.AddrPort) (sys.TCPInfo, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.diag == nil && !s.failed {
		var err error
		s.diag, err = sys.NewSocketDiag()
		s.failed = err != nil
	}
	if s.failed || !peer.IsValid() {
		return sys.TCPInfo{}, false
	}
	if !at.Addr().IsUnspecified() {
		info, err := s.diag.TCPInfo(at, peer)
		return info, err == nil
	}
	if s.locals == nil {
		s.locals = localAddrs()
	}
	if peer.Addr().IsLoopback() { // mostly both ends have the same
		if info, err := s.diag.TCPInfo(netip.AddrPortFrom(peer.Addr(), at.Port()), peer); err == nil {
			return info, true
		}
	}
	for i, local := range s.locals {
		if local.Is4() != peer.Addr().Unmap().Is4() || local.IsLoopback() != peer.Addr().IsLoopback() {
			continue
		}
		if info, err := s.diag.TCPInfo(netip.AddrPortFrom(local, at.Port()), peer); err == nil {
			copy(s.locals[1:i+1], s.locals[:i])
			s.locals[0] = local
			return info, true
		} else if !errors.Is(err, sys.ErrNoSocket) {
			return sys.TCPInfo{}, false
		}
	}
	return sys.TCPInfo{}, false
}

// maxLocals bounds the addresses that are tried: more is a machine that is asked too much.
const maxLocals = 16

func localAddrs() []netip.Addr {
	all := []netip.Addr{}
	list, _ := net.InterfaceAddrs() // without them nothing is found
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && len(all) < maxLocals {
			all = append(all, p.Addr().Unmap())
		}
	}
	return all
}

func (s *socketInfo) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = true
	if s.diag == nil {
		return nil
	}
	d := s.diag
	s.diag = nil
	return d.Close()
}

const (
	// maxSocketSamples bounds what one loop is kept busy with: a microsecond for each.
	maxSocketSamples = 1024
	// sampleTime bounds what asking by addresses may take.
	sampleTime = 200 * time.Millisecond
)

// looked is a connection that a loop has looked at; without info the kernel is still to
// be asked, by the peer's address.
type looked struct {
	governor.SocketSample
	peer netip.AddrPort
	ok   bool
}

// SocketSamples queries the kernel about one connection in of.
func (a *clients) SocketSamples(dst []governor.SocketSample, phase, of int) []governor.SocketSample {
	loops := a.Loops.Loops()
	got := make(chan []looked, len(loops))
	requested := 0
	for _, l := range loops {
		if l.Post(func() { got <- look(l, phase, max(of, 1)) }) {
			requested++
		}
	}
	late := time.NewTimer(governor.SourcePatience / 2)
	defer late.Stop()
	var all []looked
	for waiting := requested; waiting > 0; waiting-- {
		select {
		case some := <-got:
			all = append(all, some...)
		case <-late.C:
			waiting = 1
		}
	}
	until := time.Now().Add(sampleTime)
	for i := range all {
		x := &all[i]
		if !x.ok && time.Now().Before(until) {
			x.TCP, x.ok = a.sockets.of(a.Addr(), x.peer)
		}
		if x.ok {
			dst = append(dst, x.SocketSample)
		}
	}
	return slices.Clip(dst)
}

// look looks at one client in of, on l.
func look(l *eventloop.Loop, phase, of int) (some []looked) {
	l.Conns(func(c *eventloop.Conn) bool {
		if c.Listener() >= 0 && int(uint32(c.ID()))%of == phase {
			x := looked{peer: c.Peer()}
			x.ID, x.Queued = c.ID(), c.Unsent()
			x.TCP, x.ok = c.TCPInfo()
			some = append(some, x)
		}
		return len(some) < maxSocketSamples
	})
	return some
}
