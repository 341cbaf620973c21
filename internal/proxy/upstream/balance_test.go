package upstream

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
)

func TestRoundRobinIsExactAndSmooth(t *testing.T) {
	c := newTestCluster(t, Config{Peers: weighted(5, 1, 1)})
	var got []string
	for range 7 {
		p := request(t, c, 0, ms, 200)
		got = append(got, p.Address().String()[:8])
	}
	want := "[10.0.0.1 10.0.0.1 10.0.0.2 10.0.0.1 10.0.0.3 10.0.0.1 10.0.0.1]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v\nwant %v", got, want)
	}
	for a, n := range tally(t, c, 7000) {
		want := 1000
		if a == "10.0.0.1:80" {
			want = 5000
		}
		if n != want {
			t.Errorf("%s got %d of 7000, want %d", a, n, want)
		}
	}
}

// near fails unless got is within the share of want.
func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s: got %.4g, want %.4g ±%.0f %%", what, got, want, 100*share)
	}
}

func TestWhatADeadPeerLeavesIsSharedByWeightSimulated(t *testing.T) {
	for _, balance := range []string{RoundRobin, LeastConnections, EWMA, ConsistentHash} {
		t.Run(balance, func(t *testing.T) {
			cfg := Config{Balance: balance, Peers: weighted(1, 1, 1, 3, 1)}
			c := newTestCluster(t, cfg)
			peerAt(t, c, "10.0.0.2:80").health.Store(uint32(HealthDown))
			m := tally(t, c, 60000)
			if m["10.0.0.2:80"] != 0 {
				t.Fatalf("the dead peer got %d", m["10.0.0.2:80"])
			}
			if balance == EWMA {
				// Without latencies all cost nothing: the choice is even.
				for a, n := range m {
					near(t, a, float64(n), 15000, 0.05)
				}
				return
			}
			tolerance := 0.03
			if balance == ConsistentHash {
				tolerance = 0.3 // 160 points per peer
			}
			for a, n := range m {
				want := 10000.0
				if a == "10.0.0.4:80" {
					want = 30000
				}
				near(t, a, float64(n), want, tolerance)
			}
		})
	}
}

func TestWeightsHoldForManyPeers(t *testing.T) {
	weights := make([]int, 100)
	total := 0
	for i := range weights {
		weights[i] = i%7 + 1
		total += weights[i]
	}
	for _, balance := range []string{RoundRobin, LeastConnections} {
		c := newTestCluster(t, Config{Balance: balance, Peers: weighted(weights...)})
		m := tally(t, c, 100*total)
		for i, p := range weighted(weights...) {
			near(t, balance+" "+p.Address, float64(m[p.Address]), float64(100*weights[i]), 0.1)
		}
	}
}

func TestGreatWeightsFitTheSchedule(t *testing.T) {
	weights := make([]int, 400)
	for i := range weights {
		weights[i] = 1000 - i
	}
	c := newTestCluster(t, Config{Peers: weighted(weights...)})
	if n := len(c.view.Load().schedule); n > maxSlots+len(weights) {
		t.Errorf("the schedule has %d slots", n)
	}
}

func TestLeastConnectionsTakesTheLeast(t *testing.T) {
	c := newTestCluster(t, Config{Balance: LeastConnections, Peers: weighted(1, 1, 2)})
	held := map[string]int{}
	for range 400 {
		held[mustPick(t, c, 0, 0, nil).Address().String()]++
	}
	if held["10.0.0.1:80"] != 100 || held["10.0.0.2:80"] != 100 || held["10.0.0.3:80"] != 200 {
		t.Errorf("400 held requests stand %v, want 100, 100, 200", held)
	}
	busy := peerAt(t, c, "10.0.0.3:80")
	busy.inflight.Add(1000)
	for range 100 {
		if p := request(t, c, 0, ms, 200); p == busy {
			t.Fatal("the busy peer was asked")
		}
	}
}

