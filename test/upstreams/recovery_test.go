package upstreams

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A patient is a backend that fails in one way until it recovers.
type patient struct {
	t       *testing.T
	address string
	ill     atomic.Bool
	well    chan struct{} // closed at recovery: ends what hangs
	served  atomic.Int64  // since then

	mu sync.Mutex
	ts *httptest.Server // nil: nothing listens
}

func newPatient(t *testing.T, ail func(p *patient, w http.ResponseWriter, r *http.Request)) *patient {
	p := &patient{t: t, well: make(chan struct{})}
	p.settle(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.ill.Load() {
			ail(p, w, r)
			return
		}
		if r.URL.Path != "/health" {
			p.served.Add(1)
		}
		w.Header().Set("X-Peer", "patient")
		_, _ = io.WriteString(w, whole)
	}))
	t.Cleanup(p.close)
	return p
}

// settle finds a port and listens there. Another test may have found the same one.
func (p *patient) settle(h http.Handler) {
	for range 20 {
		p.address = judge.FreeAddr(p.t)
		if ln, err := net.Listen("tcp", p.address); err == nil {
			p.serve(ln, h)
			return
		}
	}
	p.t.Fatal("no port is free")
}

// listen is for the port that p had before.
func (p *patient) listen(h http.Handler) {
	ln, err := net.Listen("tcp", p.address)
	if err != nil {
		p.t.Error(err)
		return
	}
	p.serve(ln, h)
}

func (p *patient) serve(ln net.Listener, h http.Handler) {
	ts := &httptest.Server{Listener: ln, Config: &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}}
	ts.Start()
	p.mu.Lock()
	p.ts = ts
	p.mu.Unlock()
}

func (p *patient) close() {
	p.mu.Lock()
	ts := p.ts
	p.ts = nil
	p.mu.Unlock()
	if ts != nil {
		ts.CloseClientConnections()
		ts.Close()
	}
}

// A course is one way to be ill and how long.
type course struct {
	name   string
	outage time.Duration
	single bool           // there is no other peer
	config map[string]any // of the cluster; the rest is at its defaults
	refuse bool           // nothing listens meanwhile
	spared bool           // balancing avoids it so well that it need not be removed
	ail    func(p *patient, w http.ResponseWriter, r *http.Request)

	path string
	p    *patient
}

func fails(_ *patient, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }

func hangs(p *patient, _ http.ResponseWriter, r *http.Request) {
	select {
	case <-p.well:
	case <-r.Context().Done():
	}
}

func resets(_ *patient, w http.ResponseWriter, _ *http.Request) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

func courses() []*course {
	checked := map[string]any{"health": map[string]any{"path": "/health"}}
	return []*course{
		{name: "500s", outage: 6 * time.Second, ail: fails},
		{name: "500s, alone", outage: 6 * time.Second, ail: fails, single: true},
		{name: "500s for long", outage: 22 * time.Second, ail: fails},
		{name: "500s for long, alone", outage: 22 * time.Second, ail: fails, single: true},
		{name: "500s, checked", outage: 18 * time.Second, ail: fails, config: checked},
		{name: "500s, checked, alone", outage: 18 * time.Second, ail: fails, config: checked, single: true},
		{name: "refuses", outage: 6 * time.Second, ail: fails, refuse: true},
		{name: "refuses, alone", outage: 6 * time.Second, ail: fails, refuse: true, single: true},
		{name: "refuses, checked", outage: 18 * time.Second, ail: fails, refuse: true, config: checked},
		{name: "refuses, checked, alone", outage: 18 * time.Second, ail: fails, refuse: true, config: checked, single: true},
		{name: "resets", outage: 6 * time.Second, ail: resets},
		{name: "resets, alone", outage: 6 * time.Second, ail: resets, single: true},
		{name: "hangs", outage: 12 * time.Second, ail: hangs, config: map[string]any{"timeouts": map[string]any{"first_byte": "1s"}}},
		{name: "hangs, alone", outage: 12 * time.Second, ail: hangs, single: true, config: map[string]any{"timeouts": map[string]any{"first_byte": "1s"}}},
		{name: "hangs, checked", outage: 22 * time.Second, ail: hangs, config: checked},
		{name: "by fewest requests", outage: 6 * time.Second, ail: fails, config: map[string]any{"balance": "least_connections"}},
		{name: "by latency", spared: true, outage: 6 * time.Second, ail: fails, config: map[string]any{"balance": "ewma"}},
		{name: "by latency, hangs", spared: true, outage: 12 * time.Second, ail: hangs, config: map[string]any{"balance": "ewma", "timeouts": map[string]any{"first_byte": "1s"}}},
	}
}

