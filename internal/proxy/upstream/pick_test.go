package upstream

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
)

func TestARetryUsesAnotherPeer(t *testing.T) {
	for _, balance := range []string{RoundRobin, LeastConnections, EWMA, ConsistentHash} {
		c := newTestCluster(t, Config{Balance: balance, Peers: equal(5)})
		for key := range uint64(200) {
			var tried Tried
			seen := map[*Peer]bool{}
			for range 5 {
				p := mustPick(t, c, 0, mix(key), &tried)
				if seen[p] {
					t.Fatalf("%s: %s was asked twice", balance, p.Address())
				}
				seen[p] = true
				c.Done(p, Outcome{Kind: Canceled})
			}
			strict := tried
			strict.Strict = true
			if _, err := c.Pick(0, mix(key), &strict); !errors.Is(err, ErrAllTried) {
				t.Fatalf("%s: a strict sixth: %v, want ErrAllTried", balance, err)
			}
			p, err := c.Pick(0, mix(key), &tried)
			if err != nil || tried.Len() != 6 {
				t.Fatalf("%s: a sixth: %v", balance, err)
			}
			c.Done(p, Outcome{Kind: Canceled})
		}
	}
}

func TestPickSaysWhyThereIsNoPeer(t *testing.T) {
	base := Config{Peers: equal(2), Pool: PoolConfig{MaxInFlight: 1}, Health: HealthConfig{PanicBelow: -1}}
	f := func(prepare func(c *Cluster, a, b *Peer), want error) {
		t.Helper()
		c := newTestCluster(t, base)
		prepare(c, peerAt(t, c, "10.0.0.1:80"), peerAt(t, c, "10.0.0.2:80"))
		if _, err := c.Pick(sec, 0, nil); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	down := func(p *Peer) { p.health.Store(uint32(HealthDown)) }
	open := func(p *Peer) { p.breaker.word.Store(breakerWord(BreakerOpen, 0, 0, sec)) }
	full := func(p *Peer) { p.inflight.Store(1) }
	f(func(_ *Cluster, a, b *Peer) {}, nil)
	f(func(_ *Cluster, a, b *Peer) { down(a); down(b) }, ErrAllUnhealthy)
	f(func(_ *Cluster, a, b *Peer) { down(a) }, nil)
	f(func(_ *Cluster, a, b *Peer) { open(a); down(b) }, ErrBreakerOpen)
	f(func(_ *Cluster, a, b *Peer) { open(a); full(b) }, ErrOverloaded)
	f(func(_ *Cluster, a, b *Peer) { a.draining.Store(true); b.draining.Store(true) }, ErrNoPeers)
	f(func(_ *Cluster, a, b *Peer) { a.ejectedUntil.Store(2 * sec); b.ejectedUntil.Store(sec + 1) }, ErrAllUnhealthy)
	f(func(_ *Cluster, a, b *Peer) { a.ejectedUntil.Store(2 * sec); b.ejectedUntil.Store(sec) }, nil)

	c := newTestCluster(t, Config{Peers: peers("backend.example:80")})
	if _, err := c.Pick(0, 0, nil); !errors.Is(err, ErrNoPeers) {
		t.Errorf("before a name is resolved: %v, want ErrNoPeers", err)
	}
	if n := c.stats(0).Refused.NoPeers; n != 1 {
		t.Errorf("counted %d refusals", n)
	}
}

func TestPanicModeUsesUnhealthyPeers(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(4), Health: HealthConfig{PanicBelow: 0.5}})
	for _, a := range []string{"10.0.0.1:80", "10.0.0.2:80"} {
		peerAt(t, c, a).health.Store(uint32(HealthDown))
	}
	if m := tally(t, c, 400); m["10.0.0.1:80"]+m["10.0.0.2:80"] != 0 {
		t.Errorf("with half of them usable the others were asked: %v", m)
	}
	peerAt(t, c, "10.0.0.3:80").ejectedUntil.Store(1)
	if m := tally(t, c, 400); m["10.0.0.1:80"] != 100 || m["10.0.0.4:80"] != 100 {
		t.Errorf("with a quarter of them usable: %v, want all", m)
	}
}

// A request for which no peer is usable is tried: it is unknown whether a peer has come
// back since the last check.
func TestWithoutAUsablePeerARequestIsTried(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(3)})
	a, b := peerAt(t, c, "10.0.0.1:80"), peerAt(t, c, "10.0.0.2:80")
	third := peerAt(t, c, "10.0.0.3:80")
	a.health.Store(uint32(HealthDown))
	b.health.Store(uint32(HealthDown))
	if m := tally(t, c, 30); m["10.0.0.3:80"] != 30 || c.stats(0).Panicking || c.stats(0).Panicked != 0 {
		t.Errorf("one peer is usable: %v, %+v", m, c.stats(0))
	}
	third.ejectedUntil.Store(sec)
	if m := tally(t, c, 30); m["10.0.0.1:80"] != 10 || m["10.0.0.2:80"] != 10 || !c.stats(0).Panicking || c.stats(0).Panicked != 30 {
		t.Errorf("none is usable: %v, %+v", m, c.stats(0))
	}
}

func TestInFlightIsBounded(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(3), Pool: PoolConfig{MaxInFlight: 2}})
	var held []*Peer
	for range 6 {
		held = append(held, mustPick(t, c, 0, 0, nil))
	}
	if _, err := c.Pick(0, 0, nil); !errors.Is(err, ErrOverloaded) {
		t.Errorf("the seventh: %v, want ErrOverloaded", err)
	}
	c.Done(held[0], ok(0, ms))
	if p := mustPick(t, c, 0, 0, nil); p != held[0] {
		t.Errorf("got %s, want the only one with room", p.Address())
	}
}

