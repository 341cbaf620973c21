package judge

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
)

// A Tap is in the hands of subscribers that stop reading: while it is shut, what
// they dialled gives nothing, and their sockets take little.
type Tap struct{ shut atomic.Pointer[chan struct{}] }

// Shut stops the reading, at the latest after the next bytes that come.
func (p *Tap) Shut() {
	c := make(chan struct{})
	p.shut.Store(&c)
}

// Open lets everybody read again. It may be called when the tap is open.
func (p *Tap) Open() {
	if c := p.shut.Swap(nil); c != nil {
		close(*c)
	}
}

// Dial is for Subscriber.Dial. Its sockets have small segments and a small
// window, or loopback's buffers would hold megabytes before a server notices.
func (p *Tap) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if cerr := raw.Control(func(fd uintptr) {
			if err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10); err == nil {
				err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536)
			}
		}); cerr != nil {
			return cerr
		}
		return err
	}}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &tapped{conn, p}, nil
}

type tapped struct {
	net.Conn
	tap *Tap
}

func (c *tapped) Read(b []byte) (int, error) {
	if shut := c.tap.shut.Load(); shut != nil {
		<-*shut
	}
	return c.Conn.Read(b)
}
