package poller

import (
	"syscall"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Connect implements Poller. The socket is watched for room until it is
// connected, and only then for input: one that connects costs two changes of
// what is watched.
func (p *Epoll) Connect(k Key, fd int, to *sys.Address) syscall.Errno {
	if e := sys.Connect(fd, to); e != 0 && e != sys.EINPROGRESS {
		return e
	}
	if err := sys.EpollAdd(p.ep, fd, sys.EpollOut, uint64(k)); err != nil {
		return sys.ErrnoOf(err)
	}
	*p.want.of(k) = markConnecting
	return 0
}

// connected is called once: it is the loop that continues with Add or Close.
func connected(p *Epoll, k Key, fd int, h Handler) {
	p.standing = k
	h.Connected(k, sys.SocketError(fd))
	p.standing = keyWake // none
}
