package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// bubble runs f in fake time with a running Set of the clusters.
func bubble(t *testing.T, w *world, clusters []Config, f func(t *testing.T, s *Set)) {
	t.Helper()
	bubbleWith(t, Options{Resolve: w.resolve, Check: w.check}, clusters, f)
}

func bubbleWith(t *testing.T, o Options, clusters []Config, f func(t *testing.T, s *Set)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		o.Now = func() int64 { return int64(time.Since(start)) + sec }
		s := newTestSet(t, o, clusters...)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		<-s.Ready()
		synctest.Wait()
		f(t, s)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func stateOfPeer(t *testing.T, s *Set, address string) PeerStats {
	t.Helper()
	for _, c := range s.Stats() {
		for _, p := range c.Peers {
			if p.Address == address {
				return p
			}
		}
	}
	return PeerStats{State: "unknown to the set"}
}

func TestHealthFollowsItsThresholds(t *testing.T) {
	w := &world{}
	cfg := Config{Name: "test", Peers: equal(1), Health: HealthConfig{Path: "/healthz"}}
	bubble(t, w, []Config{cfg}, func(t *testing.T, s *Set) {
		f := func(when time.Duration, down bool, want string) {
			t.Helper()
			w.down.Store(down)
			after(when)
			if got := stateOfPeer(t, s, "10.0.0.1:80").State; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		f(0, false, "up")
		f(11*time.Second, true, "up")       // two checks failed
		f(11*time.Second, true, "down")     // four
		f(time.Second, false, "up")         // one passed, and there is no other peer
		f(11*time.Second, false, "up")      // and more
		f(11*time.Second, true, "up")       // two failed
		f(6*time.Second, false, "up")       // one passed between
		f(11*time.Second, true, "up")       // two again: the row began anew
		f(30*time.Second, false, "up")      // never was down
		f(time.Hour, false, "up")           // and stays
		f(15*time.Second+6e8, true, "down") // three
	})
}

func TestFlappingIsDampedByTheThresholds(t *testing.T) {
	w := &world{}
	cfg := Config{Name: "test", Peers: equal(2), Health: HealthConfig{Path: "/"}}
	bubble(t, w, []Config{cfg}, func(t *testing.T, s *Set) {
		changes, last := 0, "up"
		for i := range 200 {
			w.down.Store(i%2 == 0) // every other check fails, more or less
			after(5 * time.Second)
			if got := stateOfPeer(t, s, "10.0.0.1:80").State; got != last {
				changes, last = changes+1, got
			}
		}
		if changes > 20 {
			t.Errorf("%d changes of state in 200 intervals", changes)
		}
	})
}

func TestAPeerThatNeverPassedIsDownAtOnce(t *testing.T) {
	w := &world{}
	w.down.Store(true)
	cfg := Config{Name: "test", Peers: equal(1), Health: HealthConfig{Check: CheckTCP, PanicBelow: -1}}
	bubble(t, w, []Config{cfg}, func(t *testing.T, s *Set) {
		if _, err := s.Cluster("test").Pick(0, 0, nil); !errors.Is(err, ErrAllUnhealthy) {
			t.Errorf("got %v, want ErrAllUnhealthy", err)
		}
		cfg := cfg
		cfg.Health = HealthConfig{}
		if err := s.Replace(t.Context(), []Config{cfg}, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Cluster("test").Pick(0, 0, nil); err != nil {
			t.Errorf("without checks nothing is known, but: %v", err)
		}
		n := w.checks.Load()
		after(time.Minute)
		if w.checks.Load() != n {
			t.Error("checks continue that are not configured any more")
		}
	})
}

func TestChecksSpread(t *testing.T) {
	var times [8][]time.Duration
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := newTestSet(t, Options{Check: func(_ context.Context, a Address, _ HealthConfig) error {
			i := a.IP.Addr().As4()[3] - 1
			times[i] = append(times[i], time.Since(start))
			return nil
		}}, Config{Name: "test", Peers: equal(8), Health: HealthConfig{Check: CheckTCP}})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		s.Run(ctx)
	})
	distinct := map[time.Duration]bool{}
	for i, all := range times {
		if len(all) < 18 || len(all) > 23 {
			t.Errorf("peer %d was checked %d times in 100 s", i+1, len(all))
		}
		distinct[all[len(all)-1]] = true
	}
	if len(distinct) != 8 {
		t.Errorf("the last checks of 8 peers came at %d times", len(distinct))
	}
}

func TestResolvedAddressesArePeers(t *testing.T) {
	w := &world{}
	w.name("app.example", "10.1.0.2", "10.1.0.1", "::ffff:10.1.0.1", "fd00::1")
	w.name("six.example", "fd00::6")
	cfg := Config{Name: "test", Peers: []PeerConfig{{Address: "APP.example.:8080", Weight: 3}, {Address: "six.example:80"}, {Address: "unix:/run/app.sock"}}}
	bubble(t, w, []Config{cfg}, func(t *testing.T, s *Set) {
		var got []string
		for _, p := range s.Stats()[0].Peers {
			got = append(got, p.Name+" "+p.Address)
		}
		want := "[APP.example.:8080 10.1.0.1:8080 APP.example.:8080 10.1.0.2:8080 six.example:80 [fd00::6]:80 unix:/run/app.sock unix:/run/app.sock]"
		if fmt.Sprint(got) != want {
			t.Errorf("got %v\nwant %v", got, want)
		}
		if m := tally(t, s.Cluster("test"), 800); m["10.1.0.1:8080"] != 300 || m["unix:/run/app.sock"] != 100 {
			t.Errorf("weights: %v", m)
		}
	})
}

func TestPickFamily(t *testing.T) {
	f := func(family, want string) {
		t.Helper()
		var all []netip.Addr
		for _, a := range []string{"10.0.0.2", "fd00::1", "10.0.0.1", "::ffff:10.0.0.2"} {
			all = append(all, netip.MustParseAddr(a))
		}
		if got := fmt.Sprint(pickFamily(all, family)); got != want {
			t.Errorf("%s: %s, want %s", family, got, want)
		}
	}
	f("auto", "[10.0.0.1 10.0.0.2]")
	f("ipv4", "[10.0.0.1 10.0.0.2]")
	f("ipv6", "[fd00::1]")
	f("all", "[10.0.0.1 10.0.0.2 fd00::1]")
	if got := pickFamily([]netip.Addr{netip.MustParseAddr("fd00::2")}, "auto"); len(got) != 1 {
		t.Errorf("auto without IPv4: %v", got)
	}
}

func TestAChangeOfAddressesKeepsTheStateOfThoseThatStay(t *testing.T) {
	w := &world{}
	w.name("app.example", "10.1.0.1", "10.1.0.2")
	cfg := Config{Name: "test", Peers: peers("app.example:80"), DNS: DNSConfig{Interval: d(10 * time.Second)}}
	bubble(t, w, []Config{cfg}, func(t *testing.T, s *Set) {
		c := s.Cluster("test")
		stays, goes := peerAt(t, c, "10.1.0.1:80"), peerAt(t, c, "10.1.0.2:80")
		now := s.opts.Now()
		stays.latency.observe(7*ms, now, int64(time.Hour))
		stays.ejections.Store(2)
		for mustPick(t, c, now, 0, nil) != goes {
		}
		held := goes.InFlight()
		w.name("app.example", "10.1.0.1", "10.1.0.3")
		after(11 * time.Second)
		if peerAt(t, c, "10.1.0.1:80") != stays || stays.ejections.Load() != 2 || stays.latency.word.Load() == 0 {
			t.Error("the peer that stayed is another one")
		}
		if m := tally(t, c, 100); m["10.1.0.1:80"] != 50 || m["10.1.0.3:80"] != 50 {
			t.Errorf("asked: %v", m)
		}
		if st := stateOfPeer(t, s, "10.1.0.2:80"); st.State != "draining" || st.InFlight != held {
			t.Errorf("the removed peer is %s with %d in flight", st.State, st.InFlight)
		}
		// A name that stops resolving changes nothing.
		w.names.Store(nil)
		after(time.Minute)
		if m := tally(t, c, 100); m["10.1.0.1:80"] != 50 {
			t.Errorf("without an answer: %v", m)
		}
		// Back within minutes it is the same peer, its requests still counted.
		w.name("app.example", "10.1.0.1", "10.1.0.2")
		after(11 * time.Second)
		if p := peerAt(t, c, "10.1.0.2:80"); p != goes || p.Draining() || p.InFlight() != held {
			t.Error("the peer that came back is another one")
		}
	})
}

func TestRemovedPeersReportWhenTheyAreDrained(t *testing.T) {
	var due atomic.Int32
	var which atomic.Pointer[Peer]
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		cfg := Config{Name: "test", Peers: equal(2)}
		s := newTestSet(t, Options{
			Now:     func() int64 { return int64(time.Since(start)) + sec },
			Drained: func(_ string, p *Peer) { due.Add(1); which.Store(p) },
		}, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		<-s.Ready()
		c := s.Cluster("test")
		p := mustPick(t, c, 0, 0, nil)
		cfg.Peers = equal(2)[1:]
		if p.Address().String() != "10.0.0.1:80" {
			t.Fatal("round robin began elsewhere")
		}
		if err := s.Replace(ctx, []Config{cfg}, nil); err != nil {
			t.Fatal(err)
		}
		after(10 * time.Second)
		if due.Load() != 0 {
			t.Error("notified with a request in flight")
		}
		c.Done(p, ok(0, ms))
		after(2 * time.Second)
		if due.Load() != 1 || which.Load() != p {
			t.Errorf("notified %d times", due.Load())
		}
		if st := stateOfPeer(t, s, "10.0.0.1:80"); st.State != "unknown to the set" {
			t.Errorf("still shown as %s", st.State)
		}
		after(6 * time.Minute)
		if len(c.members.known) != 1 {
			t.Error("remembered after six minutes")
		}
		if due.Load() != 1 {
			t.Errorf("notified %d times", due.Load())
		}
		cancel()
		<-done
	})
}

