package upstreams

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A release is a version of a backend, with a name that its replies bear.
type release struct {
	name      string
	address   string
	requested atomic.Int64

	mu     sync.Mutex
	bodies []string // of posts
}

// newRelease starts one that takes about delay and fails that share of requests.
func newRelease(t *testing.T, name string, delay time.Duration, failing float64) *release {
	t.Helper()
	v := &release{name: name}
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.requested.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if r.Method == http.MethodPost {
			v.mu.Lock()
			v.bodies = append(v.bodies, r.Header.Get("X-Id")+" "+string(body))
			v.mu.Unlock()
		}
		<-time.After(delay + rand.N(delay/2+1))
		w.Header().Set("X-Peer", name)
		if rand.Float64() < failing {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, whole)
	}))
	t.Cleanup(ts.Close)
	v.address = strings.TrimPrefix(ts.URL, "http://")
	return v
}

// cluster of this one alone, which nothing removes: what is tested is the split.
func (v *release) cluster() map[string]any {
	return map[string]any{"name": v.name, "peers": []any{map[string]any{"address": v.address}},
		"outlier": map[string]any{"enabled": false}, "breaker": map[string]any{"enabled": false}, "retry": map[string]any{"attempts": 1}}
}

func arms(names ...string) []any {
	var all []any
	for _, n := range names {
		all = append(all, map[string]any{"cluster": n, "weight": 1})
	}
	return all
}

// splitView is what /api/upstreams shows of a split.
type splitView struct {
	Name string
	Arms []struct {
		Cluster string
		Share   float64
		Chosen  int
	}
	Ruled, Mirrored int
	Canary          *struct {
		State, Reason string
		Step          int
		Share         float64
	}
}

func splitOf(t *testing.T, g *judge.Server, name string) splitView {
	t.Helper()
	var view struct{ Splits []splitView }
	readUpstreams(t, g, &view)
	for _, s := range view.Splits {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("/api/upstreams shows no split %s", name)
	return splitView{}
}

// readUpstreams decodes /api/upstreams into view. A request that fails is logged and sent again: what
// looks all the time, on connections of its own, is not what is tested.
func readUpstreams(t *testing.T, g *judge.Server, view any) {
	t.Helper()
	judge.Soon(t, 20*time.Second, "/api/upstreams answers", func() error {
		err := g.ReadAdmin("/api/upstreams", view)
		if err != nil {
			t.Log(err)
		}
		return err
	})
}

// A trial is a canary and what must become of it.
type trial struct {
	name    string
	delay   time.Duration
	failing float64
	state   string
	reason  string
}

func TestACanaryIsPromotedOrRolledBack(t *testing.T) {
	t.Parallel()
	base := newRelease(t, "base", 10*time.Millisecond, 0)
	trials := []trial{
		{"good", 10 * time.Millisecond, 0, "promoted", ""},
		{"failing", 10 * time.Millisecond, 0.3, "rolled back", "fail"},
		{"slow", 60 * time.Millisecond, 0, "rolled back", "answers in"},
	}
	clusters := []any{base.cluster()}
	var routes, splits []any
	canaries := map[string]*release{}
	for _, c := range trials {
		v := newRelease(t, c.name, c.delay, c.failing)
		canaries[c.name] = v
		clusters = append(clusters, v.cluster())
		routes = append(routes, map[string]any{"path": "/" + c.name, "cluster": "to-" + c.name})
		splits = append(splits, map[string]any{"name": "to-" + c.name, "arms": arms("base", c.name), "sticky": "cookie:arm",
			// A canary that is as good must not be in danger from the noise of a busy machine.
			"canary": map[string]any{"steps": []int{20, 50, 100}, "samples": 100, "step_time": "2s", "alpha": 0.001, "latency_tolerance": 1}})
	}
	g := judge.New(t, judge.Options{Memory: true, Config: map[string]any{"routes": routes, "clusters": clusters, "splits": splits}})
	for _, c := range trials {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.play(t, g.In(t), canaries[c.name])
		})
	}
}

