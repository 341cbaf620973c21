package upstream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// running runs a set of one cluster whose checks are w's, in fake time.
func running(t *testing.T, w *world, cfg Config) (c *Cluster, stop func()) {
	t.Helper()
	start := time.Now()
	s := newTestSet(t, Options{Now: func() int64 { return int64(time.Since(start)) + sec }, Check: w.check}, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	synctest.Wait()
	return s.Cluster(cfg.Name), func() { cancel(); <-done }
}

func states(c *Cluster) map[string]int {
	m := map[string]int{}
	for _, p := range c.stats(0).Peers {
		m[p.Health]++
	}
	return m
}

// Backends that are not there when the gateway starts are checked at once and then all
// the time; the first check that they pass brings them in, whatever the interval.
func TestPeersThatStartLateAreFoundSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.down.Store(true)
		c, stop := running(t, w, Config{Name: "test", Peers: equal(2), Health: HealthConfig{Check: CheckTCP, Interval: d(time.Hour), Healthy: 3}})
		defer stop()
		if n := w.checks.Load(); n < 2 || n > 3 || states(c)["down"] != 2 {
			t.Fatalf("at the start: %d checks, %v", n, states(c))
		}
		time.Sleep(time.Second)
		if n := w.checks.Load(); n < 8 || n > 12 { // after 100, 200, 400 and 500ms, ±10 %
			t.Errorf("%d checks of two peers in the first second", n)
		}
		time.Sleep(time.Minute)
		before := w.checks.Load()
		time.Sleep(time.Minute)
		if n := w.checks.Load() - before; n < 216 || n > 268 {
			t.Errorf("%d checks of two peers in a minute, want one each in 500ms ±10 %%", n)
		}
		w.down.Store(false)
		time.Sleep(551 * time.Millisecond)
		if states(c)["up"] != 2 {
			t.Errorf("551ms after they came: %v", states(c))
		}
		before = w.checks.Load()
		time.Sleep(50 * time.Minute)
		if n := w.checks.Load() - before; n != 0 {
			t.Errorf("%d checks within the interval", n)
		}
	})
}

// The last peer that goes down wakes the checkers of all.
func TestTheLastPeerDownHurriesTheChecksOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		c, stop := running(t, w, Config{Name: "test", Peers: equal(3), Health: HealthConfig{Check: CheckTCP, Interval: d(10 * time.Minute), Unhealthy: 1}})
		defer stop()
		if states(c)["up"] != 3 {
			t.Fatalf("at the start: %v", states(c))
		}
		time.Sleep(time.Minute)
		w.down.Store(true)
		for states(c)["down"] < 3 {
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Second)
		w.down.Store(false)
		time.Sleep(551*time.Millisecond + 110*time.Millisecond)
		if states(c)["up"] != 3 {
			t.Errorf("661ms after they came back: %v", states(c))
		}
	})
}

// As long as another peer passes, a peer that was down has to pass as often as configured.
func TestAPeerBesideOthersRecoversAtItsThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		start := time.Now()
		s := newTestSet(t, Options{
			Now: func() int64 { return int64(time.Since(start)) + sec },
			Check: func(ctx context.Context, a Address, h HealthConfig) error {
				if a.String() == "10.0.0.2:80" {
					return nil
				}
				return w.check(ctx, a, h)
			},
		}, Config{Name: "test", Peers: equal(2), Health: HealthConfig{Check: CheckTCP, Interval: d(5 * time.Second)}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		defer func() { cancel(); <-done }()
		<-s.Ready()
		synctest.Wait()
		p := peerAt(t, s.Cluster("test"), "10.0.0.1:80")
		f := func(wait time.Duration, down bool, want Health) {
			t.Helper()
			w.down.Store(down)
			time.Sleep(wait)
			synctest.Wait()
			if got := Health(p.health.Load()); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		f(11*time.Second, true, HealthUp) // two failed
		f(6*time.Second, true, HealthDown)
		f(5600*time.Millisecond, false, HealthDown) // one passed
		f(5600*time.Millisecond, false, HealthUp)   // two
	})
}

// Many peers are not checked without bound.
func TestHurriedChecksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.down.Store(true)
		_, stop := running(t, w, Config{Name: "test", Peers: equal(1000), Health: HealthConfig{Check: CheckTCP, Interval: d(time.Minute)}})
		defer stop()
		time.Sleep(10 * time.Second) // each peer was checked twice
		before := w.checks.Load()
		time.Sleep(20 * time.Second)
		if n := w.checks.Load() - before; n > 20*230 {
			t.Errorf("%d checks in 20 seconds, want about 200 a second", n)
		}
	})
}

// A check that passes ends what the breaker had closed off.
func TestAPassedCheckLetsProbesThroughTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.down.Store(true)
		c, stop := running(t, w, Config{Name: "test", Peers: equal(1), Health: HealthConfig{Check: CheckTCP, PanicBelow: -1}, Breaker: BreakerConfig{OpenTime: d(time.Hour)}})
		defer stop()
		p := peerAt(t, c, "10.0.0.1:80")
		p.breaker.word.Store(breakerWord(BreakerOpen, 0, 0, sec))
		w.down.Store(false)
		time.Sleep(time.Second)
		if got := p.breaker.state(); got != BreakerHalfOpen {
			t.Errorf("the breaker is %s", got)
		}
	})
}
