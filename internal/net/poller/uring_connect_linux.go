package poller

import (
	"syscall"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Connecting. The socket is made, bound and given its options by system calls,
// as the ring has none for some of that before Linux 6.11, and then put into the
// table: the descriptor is the process's briefly only. The ring connects it.

// Adopt implements Poller. It is two system calls.
func (p *Uring) Adopt(fd int) (int, error) {
	defer sys.Close(fd)
	if p.used >= p.files {
		return -1, sys.ENFILE
	}
	const pending = -1 << 31
	*p.install, p.installed = int32(fd), pending
	s := p.request()
	s.PrepInstall(p.install)
	s.UserData = opInstall
	for range 1000 {
		if p.submit(); p.installed != pending || p.err != 0 {
			break
		}
	}
	switch {
	case p.installed == pending: // the ring is beyond repair, and Wait says so
		if p.err == 0 {
			p.err = sys.EAGAIN
		}
		return -1, p.err
	case p.installed < 0:
		return -1, syscall.Errno(-p.installed)
	}
	idx := uint32(*p.install)
	p.used++
	p.entered(idx)
	return directBase + int(idx), nil
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
	s.UserData = p.userData(opConnect, idx)
	return 0
}

// connected is called with the result of a connect.
func (p *Uring) connected(cqe sys.CQE, h Handler) {
	idx := uint32(cqe.UserData)
	if cqe.UserData != p.userData(opConnect, idx) {
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
