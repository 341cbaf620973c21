package accept

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/measure/process"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

func twoSites() Indicator {
	return Indicator{
		Name: "two-sites", Number: "12", Title: "Switch-over between two sites",
		Definition: "Two sites with a NATS server and a gateway each serve publishers, a twentieth of whose requests is cancelled at random, and subscribers that resume. The leading site is changed on purpose there and back, and then lost.",
		Target:     "500 publications per second: 0 lost, repeated or reordered messages, 0 gaps, 0 requests without an answer; from the detection to the first acknowledgement and to each subscriber's next message ≤ 200 ms; P99 of the synchronization of the log ≤ 150 ms",
		Method:     "NATS servers in this process, joined by a leaf node through a relay. A site is lost when the relay lets nothing through any more, without closing anything, and its gateway is killed. Detected is when the other gateway writes that the site does not answer, with the default of `detect`. Publishers retry at either site with the same idempotency key.",
		criteria: []criterion{
			{name: "lost", what: "acknowledged messages that a subscriber did not receive", kind: none},
			{name: "repeated", what: "messages received twice", kind: none},
			{name: "reordered", what: "messages received out of order", kind: none},
			{name: "wrong", what: "messages at the position of another, or never sent", kind: none},
			{name: "gaps", what: "gaps that subscribers were notified of", kind: none},
			{name: "unanswered", what: "publications that were not cancelled and never acknowledged", kind: none},
			{name: "incomplete", what: "copies of which was not known within 5 s that they have everything", kind: none},
			{name: "by hand", what: "take-overs that an operator had to make", kind: none},
			{name: "cancelled", what: "publications cancelled before an answer", kind: some},
			{name: "failed", what: "attempts that failed and were made again: there was a loss", kind: some},
			{name: "takeover", what: "from the detection to the first acknowledgement", kind: atMost, limit: 0.2, unit: seconds, timed: true},
			{name: "sessions", what: "from the detection to the next message of the last subscriber", kind: atMost, limit: 0.2, unit: seconds, timed: true},
			{name: "sync", what: "P99 until the copy has what the log has", kind: atMost, limit: 0.15, unit: seconds, timed: true},
			{name: "detected", what: "from the loss to its detection", kind: info, unit: seconds},
			{name: "pause", what: "switch on purpose: longest time without an acknowledgement", kind: info, unit: seconds},
		},
		plots:   []plot{{"Synchronization of the log", []string{"sync"}, seconds}},
		measure: measureTwoSites,
	}
}

// What a measurement of two sites waits for at most.
const (
	wholeIn    = 5 * time.Second  // a copy to be complete
	switchedIn = 10 * time.Second // a switch on purpose
	detectedIn = 20 * time.Second // a loss to be detected
	takenIn    = 3 * time.Second  // a site to take over by itself, after the detection
)

// A site is a NATS server with a JetStream domain of its own, and a gateway.
type site struct {
	name    string
	nats    *server.Server
	node    *process.Server
	address string // where clients connect: the gateway, or what a test has put before it
	losses  *lossLog
}

// A sitePair is two sites, of which a leads new logs.
type sitePair struct {
	*world
	a, b *site
	link *gate // between their leaf nodes
	down sync.WaitGroup
	// partial says that a copy was not complete: the next ones are not waited for.
	partial bool
}

// A sitesRun is one measurement of two sites.
type sitesRun struct{ *world }

func measureTwoSites(ctx context.Context, of *world) error {
	w := sitesRun{of}
	stop := w.watch(ctx, nil, 0, time.Duration(w.plan.trials)*15*time.Second)
	defer stop()
	var all []siteTimes
	for i := range w.plan.trials {
		w.progress("trial %d of %d", i+1, w.plan.trials)
		t, err := w.trial(ctx, i)
		if err != nil {
			return fmt.Errorf("trial %d: %w", i+1, err)
		}
		all = append(all, *t)
	}
	return w.keep("trials.json", all)
}

