package upstream

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
)

func TestWhatIsRetried(t *testing.T) {
	f := func(cfg RetryConfig, a Attempt, want bool) {
		t.Helper()
		c := newTestCluster(t, Config{Peers: equal(2), Retry: cfg})
		if a.Made == 0 {
			a.Made = 1
		}
		if got := c.MayRetry(sec, a); got != want {
			t.Errorf("%+v: %v, want %v", a, got, want)
		}
	}
	get := func(o Outcome) Attempt { return Attempt{Outcome: o, Idempotent: true, Replayable: true} }
	post := func(o Outcome) Attempt { return Attempt{Outcome: o, Replayable: true} }
	status := func(n int) Outcome { return Outcome{Status: n, FirstByte: 1} }
	var def RetryConfig

	f(def, get(Outcome{Kind: ConnectError}), true)
	f(def, post(Outcome{Kind: ConnectError}), true)
	f(def, get(Outcome{Kind: Reset}), true)
	f(def, post(Outcome{Kind: Reset}), false)
	f(RetryConfig{NonIdempotent: true}, post(Outcome{Kind: Reset}), true)
	f(def, get(Outcome{Kind: Reset, FirstByte: 1}), false)
	f(def, get(Outcome{Kind: Timeout}), false)
	f(RetryConfig{On: []string{"timeout"}}, get(Outcome{Kind: Timeout}), true)
	f(RetryConfig{On: []string{"timeout"}}, get(Outcome{Kind: Timeout, FirstByte: 1}), false)
	f(RetryConfig{On: []string{"timeout"}}, get(Outcome{Kind: Reset}), false)
	f(def, get(Outcome{Kind: Stale}), true)
	f(def, post(Outcome{Kind: Stale}), false)
	f(def, get(Outcome{Kind: Canceled}), false)
	f(def, get(status(503)), true)
	f(def, post(status(503)), false)
	f(def, get(status(500)), false)
	f(RetryConfig{On: []string{"500", "429"}}, get(status(500)), true)
	f(RetryConfig{On: []string{"500", "429"}}, get(status(429)), true)
	f(RetryConfig{On: []string{"500", "429"}}, get(status(503)), false)
	f(def, get(status(0)), false)
	f(def, get(status(999)), false)

	started := get(Outcome{Kind: ConnectError})
	started.Started = true
	f(def, started, false)
	gone := get(Outcome{Kind: ConnectError})
	gone.Replayable = false
	f(def, gone, false)
	third := get(Outcome{Kind: ConnectError})
	third.Made = 3
	f(def, third, false)
	f(RetryConfig{Attempts: 4}, third, true)
	f(RetryConfig{Attempts: 1}, get(Outcome{Kind: ConnectError}), false)
}

func TestRetriesKeepToTheirBudget(t *testing.T) {
	c := newTestCluster(t, Config{
		Peers: equal(3), Outlier: OutlierConfig{Enabled: setting.Off}, Breaker: BreakerConfig{Enabled: setting.Off},
		Retry: RetryConfig{MinPerSecond: 1},
	})
	// 100 requests a second, all of which fail, for a minute.
	first, retries := 0, 0
	for now := sec; now < 61*sec; now += 10 * ms {
		first++
		for made := 1; ; made++ {
			p := mustPick(t, c, now, 0, nil)
			c.Done(p, Outcome{Status: 503, Start: now, End: now})
			if !c.MayRetry(now, Attempt{Outcome: Outcome{Status: 503}, Made: made, Idempotent: true, Replayable: true}) {
				break
			}
			retries++
		}
	}
	// 20 % of the requests and one a second.
	near(t, "retries", float64(retries), 0.2*float64(first)+60, 0.1)
	st := c.stats(61 * sec)
	if int(st.Retries) != retries || st.RetriesRefused == 0 {
		t.Errorf("counted %d, refused %d", st.Retries, st.RetriesRefused)
	}
}

