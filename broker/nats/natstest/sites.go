package natstest

import (
	"fmt"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// Sites are the NATS servers of two sites, "a" and "b", joined by a leaf node whose link can
// be cut.
type Sites struct {
	A, B *server.Server
	cut  *cut
}

// TwoSites runs them until the test ends.
func TwoSites(t testing.TB) *Sites {
	t.Helper()
	leaf := trial.FreePort(t)
	s := &Sites{A: site(t, server.Options{JetStreamDomain: "a", LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: leaf}})}
	s.cut = startCut(t, fmt.Sprintf("127.0.0.1:%d", leaf))
	s.B = site(t, server.Options{JetStreamDomain: "b", LeafNode: server.LeafNodeOpts{
		ReconnectInterval: 50 * time.Millisecond,
		Remotes:           []*server.RemoteLeafOpts{{URLs: []*url.URL{{Scheme: "nats-leaf", Host: s.cut.listener.Addr().String()}}}},
	}})
	trial.Eventually(t, "the sites to be joined", func() bool { return s.B.NumLeafNodes() == 1 })
	return s
}

func site(t testing.TB, o server.Options) *server.Server {
	t.Helper()
	o.ServerName, o.Host, o.Port, o.JetStream, o.StoreDir, o.NoLog, o.NoSigs = o.JetStreamDomain+"1", "127.0.0.1", server.RANDOM_PORT, true, t.TempDir(), true, true
	s, err := server.NewServer(&o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(trial.Patience) {
		t.Fatal("the NATS server is not ready")
	}
	return s
}

// Cut begins or ends a cut of the link: nothing passes, and nothing is closed.
func (s *Sites) Cut(cut bool) { s.cut.hold(cut) }

// A cut passes connections on, but for the time that it is held.
type cut struct {
	listener net.Listener

	mu    sync.Mutex
	moved sync.Cond
	held  bool
	conns []net.Conn
}

func startCut(t testing.TB, to string) *cut {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cut{listener: l}
	c.moved.L = &c.mu
	var wg sync.WaitGroup
	pipe := func(dst, src net.Conn) {
		buf := make([]byte, 64<<10)
		for {
			n, err := src.Read(buf)
			c.wait()
			if _, werr := dst.Write(buf[:n]); err != nil || werr != nil {
				_, _ = dst.Close(), src.Close()
				return
			}
		}
	}
	wg.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				_ = down.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, down, up)
			c.mu.Unlock()
			wg.Go(func() { pipe(up, down) })
			wg.Go(func() { pipe(down, up) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.hold(false)
		c.mu.Lock()
		for _, x := range c.conns {
			_ = x.Close()
		}
		c.mu.Unlock()
		wg.Wait()
	})
	return c
}

func (c *cut) hold(held bool) {
	c.mu.Lock()
	c.held = held
	c.mu.Unlock()
	c.moved.Broadcast()
}

// wait waits while the link is cut.
func (c *cut) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.held {
		c.moved.Wait()
	}
}
