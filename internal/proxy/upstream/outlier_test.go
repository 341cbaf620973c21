package upstream

import (
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
)

// failAt makes requests until p failed n of them in a row.
func failAt(t *testing.T, c *Cluster, p *Peer, now int64, n int, k Kind) {
	t.Helper()
	for range n {
		p.inflight.Add(1)
		c.Done(p, failed(k, now))
	}
}

func TestEjectionByFailuresInARow(t *testing.T) {
	f := func(what string, k Kind, n int, want bool) {
		t.Helper()
		c := newTestCluster(t, Config{Peers: equal(4)})
		p := peerAt(t, c, "10.0.0.1:80")
		failAt(t, c, p, sec, n, k)
		if got := p.out(sec + 1); got != want {
			t.Errorf("%d %s: ejected %v, want %v", n, what, got, want)
		}
		if want && (p.out(6*sec) || !p.out(6*sec-1)) {
			t.Errorf("%s: not out for exactly 5 s", what)
		}
	}
	f("connect errors", ConnectError, 2, false)
	f("connect errors", ConnectError, 3, true)
	f("resets", Reset, 4, false)
	f("resets", Reset, 5, true)
	f("timeouts", Timeout, 5, true)
}

func TestASuccessEndsTheRow(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(4)})
	p := peerAt(t, c, "10.0.0.1:80")
	for range 10 {
		failAt(t, c, p, sec, 4, Reset)
		for range 5 {
			p.inflight.Add(1)
			c.Done(p, ok(sec, sec))
		}
	}
	if p.out(sec + 1) {
		t.Error("ejected although less than half failed and never five in a row")
	}
}

func TestEjectionByRate(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(4), Breaker: BreakerConfig{Enabled: setting.Off}})
	p := peerAt(t, c, "10.0.0.1:80")
	n := 0
	for !p.out(sec+1) && n < 200 {
		p.inflight.Add(1)
		o := ok(sec, sec)
		if n%2 == 1 {
			o.Status = 503
		}
		c.Done(p, o)
		n++
	}
	if n != 50 {
		t.Errorf("ejected after %d requests of which half failed, want 50", n)
	}
}

func TestEjectionLeavesEnoughPeers(t *testing.T) {
	f := func(n int, share float64, want int) {
		t.Helper()
		c := newTestCluster(t, Config{Peers: equal(n), Outlier: OutlierConfig{MaxEjected: share}})
		out := 0
		for _, e := range c.view.Load().entries {
			failAt(t, c, e.peer, sec, 20, ConnectError)
			if e.peer.out(sec + 1) {
				out++
			}
		}
		if out != want {
			t.Errorf("of %d with max_ejected %v: %d out, want %d", n, share, out, want)
		}
	}
	f(1, 0, 0)
	f(1, 1, 0)
	f(2, 0, 1)
	f(3, 0, 1)
	f(4, 0, 2)
	f(10, 0.1, 1)
	f(10, 0.05, 1)
	f(10, 1, 10)
}

func TestEjectionsGrowToTheirBoundAndAreForgotten(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(2), Breaker: BreakerConfig{Enabled: setting.Off}})
	p := peerAt(t, c, "10.0.0.1:80")
	now := sec
	for i, want := range []int64{5, 10, 15, 20, 20, 20} {
		failAt(t, c, p, now, 3, ConnectError)
		until := p.ejectedUntil.Load()
		if until-now != want*sec {
			t.Fatalf("ejection %d lasts %s, want %ds", i+1, time.Duration(until-now), want)
		}
		now = until
	}
	now += 10 * 60 * sec
	failAt(t, c, p, now, 3, ConnectError)
	if got := p.ejectedUntil.Load() - now; got != 5*sec {
		t.Errorf("after ten good minutes an ejection lasts %s, want 5s", time.Duration(got))
	}
}

func TestLateFailuresDoNotEjectAgain(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(2)})
	p := peerAt(t, c, "10.0.0.1:80")
	for range 40 {
		p.inflight.Add(1)
	}
	failAt(t, c, p, sec, 3, ConnectError)
	until := p.ejectedUntil.Load()
	for range 40 { // started before, timed out after
		c.Done(p, Outcome{Kind: Timeout, Start: sec - 1, End: until + sec})
	}
	if p.out(until + sec) {
		t.Error("ejected again for what it did before")
	}
	if p.InFlight() != 0 {
		t.Errorf("%d in flight", p.InFlight())
	}
}