func TestHedgesKeepToTheirShare(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(2), Hedge: HedgeConfig{After: d(20 * time.Millisecond)}})
	if got := c.HedgeAfter(); got != 20*time.Millisecond {
		t.Errorf("after %s", got)
	}
	n, hedges := 0, 0
	for now := sec; now < 31*sec; now += 5 * ms {
		n++
		request(t, c, now, ms, 200)
		if c.MayHedge(now, Attempt{Made: 1, Idempotent: true, Replayable: true}) {
			hedges++
		}
	}
	near(t, "hedges", float64(hedges), 0.05*float64(n), 0.1)
	now := 31 * sec
	for range 1000 {
		request(t, c, now, ms, 200)
	}
	f := func(a Attempt, want bool) {
		t.Helper()
		if got := c.MayHedge(now, a); got != want {
			t.Errorf("%+v: %v", a, got)
		}
	}
	f(Attempt{Made: 1, Replayable: true}, false)
	f(Attempt{Made: 1, Idempotent: true}, false)
	f(Attempt{Made: 2, Idempotent: true, Replayable: true}, false)
	f(Attempt{Made: 1, Idempotent: true, Replayable: true, Started: true}, false)
	f(Attempt{Made: 1, Idempotent: true, Replayable: true}, true)
}

func TestNoHedgeUnlessConfiguredOrWithoutAnotherPeer(t *testing.T) {
	for _, cfg := range []Config{{Peers: equal(2)}, {Peers: equal(1), Hedge: HedgeConfig{After: 1}}} {
		c := newTestCluster(t, cfg)
		for range 1000 {
			request(t, c, sec, ms, 200)
		}
		if c.MayHedge(sec, Attempt{Made: 1, Idempotent: true, Replayable: true}) {
			t.Errorf("%d peers, %+v: hedged", len(cfg.Peers), cfg.Hedge)
		}
	}
}

func TestHedgeAfterIsThePercentile(t *testing.T) {
	w := &world{}
	cfg := Config{Name: "test", Peers: equal(2), Hedge: HedgeConfig{Percentile: 95}}
	bubble(t, w, []Config{cfg}, func(t *testing.T, s *Set) {
		c := s.Cluster("test")
		if c.HedgeAfter() != 0 {
			t.Error("hedges without knowing latencies")
		}
		for i := range int64(1000) {
			request(t, c, s.opts.Now(), (i+1)*ms/10, 200) // 0.1 to 100 ms
		}
		after(2 * time.Second)
		if got := c.HedgeAfter(); got < 95*time.Millisecond || got > 120*time.Millisecond {
			t.Errorf("p95 of 0.1 to 100 ms is %s", got)
		}
		for range 20 { // it follows
			for range 200 {
				request(t, c, s.opts.Now(), ms, 200)
			}
			after(time.Second)
		}
		if got := c.HedgeAfter(); got > 2*time.Millisecond {
			t.Errorf("after 20 s of 1 ms it is %s", got)
		}
	})
}

func TestTimeBucketsHoldWhatTheyAreCalledBy(t *testing.T) {
	var h times
	last := int64(-1)
	for i := range len(h.buckets) {
		up := h.upper(i)
		if up <= last {
			t.Fatalf("bucket %d ends at %d, the one before at %d", i, up, last)
		}
		if timeBucket(up-1) != i || i+1 < len(h.buckets) && timeBucket(up) != i+1 {
			t.Fatalf("bucket %d ends at %d: %d and %d lie in %d and %d", i, up, up-1, up, timeBucket(up-1), timeBucket(up))
		}
		last = up
	}
	for _, v := range []int64{-1, 0, 1, 1 << 62} {
		timeBucket(v)
	}
}

