package upstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Loops ask, retry and finish while the configuration is replaced, names change
// their addresses, checks come and go and all is read. In the end nothing is in
// flight, and every Pick is counted once.
func TestManyLoopsShareClusters(t *testing.T) {
	w := &world{}
	w.name("app.example", "10.1.0.1", "10.1.0.2", "10.1.0.3")
	config := func(n int) []Config {
		base := Config{
			Peers:     append(equal(4+n%3), PeerConfig{Address: "app.example:80", Weight: 1 + n%4}),
			Health:    HealthConfig{Check: CheckTCP, Interval: d(10 * time.Millisecond)},
			Outlier:   OutlierConfig{BaseEjection: d(time.Millisecond), MaxEjection: d(5 * time.Millisecond), MaxEjected: 0.3},
			Breaker:   BreakerConfig{OpenTime: d(time.Millisecond)},
			SlowStart: d(2 * time.Millisecond),
			Hedge:     HedgeConfig{Percentile: 90, MaxShare: 0.5},
			DNS:       DNSConfig{Interval: d(time.Second)},
		}
		var all []Config
		for _, b := range []string{RoundRobin, LeastConnections, EWMA, ConsistentHash} {
			base.Name, base.Balance = b, b
			all = append(all, base)
		}
		return all
	}
	split := []SplitConfig{{Name: "split", Arms: []ArmConfig{{RoundRobin, 1}, {EWMA, 1}}, Sticky: "cookie:id", Canary: CanaryConfig{Steps: []float64{50, 100}, Samples: 100, StepTime: d(time.Millisecond)}}}
	start := time.Now()
	now := func() int64 { return int64(time.Since(start)) + sec }
	s, err := New(config(0), split, Options{Now: now, Resolve: w.resolve, Check: w.check, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- s.Run(ctx) }()
	<-s.Ready()

	var picks, dones atomic.Int64
	var seen sync.Map
	var loops sync.WaitGroup
	for i := range 8 {
		loops.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			names := []string{RoundRobin, LeastConnections, EWMA, ConsistentHash}
			for n := range 4000 {
				c := s.Cluster(names[n%4])
				var o Outcome
				if n%4 == 0 {
					ch := s.Split("split").Choose(user(n), rng.Uint64())
					c, o.Split, o.Arm = ch.Cluster, ch.Split, ch.Arm
				}
				var tried Tried
				for made := 1; ; made++ {
					p, err := c.Pick(now(), rng.Uint64(), &tried)
					if err != nil {
						break
					}
					picks.Add(1)
					seen.Store(p, true)
					o.Start = now()
					o.End = o.Start + rng.Int64N(ms)
					o.Kind, o.Status, o.FirstByte = Kind(rng.IntN(6)), 0, 0
					if o.Kind == OK {
						o.Status, o.FirstByte = []int{200, 200, 404, 503}[rng.IntN(4)], o.End
					}
					c.Done(p, o)
					dones.Add(1)
					if !c.MayRetry(now(), Attempt{Outcome: o, Made: made, Idempotent: true, Replayable: true}) {
						break
					}
				}
			}
		})
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if n%2 == 0 {
				w.name("app.example", "10.1.0.1", "10.1.0.4")
			} else {
				w.name("app.example", "10.1.0.1", "10.1.0.2")
			}
			w.down.Store(n%5 == 0)
			if err := s.Replace(ctx, config(n), split); err != nil {
				t.Error(err)
			}
			s.maintain(now())
			s.Stats()
			s.SplitStats()
		}
	})
	loops.Wait()
	close(stop)
	others.Wait()
	cancel()
	if err := <-ran; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	attempts := int64(0)
	seen.Range(func(k, _ any) bool {
		p := k.(*Peer)
		if n := p.InFlight(); n != 0 {
			t.Errorf("%s: %d in flight at the end", p.Address(), n)
		}
		attempts += int64(p.counts.attempts.Load())
		if probes := p.breaker.word.Load() >> probeShift & sevenBits; p.breaker.state() != BreakerHalfOpen && probes != 0 {
			t.Errorf("%s: %d probes in state %s", p.Address(), probes, p.breaker.state())
		}
		return true
	})
	if picks.Load() == 0 || picks.Load() != dones.Load() || attempts != picks.Load() {
		t.Errorf("%d picks, %d done, %d counted", picks.Load(), dones.Load(), attempts)
	}
}

func TestMaxInFlightHoldsUnderContention(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(2), Balance: LeastConnections, Pool: PoolConfig{MaxInFlight: 3}})
	var most atomic.Int64
	var loops sync.WaitGroup
	for range 8 {
		loops.Go(func() {
			for range 3000 {
				p, err := c.Pick(sec, 0, nil)
				if err != nil {
					if !errors.Is(err, ErrOverloaded) {
						t.Errorf("got %v", err)
					}
					continue
				}
				raise(&most, p.conns.Add(1))
				p.conns.Add(-1)
				c.Done(p, ok(sec, sec))
			}
		})
	}
	loops.Wait()
	if most.Load() > 3 {
		t.Errorf("%d at a time, want 3 at most", most.Load())
	}
}