func TestEWMAPrefersTheFast(t *testing.T) {
	c := newTestCluster(t, Config{Balance: EWMA, Peers: equal(4)})
	slow := peerAt(t, c, "10.0.0.1:80")
	n := 0
	for i := range 4000 {
		now := int64(i) * ms
		p := mustPick(t, c, now, 0, nil)
		latency := 5 * ms
		if p == slow {
			latency = 50 * ms
			n++
		}
		c.Done(p, ok(now, now+latency))
	}
	// It wins no draw against another but the first.
	if n > 40 {
		t.Errorf("the peer that is ten times slower got %d of 4000", n)
	}
}

func TestEWMARetriesSlowPeers(t *testing.T) {
	c := newTestCluster(t, Config{Balance: EWMA, Peers: equal(2)})
	first := request(t, c, 0, 5*ms, 200)
	slow := mustPick(t, c, 1, 0, nil)
	if slow == first {
		t.Fatal("the new peer was not tried at once")
	}
	c.Done(slow, ok(1, 20*sec)) // answered after twenty seconds
	for now := 20 * sec; now < 31*sec; now += 20 * ms {
		if request(t, c, now, 5*ms, 200) == slow {
			if now < 22*sec {
				t.Errorf("asked again %s later, with an average of 20 s", time.Duration(now-20*sec))
			}
			return
		}
	}
	t.Error("the peer that was slow once was not requested 11 s")
}

func TestEWMAGivesANewPeerOneRequest(t *testing.T) {
	c := newTestCluster(t, Config{Balance: EWMA, Peers: equal(2)})
	request(t, c, 0, 5*ms, 200)
	counts := map[*Peer]int{}
	for range 20 {
		counts[mustPick(t, c, 1, 0, nil)]++ // none is answered
	}
	for p, n := range counts {
		if p.latency.word.Load() == 0 && n != 1 {
			t.Errorf("the unmeasured peer got %d requests at once", n)
		}
	}
}

func TestAFastFailureIsNotFast(t *testing.T) {
	c := newTestCluster(t, Config{Balance: EWMA, Peers: equal(2), Outlier: OutlierConfig{Enabled: setting.Off}, Breaker: BreakerConfig{Enabled: setting.Off}})
	bad := peerAt(t, c, "10.0.0.1:80")
	n := 0
	for i := range 2000 {
		now := int64(i) * ms
		p := mustPick(t, c, now, 0, nil)
		if p == bad {
			n++
			c.Done(p, Outcome{Status: 503, Start: now, FirstByte: now + ms/10, End: now + ms/10})
			continue
		}
		c.Done(p, ok(now, now+5*ms))
	}
	if n > 100 {
		t.Errorf("the peer that fails fast got %d of 2000", n)
	}
}

func hashed(t *testing.T, c *Cluster, keys int) []string {
	t.Helper()
	all := make([]string, keys)
	for i := range all {
		p := mustPick(t, c, 0, HashString(fmt.Sprint("user-", i)), nil)
		all[i] = p.Address().String()
		c.Done(p, Outcome{Kind: Canceled})
	}
	return all
}

func TestConsistentHashMovesOnlyTheKeysOfRemovedPeers(t *testing.T) {
	const keys = 20000
	cfg := Config{Name: "test", Balance: ConsistentHash, Peers: equal(10)}
	before := hashed(t, newTestCluster(t, cfg), keys)
	fewer := cfg
	fewer.Peers = append(equal(4), equal(10)[5:]...)
	after := hashed(t, newTestCluster(t, fewer), keys)
	unusable := newTestCluster(t, cfg)
	peerAt(t, unusable, "10.0.0.5:80").health.Store(uint32(HealthDown))
	down := hashed(t, unusable, keys)
	moved := 0
	to := map[string]int{}
	for i := range before {
		if before[i] != "10.0.0.5:80" && (after[i] != before[i] || down[i] != before[i]) {
			t.Fatalf("key %d moved from %s to %s, %s, whose peers stayed", i, before[i], after[i], down[i])
		}
		if after[i] != down[i] {
			t.Fatalf("key %d goes to %s when the peer is removed and to %s when it is down", i, after[i], down[i])
		}
		if before[i] == "10.0.0.5:80" {
			moved++
			to[after[i]]++
		}
	}
	near(t, "moved", float64(moved), keys/10, 0.3)
	if len(to) != 9 {
		t.Errorf("its keys went to %d peers, want all 9", len(to))
	}
}