// siteTimes are what is kept of a trial, in seconds.
type siteTimes struct {
	Detected float64   `json:"detected"`
	Takeover float64   `json:"takeover"`
	Sessions []float64 `json:"sessions"` // of each subscriber
	Pauses   []float64 `json:"pauses"`
	Sync     []float64 `json:"sync"`
	Acked    int       `json:"acknowledged"`
	Received int       `json:"received"`
}

// trial changes the leading site twice on purpose and loses it then. Without a complete copy it is only lost.
func (w sitesRun) trial(ctx context.Context, i int) (*siteTimes, error) {
	p, err := w.start(ctx, i)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.whole(ctx, p.b, "a"); err != nil {
		return nil, err
	}
	c := newSiteClients(i, p.a.address, p.b.address)
	c.start(ctx)
	defer c.stop()
	t := &siteTimes{}
	if err := p.synchronization(ctx, t); err != nil {
		return nil, fmt.Errorf("synchronization: %w", err)
	}
	for _, to := range []*site{p.b, p.a} {
		if p.partial {
			break
		}
		if err := p.change(ctx, c, to, t); err != nil {
			return nil, fmt.Errorf("switch to site %s: %w", to.name, err)
		}
	}
	if err := p.lose(ctx, c, t); err != nil {
		return nil, err
	}
	if !sleep(ctx, w.plan.sites) {
		return nil, ctx.Err()
	}
	c.end(ctx)
	t.Acked, t.Received = c.verdict(w.ev)
	return t, ctx.Err()
}

// start starts two sites in a directory of their own.
func (w sitesRun) start(ctx context.Context, trial int) (p *sitePair, err error) {
	p = &sitePair{world: w.world, a: &site{name: "a"}, b: &site{name: "b"}}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	dir := filepath.Join(w.dir, fmt.Sprint("sites-", trial))
	leaf, err := freePort()
	if err != nil {
		return p, err
	}
	// Advertised, the address would be one that leads past the relay.
	if p.a.nats, err = natsSite(dir, "a", server.LeafNodeOpts{Host: "127.0.0.1", Port: leaf, NoAdvertise: true}); err != nil {
		return p, err
	}
	if p.link, err = newGate(fmt.Sprintf("127.0.0.1:%d", leaf)); err != nil {
		return p, err
	}
	remote := &server.RemoteLeafOpts{URLs: []*url.URL{{Scheme: "nats-leaf", Host: p.link.l.Addr().String()}}}
	if p.b.nats, err = natsSite(dir, "b", server.LeafNodeOpts{ReconnectInterval: 50 * time.Millisecond, Remotes: []*server.RemoteLeafOpts{remote}}); err != nil {
		return p, err
	}
	for end := time.Now().Add(10 * time.Second); p.b.nats.NumLeafNodes() == 0; {
		if time.Now().After(end) || !sleep(ctx, 5*time.Millisecond) {
			return p, errors.New("the NATS servers are not joined after 10s")
		}
	}
	return p, errors.Join(p.serve(ctx, p.a, "b"), p.serve(ctx, p.b, "a"))
}

// natsSite starts the NATS server of a site.
func natsSite(dir, name string, leaf server.LeafNodeOpts) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{
		ServerName: name + "1", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, JetStreamDomain: name, StoreDir: filepath.Join(dir, name), LeafNode: leaf,
	})
	if err != nil {
		return nil, err
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		return nil, fmt.Errorf("the NATS server of site %s is not ready after 10s", name)
	}
	return s, nil
}

// freePort returns a port that was free just now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// serve starts the gateway of a site.
func (p *sitePair) serve(ctx context.Context, s *site, other string) (err error) {
	config := strings.NewReplacer(
		"{kind: memory}", fmt.Sprintf("{kind: nats, nats: {url: %q, sites: {here: %s, other: %s, home: a, automatic: true}}}", s.nats.ClientURL(), s.name, other),
		", durability: none", ", durability: stored, both_sites: true, history_size: 1000000",
	).Replace(plainConfig)
	s.losses = &lossLog{site: other, out: p.opt.Stderr}
	if s.node, err = process.StartWeir(ctx, p.opt.Program, s.losses, nil, config, p.opt.set...); err != nil {
		return fmt.Errorf("site %s: %w", s.name, err)
	}
	s.address = s.node.Addr
	if p.opt.plant != nil {
		s.address, err = p.opt.plant(s.address)
	}
	return err
}

