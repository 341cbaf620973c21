package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/batch"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/sse"
)

// untilFull is a max_wait that no test waits for.
const untilFull = hub.Duration(time.Minute)

// A doubler is a model that doubles numbers and has a name. While it is ill it answers 500.
type doubler struct {
	name  string
	sizes chan int // of its calls
	ill   atomic.Bool
}

func (d *doubler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct{ Instances []int }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || d.ill.Load() {
		http.Error(w, "no", http.StatusInternalServerError)
		return
	}
	var out []string
	for _, n := range in.Instances {
		out = append(out, fmt.Sprintf("%s %d", d.name, 2*n))
	}
	d.sizes <- len(in.Instances)
	_ = json.NewEncoder(w).Encode(map[string]any{"predictions": out})
}

// doublers are clusters with a model each, of these names.
func doublers(t *testing.T, names ...string) (list []*doubler, clusters []upstream.Config) {
	t.Helper()
	for _, name := range names {
		d := &doubler{name: name, sizes: make(chan int, 1000)}
		s := httptest.NewServer(d)
		t.Cleanup(s.Close)
		list = append(list, d)
		clusters = append(clusters, upstream.Config{Name: name, Peers: []upstream.PeerConfig{{Address: s.Listener.Addr().String()}}})
	}
	return list, clusters
}

// A modelReply is what a request of a model's client came to.
type modelReply struct {
	status int
	after  string // Retry-After
	body   string
	err    error
}

// postModel makes a request on a goroutine of its own.
func postModel(ctx context.Context, t *testing.T, c *http.Client, url, body string) <-chan modelReply {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/run", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	done := make(chan modelReply, 1)
	go func() {
		res, err := c.Do(req)
		if err != nil {
			done <- modelReply{err: err}
			return
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		done <- modelReply{res.StatusCode, res.Header.Get("Retry-After"), string(b), err}
	}()
	return done
}

func (r modelReply) wants(t *testing.T, status int, body string) {
	t.Helper()
	if r.err != nil || r.status != status || !strings.Contains(r.body, body) {
		t.Errorf("%d %q, %v; want %d %q", r.status, r.body, r.err, status, body)
	}
}

func (g *gateway) batched() batch.Stats { return downstream.Batches(g.front)[0] }

// queued waits until n requests wait for their call.
func (g *gateway) queued(t *testing.T, n int) {
	t.Helper()
	trial.Eventually(t, fmt.Sprintf("%d requests wait", n), func() bool { return g.batched().Waiting == n })
}

// everyVersion is a gateway with a route that batches, and a client of each version of HTTP.
func everyVersion(t *testing.T, cfg policy.Batch, clusters []upstream.Config) (*gateway, map[string]*http.Client) {
	t.Helper()
	f, pool := selfSigned(t, t.TempDir(), 1)
	g := start(t, func(c *config.Config) {
		c.TLS.Certificates = []tlsterm.Certificate{f}
		c.Downstream.HTTP3 = true
		c.Clusters, c.Routes = clusters, []policy.RouteConfig{{Name: "model", Cluster: clusters[0].Name, Batch: cfg}}
	})
	return g, clientsOf(t, pool)
}

func clientsOf(t *testing.T, pool *x509.CertPool) map[string]*http.Client {
	one := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{RootCAs: pool}}
	one.Protocols.SetHTTP1(true)
	t.Cleanup(one.CloseIdleConnections)
	return map[string]*http.Client{
		"http1": {Transport: one, Timeout: trial.Patience}, "http2": overHTTP2(t, &tls.Config{RootCAs: pool}), "http3": overHTTP3(t, pool),
	}
}

var httpVersions = []string{"http1", "http2", "http3"}

func TestRequestsOfEveryVersionShareACall(t *testing.T) {
	models, clusters := doublers(t, "m")
	g, clients := everyVersion(t, policy.Batch{Format: "kserve", MaxItems: 3, MaxWait: untilFull}, clusters)
	for turn := range httpVersions { // each opens a call once
		var all []<-chan modelReply
		for i := range httpVersions {
			version := httpVersions[(turn+i)%3]
			all = append(all, postModel(t.Context(), t, clients[version], g.URL(), fmt.Sprintf(`{"instances":[%d]}`, 10*turn+i)))
			if i < 2 {
				g.queued(t, i+1)
			}
		}
		for i, o := range all {
			(<-o).wants(t, http.StatusOK, fmt.Sprintf(`["m %d"]`, 2*(10*turn+i)))
		}
		if n := <-models[0].sizes; n != 3 {
			t.Errorf("a call of %d", n)
		}
	}
	trial.Eventually(t, "all is over", func() bool { return g.batched().Running == 0 })
	if s := g.batched(); s.Calls != 3 || s.Joined != 9 || s.Alone+s.Left+s.Malformed != 0 {
		t.Errorf("%+v", s)
	}
}

// tokens is a backend that streams what the test says; "" ends it.
type tokens struct {
	events chan string
	gone   atomic.Int64
}

