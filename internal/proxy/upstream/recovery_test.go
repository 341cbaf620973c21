package upstream

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
)

// A backend that fails for some time and then works again is back in service
// within 30 s under steady traffic with the default settings, whatever had taken it
// out: checks, ejection, breaker, each alone and all at once, by any balancing, for
// any way of failing. Checks run as in life; all in fake time.
func TestRecoveredPeerIsBackWithin30sSimulated(t *testing.T) {
	type failure struct {
		name  string
		kind  Kind
		after time.Duration // how long a failing request takes
		code  int
	}
	failures := []failure{
		{"refuses", ConnectError, 0, 0},
		{"resets", Reset, 3 * time.Millisecond, 0},
		{"answers 503", OK, time.Millisecond, 503},
		{"hangs", Timeout, 10 * time.Second, 0},
	}
	worst := time.Duration(0)
	for _, balance := range []string{RoundRobin, LeastConnections, EWMA, ConsistentHash} {
		for options := range 16 {
			for _, f := range failures {
				cfg := Config{Name: "test", Balance: balance, Peers: equal(3)}
				if options&1 != 0 {
					cfg.Health.Check = CheckTCP
				}
				cfg.Outlier.Enabled = setting.Of(options&2 == 0)
				cfg.Breaker.Enabled = setting.Of(options&4 == 0)
				if options&8 != 0 {
					cfg.SlowStart = d(10 * time.Second)
				}
				name := fmt.Sprintf("%s, %s, health %v, outlier %v, breaker %v, slow start %v", balance, f.name,
					options&1 != 0, options&2 == 0, options&4 == 0, options&8 != 0)
				for _, outage := range []time.Duration{3 * time.Second, 41 * time.Second} {
					synctest.Test(t, func(t *testing.T) {
						back, out := recover30(t, cfg, f.kind, f.code, f.after, outage)
						worst = max(worst, back)
						if bound := cfg.RecoveryBound() + f.after + 2*time.Second; back > min(30*time.Second, bound) {
							t.Errorf("%s: back %s after an outage of %s (out: %v), bound %s", name, back, outage, out, bound)
						}
						// Balancing by load may spare it before a judge has seen enough.
						checked := options&1 != 0 || options&2 == 0 || options&4 == 0
						if blind := balance == RoundRobin || balance == ConsistentHash; blind && checked && outage > 30*time.Second && !out {
							t.Errorf("%s: never out in %s", name, outage)
						}
					})
				}
			}
		}
	}
	t.Logf("the longest return took %s", worst)
}

// recover30 lets one of the peers fail for outage and returns how long after its
// end it was asked three times in two seconds again, and whether it was ever removed.
func recover30(t *testing.T, cfg Config, kind Kind, code int, after, outage time.Duration) (back time.Duration, out bool) {
	w := &world{}
	victim := "10.0.0.2:80"
	start := time.Now()
	s := newTestSet(t, Options{
		Now: func() int64 { return int64(time.Since(start)) + sec },
		Check: func(ctx context.Context, a Address, h HealthConfig) error {
			if a.String() != victim {
				return nil
			}
			return w.check(ctx, a, h)
		},
	}, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-s.Ready()
	c := s.Cluster("test")
	p := peerAt(t, c, victim)

	type pending struct {
		at int64
		p  *Peer
		o  Outcome
	}
	var waiting []pending
	const tick = 20 * time.Millisecond // 50 requests a second
	run := func(until time.Duration, served func(now time.Duration)) {
		for n := uint64(0); time.Since(start) < until; n++ {
			now := s.opts.Now()
			for len(waiting) > 0 && waiting[0].at <= now {
				c.Done(waiting[0].p, waiting[0].o)
				waiting = waiting[1:]
			}
			q, err := c.Pick(now, mix(n), nil)
			switch {
			case err != nil:
				t.Fatalf("no peer although two of three work: %v", err)
			case q != p || !w.down.Load():
				c.Done(q, ok(now, now+2*ms))
				if q == p {
					served(time.Since(start))
				}
			default:
				end := now + int64(after)
				o := Outcome{Kind: kind, Status: code, Start: now, End: end}
				if after > time.Second {
					waiting = append(waiting, pending{end, q, o})
				} else {
					c.Done(q, o)
				}
			}
			out = out || w.down.Load() && p.barred(now, &c.view.Load().policy, false) != barNone
			time.Sleep(tick)
		}
	}
	never := func(time.Duration) {}
	run(15*time.Second, never)
	w.down.Store(true)
	run(15*time.Second+outage, never)
	w.down.Store(false)
	recovered := time.Since(start)
	var recent []time.Duration
	back = -1
	run(recovered+35*time.Second, func(now time.Duration) {
		recent = append(recent, now)
		if n := len(recent); back < 0 && n >= 3 && now-recent[n-3] < 2*time.Second {
			back = now - recovered
		}
	})
	if back < 0 {
		back = time.Hour
	}
	return back, out
}