// TestBackInServiceWithin30sOfRecovery measures, with default settings, from the
// instant a backend is healthy to the instant it has served 10 requests.
func TestBackInServiceWithin30sOfRecovery(t *testing.T) {
	t.Parallel()
	all := courses()
	healthy := newPatient(t, fails)
	var routes, clusters []any
	for i, c := range all {
		c.p, c.path = newPatient(t, c.ail), fmt.Sprintf("/%d", i)
		peers := []any{map[string]any{"address": c.p.address}}
		if !c.single {
			peers = append(peers, map[string]any{"address": healthy.address})
		}
		cl := map[string]any{"name": c.name, "peers": peers}
		for k, v := range c.config {
			cl[k] = v
		}
		clusters = append(clusters, cl)
		routes = append(routes, map[string]any{"name": c.name, "path": c.path, "cluster": c.name})
	}
	g := judge.New(t, judge.Options{Memory: true, Config: map[string]any{"routes": routes, "clusters": clusters}})
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.play(t, g.In(t))
		})
	}
}

// play has c's backend fall ill and recover, under load.
func (c *course) play(t *testing.T, g *judge.Server) {
	stop := asking(t, g.Public, c.path, 6, 25*time.Millisecond)
	defer stop()
	p := c.p
	judge.Eventually(t, 30*time.Second, "it serves", func() bool { return p.served.Load() >= 30 })
	p.mu.Lock()
	handler := p.ts.Config.Handler
	p.mu.Unlock()
	p.ill.Store(true)
	if c.refuse {
		p.close()
	}
	<-time.After(c.outage) // the outage is what is being tested
	seen := peers(t, g, c.name)[p.address]
	if seen.Ejections+seen.BreakerOpened == 0 && seen.State != "down" && !c.spared {
		t.Errorf("%s of failures did not take it out: %+v", c.outage, seen)
	}
	if c.refuse {
		p.listen(handler)
	}
	p.served.Store(0)
	well := time.Now()
	close(p.well)
	p.ill.Store(false)
	judge.Eventually(t, 60*time.Second, "it serves again", func() bool { return p.served.Load() >= 10 })
	took := time.Since(well)
	t.Logf("back in service %4.1fs after recovery (was %s)", took.Seconds(), seen.State)
	if took > 30*time.Second {
		t.Errorf("back in service only %s after recovery", took)
	}
	judge.Eventually(t, 30*time.Second, "it is up", func() bool { return peers(t, g, c.name)[p.address].State == "up" })
}

// peerView is what /api/upstreams shows of a peer.
type peerView struct {
	Address, State string
	Ejections      int
	BreakerOpened  int `json:"breaker_opened"`
	InFlight       int `json:"in_flight"`
	Connections    int
}

// peers is what the gateway says of each peer of a cluster, by address.
func peers(t *testing.T, g *judge.Server, name string) map[string]peerView {
	t.Helper()
	var view struct {
		Clusters []struct {
			Name  string
			Peers []peerView
		}
	}
	readUpstreams(t, g, &view)
	found := map[string]peerView{}
	for _, c := range view.Clusters {
		if c.Name == name {
			for _, p := range c.Peers {
				found[p.Address] = p
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("/api/upstreams shows no peer of %s", name)
	}
	return found
}

// asking sends requests whatever comes of them, until the function returned is
// called.
func asking(t *testing.T, addr, path string, conns int, pace time.Duration) (stop func()) {
	t.Helper()
	client := &http.Client{Timeout: 40 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: conns}}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range conns {
		wg.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				res, err := client.Get("http://" + addr + path)
				if err != nil {
					continue
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		})
	}
	return sync.OnceFunc(func() {
		close(done)
		wg.Wait()
		client.CloseIdleConnections()
	})
}
