package hub_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/broker/nats/natstest"
	weir "github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/push/hub"
	judge "github.com/weir-gateway/weir/internal/testkit/history"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A siteNode is a node at one of the sites.
type siteNode struct {
	*weir.Hub
	b *nats.Broker
}

func siteOf(t *testing.T, p *natstest.Sites, here string, automatic bool, ns weir.Namespace) *siteNode {
	t.Helper()
	other, srv := "b", p.A
	if here == "b" {
		other, srv = "a", p.B
	}
	b, err := nats.New(nats.Config{
		URL:        srv.ClientURL(),
		AckTimeout: hub.Duration(8 * time.Second), ReadTimeout: hub.Duration(5 * time.Second),
		Sites: nats.Sites{Here: here, Other: other, Home: "a", Automatic: automatic, Detect: hub.Duration(2 * time.Second)},
	}, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})).With("node", here))
	if err != nil {
		t.Fatal(err)
	}
	h, err := weir.New(weir.Config{Broker: b, Namespaces: []weir.Namespace{ns}, Node: here})
	if err == nil {
		err = h.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return &siteNode{h, b}
}

// whole waits until the copy can take over without a gap.
func (n *siteNode) whole(t *testing.T) {
	t.Helper()
	trial.Eventually(t, "the copy to be complete", func() bool {
		st := nats.SiteLogs(n.b)
		return len(st) == 1 && st[0].Whole && !st[0].Alone
	})
}

func (n *siteNode) led(t *testing.T, site string) {
	t.Helper()
	trial.Eventually(t, "site "+site+" to lead", func() bool { return nats.SiteLogs(n.b)[0].Leads == site })
}

// A crowd publishes to nodes and follows channels on them, and checks what came.
type crowd struct {
	t        *testing.T
	check    *judge.Checker
	channels []string
	stop     atomic.Bool
	wg, pubs sync.WaitGroup
	acked    atomic.Int64
	gaps     atomic.Int64
	received atomic.Int64
	last     atomic.Pointer[hub.Position] // the newest acknowledged
}

func newCrowd(t *testing.T) *crowd {
	return &crowd{t: t, check: judge.New(judge.Options{ExactlyOnce: true, NoGaps: true}), channels: []string{"x:1", "x:2", "x:3"}}
}

// at returns a position as the judge is to see it: of one log, since offsets are to continue at
// the site that takes over.
func at(p hub.Position) judge.Position { return judge.Position{Epoch: "log", Offset: p.Offset} }

// perBatch is how many messages a publisher has under way.
const perBatch = 10

// publish publishes about rate messages a second until the end. One that is not acknowledged is
// published again, at one node after the other, until it is.
func (c *crowd) publish(name string, rate int, nodes ...*siteNode) {
	c.pubs.Go(func() {
		for i := 0; !c.stop.Load(); {
			var batch []weir.Publication
			for range perBatch {
				id := fmt.Sprint(name, i)
				batch = append(batch, weir.Publication{Channel: c.channels[i%len(c.channels)], Data: []byte(id), IdempotencyKey: id})
				i++
			}
			for try := 0; len(batch) > 0; try++ {
				if try > 400 || c.t.Context().Err() != nil {
					c.t.Errorf("%s was never acknowledged", batch[0].Data)
					return
				}
				batch = c.attempt(nodes[try%len(nodes)], batch)
			}
			time.Sleep(perBatch * time.Second / time.Duration(rate))
		}
	})
}

// attempt publishes a batch at n and returns what is not acknowledged.
func (c *crowd) attempt(n *siteNode, batch []weir.Publication) (left []weir.Publication) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
	defer cancel()
	for k, r := range n.PublishAll(ctx, batch) {
		if r.Err != nil {
			left = append(left, batch[k])
			continue
		}
		p, _ := hub.ParsePosition(string(r.Position))
		c.check.Published(batch[k].Channel, at(p), string(batch[k].Data))
		c.last.Store(&p)
		c.acked.Add(1)
	}
	if len(left) > 0 {
		time.Sleep(5 * time.Millisecond)
	}
	return left
}

