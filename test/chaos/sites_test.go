package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/test/judge"
)

// A place is a site: NATS servers, and a node.
type place struct {
	name string
	nats []*natsServer
	node *judge.Server
}

// A sites is two places, of which a leads new logs.
type sites struct {
	*world
	a, b  *place
	links []*judge.Link // from b's NATS servers to those of a

	healed  atomic.Bool // the link lets everything through
	taken   int         // times that b has taken over by itself
	refused int         // publications that a has refused meanwhile
	gaps    int         // positions of the lost site that are a gap
	kept    int         // that the copy had
}

// twoSites: the link between two sites lets nothing through in one direction, and the leading
// site is killed with its NATS servers, of which each site has so many: the other one takes
// over by itself with all that was acknowledged, under the same offsets. What was stored and
// not acknowledged is a gap to a subscriber that has seen it.
func twoSites(c *trial, servers int) {
	s := c.sites(servers)
	for i := range c.times(20) {
		s.cut(i)
		s.promote()
		if servers > 1 {
			s.lessOne(s.a.nats[c.rng.IntN(servers)])
		}
		s.killed()
		s.promote()
	}
	c.proof = fmt.Sprintf("site b took over %d times, %d publications were refused at site a, %d positions of it are a gap and %d are not", s.taken, s.refused, s.gaps, s.kept)
	if s.taken < 2 || s.refused == 0 || s.gaps == 0 {
		c.Errorf("after %d faults: %s", c.faults, c.proof)
	}
	s.finish()
}

// sites starts two sites with so many NATS servers each, under load.
func (c *trial) sites(servers int) *sites {
	c.Helper()
	s := &sites{a: &place{name: "a"}, b: &place{name: "b"}}
	var leaves []string
	for range servers {
		leaves = append(leaves, judge.FreeAddr(c))
		s.links = append(s.links, judge.NewLink(c, leaves[len(leaves)-1]))
	}
	s.a.nats = c.serversOf("a", servers, func(i int, n *natsServer) { n.Leaf = leaves[i] })
	s.b.nats = c.serversOf("b", servers, func(_ int, n *natsServer) {
		for _, l := range s.links {
			n.Remotes = append(n.Remotes, l.Addr)
		}
	})
	env := c.clocks()
	for _, p := range []*place{s.a, s.b} {
		p.node = judge.Launch(c, judge.Options{Build: judge.Plain, Config: p.config(servers), Env: env[p.name]})
	}
	s.a.node.Ready()
	s.b.node.Ready()
	s.world = &world{trial: c, node: s.b.node}
	s.whole(s.b, "a")
	s.world = c.onBoth([]*judge.Server{s.b.node, s.a.node}, &atomic.Int64{}, load{
		subscribers: c.size(100), rate: 200, options: byChannel, others: []string{s.a.node.Public}, continued: true,
	})
	return s
}

// serversOf starts the NATS servers of a site.
func (c *trial) serversOf(site string, n int, with func(i int, s *natsServer)) (all []*natsServer) {
	c.Helper()
	var routes []string
	for range n {
		routes = append(routes, judge.FreeAddr(c))
	}
	dir := c.TempDir()
	for i := range n {
		s := &natsServer{Addr: judge.FreeAddr(c), Dir: filepath.Join(dir, fmt.Sprint(i)), natsPlace: natsPlace{Domain: site}}
		if n > 1 {
			s.Cluster, s.Routes = routes[i], routes
		}
		with(i, s)
		all = append(all, c.natsAt(s))
	}
	return all
}

// clocks are the environments of the nodes. In the long form that of site b is an hour ahead, or
// behind.
func (c *trial) clocks() map[string][]string {
	c.Helper()
	if !*long {
		return nil
	}
	seconds := []int{3600, -3600}[c.rng.IntN(2)]
	file := filepath.Join(c.TempDir(), "offset")
	if err := os.WriteFile(file, fmt.Append(nil, seconds), 0o600); err != nil {
		c.Fatal(err)
	}
	c.Setenv("JUDGED_BINARY", c.clocked())
	c.note("the clock of site b's node is %d s off", seconds)
	return map[string][]string{"b": {"CHAOS_CLOCK=" + file}}
}

