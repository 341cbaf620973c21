// Package nodetest runs a node for the tests of the fronts and of the protocols that
// they serve: a hub, who else is there, and a front, on real sockets. Only tests import
// it.
package nodetest

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/cluster/clustertest"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// Front is the setting that has clients of all nodes come over HTTP/2; empty means
// HTTP/1.1, where a Config specifies nothing else.
const Front = "WEIR_TEST_FRONT"

// Config of a node. The zero value is alone, stores in memory and has the namespace
// default.
type Config struct {
	Auth       auth.Config
	Namespaces []hub.Namespace
	// Broker nil means one in memory. The node closes it.
	Broker hub.Broker
	// Formats may add some, before the hub is made.
	Formats func(*wire.Formats)
	// HTTP2 has clients come over HTTP/2, whatever Front says.
	HTTP2 bool
}

// A Node is built in steps, so that a test can put its own parts between them: New, then
// Join for a node among others, then Serve; or Loops and Start for a front with more.
type Node struct {
	T       *testing.T
	Addr    string // once it serves
	Hub     *hub.Hub
	Auth    *auth.Authenticator
	Formats *wire.Formats
	Log     *slog.Logger
	Client  *http.Client // with connections of its own
	// Drain starts a drain; there once it serves.
	Drain func(over time.Duration)
	// Stop ends the node, which the end of the test does otherwise; what the broker keeps
	// is still there.
	Stop func()

	// Of Join.
	Bus      hub.Bus
	Cluster  *cluster.Cluster
	Presence *presence.Presence

	http2   bool
	runs    map[string]func(context.Context) error
	closers []func()
	ctx     context.Context
	running sync.WaitGroup
}

// New makes a node whose hub runs.
func New(t *testing.T, cfg Config) *Node {
	t.Helper()
	n := &Node{
		T: t, Log: trial.Log(t), Client: &http.Client{Transport: &http.Transport{}},
		http2: cfg.HTTP2 || os.Getenv(Front) != "", runs: map[string]func(context.Context) error{},
	}
	var err error
	n.Auth, err = auth.New(cfg.Auth, n.Log)
	n.Must(err)
	if cfg.Broker == nil {
		cfg.Broker, err = memory.New(memory.Config{})
		n.Must(err)
	}
	n.Formats, err = wire.NewFormats(nil)
	n.Must(err)
	if cfg.Formats != nil {
		cfg.Formats(n.Formats)
	}
	if cfg.Namespaces == nil {
		cfg.Namespaces = []hub.Namespace{{Name: "default"}}
	}
	n.Hub, err = hub.New(hub.Config{Encoders: n.Formats.Encoders(), Log: n.Log, Namespaces: cfg.Namespaces}, cfg.Broker)
	n.Must(err)
	ctx, cancel := context.WithCancel(context.Background())
	n.ctx = ctx
	n.Stop = sync.OnceFunc(func() {
		n.Client.CloseIdleConnections()
		http.DefaultClient.CloseIdleConnections()
		cancel()
		n.running.Wait()
		for _, f := range n.closers {
			f()
		}
		_ = n.Hub.Close()
		_ = n.Auth.Close()
	})
	t.Cleanup(n.Stop)
	n.Must(n.Hub.Start(ctx))
	return n
}

// Must fails the test if err is one.
func (n *Node) Must(err error) {
	n.T.Helper()
	if err != nil {
		n.T.Fatal(err)
	}
}

// Run has run run from Start to Stop.
func (n *Node) Run(what string, run func(context.Context) error) { n.runs[what] = run }

// OnStop has f called when all that runs has ended, before the hub is closed.
func (n *Node) OnStop(f func()) { n.closers = append(n.closers, f) }

// Start starts what Run was given. What ends with an error before Stop fails the test.
func (n *Node) Start() {
	for what, run := range n.runs {
		n.running.Go(func() {
			if err := run(n.ctx); err != nil && n.ctx.Err() == nil {
				n.T.Errorf("%s: %v", what, err)
			}
		})
	}
}

// Join makes the node one of a cluster that speaks over bus, nil for the hub's own. Who
// is there is reported to others a window later.
func (n *Node) Join(bus hub.Bus, window time.Duration) {
	n.T.Helper()
	if n.Bus = bus; bus == nil {
		n.Bus = n.Hub.Bus()
	}
	var err error
	n.Cluster, err = cluster.New(cluster.Config{Heartbeat: hub.Duration(50 * time.Millisecond), Lease: hub.Duration(2 * time.Second)}, n.Bus, n.Log)
	n.Must(err)
	n.Presence, err = presence.New(presence.Config{Window: hub.Duration(window)}, n.Cluster, n.Bus, n.Log)
	n.Must(err)
	n.Run("cluster", n.Cluster.Run)
	n.Run("presence", n.Presence.Run)
}

// Pair starts two nodes that know each other. They share no broker: what is published on
// one stays there. start starts one on a bus, and says which node that is.
func Pair[N any](t *testing.T, start func(bus hub.Bus) (N, *Node)) (a, b N) {
	t.Helper()
	net := clustertest.NewNet(1)
	t.Cleanup(net.Close)
	a, one := start(net.Join("a"))
	b, two := start(net.Join("b"))
	Meet(one, two)
	return a, b
}

// Meet waits until nodes know each other.
func Meet(nodes ...*Node) {
	nodes[0].T.Helper()
	trial.Eventually(nodes[0].T, "the nodes know each other", func() bool {
		for _, n := range nodes {
			if len(n.Cluster.Nodes()) != len(nodes) {
				return false
			}
		}
		return true
	})
}

// Serve mounts endpoints on a front, listens and starts all that is to run.
func (n *Node) Serve(endpoints []socket.Endpoint) {
	n.T.Helper()
	l := n.Loops(LoopConfig{})
	n.Must(l.Front.Mount(endpoints))
	l.Listen()
	n.Start()
	if n.http2 {
		n.Addr = n.bridge()
	}
}
