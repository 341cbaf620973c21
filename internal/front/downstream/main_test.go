package downstream_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/front/socket/nodetest"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/record"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEverythingHoldsWithEpoll(t *testing.T) { trial.Again(t, trial.Engine, "epoll") }

const (
	testKey    = "test-key-0123456789"
	testSecret = "a secret of the tests, 0123456789 abcdef"
)

// settings of a gateway under test. The zero value forwards everything to peers.
type settings struct {
	front   downstream.Config
	proxy   proxy.Config
	loops   eventloop.Config
	cluster upstream.Config
	more    []upstream.Config
	splits  []upstream.SplitConfig
	routes  []policy.RouteConfig
	accept  func(front *downstream.Server) func(*eventloop.Conn) eventloop.Handler
	push    push.Config
	// endpoints are mounted; it may add formats. panics are expected of the loops.
	endpoints func(*wire.Formats) []socket.Endpoint
	panics    uint64
}

// gateway is a front with routes and a proxy, on real sockets.
type gateway struct {
	*nodetest.Node
	front    *downstream.Server
	push     *push.Push
	proxy    *proxy.Proxy
	recorder *record.Recorder
	clusters *upstream.Set
	loops    *nodetest.Loops
	deps     policy.Deps
}

// start runs a gateway whose cluster "main" has peers.
func start(t *testing.T, s settings, peers ...string) *gateway {
	t.Helper()
	var endpoints []socket.Endpoint
	n := nodetest.New(t, nodetest.Config{
		Auth:       auth.Config{APIKeys: []auth.APIKey{{Name: "test", Key: testKey, Publish: []string{"**"}, Subscribe: []string{"**"}}}, KeySet: auth.KeySet{HMACSecret: testSecret}},
		Namespaces: []hub.Namespace{{Name: "default", Anonymous: true}, {Name: "llm", HistorySize: 400}},
		Formats: func(f *wire.Formats) {
			if s.endpoints != nil {
				endpoints = s.endpoints(f)
			}
		},
	})
	g := &gateway{Node: n}
	var err error
	deps := func(loops *nodetest.Loops, d *downstream.Deps) {
		g.proxy, err = proxy.New(s.proxy, loops.Loops(), n.Log)
		n.Must(err)
		g.recorder = record.New(record.Options{Hub: n.Hub, Alone: true, Log: n.Log})
		d.Proxy, d.Recorder = g.proxy, g.recorder
	}
	loops := n.Loops(nodetest.LoopConfig{Loops: s.loops, Push: s.push, Front: s.front, Deps: deps, Accept: s.accept, Panics: s.panics})
	g.loops, g.push, g.front = loops, loops.Push, loops.Front
	n.Must(g.front.Mount(endpoints))
	n.OnStop(g.proxy.Close)
	n.OnStop(g.recorder.Close)
	s.cluster.Name = "main"
	for _, addr := range peers {
		s.cluster.Peers = append(s.cluster.Peers, upstream.PeerConfig{Address: addr})
	}
	clusters := s.more
	if len(peers) > 0 {
		clusters = append(clusters, s.cluster)
	}
	g.clusters, err = upstream.New(clusters, s.splits, upstream.Options{Now: proxy.Clock(g.loops.Loops()[0]), Log: n.Log})
	n.Must(err)
	n.Run("clusters", g.clusters.Run)
	if s.routes == nil {
		s.routes = []policy.RouteConfig{{Cluster: "main"}}
	}
	g.deps = policy.Deps{State: policy.NewState(0), Auth: n.Auth, Log: n.Log}
	g.route(s.routes...)
	loops.Listen()
	n.Start()
	<-g.clusters.Ready()
	return g
}

// route makes routes the ones in force.
func (g *gateway) route(routes ...policy.RouteConfig) {
	g.T.Helper()
	set, err := policy.New(routes, g.deps)
	if err == nil {
		err = g.front.SetRoutes(set, g.clusters)
	}
	if err != nil {
		g.T.Fatal(err)
	}
}

func (g *gateway) url(path string) string { return "http://" + g.Addr + path }

// backend is a net/http server.
func backend(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func (g *gateway) dial() *wiretest.Conn {
	g.T.Helper()
	return wiretest.Dial(g.T, g.Addr)
}