// follow follows the channels on a node, and where that fails on the next one, from where it was.
func (c *crowd) follow(name string, nodes ...*siteNode) {
	s := c.check.Stream(name, c.channels, nil)
	ctx, cancel := context.WithCancel(c.t.Context())
	c.t.Cleanup(cancel)
	c.wg.Go(func() {
		var since weir.Position
		for k := 0; ctx.Err() == nil; k++ {
			for m, err := range nodes[k%len(nodes)].Subscribe(ctx, weir.SubscribeOptions{Channels: c.channels, Since: since, All: since == ""}) {
				if gap := (*weir.GapError)(nil); errors.As(err, &gap) {
					c.gaps.Add(1)
					c.t.Errorf("%s: %v", name, err)
					continue
				}
				if err != nil {
					break
				}
				p, _ := hub.ParsePosition(string(m.Position))
				s.Received(m.Channel, at(p), string(m.Data))
				c.received.Add(1)
				since = m.Position
				if m.Channel == c.channels[0] && string(m.Data) == "end" {
					return
				}
			}
			s.Cut()
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}

// end has a node publish a last message, waits until all have it, and judges.
func (c *crowd) end(n *siteNode) {
	c.t.Helper()
	c.stop.Store(true)
	c.pubs.Wait()
	trial.Eventually(c.t, "the last message to be acknowledged", func() bool {
		pos, err := n.Publish(c.t.Context(), weir.Publication{Channel: c.channels[0], Data: []byte("end"), IdempotencyKey: "end"})
		if err == nil {
			p, _ := hub.ParsePosition(string(pos))
			c.check.Published(c.channels[0], at(p), "end")
		}
		return err == nil
	})
	done := make(chan struct{})
	go func() { c.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(trial.Patience):
		c.t.Error("not every subscriber has got the last message")
	}
	r := c.check.Report()
	if !r.OK() {
		c.t.Error(r)
	}
	c.t.Logf("%d acknowledged, %d received, %d gaps", c.acked.Load(), c.received.Load(), c.gaps.Load())
}

// acknowledges waits until a publish of a later epoch than was is acknowledged.
func (c *crowd) acknowledges(was string) {
	c.t.Helper()
	trial.Eventually(c.t, "publishes to be acknowledged again", func() bool {
		p := c.last.Load()
		return p != nil && p.Epoch != was
	})
}

// The leading site is lost under load: the other one takes over by itself, with everything
// that was acknowledged, under the same offsets. Clients of the lost site resume there.
func TestSiteTakesOver(t *testing.T) {
	t.Parallel()
	p := natstest.TwoSites(t)
	ns := weir.Namespace{Name: "x", BothSites: true, HistorySize: 100_000}
	a, b, b2 := siteOf(t, p, "a", true, ns), siteOf(t, p, "b", true, ns), siteOf(t, p, "b", true, ns)
	b.whole(t)
	c := newCrowd(t)
	c.follow("at a, then b", a, b)
	c.follow("at b", b)
	c.follow("at b2", b2)
	c.publish("a", 300, a, b)
	c.publish("b", 300, b2)
	trial.Eventually(t, "some load", func() bool { return c.acked.Load() > 300 })
	epoch := c.last.Load().Epoch
	stopped := time.Now()
	p.A.Shutdown()
	p.A.WaitForShutdown()
	var detected time.Time
	trial.Eventually(t, "the loss to be detected", func() bool {
		detected = time.Now()
		return slices.Contains(nats.SiteLogs(b.b)[0].Lost, "a") || nats.SiteLogs(b.b)[0].Leads == "b"
	})
	c.acknowledges(epoch)
	t.Logf("detected after %v, acknowledged %v later", detected.Sub(stopped).Round(time.Millisecond), time.Since(detected).Round(time.Millisecond))
	a.Close()
	more := c.acked.Load() + 200
	trial.Eventually(t, "load afterwards", func() bool { return c.acked.Load() > more })
	c.end(b)
	if st := nats.SiteLogs(b.b)[0]; st.Leads != "b" || !st.Alone {
		t.Errorf("after the take-over: %+v", st)
	}
}

// The link between the sites is cut under load: the leading site acknowledges nothing more, the
// other one takes over. When it is healed the first one follows and has a copy, and leads again when it
// is requested to, all without a gap.
func TestSitesAreCutOff(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	p := natstest.TwoSites(t)
	ns := weir.Namespace{Name: "x", BothSites: true, HistorySize: 100_000}
	a, b := siteOf(t, p, "a", true, ns), siteOf(t, p, "b", true, ns)
	b.whole(t)
	c := newCrowd(t)
	c.follow("at a", a)
	c.follow("at b", b)
	c.publish("b", 300, b)
	trial.Eventually(t, "some load", func() bool { return c.acked.Load() > 200 })
	epoch := c.last.Load().Epoch
	p.Cut(true)
	c.acknowledges(epoch)
	// Acknowledgements wait for no answer of a site that is silent.
	more := c.acked.Load() + 800
	trial.Eventually(t, "load afterwards", func() bool { return c.acked.Load() > more })
	var refused error
	trial.Eventually(t, "a publish to be refused at a", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, refused = a.Publish(ctx, weir.Publication{Channel: "x:elsewhere", Data: []byte("alone")})
		if refused == nil {
			t.Fatal("a publish is acknowledged by the site that is cut off")
		}
		return errors.Is(refused, weir.ErrUnavailable) && strings.Contains(refused.Error(), "site b does not answer")
	})
	p.Cut(false)
	a.led(t, "b")
	a.whole(t)
	epoch = c.last.Load().Epoch
	if err := nats.Promote(t.Context(), a.b); err != nil {
		t.Fatal(err)
	}
	a.led(t, "a")
	b.led(t, "a")
	c.acknowledges(epoch)
	c.end(a)
}

// Without both_sites the copy takes over when an operator says so, and what may be missing is
// reported. What only the lost site has is kept there until someone decides.
func TestSiteIsPromotedWithAGap(t *testing.T) {
	t.Parallel()
	p := natstest.TwoSites(t)
	ns := weir.Namespace{Name: "x"}
	a, b := siteOf(t, p, "a", true, ns), siteOf(t, p, "b", true, ns)
	first, err := a.Publish(t.Context(), weir.Publication{Channel: "x:1", Data: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	trial.Eventually(t, "the copy to have it", func() bool { return nats.SiteLogs(b.b)[0].Copied == 1 })
	p.Cut(true)
	trial.Eventually(t, "the loss to be detected", func() bool { return slices.Contains(nats.SiteLogs(b.b)[0].Lost, "a") })
	if _, err := a.Publish(t.Context(), weir.Publication{Channel: "x:1", Data: []byte("only at a")}); err != nil {
		t.Fatal(err)
	}
	if st := nats.SiteLogs(b.b)[0]; st.Leads != "a" {
		t.Errorf("site b took over by itself: %+v", st)
	}
	if err := nats.Promote(t.Context(), b.b, "x"); err != nil {
		t.Fatal(err)
	}
	b.led(t, "b")
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	defer cancel()
	var gap *weir.GapError
	for _, err := range b.Subscribe(ctx, weir.SubscribeOptions{Channels: []string{"x:1"}, Since: first}) {
		if !errors.As(err, &gap) || gap.Reason != weir.GapEpoch {
			t.Errorf("a position of before the take-over was answered %v", err)
		}
		break
	}
	p.Cut(false)
	a.led(t, "b")
	trial.Eventually(t, "the message to be reported", func() bool { return nats.SiteLogs(a.b)[0].Kept == 1 })
	// When the sites are cut off again, nodes do not go back to the log that was left there.
	p.Cut(true)
	trial.Eventually(t, "the loss to be detected", func() bool { return slices.Contains(nats.SiteLogs(a.b)[0].Lost, "b") })
	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if pos, err := a.Publish(ctx, weir.Publication{Channel: "x:1", Data: []byte("only at a again")}); err == nil || nats.SiteLogs(a.b)[0].Leads != "b" {
		t.Errorf("a publish at the site that has lost the other one is answered %v, %v", pos, err)
	}
	p.Cut(false)
	if err := nats.Promote(t.Context(), b.b, "y"); err == nil || !strings.Contains(err.Error(), "y, with a log") {
		t.Errorf("a namespace that there is not is promoted: %v", err)
	}
}
