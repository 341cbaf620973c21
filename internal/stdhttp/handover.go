package stdhttp

import (
	"net"
	"sync"
)

// handedOver is a listener of connections that others have accepted.
type handedOver struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

var _ net.Listener = (*handedOver)(nil)

func newHandedOver() *handedOver {
	return &handedOver{conns: make(chan net.Conn, 64), done: make(chan struct{})}
}

// give passes c on. It does not wait for long: whoever serves takes at once.
func (h *handedOver) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.done:
		_ = c.Close() // nobody serves any more
	}
}

// Accept implements net.Listener.
func (h *handedOver) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handedOver) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// Addr implements net.Listener.
func (h *handedOver) Addr() net.Addr { return address("handed over") }
