package upstream

import (
	"net/netip"
	"testing"
)

func TestTheHotPathAllocatesNothing(t *testing.T) {
	zero := func(what string, f func()) {
		t.Helper()
		f()
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
	for _, balance := range []string{RoundRobin, LeastConnections, EWMA, ConsistentHash} {
		for _, n := range []int{1, 2, 5, 100} {
			c := newTestCluster(t, Config{Balance: balance, HashLoad: 1.5, Peers: equal(n), SlowStart: 1, Hedge: HedgeConfig{Percentile: 95},
				Health: HealthConfig{PanicBelow: 0.1}})
			now := sec
			var tried Tried
			zero(balance+" pick, head, done", func() {
				now += ms
				tried.Reset()
				p, err := c.Pick(now, uint64(now), &tried)
				if err != nil {
					t.Fatal(err)
				}
				c.Head(p, now, now+ms, 200)
				c.Done(p, Outcome{Status: 200, Start: now, FirstByte: now + ms, End: now + 2*ms, Headed: true})
			})
			zero(balance+" failure, retry, hedge", func() {
				now += ms
				tried.Reset()
				for range 3 {
					p, err := c.Pick(now, uint64(now), &tried)
					if err != nil {
						return // all ejected
					}
					o := Outcome{Kind: Reset, Start: now, End: now + ms}
					c.Done(p, o)
					c.MayRetry(now, Attempt{Outcome: o, Made: tried.Len(), Idempotent: true, Replayable: true})
				}
				c.MayHedge(now, Attempt{Made: 1, Idempotent: true, Replayable: true})
				c.HedgeAfter()
				c.Config()
			})
			c = newTestCluster(t, Config{Balance: balance, Peers: equal(n), Health: HealthConfig{PanicBelow: -1}})
			for _, e := range c.view.Load().entries {
				e.peer.health.Store(uint32(HealthDown))
			}
			zero(balance+" refusal", func() {
				if _, err := c.Pick(now, 1, &tried); err == nil {
					t.Fatal("picked")
				}
			})
		}
	}
	for _, sticky := range []string{"", "cookie:id", "address"} {
		s := newTestSplit(t, SplitConfig{
			Sticky: sticky, Arms: []ArmConfig{{"a", 90}, {"b", 10}}, Canary: fiveSteps,
			Rules: []RuleConfig{{Header: "X", Value: "beta", Prefix: true, Cluster: "rule"}}, Mirror: MirrorConfig{Cluster: "mirror", Share: 0.5},
		})
		r := &fixedRequest{value: []byte("value"), addr: netip.MustParseAddr("10.0.0.1")}
		zero("choose "+sticky, func() {
			c := s.Choose(r, 42)
			s.observe(Outcome{Status: 200, FirstByte: ms, Arm: c.Arm})
		})
		r.value = nil
		zero("choose without a key "+sticky, func() { s.Choose(r, 42) })
	}
	d := newDrift("route", DriftConfig{Samples: 50}, 0, 1)
	zero("drift", func() { d.Observe(1, 2) })
	p := newPeer(Address{}, "")
	p.maxConns.Store(10)
	p.leakAfter.Store(sec)
	var l Leases
	zero("pool", func() {
		p.Reserve()
		x := l.Checkout(1, p)
		l.Touch(2, x)
		l.Overdue(3, nil)
		l.Return(x)
		p.Release()
	})
}

// fixedRequest answers everything with the same.
type fixedRequest struct {
	value []byte
	addr  netip.Addr
}

func (r *fixedRequest) Header(string) []byte { return r.value }
func (r *fixedRequest) Cookie(string) []byte { return r.value }
func (r *fixedRequest) Path() []byte         { return r.value }
func (r *fixedRequest) Address() netip.Addr  { return r.addr }