// config is that of the site's node.
func (p *place) config(servers int) map[string]any {
	var addrs []string
	for _, n := range p.nats {
		addrs = append(addrs, n.Addr)
	}
	other := map[string]string{"a": "b", "b": "a"}[p.name]
	config := external(strings.Join(addrs, ",nats://"), judge.Namespace(map[string]any{"both_sites": true, "replicas": servers}))
	nats := config["broker"].(map[string]any)["nats"].(map[string]any)
	nats["ack_timeout"] = "3s"
	nats["sites"] = map[string]any{"here": p.name, "other": other, "home": "a", "automatic": true, "detect": "1s"}
	return config
}

// state is how the node sees the log of the two sites; nil while it does not.
func (p *place) state() *admin.ClusterSites {
	r, err := judge.HTTP.Get("http://" + p.node.Admin + "/api/cluster")
	if err != nil {
		return nil
	}
	defer r.Body.Close()
	var v admin.Cluster
	if json.NewDecoder(r.Body).Decode(&v) != nil {
		return nil
	}
	for i := range v.Logs {
		if v.Logs[i].Sites != nil {
			return v.Logs[i].Sites
		}
	}
	return nil
}

// whole waits until p knows that site leads and that the copy can take over without a gap.
func (s *sites) whole(p *place, leads string) {
	s.Helper()
	var last *admin.ClusterSites
	complete := func() bool {
		return last != nil && last.Leads == leads && last.Whole && !last.Alone && len(last.Lost) == 0
	}
	defer func() {
		if !complete() {
			s.Logf("site %s sees %+v; its log:\n%s", p.name, last, p.node.Log()[max(0, len(p.node.Log())-4000):])
		}
	}()
	judge.Eventually(s, patience, "the copy of the log of site "+leads+" is complete", func() bool {
		last = p.state()
		return complete()
	})
}

// term is how often a site has taken over, as b knows it.
func (s *sites) term() float64 { return s.b.node.Series("weir_site_term") }

// takesOver has b take over because of what inject does.
func (s *sites) takesOver(inject func()) {
	s.Helper()
	before := s.term()
	s.fault(false, func() {
		inject()
		judge.Eventually(s, patience, "site b takes over", func() bool { return s.term() > before })
	})
	s.taken++
}

// promote has site a lead again, on purpose.
func (s *sites) promote() {
	s.Helper()
	s.whole(s.a, "b")
	r, err := judge.HTTP.Post("http://"+s.a.node.Admin+"/api/cluster/promote", "", http.NoBody)
	if err != nil {
		s.Fatal(err)
	}
	defer r.Body.Close()
	if text, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusOK {
		s.Fatalf("promote: %d %s", r.StatusCode, text)
	}
	s.whole(s.b, "a")
	s.more(20)
}

// lessOne ends one of the NATS servers of the leading site for some time. The others may take longer to elect a leader
// than it takes to detect that a site is lost: then b takes over, and a leads again on purpose.
func (s *sites) lessOne(one *natsServer) {
	s.Helper()
	before := s.term()
	s.fault(false, func() {
		one.kill()
		s.more(20) // while it is away
		one.start()
	})
	judge.Eventually(s, patience, "one site leads and the other one answers", func() bool {
		st := s.b.state()
		return st != nil && len(st.Lost) == 0 && (st.Leads == "b" || st.Whole && !st.Alone)
	})
	if s.term() > before {
		s.taken++
		s.promote()
	}
}

// killed ends the leading site, which comes back after the other one has taken over.
func (s *sites) killed() {
	s.Helper()
	s.takesOver(func() {
		s.a.node.Kill()
		for _, n := range s.a.nats {
			n.kill()
		}
	})
	for _, n := range s.a.nats {
		n.start()
	}
	s.a.node.Start()
}