// close ends both sites.
func (p *sitePair) close() {
	for _, s := range []*site{p.a, p.b} {
		if s.node != nil {
			s.node.Stop()
		}
	}
	if p.link != nil {
		p.link.close()
	}
	p.down.Wait()
	for _, s := range []*site{p.a, p.b} {
		if s.nats != nil {
			s.nats.Shutdown()
			s.nats.WaitForShutdown()
		}
	}
}

// state is how the site's gateway sees the log of the two sites.
func (s *site) state(ctx context.Context) (*admin.ClusterSites, error) {
	b, err := get(ctx, s.node.Admin+"/api/cluster")
	if err != nil {
		return nil, err
	}
	var c admin.Cluster
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, err
	}
	for i := range c.Logs {
		if c.Logs[i].Sites != nil {
			return c.Logs[i].Sites, nil
		}
	}
	return nil, errors.New("the gateway knows of no log with two sites")
}

// whole waits until s knows that leads leads and that the copy can take over without a gap.
func (p *sitePair) whole(ctx context.Context, s *site, leads string) error {
	began := time.Now()
	for {
		st, err := s.state(ctx)
		if err != nil {
			return err
		}
		switch led, whole := st.Leads == leads, st.Whole && !st.Alone; {
		case led && whole:
			p.ev.count("incomplete", 0, 1)
			return nil
		case time.Since(began) < wholeIn:
		case led:
			p.partial = true
			p.ev.count("incomplete", 1, 1, fmt.Sprintf("the copy at site %s", st.Copy))
			return nil
		default:
			return fmt.Errorf("site %s does not lead after %v", leads, wholeIn)
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// promote has a site lead the log, as weir cluster promote does.
func (s *site) promote(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, switchedIn)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.node.Admin+"/api/cluster/promote", http.NoBody)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("promote: %s: %s", res.Status, bytes.TrimSpace(b))
	}
	return err
}

// change has to lead, which both sites answer for, and waits for the copy at the other one.
func (p *sitePair) change(ctx context.Context, c *siteClients, to *site, t *siteTimes) error {
	before, began := c.epochs(), time.Now()
	for {
		err := to.promote(ctx)
		if err == nil {
			break
		}
		if time.Since(began) > switchedIn || !sleep(ctx, 50*time.Millisecond) {
			return err
		}
		began = time.Now() // the attempt has changed nothing
	}
	if _, ok := c.acknowledged(ctx, before, time.Now().Add(switchedIn)); !ok {
		return fmt.Errorf("no publication is acknowledged there within %v", switchedIn)
	}
	if !sleep(ctx, p.plan.sites/4) {
		return ctx.Err()
	}
	pause := c.pause(began).Seconds()
	p.ev.value("pause", pause)
	t.Pauses = append(t.Pauses, pause)
	from := p.a
	if to == p.a {
		from = p.b
	}
	return p.whole(ctx, from, to.name)
}

