package app

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// slow is a rate at which nothing comes back during a test: 30 at once.
var slow = limit.Rate{PerSecond: 1.0 / 3600, Burst: 30}

// limitedNodes are the nodes of a cluster, whose clients are limited in every way.
type limitedNodes struct {
	t     *testing.T
	nodes []*gateway
	h     []*holder
	token map[string]string
}

func startLimited(t *testing.T, url string, n int) *limitedNodes {
	l := &limitedNodes{t: t, token: map[string]string{}}
	for range n {
		l.start(url)
	}
	l.wantShared(n, false)
	return l
}

func (l *limitedNodes) start(url string) {
	local := slow
	local.Shared = setting.Off
	g := start(l.t, func(c *config.Config) {
		withProtocols(c)
		c.Broker = config.Broker{Kind: config.BrokerNATS}
		c.Broker.NATS.URL = url
		c.Limits.PerIdentity.PublishRate = slow
		c.Limits.PerIdentity.SubscribeRate = slow
		c.Limits.PerAddress.ConnectRate = slow
		c.Limits.Exempt = []string{"127.0.0.1"} // the other clients
		reply := policy.Reply{Status: 200}
		c.Routes = []policy.RouteConfig{
			{Name: "tenant", Path: "/tenant", Reply: reply, Auth: policy.Auth{Required: true}, Limits: policy.Limits{PerTenant: slow}},
			{Name: "own", Path: "/own", Reply: reply, Auth: policy.Auth{Required: true}, Limits: policy.Limits{PerTenant: local}},
			{Name: "address", Path: "/address", Reply: reply, Limits: policy.Limits{PerAddress: slow}},
			{Name: "route", Path: "/route", Reply: reply, Limits: policy.Limits{PerRoute: slow}},
		}
	})
	l.nodes, l.h = append(l.nodes, g), append(l.h, newHolder(l.t, g))
}

// wantShared waits until all nodes know of n, and are out of their reach or not.
func (l *limitedNodes) wantShared(n int, alone bool) {
	l.t.Helper()
	trial.Eventually(l.t, "the nodes know of each other", func() bool {
		for _, g := range l.nodes {
			if s := g.limits.state(); s == nil || s.Nodes != n || s.Alone != alone {
				return false
			}
		}
		return true
	})
}

// spend sends n requests to a node as a user, over both versions of HTTP, and returns how many were let
// through.
func (l *limitedNodes) spend(node int, path, user string, n int) (passed int) {
	l.t.Helper()
	if l.token[user] == "" {
		l.token[user] = tokenOf(l.t, user, nil)
	}
	h := l.h[node]
	refused := h.g.admission.front.Stats().Subscribe
	for i := range n {
		client := []*http.Client{h.h1, h.h2}[i%2]
		ctx, cancel := context.WithCancel(h.ctx)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.g.url+path, nil)
		if err != nil {
			l.t.Fatal(err)
		}
		authorize(req.Header, l.token[user])
		if path == "/api/publish" {
			req.Method, req.Body = http.MethodPost, http.NoBody
			req.Header.Set("X-API-Key", testKey)
			req.Header.Del("Authorization")
		}
		res, err := client.Do(req)
		if err != nil {
			l.t.Fatal(err)
		}
		cancel()
		_ = res.Body.Close()
		switch {
		case res.StatusCode == http.StatusOK || path == "/api/publish" && res.StatusCode == http.StatusBadRequest: // an empty body, behind the limit
			passed++
		case res.StatusCode != http.StatusTooManyRequests:
			l.t.Fatalf("%s: %d", path, res.StatusCode)
		}
	}
	return passed - int(h.g.admission.front.Stats().Subscribe-refused) // a stream says so in its first event
}

