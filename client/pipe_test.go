package client

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// pipes is a network for a test on fake time: a listener whose connections are
// pipes, each of which the fake may cut after some bytes.
type pipes struct {
	f      *fake
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- p.f.wrap(theirs):
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// wrap makes a connection that may break after a number of bytes, in the middle
// of whatever is written then.
func (f *fake) wrap(c net.Conn) net.Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	cc := &cutConn{Conn: c, f: f, left: 1 << 40}
	if f.rnd.IntN(100) < f.cuts {
		cc.left = 1 + f.rnd.IntN(3000)
	}
	f.conns[cc] = true
	return cc
}

type cutConn struct {
	net.Conn
	f    *fake
	left int
}

func (c *cutConn) Write(b []byte) (int, error) {
	if len(b) <= c.left {
		c.left -= len(b)
		return c.Conn.Write(b)
	}
	n, _ := c.Conn.Write(b[:c.left])
	_ = c.Close()
	return n, net.ErrClosed
}

func (c *cutConn) Close() error {
	go c.forget()
	return c.Conn.Close()
}

func (c *cutConn) forget() {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	delete(c.f.conns, c)
}

// serve starts f and returns a client of it. Both end with the returned function.
func (f *fake) serve(t *testing.T, cfg Config) (c *Client, stop func()) {
	t.Helper()
	p := &pipes{f: f, conns: make(chan net.Conn), closed: make(chan struct{})}
	srv := &http.Server{Handler: f}
	var running sync.WaitGroup
	running.Go(func() { _ = srv.Serve(p) })
	cfg.URL, cfg.DialContext = "http://weir.test", p.dial
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c, func() {
		c.Close()
		_ = srv.Close()
		f.cutAll()
		running.Wait()
	}
}

// next returns the next event of kind E within a fake hour.
func next[E Event](t *testing.T, s *Stream) E {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for {
		ev, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("next: %v", err)
		}
		if e, ok := ev.(E); ok {
			return e
		}
	}
}