func TestARemovedClusterServesItsHolders(t *testing.T) {
	w := &world{}
	w.name("app.example", "10.1.0.1")
	cfg := Config{Name: "a", Peers: peers("app.example:80"), Health: HealthConfig{Path: "/"}}
	bubble(t, w, []Config{cfg, {Name: "b", Peers: equal(1)}}, func(t *testing.T, s *Set) {
		a := s.Cluster("a")
		if err := s.Replace(t.Context(), []Config{{Name: "b", Peers: equal(1)}}, nil); err != nil {
			t.Fatal(err)
		}
		if s.Cluster("a") != nil {
			t.Error("still found by name")
		}
		looked, checked := w.looked.Load(), w.checks.Load()
		w.down.Store(true)
		after(5 * time.Minute)
		if w.looked.Load() != looked || w.checks.Load() != checked {
			t.Error("it is still resolved or checked")
		}
		c := mustPick(t, a, 0, 0, nil)
		a.Done(c, ok(0, ms))
		after(2 * time.Second)
		if len(s.leaving) != 0 {
			t.Error("never let go")
		}
	})
}

func TestReplaceResolvesBeforeItApplies(t *testing.T) {
	w := &world{}
	w.name("new.example", "10.2.0.1")
	bubble(t, w, []Config{{Name: "test", Peers: equal(1)}}, func(t *testing.T, s *Set) {
		err := s.Replace(t.Context(), []Config{{Name: "test", Peers: peers("new.example:80", "gone.example:80")}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if p := mustPick(t, s.Cluster("test"), 0, 0, nil); p.Address().String() != "10.2.0.1:80" {
			t.Errorf("got %s", p.Address())
		}
		// The other one comes soon after it resolves.
		w.name("gone.example", "10.2.0.2")
		after(2 * time.Second)
		if m := tally(t, s.Cluster("test"), 10); m["10.2.0.2:80"] != 5 {
			t.Errorf("asked: %v", m)
		}
	})
}

func TestABadConfigurationChangesNothing(t *testing.T) {
	s := newTestSet(t, Options{}, Config{Name: "test", Peers: equal(2)})
	c := s.Cluster("test")
	before := c.view.Load()
	bad := [][]Config{
		{{Name: "test", Peers: equal(2), Balance: "fastest"}},
		{{Name: "test"}},
		{{Name: "test", Peers: equal(2)}, {Name: "test", Peers: equal(1)}},
	}
	for _, cfg := range bad {
		if err := s.Replace(t.Context(), cfg, nil); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
	if err := s.Replace(t.Context(), []Config{{Name: "test", Peers: equal(2)}}, []SplitConfig{{Name: "s", Arms: []ArmConfig{{"other", 1}}}}); err == nil {
		t.Error("a split over no cluster was taken")
	}
	if s.Cluster("test") != c || c.view.Load() != before {
		t.Error("something changed")
	}
}

func TestAThousandReloadsKeepAllState(t *testing.T) {
	w := &world{}
	w.name("app.example", "10.1.0.1", "10.1.0.2")
	stays := Config{Name: "stays", Peers: peers("app.example:80", "10.9.0.1:80"), Health: HealthConfig{Path: "/"}}
	bubble(t, w, []Config{stays}, func(t *testing.T, s *Set) {
		c := s.Cluster("stays")
		p := mustPick(t, c, 0, 0, nil)
		view := c.view.Load()
		for i := range 1000 {
			other := Config{Name: fmt.Sprint("other-", i%3), Peers: equal(i%5 + 1)}
			if err := s.Replace(t.Context(), []Config{stays, other}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if s.Cluster("stays") != c || c.view.Load() != view || p.InFlight() != 1 {
			t.Error("the cluster that stayed changed")
		}
		n, looked := w.checks.Load(), w.looked.Load()
		after(30 * time.Second)
		if got := w.checks.Load() - n; got < 15 || got > 21 {
			t.Errorf("%d checks of three peers in 30 s: checkers were lost or doubled", got)
		}
		if got := w.looked.Load() - looked; got != 1 {
			t.Errorf("%d resolutions in 30 s, want 1", got)
		}
		c.Done(p, ok(0, ms))
	})
}

func TestRunEndsWithItsContextWhileWorkIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		s := newTestSet(t, Options{
			Check:   func(ctx context.Context, _ Address, _ HealthConfig) error { return stuck(ctx) },
			Resolve: func(ctx context.Context, _ string) ([]netip.Addr, error) { return nil, stuck(ctx) },
		}, Config{Name: "test", Peers: peers("10.0.0.1:80", "app.example:80"), Health: HealthConfig{Check: CheckTCP, Timeout: d(time.Hour)}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
		if err := s.Run(t.Context()); err == nil {
			t.Error("Run ran twice")
		}
		if err := s.Replace(t.Context(), []Config{{Name: "test", Peers: equal(1), Health: HealthConfig{Check: CheckTCP}}}, nil); err != nil {
			t.Errorf("Replace after the end: %v", err)
		}
	})
}