func TestConsistentHashDoesNotDependOnOrder(t *testing.T) {
	cfg := Config{Name: "test", Balance: ConsistentHash, Peers: weighted(1, 2, 1, 3)}
	a := hashed(t, newTestCluster(t, cfg), 2000)
	cfg.Peers[0], cfg.Peers[3] = cfg.Peers[3], cfg.Peers[0]
	b := hashed(t, newTestCluster(t, cfg), 2000)
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("key %d: %s, with the peers in another order %s", i, a[i], b[i])
		}
	}
}

func TestHashLoadBoundsAHotKey(t *testing.T) {
	c := newTestCluster(t, Config{Balance: ConsistentHash, HashLoad: 1.25, Peers: equal(4)})
	held := map[*Peer]int{}
	for range 400 {
		held[mustPick(t, c, 0, 42, nil)]++
	}
	for p, n := range held {
		if n > 126 {
			t.Errorf("%s holds %d of 400, above 1.25 times the average", p.Address(), n)
		}
	}
}

func TestSlowStartRises(t *testing.T) {
	for _, balance := range []string{RoundRobin, LeastConnections, EWMA, ConsistentHash} {
		c := newTestCluster(t, Config{Balance: balance, Peers: equal(2), SlowStart: d(10 * time.Second)})
		p := peerAt(t, c, "10.0.0.1:80")
		p.comeBack(sec, &c.view.Load().policy)
		share := func(now int64) float64 {
			n := 0
			for i := range 20000 {
				q := mustPick(t, c, now, mix(uint64(i)+7), nil)
				if q == p {
					n++
				}
				c.Done(q, Outcome{Kind: Canceled})
			}
			return float64(n) / 20000
		}
		early, half, full := share(sec+sec/10), share(6*sec), share(12*sec)
		t.Logf("%s: %.3f, %.3f, %.3f", balance, early, half, full)
		if !(early < 0.15 && early > 0.02 && half > early+0.05 && half < full && full > 0.4) {
			t.Errorf("%s: shares at 0.1, 5 and 11 s are %.3f, %.3f, %.3f, want a rise to about half", balance, early, half, full)
		}
	}
}

func TestSlowStartOfTheOnlyPeerRefusesNothing(t *testing.T) {
	for _, balance := range []string{RoundRobin, LeastConnections, EWMA, ConsistentHash} {
		c := newTestCluster(t, Config{Balance: balance, Peers: equal(1), SlowStart: d(time.Minute)})
		peerAt(t, c, "10.0.0.1:80").comeBack(1, &c.view.Load().policy)
		tally(t, c, 1000)
	}
}

func TestEWMALeavesAPeerThatHangsAlthoughClientsLeaveFirst(t *testing.T) {
	c := newTestCluster(t, Config{Balance: EWMA, Peers: equal(2)})
	hangs := peerAt(t, c, "10.0.0.1:80")
	n := 0
	type waiting struct{ start, end int64 }
	var held []waiting
	for now := sec; now < 21*sec; now += 10 * ms {
		for len(held) > 0 && held[0].end <= now { // clients that waited for 300 ms
			c.Done(hangs, Outcome{Kind: Canceled, Start: held[0].start, End: held[0].end})
			held = held[1:]
		}
		if p := mustPick(t, c, now, 0, nil); p != hangs || now < 2*sec {
			c.Done(p, ok(now, now+5*ms))
		} else {
			n++
			held = append(held, waiting{now, now + 300*ms})
		}
	}
	if n > 60 {
		t.Errorf("the peer that hangs got %d of 1900 requests", n)
	}
}