func TestPendingIsBounded(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(1), Pool: PoolConfig{MaxPending: 2}})
	for i, want := range []bool{true, true, false} {
		if c.EnterPending() != want {
			t.Errorf("number %d may wait: %v", i+1, !want)
		}
	}
	c.LeavePending()
	if !c.EnterPending() {
		t.Error("one left and none may enter")
	}
	if st := c.stats(0); st.Pending != 2 || st.Refused.Pending != 1 {
		t.Errorf("pending %d, refused %d", st.Pending, st.Refused.Pending)
	}
	none := newTestCluster(t, Config{Peers: equal(1), Pool: PoolConfig{MaxPending: -1}})
	if none.EnterPending() {
		t.Error("max_pending -1 let one wait")
	}
}

func TestAStreamCountsByItsHead(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(1)})
	p := peerAt(t, c, "10.0.0.1:80")
	p.breaker.word.Store(breakerWord(BreakerOpen, 0, 0, sec))
	now := 7 * sec
	for range 3 {
		mustPick(t, c, now, 0, nil)
		c.Head(p, now, now+ms, 200) // and continues for hours
		now += ms
	}
	if got := p.breaker.state(); got != BreakerClosed {
		t.Errorf("three streams began well and the breaker is %s", got)
	}
	if p.InFlight() != 3 {
		t.Errorf("%d in flight, want 3", p.InFlight())
	}
	for range 3 {
		c.Done(p, Outcome{Status: 200, Start: 7 * sec, FirstByte: 7*sec + ms, End: 3600 * sec, Headed: true})
	}
	if p.InFlight() != 0 || p.counts.classes[2].Load() != 3 {
		t.Errorf("%d in flight, %d counted", p.InFlight(), p.counts.classes[2].Load())
	}
}

func TestWhatSaysNothingOfThePeerChangesNothing(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(2)})
	for i := range 1000 {
		now := int64(i) * ms
		p := mustPick(t, c, now, 0, nil)
		kind := Canceled
		if i%2 == 0 {
			kind = Stale
		}
		c.Done(p, failed(kind, now))
	}
	for _, st := range c.stats(sec).Peers {
		if st.State != "up" || st.Ejections != 0 {
			t.Errorf("%s is %s after %d canceled and %d stale", st.Address, st.State, st.Canceled, st.Stale)
		}
	}
	if r := c.view.Load().requests(sec); r != 0 {
		t.Errorf("%d of them count as traffic", r)
	}
}

func TestAConfiguredDrainEndsPicksOnly(t *testing.T) {
	cfg := Config{Name: "test", Peers: equal(2)}
	s := newTestSet(t, Options{}, cfg)
	c := s.Cluster("test")
	p := peerAt(t, c, "10.0.0.1:80")
	for mustPick(t, c, 0, 0, nil) != p {
	}
	cfg.Peers = equal(2)
	cfg.Peers[0].Drain = true
	if err := s.Replace(t.Context(), []Config{cfg}, nil); err != nil {
		t.Fatal(err)
	}
	if m := tally(t, c, 100); m["10.0.0.1:80"] != 0 {
		t.Errorf("the draining peer got %d", m["10.0.0.1:80"])
	}
	if !p.Draining() || p.InFlight() != 1 {
		t.Errorf("draining %v, in flight %d", p.Draining(), p.InFlight())
	}
	cfg.Peers = equal(2)
	if err := s.Replace(t.Context(), []Config{cfg}, nil); err != nil {
		t.Fatal(err)
	}
	if m := tally(t, c, 100); m["10.0.0.1:80"] != 50 {
		t.Errorf("back again it got %d of 100", m["10.0.0.1:80"])
	}
}

func TestARecoveredPeerIsAsNew(t *testing.T) {
	c := newTestCluster(t, Config{Balance: EWMA, Peers: equal(2), Outlier: OutlierConfig{Enabled: setting.Off}, EWMADecay: d(time.Hour)})
	p := peerAt(t, c, "10.0.0.1:80")
	now := sec
	for p.breaker.state() == BreakerClosed {
		p.inflight.Add(1)
		c.Done(p, Outcome{Kind: Timeout, Start: now, End: now + 30*sec})
	}
	now += 30 * sec
	request(t, c, now, ms, 200)
	if p.latency.value(now, int64(time.Hour)) < 20e9 {
		t.Fatal("30 s are not remembered")
	}
	// Nothing is lost on the other peer: it answers in a millisecond.
	now += 5*sec + ms
	for range 3 {
		if q := request(t, c, now, ms, 200); q != p {
			t.Fatal("the half-open peer is avoided for what it did before")
		}
	}
	if got := p.latency.value(now, int64(time.Hour)); got > 2e6 || p.breaker.state() != BreakerClosed {
		t.Errorf("after three probes of 1 ms its average is %v, its breaker %s", time.Duration(got), p.breaker.state())
	}
}

func TestNoPickSlipsThroughADrain(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(1)})
	p := peerAt(t, c, "10.0.0.1:80")
	p.draining.Store(true) // after choose, before take
	if why := p.acquire(sec, &c.view.Load().policy); why != barDraining || p.InFlight() != 0 || p.counts.attempts.Load() != 0 {
		t.Errorf("taken although it drains: %d, %d in flight", why, p.InFlight())
	}
}