func TestLeasesReportWhatLeaked(t *testing.T) {
	cfg := Config{Name: "test", Peers: equal(2), Pool: PoolConfig{LeakAfter: d(time.Minute)}}
	other := Config{Name: "other", Peers: equal(1), Pool: PoolConfig{LeakAfter: d(time.Hour)}}
	s := newTestSet(t, Options{}, cfg, other)
	a, b := peerAt(t, s.Cluster("test"), "10.0.0.1:80"), peerAt(t, s.Cluster("test"), "10.0.0.2:80")
	long := peerAt(t, s.Cluster("other"), "10.0.0.1:80")
	var l Leases
	l.Overdue(0, func(*Peer, int64) { t.Error("an empty one reported") })
	overdue := func(now int64) (got []*Peer) {
		l.Overdue(now, func(p *Peer, _ int64) { got = append(got, p) })
		return got
	}
	x, y, z := l.Checkout(0, a), l.Checkout(sec, b), l.Checkout(0, long)
	if got := overdue(60 * sec); got != nil {
		t.Errorf("at exactly a minute: %d", len(got))
	}
	l.Touch(50*sec, y)
	if got := overdue(70 * sec); !slices.Equal(got, []*Peer{a}) {
		t.Errorf("at 70 s: %v", got)
	}
	if got := overdue(80 * sec); got != nil {
		t.Error("reported twice")
	}
	l.Touch(90*sec, x)
	if got := overdue(151 * sec); !slices.Equal(got, []*Peer{b, a}) {
		t.Errorf("at 151 s: %v", got)
	}
	l.Return(y)
	l.Return(y)
	l.Return(Lease{})
	l.Touch(0, y)
	if l.Len() != 2 {
		t.Errorf("%d in use", l.Len())
	}
	again := l.Checkout(200*sec, b) // the slot of y
	l.Return(y)
	if l.Len() != 3 || again.index != y.index {
		t.Error("an old lease returned a new one")
	}
	if got := overdue(3601 * sec); len(got) != 2 || !slices.Contains(got, long) || !slices.Contains(got, b) {
		t.Errorf("after an hour: %v", got)
	}
	l.Return(x)
	l.Return(z)
	l.Return(again)
	if l.Len() != 0 || overdue(1<<60) != nil {
		t.Error("something is left")
	}
	if b.counts.leaked.Load() != 2 {
		t.Errorf("counted %d", b.counts.leaked.Load())
	}
}

func TestConnectionsPerPeerAreBounded(t *testing.T) {
	c := newTestCluster(t, Config{Peers: equal(1), Pool: PoolConfig{MaxPerPeer: 2}})
	p := peerAt(t, c, "10.0.0.1:80")
	for i, want := range []bool{true, true, false} {
		if p.Reserve() != want {
			t.Errorf("number %d may be: %v", i+1, !want)
		}
	}
	p.Release()
	if !p.Reserve() {
		t.Error("none after a release")
	}
	if st := c.stats(0).Peers[0]; st.Connections != 2 || st.PoolFull != 1 {
		t.Errorf("%d connections, %d refused", st.Connections, st.PoolFull)
	}
}

// While one peer refuses, resets or answers 503, every idempotent request is
// answered by another within the default attempts and budget.
func TestNoIdempotentRequestFailsWhileAPeerIsDownSimulated(t *testing.T) {
	for _, balance := range []string{RoundRobin, LeastConnections, EWMA, ConsistentHash} {
		for _, n := range []int{2, 3} {
			for _, down := range []Outcome{{Kind: ConnectError}, {Kind: Reset}, {Status: 503, FirstByte: 1}} {
				c := newTestCluster(t, Config{Balance: balance, Peers: equal(n)})
				victim := peerAt(t, c, "10.0.0.1:80")
				failed, retried := 0, 0
				// 64 requests at a time, 2,000 a second; it is down from 5 to 30 s.
				for now, i := sec, uint64(0); now < 35*sec; now += 32 * ms {
					type asking struct {
						p     *Peer
						tried Tried
					}
					var batch []asking
					for range 64 {
						var a asking
						i++
						a.p = mustPick(t, c, now, mix(i), &a.tried)
						batch = append(batch, a)
					}
					for k := range batch {
						a := &batch[k]
						for made := 1; ; made++ {
							if a.p != victim || now < 5*sec || now > 30*sec {
								c.Done(a.p, ok(now, now+5*ms))
								break
							}
							o := down
							o.Start, o.End = now, now+ms
							c.Done(a.p, o)
							if !c.MayRetry(now, Attempt{Outcome: o, Made: made, Idempotent: true, Replayable: true}) {
								failed++
								break
							}
							retried++
							a.p = mustPick(t, c, now, mix(i), &a.tried)
						}
					}
				}
				if failed > 0 || retried == 0 {
					t.Errorf("%s over %d peers, one with %+v: %d failed, %d retried", balance, n, down, failed, retried)
				}
			}
		}
	}
}
