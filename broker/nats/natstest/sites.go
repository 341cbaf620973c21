package natstest

import (
	"fmt"
	"net"
	"net/url"
	"slices"
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
	cuts []*cut
}

// TwoSites runs them until the test ends.
func TwoSites(t testing.TB) *Sites {
	t.Helper()
	leaf := trial.FreePort(t)
	s := &Sites{A: site(t, server.Options{JetStreamDomain: "a", LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: leaf}})}
	c := startCut(t, fmt.Sprintf("127.0.0.1:%d", leaf))
	s.cuts = []*cut{c}
	s.B = site(t, server.Options{JetStreamDomain: "b", LeafNode: c.remote()})
	trial.Eventually(t, "the sites to be joined", func() bool { return s.B.NumLeafNodes() == 1 })
	return s
}

// TwoClusters is TwoSites with a cluster of three servers at each site, of which A and B are the first ones. A leaf
// node joins each server of b to one of a.
func TwoClusters(t testing.TB) *Sites {
	t.Helper()
	s := &Sites{}
	var leaves, remotes []server.LeafNodeOpts
	for range 3 {
		port := trial.FreePort(t)
		leaves = append(leaves, server.LeafNodeOpts{Host: "127.0.0.1", Port: port, NoAdvertise: true})
		c := startCut(t, fmt.Sprintf("127.0.0.1:%d", port))
		s.cuts = append(s.cuts, c)
		remotes = append(remotes, c.remote())
	}
	a := clusterOf(t, "a", leaves)
	b := clusterOf(t, "b", remotes)
	for _, srv := range b {
		trial.Eventually(t, "the sites to be joined", func() bool { return srv.NumLeafNodes() == 1 })
	}
	s.A, s.B = a[0], b[0]
	return s
}

// clusterOf runs the servers of a site, one for each of leaves.
func clusterOf(t testing.TB, domain string, leaves []server.LeafNodeOpts) (all []*server.Server) {
	t.Helper()
	var ports []int
	var routes []*url.URL
	for range leaves {
		port := trial.FreePort(t)
		ports = append(ports, port)
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	for i, port := range ports {
		all = append(all, start(t, server.Options{
			ServerName: fmt.Sprint(domain, i+1), JetStreamDomain: domain, Routes: routes, LeafNode: leaves[i],
			Cluster: server.ClusterOpts{Name: domain, Host: "127.0.0.1", Port: port},
		}))
	}
	for _, s := range all {
		ready(t, s)
	}
	trial.Eventually(t, "the servers of site "+domain+" to be a cluster", func() bool {
		return slices.ContainsFunc(all, func(s *server.Server) bool {
			return s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == len(all)
		})
	})
	return all
}

func site(t testing.TB, o server.Options) *server.Server {
	t.Helper()
	o.ServerName = o.JetStreamDomain + "1"
	s := start(t, o)
	ready(t, s)
	return s
}

func ready(t testing.TB, s *server.Server) {
	t.Helper()
	if !s.ReadyForConnections(trial.Patience) {
		t.Fatal("the NATS server is not ready")
	}
}

func start(t testing.TB, o server.Options) *server.Server {
	t.Helper()
	o.Host, o.Port, o.JetStream, o.StoreDir, o.NoLog, o.NoSigs = "127.0.0.1", server.RANDOM_PORT, true, t.TempDir(), true, true
	s, err := server.NewServer(&o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

// Cut begins or ends a cut of the link: nothing passes, and nothing is closed.
func (s *Sites) Cut(cut bool) {
	for _, c := range s.cuts {
		c.pause(cut)
	}
}

// A cut passes connections on, but for the time that it is held.
type cut struct {
	listener net.Listener

	mu     sync.Mutex
	moved  sync.Cond
	paused bool
	conns  []net.Conn
}

// remote is the leaf node of a server that connects to the other side of the link.
func (c *cut) remote() server.LeafNodeOpts {
	return server.LeafNodeOpts{
		ReconnectInterval: 50 * time.Millisecond, NoAdvertise: true,
		Remotes: []*server.RemoteLeafOpts{{URLs: []*url.URL{{Scheme: "nats-leaf", Host: c.listener.Addr().String()}}}},
	}
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
		c.pause(false)
		c.mu.Lock()
		for _, x := range c.conns {
			_ = x.Close()
		}
		c.mu.Unlock()
		wg.Wait()
	})
	return c
}

func (c *cut) pause(held bool) {
	c.mu.Lock()
	c.paused = held
	c.mu.Unlock()
	c.moved.Broadcast()
}

// wait waits while the link is cut.
func (c *cut) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.paused {
		c.moved.Wait()
	}
}