// lose loses site a and measures how b takes over.
func (p *sitePair) lose(ctx context.Context, c *siteClients, t *siteTimes) error {
	before, lost := c.epochs(), time.Now()
	p.link.cut()
	p.a.node.Kill()
	p.down.Go(p.a.nats.Shutdown)
	detected, ok := p.b.losses.wait(ctx, lost, lost.Add(detectedIn))
	if !ok {
		return fmt.Errorf("site b does not write within %v that site a is lost", detectedIn)
	}
	taken, ok := c.acknowledged(ctx, before, time.Now().Add(takenIn))
	if ok {
		p.ev.count("by hand", 0, 1)
	} else {
		p.ev.count("by hand", 1, 1)
		if err := p.b.promote(ctx); err != nil {
			return err
		}
		if taken, ok = c.acknowledged(ctx, before, time.Now().Add(switchedIn)); !ok {
			return fmt.Errorf("no publication is acknowledged at site b within %v", switchedIn)
		}
	}
	t.Detected, t.Takeover = detected.Sub(lost).Seconds(), after(detected, taken)
	p.ev.value("detected", t.Detected)
	p.ev.value("takeover", t.Takeover)
	for _, at := range c.received(ctx, before, time.Now().Add(takenIn)) {
		t.Sessions = append(t.Sessions, after(detected, at))
	}
	if len(t.Sessions) > 0 {
		p.ev.value("sessions", slices.Max(t.Sessions))
	}
	p.progress("detected after %.2f s, first acknowledgement %.0f ms later, last subscriber %.0f ms", t.Detected, 1000*t.Takeover, 1000*slices.Max(append(t.Sessions, 0)))
	return nil
}

// after is how long at is after from, in seconds: what is written may arrive later than what
// happened after it.
func after(from, at time.Time) float64 { return max(at.Sub(from), time.Millisecond).Seconds() }

// siteStream is the stream of namespace default.
const siteStream = "weir_default"

// synchronization samples how long the copy needs to have what the log has, as the NATS servers know it.
func (p *sitePair) synchronization(ctx context.Context, t *siteTimes) error {
	var last [2]func(context.Context) (uint64, error)
	for i, s := range []*site{p.a, p.b} {
		nc, err := natsgo.Connect(s.nats.ClientURL())
		if err != nil {
			return err
		}
		defer nc.Close()
		last[i] = func(ctx context.Context) (uint64, error) { return lastOf(ctx, nc) }
	}
	for end := time.Now().Add(p.plan.sites); time.Now().Before(end); {
		want, err := last[0](ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		for have := uint64(0); have < want; {
			if have, err = last[1](ctx); err != nil {
				return err
			}
			if time.Since(began) > wholeIn {
				return fmt.Errorf("the copy is at %d of %d after %v", have, want, wholeIn)
			}
		}
		lag := time.Since(began).Seconds()
		t.Sync = append(t.Sync, lag)
		p.ev.point("sync", p.since(), lag)
		if !sleep(ctx, 5*time.Millisecond) {
			return ctx.Err()
		}
	}
	if n := len(t.Sync); n > 0 {
		p.ev.value("sync", slices.Sorted(slices.Values(t.Sync))[n*99/100])
	}
	return nil
}

// lastOf is the last sequence number of the stream at the server's own site.
func lastOf(ctx context.Context, nc *natsgo.Conn) (uint64, error) {
	m, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+siteStream, nil)
	if err != nil {
		return 0, err
	}
	var a struct {
		State struct {
			Last uint64 `json:"last_seq"`
		} `json:"state"`
		Error *struct{ Description string } `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return 0, err
	}
	if a.Error != nil {
		return 0, errors.New(a.Error.Description)
	}
	return a.State.Last, nil
}

// A lossLog passes on what a gateway writes and notes when it writes that a site does not answer.
type lossLog struct {
	site string
	out  io.Writer

	mu   sync.Mutex
	at   []time.Time
	rest []byte // of a line that is not complete
}

func (l *lossLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			break
		}
		if bytes.Contains(line, []byte("site does not answer")) && bytes.Contains(line, []byte("site="+l.site)) {
			l.at = append(l.at, time.Now())
		}
		l.rest = rest
	}
	return l.out.Write(b)
}

// wait returns when the site was written about first after since; false: not until end.
func (l *lossLog) wait(ctx context.Context, since, end time.Time) (time.Time, bool) {
	for {
		l.mu.Lock()
		i := slices.IndexFunc(l.at, since.Before)
		if i >= 0 {
			defer l.mu.Unlock()
			return l.at[i], true
		}
		l.mu.Unlock()
		if time.Now().After(end) || !sleep(ctx, 5*time.Millisecond) {
			return time.Time{}, false
		}
	}
}