func (c *trial) play(t *testing.T, g *judge.Server, canary *release) {
	clients := newVisitors(t, g.Public, "/"+c.name, 60)
	stop := clients.visit(10 * time.Millisecond)
	t.Cleanup(stop)
	shares := map[float64]bool{}
	var s splitView
	judge.Soon(t, time.Minute, "it is "+c.state, func() error {
		s = splitOf(t, g, "to-"+c.name)
		shares[s.Canary.Share] = true
		if s.Canary.State != c.state {
			return fmt.Errorf("it is %s: %+v", s.Canary.State, *s.Canary)
		}
		return nil
	})
	if !strings.Contains(s.Canary.Reason, c.reason) {
		t.Errorf("the reason is %q", s.Canary.Reason)
	}
	t.Logf("%s after %d of its requests (%s)", s.Canary.State, s.Arms[1].Chosen, s.Canary.Reason)
	if c.state == "promoted" {
		stop()
		if !shares[0.2] || !shares[0.5] || s.Arms[1].Share != 1 {
			t.Errorf("shares on the way were %v, at the end %v", shares, s.Arms)
		}
		clients.stayed(t, c.name)
		return
	}
	settle := canary.requested.Load()
	judge.Eventually(t, 10*time.Second, "what had started is over", func() bool {
		before := settle
		settle = canary.requested.Load()
		<-time.After(200 * time.Millisecond)
		return settle == before
	})
	seen := clients.requests.Load()
	judge.Eventually(t, 30*time.Second, "300 more requests", func() bool { return clients.requests.Load() > seen+300 })
	stop()
	if now := canary.requested.Load(); now != settle {
		t.Errorf("a canary that was rolled back got %d requests more", now-settle)
	}
}

// visitors are clients with a cookie each.
type visitors struct {
	addr, path string
	requests   atomic.Int64
	wg         sync.WaitGroup

	mu   sync.Mutex
	arms [][]string // of each visitor: where its requests went, without repeats
}

func newVisitors(t *testing.T, addr, path string, n int) *visitors {
	t.Helper()
	return &visitors{addr: addr, path: path, arms: make([][]string, n)}
}

// visit has all of them send requests one by one until stop is called.
func (v *visitors) visit(pace time.Duration) (stop func()) {
	done := make(chan struct{})
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	const lines = 6
	for line := range lines {
		v.wg.Go(func() {
			cookies := make([]string, len(v.arms))
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for who := line; ; who = (who + lines) % len(v.arms) {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				v.once(client, who, cookies)
			}
		})
	}
	return sync.OnceFunc(func() { close(done); v.wg.Wait(); client.CloseIdleConnections() })
}

func (v *visitors) once(client *http.Client, who int, cookies []string) {
	req, _ := http.NewRequest(http.MethodGet, "http://"+v.addr+v.path, nil)
	if cookies[who] != "" {
		req.Header.Set("Cookie", cookies[who])
	}
	res, err := client.Do(req)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	v.requests.Add(1)
	for _, c := range res.Cookies() {
		if c.Name == "arm" {
			cookies[who] = "arm=" + c.Value
		}
	}
	arm := res.Header.Get("X-Peer")
	v.mu.Lock()
	defer v.mu.Unlock()
	if a := v.arms[who]; arm != "" && (len(a) == 0 || a[len(a)-1] != arm) {
		v.arms[who] = append(a, arm)
	}
}

// stayed wants that no client that was once on the canary left it.
func (v *visitors) stayed(t *testing.T, canary string) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	moved := 0
	for who, a := range v.arms {
		switch {
		case len(a) == 1 && a[0] == canary:
		case len(a) == 2 && a[1] == canary:
			moved++
		case len(a) == 1: // it has not come again since the last step
		default:
			t.Errorf("visitor %d was sent to %v", who, a)
		}
	}
	if moved == 0 {
		t.Errorf("no client moved to the canary: %v", v.arms)
	}
}