func (m *tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", sse.ContentType)
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case s := <-m.events:
			if s == "" {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", s)
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			m.gone.Add(1)
			return
		}
	}
}

// openStream makes a request whose reply is events.
func openStream(ctx context.Context, t *testing.T, c *http.Client, url, body string) <-chan *sse.Reader {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	opened := make(chan *sse.Reader, 1)
	go func() {
		defer close(opened)
		res, err := c.Do(req)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("%v, %v", res, err)
			return
		}
		t.Cleanup(func() { res.Body.Close() })
		opened <- sse.NewReader(res.Body)
	}()
	return opened
}

func nextEvent(t *testing.T, r *sse.Reader, want string) {
	t.Helper()
	if r == nil {
		t.Fatal("there is no stream")
	}
	if ev, err := r.Next(); err != nil || string(ev.Data) != want {
		t.Fatalf("%q, %v; want %q", ev.Data, err, want)
	}
}

// Clients of each version divide a stream, and leave: one while it waits, one under way, and the
// others when they have all. The backend's work ends with the last client that still wants it.
func TestStreamsOfEveryVersionAreDivided(t *testing.T) {
	m := &tokens{events: make(chan string, 100)}
	s := httptest.NewServer(m)
	t.Cleanup(s.Close)
	clusters := []upstream.Config{{Name: "m", Peers: []upstream.PeerConfig{{Address: s.Listener.Addr().String()}}}}
	g, clients := everyVersion(t, policy.Batch{Format: "openai_completions", MaxItems: 3, MaxWait: untilFull}, clusters)
	for turn, leaver := range httpVersions {
		waiting, giveUp := context.WithCancel(t.Context())
		never := postModel(waiting, t, clients[leaver], g.URL(), `{"prompt":"never sent","stream":true}`)
		g.queued(t, 1)
		giveUp()
		if r := <-never; r.err == nil {
			t.Errorf("%s: %+v", leaver, r)
		}
		g.queued(t, 0)

		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		streams := map[string]<-chan *sse.Reader{}
		index := map[string]int{}
		for i, version := range httpVersions {
			of := t.Context()
			if version == leaver {
				of = ctx
			}
			streams[version], index[version] = openStream(of, t, clients[version], g.URL(), fmt.Sprintf(`{"prompt":"%s","stream":true}`, version)), i
			if i < 2 {
				g.queued(t, i+1)
			}
		}
		m.events <- `{"choices":[{"index":2,"text":"c"},{"index":0,"text":"a"},{"index":1,"text":"b"}]}`
		readers := map[string]*sse.Reader{}
		for _, version := range httpVersions {
			readers[version] = <-streams[version]
			nextEvent(t, readers[version], fmt.Sprintf(`{"choices":[{"index":0,"text":"%c"}]}`, 'a'+index[version]))
		}
		left := g.batched().Left
		leave()
		trial.Eventually(t, leaver+"'s part is dropped", func() bool { return g.batched().Left == left+1 })
		for _, version := range httpVersions {
			if version == leaver {
				continue
			}
			m.events <- fmt.Sprintf(`{"choices":[{"index":%d,"finish_reason":"stop"}]}`, index[version])
			nextEvent(t, readers[version], `{"choices":[{"index":0,"finish_reason":"stop"}]}`)
			nextEvent(t, readers[version], "[DONE]")
		}
		trial.Eventually(t, "the call ends, as no client wants its rest", func() bool { return m.gone.Load() == int64(turn+1) && g.batched().Running == 0 })
	}
}

// Requests that a split sends to different clusters do not share a call, and those that it sends
// to the same one do.
func TestACallIsOfOneArmOfASplit(t *testing.T) {
	models, clusters := doublers(t, "stable", "canary")
	g := start(t, func(c *config.Config) {
		c.Clusters = clusters
		c.Splits = []upstream.SplitConfig{{Name: "release", Arms: []upstream.ArmConfig{{Cluster: "stable", Weight: 3}, {Cluster: "canary", Weight: 1}}}}
		c.Routes = []policy.RouteConfig{{Name: "model", Cluster: "release", Batch: policy.Batch{Format: "kserve", MaxItems: 64, MaxWait: hub.Duration(500 * time.Millisecond)}}}
	})
	const n = 40
	var all []<-chan modelReply
	for i := range n {
		all = append(all, postModel(t.Context(), t, http.DefaultClient, g.URL(), fmt.Sprintf(`{"instances":[%d]}`, i)))
	}
	of := map[string]int{}
	for i, o := range all {
		r := <-o
		arm, _, _ := strings.Cut(strings.TrimPrefix(r.body, `{"predictions":["`), " ")
		r.wants(t, http.StatusOK, fmt.Sprintf(`["%s %d"]`, arm, 2*i))
		of[arm]++
	}
	calls := 0
	for _, d := range models {
		got := 0
		for len(d.sizes) > 0 {
			got += <-d.sizes
			calls++
		}
		if got != of[d.name] {
			t.Errorf("%s got %d of %d", d.name, got, of[d.name])
		}
	}
	s := g.batched()
	if of["stable"]+of["canary"] != n || of["stable"] <= of["canary"] || int(s.Calls+s.Alone) != calls || calls > n/2 {
		t.Errorf("%v in %d calls, %+v", of, calls, s)
	}
}

