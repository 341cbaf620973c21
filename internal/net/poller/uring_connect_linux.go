package poller

import (
	"syscall"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Connecting. The socket is made, bound and given its options by system calls,
// as the ring has none for some of that before Linux 6.11, and then put into the
// table: the descriptor is the process's briefly only. The ring connects it.

// Adopt implements Poller. It is a system call for every maxInstall sockets, and one to close
// each descriptor.
func (p *Uring) Adopt(fds []int32) (n int, err error) {
	for n < len(fds) && err == nil {
		some := fds[n:min(n+maxInstall, len(fds))]
		k := 0
		k, err = adopt(p, some)
		n += k
	}
	for _, fd := range fds[n:] {
		sys.Close(int(fd))
	}
	return n, err
}

// adopt is Adopt of p for at most maxInstall sockets; the descriptors of those that were not taken
// stay open.
func adopt(p *Uring, fds []int32) (int, error) {
	room := min(len(fds), p.files-p.used)
	if room == 0 {
		return 0, sys.ENFILE
	}
	n := copy(p.install[:], fds[:room])
	p.installed, p.installing = append(p.installed[:0], 0), 1
	s := p.request()
	s.PrepInstall(p.install[:n])
	s.UserData = opInstall
	awaitInstalled(p)
	switch done := p.installed[0]; {
	case p.err != 0:
		return 0, p.err
	case done < 0:
		return 0, syscall.Errno(-done)
	default:
		n = int(done)
	}
	for i, idx := range p.install[:n] {
		sys.Close(int(fds[i]))
		fds[i] = directBase + idx
		p.used++
		p.conns.enter(uint32(idx))
	}
	if n < len(fds) {
		return n, sys.ENFILE
	}
	return n, nil
}

// Connect implements Poller. That a Unix listener's backlog is full is the result
// of the connect here.
func (p *Uring) Connect(k Key, fd int, to *sys.Address) syscall.Errno {
	idx := index(fd)
	c := &p.conns[idx]
	c.key = k
	c.state |= connAdded | connConnecting
	p.dials[idx] = to
	s := p.request()
	s.PrepConnect(idx, to)
	s.UserData = p.conns.userData(opConnect, idx)
	return 0
}

// connected is called with the result of a connect.
func (p *Uring) connected(cqe sys.CQE, h Handler) {
	idx := uint32(cqe.UserData)
	if cqe.UserData != p.conns.userData(opConnect, idx) {
		return
	}
	delete(p.dials, idx)
	c := &p.conns[idx]
	c.state &^= connConnecting
	if c.state&connOpen == 0 {
		p.finish(idx)
		return
	}
	h.Connected(c.key, cqe.Errno())
}