func TestRulesGoBeforeShares(t *testing.T) {
	t.Parallel()
	old, next, beta := newRelease(t, "old", 0, 0), newRelease(t, "next", 0, 0), newRelease(t, "beta", 0, 0)
	g := judge.New(t, judge.Options{Memory: true, Config: map[string]any{
		"clusters": []any{old.cluster(), next.cluster(), beta.cluster()},
		"routes":   []any{map[string]any{"path": "/*", "cluster": "s"}},
		"splits": []any{map[string]any{"name": "s", "sticky": "header:X-User",
			"arms": []any{map[string]any{"cluster": "old", "weight": 1}, map[string]any{"cluster": "next", "weight": 1}},
			"rules": []any{
				map[string]any{"header": "X-Version", "value": "beta", "cluster": "beta"},
				map[string]any{"cookie": "early", "cluster": "beta"},
				map[string]any{"header": "User-Agent", "value": "robot/", "prefix": true, "cluster": "old"},
			}}},
	}})
	f := func(want string, fields ...string) {
		t.Helper()
		for range 8 {
			if got := peerOf(t, g.Public, fields...); want != "" && got != want {
				t.Errorf("%q goes to %s, want %s", fields, got, want)
			}
		}
	}
	f("beta", "X-Version", "beta")
	f("beta", "Cookie", "a=b; early=1")
	f("old", "User-Agent", "robot/7")
	if n := next.requested.Load(); n != 0 {
		t.Errorf("next was asked %d times", n)
	}
	// Of users about half go to each, and each always to the same.
	went := map[string]int{}
	for u := range 60 {
		user := fmt.Sprint("user", u)
		to := peerOf(t, g.Public, "X-User", user)
		went[to]++
		f(to, "X-User", user)
	}
	if went["old"] < 10 || went["next"] < 10 || went["beta"] != 0 {
		t.Errorf("60 users went to %v", went)
	}
}

func peerOf(t *testing.T, addr string, fields ...string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+addr+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	res, err := judge.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.Header.Get("X-Peer")
}

// TestAMirrorGetsCopiesAndChangesNothing has mirrors that are well, fail, hang,
// and are not there.
func TestAMirrorGetsCopiesAndChangesNothing(t *testing.T) {
	t.Parallel()
	main, copied := newRelease(t, "main", 0, 0), newRelease(t, "copied", 0, 0)
	broken := newRelease(t, "broken", 0, 1)
	hanging := stageScript(t, silent(""))
	bare := func(name, address string) map[string]any {
		return map[string]any{"name": name, "peers": []any{map[string]any{"address": address}}}
	}
	names := []string{"copied", "broken", "hanging", "missing"}
	clusters := []any{main.cluster(), copied.cluster(), broken.cluster(), bare("hanging", hanging), bare("missing", judge.FreeAddr(t))}
	var routes, splits []any
	for _, n := range names {
		routes = append(routes, map[string]any{"path": "/" + n, "cluster": "with-" + n})
		splits = append(splits, map[string]any{"name": "with-" + n, "arms": arms("main"), "mirror": map[string]any{"cluster": n}})
	}
	g := judge.New(t, judge.Options{Memory: true, Config: map[string]any{"routes": routes, "clusters": clusters, "splits": splits}})
	const each = 40
	for _, n := range names {
		for i := range each {
			req, _ := http.NewRequest(http.MethodPost, "http://"+g.Public+"/"+n, strings.NewReader(fmt.Sprint("body ", i)))
			req.Header.Set("X-Id", fmt.Sprint(n, i))
			began := time.Now()
			res, err := judge.HTTP.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil || res.StatusCode != 200 || string(body) != whole || res.Header.Get("X-Peer") != "main" {
				t.Errorf("with a mirror that is %s: %d from %s after %s, %v", n, res.StatusCode, res.Header.Get("X-Peer"), time.Since(began), err)
			}
		}
	}
	main.mu.Lock()
	if len(main.bodies) != each*len(names) {
		t.Errorf("main got %d posts", len(main.bodies))
	}
	main.mu.Unlock()
	for _, v := range []*release{copied, broken} {
		judge.Eventually(t, 10*time.Second, v.name+" got its copies", func() bool { return v.requested.Load() >= each })
		v.mu.Lock()
		arrived := map[string]int{}
		for _, b := range v.bodies {
			arrived[b]++
		}
		for i := range each {
			if b := fmt.Sprintf("%s%d body %d", v.name, i, i); arrived[b] != 1 {
				t.Errorf("%s got %q %d times", v.name, b, arrived[b])
			}
		}
		v.mu.Unlock()
	}
	if n := splitOf(t, g, "with-copied").Mirrored; n != each {
		t.Errorf("/api/upstreams counts %d copies", n)
	}
}