// While a breaker is open each client of a call gets what a request alone gets, and afterwards
// its answer.
func TestACallFindsABreakerOpen(t *testing.T) {
	models, clusters := doublers(t, "m")
	clusters[0].Breaker = upstream.BreakerConfig{MinRequests: 2, FailureRatio: 0.5, OpenTime: hub.Duration(300 * time.Millisecond), Probes: 1}
	clusters[0].Retry = upstream.RetryConfig{Attempts: 1}
	g := start(t, func(c *config.Config) {
		c.Clusters = clusters
		c.Routes = []policy.RouteConfig{{Name: "model", Cluster: "m", Batch: policy.Batch{Format: "kserve", MaxItems: 2, MaxWait: untilFull}}}
	})
	pair := func() (both [2]modelReply) {
		one := postModel(t.Context(), t, http.DefaultClient, g.URL(), `{"instances":[1]}`)
		g.queued(t, 1)
		two := postModel(t.Context(), t, http.DefaultClient, g.URL(), `{"instances":[2]}`)
		return [2]modelReply{<-one, <-two}
	}
	models[0].ill.Store(true)
	var alone modelReply
	trial.Eventually(t, "the breaker opens", func() bool {
		alone = <-postModel(t.Context(), t, http.DefaultClient, g.URL(), `{"instances":[1,2]}`)
		return alone.status == http.StatusServiceUnavailable
	})
	trial.Eventually(t, "a call of two finds it open", func() bool {
		both := pair() // or is its probe
		return both == [2]modelReply{alone, alone}
	})
	models[0].ill.Store(false)
	trial.Eventually(t, "it closes", func() bool { return pair()[0].status == http.StatusOK })
	both := pair()
	both[0].wants(t, http.StatusOK, `["m 2"]`)
	both[1].wants(t, http.StatusOK, `["m 4"]`)
	trial.Eventually(t, "all is over", func() bool { s := g.batched(); return s.Running+s.Waiting == 0 })
}

// What waits when the configuration changes goes where it was to go, and shares a call with what comes
// afterwards if that goes there too.
func TestAReloadWhileABatchWaits(t *testing.T) {
	models, clusters := doublers(t, "old", "new")
	route := func(cluster string, items int, wait time.Duration) []policy.RouteConfig {
		return []policy.RouteConfig{{Name: "model", Cluster: cluster, Batch: policy.Batch{Format: "kserve", MaxItems: items, MaxWait: hub.Duration(wait)}}}
	}
	g := startLive(t, func(c *config.Config) {
		c.Clusters, c.Routes = clusters, route("old", 3, time.Minute)
	}, Options{})
	post := func(body string) <-chan modelReply {
		return postModel(t.Context(), t, http.DefaultClient, g.URL(), body)
	}

	first := post(`{"instances":[1]}`)
	g.queued(t, 1)
	g.change(t, func(c *config.Config) { c.Routes = route("old", 2, 2*time.Second) })
	(<-post(`{"instances":[2]}`)).wants(t, http.StatusOK, `["old 4"]`) // a call of two is full now
	(<-first).wants(t, http.StatusOK, `["old 2"]`)

	pair, other := post(`{"instances":[3]}`), post(`{"instances":[4],"parameters":{}}`)
	g.queued(t, 2)
	g.change(t, func(c *config.Config) {
		c.Clusters, c.Routes = slices.Clone(clusters[1:]), route("new", 2, time.Minute)
	})
	one := post(`{"instances":[5]}`)
	g.queued(t, 3)
	(<-post(`{"instances":[6]}`)).wants(t, http.StatusOK, `["new 12"]`)
	(<-one).wants(t, http.StatusOK, `["new 10"]`)
	(<-pair).wants(t, http.StatusOK, `["old 6"]`) // the cluster is gone, not for them
	(<-other).wants(t, http.StatusOK, `["old 8"]`)

	last := post(`{"instances":[7]}`)
	g.queued(t, 1)
	g.change(t, func(c *config.Config) { c.Routes = []policy.RouteConfig{{Path: "/other", Cluster: "new"}} })
	gone := <-post(`{"instances":[8]}`)
	if gone.status != http.StatusNotFound {
		t.Errorf("without a route: %+v", gone)
	}
	if s := g.batched(); s.Waiting != 1 || s.Calls != 2 || s.Alone != 2 {
		t.Errorf("%+v", s)
	}
	g.change(t, func(c *config.Config) { c.Routes = route("new", 2, time.Minute) })
	(<-post(`{"instances":[9]}`)).wants(t, http.StatusOK, `["new 18"]`)
	(<-last).wants(t, http.StatusOK, `["new 14"]`) // they meet again
	if n := len(models[0].sizes) + len(models[1].sizes); n != 5 {
		t.Errorf("%d calls", n)
	}
}