// cut lets the link pass nothing in one direction, odd ones from b to a, until b leads. One publication is
// stored at a meanwhile, and read there.
func (s *sites) cut(i int) {
	s.Helper()
	channel := fmt.Sprint("alone", i)
	var seen judge.Event
	s.takesOver(func() {
		s.healed.Store(false)
		for _, l := range s.links {
			l.Set(judge.Shape{HoldDown: i%2 == 0, HoldUp: i%2 == 1})
		}
		s.stored(channel)
		seen = s.read(s.a, channel, "0")
		judge.Eventually(s, patience, "site a refuses publications", func() bool {
			return s.a.publish("refused", "refused") == http.StatusServiceUnavailable
		})
		s.refused++
	})
	if seen.Kind != "message" {
		s.Fatalf("site a has no message on %s, but %s %s", channel, seen.Kind, seen.Data)
	}
	// At b that position is a gap, unless the copy has the message there.
	judge.Eventually(s, patience, "site b acknowledges a publication", func() bool { return s.b.publish(channel, "at b") == http.StatusOK })
	first, resumed := s.read(s.b, channel, "0"), s.read(s.b, channel, seen.ID)
	here, _ := judge.ParsePosition(first.ID)
	there, _ := judge.ParsePosition(seen.ID)
	switch same := here.Offset == there.Offset && bytes.Equal(first.Data, seen.Data); {
	case same && resumed.Kind == "message":
		s.kept++
	case !same && resumed.Kind == "gap":
		s.gaps++
	default:
		s.Errorf("after position %s, read at the lost site, site b sends %s %s first; its first message is %s", seen.ID, resumed.Kind, resumed.Data, first.ID)
	}
	s.healed.Store(true)
	for _, l := range s.links {
		l.Set(judge.Shape{})
	}
}

// publish publishes once at the site's node and returns the status; 0: no answer.
func (p *place) publish(channel, payload string) int {
	body := fmt.Sprintf(`{"channel":%q,"data":%q}`, channel, payload)
	req, err := http.NewRequest(http.MethodPost, "http://"+p.node.Public+"/api/publish", strings.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-API-Key", judge.APIKey)
	r, err := judge.HTTP.Do(req)
	if err != nil {
		return 0
	}
	_ = r.Body.Close()
	return r.StatusCode
}

// stored publishes at site a what is not acknowledged, and waits until its NATS has it.
func (s *sites) stored(channel string) {
	s.Helper()
	var sent sync.WaitGroup
	sent.Go(func() {
		// Later it is sent to site b, if it still waits then.
		if s.a.publish(channel, "at a") == http.StatusOK && !s.healed.Load() {
			s.Errorf("site a acknowledges what site b cannot have")
		}
	})
	s.Cleanup(sent.Wait)
	nc, err := natsgo.Connect("nats://" + s.a.nats[0].Addr)
	if err != nil {
		s.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		s.Fatal(err)
	}
	judge.Eventually(s, patience, "the publication is stored at site a", func() bool {
		log, err := js.Stream(s.Context(), "weir_default")
		if err != nil {
			return false
		}
		_, err = log.GetLastMsgForSubject(s.Context(), "weir.log.default."+channel)
		return err == nil
	})
}

// read returns the first message or gap of a channel after a position, at the site's node.
func (s *sites) read(p *place, channel, since string) (first judge.Event) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	r := &judge.Subscriber{Addr: p.node.Public, Channels: []string{channel}, Last: since, On: func(e judge.Event) {
		if first.Kind == "" && e.Kind != "end" {
			first = e
			cancel()
		}
	}}
	if err := r.Run(ctx); err != nil {
		s.Fatal(err)
	}
	if first.Kind == "" {
		s.Fatalf("site %s sends nothing on %s after %s", p.name, channel, since)
	}
	return first
}