// TestDriftRaisesTheAlarm lets clients of one of two routes send larger bodies from
// some time on, and the backend of the other answer later.
func TestDriftRaisesTheAlarm(t *testing.T) {
	t.Parallel()
	var late atomic.Bool
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		took := rand.N(150 * time.Millisecond) // what a busy machine adds is little of it
		if r.URL.Path == "/later" && late.Load() {
			took += 500 * time.Millisecond
		}
		time.Sleep(took)
		_, _ = io.WriteString(w, whole)
	}))
	t.Cleanup(ts.Close)
	var routes []any
	names := []string{"larger", "later", "same"}
	for _, n := range names {
		// Distances that the noise of a busy machine does not reach.
		routes = append(routes, map[string]any{"name": n, "path": "/" + n, "cluster": "b",
			"drift": map[string]any{"watch": true, "window": "1s", "samples": 200, "distance": 0.8}})
	}
	g := judge.New(t, judge.Options{Memory: true, Config: map[string]any{"routes": routes,
		"clusters": []any{map[string]any{"name": "b", "peers": []any{map[string]any{"address": strings.TrimPrefix(ts.URL, "http://")}}}}}})
	var size atomic.Int64
	size.Store(100)
	done := make(chan struct{})
	var wg sync.WaitGroup
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 24}}
	for _, n := range names {
		for range 8 {
			wg.Go(func() {
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-done:
						return
					case <-tick.C:
					}
					bytes := int64(100)
					if n == "larger" {
						bytes = size.Load()
					}
					res, err := client.Post("http://"+g.Public+"/"+n, "text/plain", strings.NewReader(strings.Repeat("x", int(bytes+rand.Int64N(50)))))
					if err == nil {
						_, _ = io.Copy(io.Discard, res.Body)
						_ = res.Body.Close()
					}
				}
			})
		}
	}
	defer client.CloseIdleConnections()
	defer wg.Wait()
	defer close(done)
	judge.Eventually(t, 90*time.Second, "windows are compared", func() bool {
		d := drifts(t, g)
		return d["larger"].Windows >= 2 && d["later"].Windows >= 2 && d["same"].Windows >= 2
	})
	for n, d := range drifts(t, g) {
		if d.Alarm {
			t.Errorf("%s: an alarm while nothing changes: %+v", n, d)
		}
	}
	size.Store(5000)
	late.Store(true)
	judge.Eventually(t, 90*time.Second, "both alarms", func() bool {
		d := drifts(t, g)
		return d["larger"].Alarm && d["later"].Alarm
	})
	if d := drifts(t, g); d["same"].Alarm || d["larger"].Size < 0.8 || d["later"].Latency < 0.8 || d["later"].Size > 0.5 {
		t.Errorf("%+v", d)
	}
	for _, n := range []string{"larger", "later"} {
		if !strings.Contains(g.Log(), "msg=drift route="+n) {
			t.Errorf("the log has no alarm of %s", n)
		}
	}
	size.Store(100)
	late.Store(false)
	judge.Eventually(t, 90*time.Second, "both are over", func() bool {
		d := drifts(t, g)
		return !d["larger"].Alarm && !d["later"].Alarm
	})
}

type driftView struct {
	Name    string
	Alarm   bool
	Windows int
	Size    float64 `json:"size_distance"`
	Latency float64 `json:"latency_distance"`
}

func drifts(t *testing.T, g *judge.Server) map[string]driftView {
	t.Helper()
	var view struct{ Drift []driftView }
	readUpstreams(t, g, &view)
	all := map[string]driftView{}
	for _, d := range view.Drift {
		all[d.Name] = d
	}
	return all
}