// connect makes n connections to a node from an address, each with a request of either version of HTTP, and returns how
// many were let in. The others are closed before they are read from.
func (l *limitedNodes) connect(node int, from string, n int) (passed int) {
	l.t.Helper()
	g := l.h[node].g
	before := g.admission.front.Stats().ConnectRate
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	for i := range n {
		tr := &http.Transport{DialContext: dialer.DialContext, Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(i%2 == 0)
		tr.Protocols.SetUnencryptedHTTP2(i%2 == 1)
		res, err := (&http.Client{Transport: tr, Timeout: trial.Patience}).Post(g.url+"/nothing", "text/plain", http.NoBody) // a POST is sent once
		if err == nil {
			passed++
			_ = res.Body.Close()
		}
		tr.CloseIdleConnections()
	}
	if refused := g.admission.front.Stats().ConnectRate - before; int(refused) != n-passed {
		l.t.Errorf("node %d: %d of %d connections from %s came to nothing, %d were refused", node, n-passed, n, from, refused)
	}
	return passed
}

// spread spends 10 at each of three nodes, when they know of what was spent before.
func (l *limitedNodes) spread(path, user string) {
	l.t.Helper()
	l.spreadBy(path, func(node, n int) int { return l.spend(node, path, user, n) })
}

// spreadBy is spread by what is called spend.
func (l *limitedNodes) spreadBy(path string, spend func(node, n int) int) {
	l.t.Helper()
	for i, g := range l.nodes {
		sent, applied := l.counts()
		if got := spend(i, 10); got != 10 {
			l.t.Errorf("%s: node %d lets %d of 10 through", path, i, got)
		}
		g.limits.share.Load().Tick(g.limits.clock()) // all of it is sent
		trial.Eventually(l.t, "the others know", func() bool {
			now, there := l.counts()
			for j := range l.nodes {
				if j != i && there[j]-applied[j] != now[i]-sent[i] {
					return false
				}
			}
			return now[i] > sent[i]
		})
	}
}

// counts are of each node the buckets whose use it has sent, and those of other nodes that it has applied.
func (l *limitedNodes) counts() (sent, applied []uint64) {
	for _, g := range l.nodes {
		s := g.limits.state()
		sent, applied = append(sent, s.Buckets), append(applied, s.Applied)
	}
	return sent, applied
}

// TestThreeNodesHaveOneLimit spends a client's limits of every kind at three nodes, over both versions of
// HTTP: together they let through what one would.
func TestThreeNodesHaveOneLimit(t *testing.T) {
	l := startLimited(t, natstest.Server(t), 3)
	for _, path := range []string{"/tenant", "/address", "/route", "/sse?channel=private:a", "/api/publish"} {
		l.spread(path, "alice")
		for i := range l.nodes {
			if got := l.spend(i, path, "alice", 4); got != 0 {
				t.Errorf("%s: node %d lets %d more through", path, i, got)
			}
		}
	}
	connect := func(node, n int) int { return l.connect(node, "127.0.0.9", n) }
	l.spreadBy("connections", connect)
	for i := range l.nodes {
		if got := connect(i, 4); got != 0 {
			t.Errorf("connections: node %d lets %d more in", i, got)
		}
		if got := l.connect(i, "127.0.0.10", 2); got != 2 {
			t.Errorf("connections from another address: node %d lets %d of 2 in", i, got)
		}
	}
	for i := range l.nodes {
		if got := l.spend(i, "/own", "alice", 31); got != 30 {
			t.Errorf("by itself node %d lets %d through, want 30", i, got)
		}
		if got := l.spend(i, "/tenant", "bob", 2); got != 2 {
			t.Errorf("another client at node %d: %d of 2", i, got)
		}
	}
	// A message that makes no sense changes nothing and is counted.
	bus := l.nodes[0].hub.Bus()
	for _, text := range []string{"", "\x01", "\x02 of another version", strings.Repeat("x", 100<<10)} {
		if err := bus.Broadcast(shareTopic, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	trial.Eventually(t, "they are counted", func() bool {
		return l.nodes[1].limits.state().Malformed == 4 && l.nodes[2].limits.state().Malformed == 4
	})
	if got := l.spend(1, "/tenant", "carol", 30); got != 30 {
		t.Errorf("after them: %d of 30", got)
	}
}

// TestWithoutNATSEachNodeHasItsPart takes NATS away: three nodes let a third each through, and one limit
// together when it is back. The part of a node that has left is the others'.
func TestWithoutNATSEachNodeHasItsPart(t *testing.T) {
	t.Parallel() // it mostly waits
	url, serve, away := natsThatComesBack(t)
	l := startLimited(t, url, 3)

	away()
	l.wantShared(3, true)
	for i := range l.nodes {
		if got := l.spend(i, "/tenant", "alice", 12); got != 10 {
			t.Errorf("without NATS node %d lets %d through, want 10", i, got)
		}
	}
	serve()
	l.wantShared(3, false)
	l.spread("/tenant", "bob")
	if got := l.spend(0, "/tenant", "bob", 4); got != 0 {
		t.Errorf("with NATS again: %d more", got)
	}

	l.nodes[2].stop()
	l.nodes, l.h = l.nodes[:2], l.h[:2]
	began := time.Now()
	l.wantShared(2, false)
	t.Logf("the part of the node that left was back after %v", time.Since(began).Round(time.Millisecond))
	away()
	l.wantShared(2, true)
	for i := range l.nodes {
		if got := l.spend(i, "/tenant", "carol", 17); got != 15 {
			t.Errorf("of two nodes without NATS node %d lets %d through, want 15", i, got)
		}
	}
	serve()
	l.wantShared(2, false)
}

// TestOneNodeSharesNoLimits has no other node.
func TestOneNodeSharesNoLimits(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Limits.PerIdentity.PublishRate = slow })
	if s := g.limits.state(); s != nil {
		t.Errorf("%+v", s)
	}
	if _, body := g.do(t, http.MethodGet, "/metrics", ""); strings.Contains(string(body), "weir_limit_share") {
		t.Error("there are metrics of it")
	}
}
