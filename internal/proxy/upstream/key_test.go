package upstream

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestKeysOfARequest(t *testing.T) {
	r := &requested{
		headers: map[string]string{"X-User": "ada"}, cookies: map[string]string{"id": "ada"},
		path: "/orders", address: netip.MustParseAddr("10.0.0.1"),
	}
	f := func(source string, want uint64, ok bool) {
		t.Helper()
		k, err := parseKeySource(source)
		if err != nil {
			t.Fatal(err)
		}
		if got, found := k.Of(r); got != want || found != ok {
			t.Errorf("%q: %#x, %v, want %#x, %v", source, got, found, want, ok)
		}
	}
	ip := netip.MustParseAddr("::ffff:10.0.0.1").As16()
	f("header:X-User", HashString("ada"), true)
	f("header:X-Other", 0, false)
	f("cookie:id", HashString("ada"), true)
	f("cookie:other", 0, false)
	f("path", HashString("/orders"), true)
	f("address", HashBytes(ip[:]), true)
	f("", 0, false)
	r.address = netip.MustParseAddr("::ffff:10.0.0.1") // the same client on a dual-stack listener
	f("address", HashBytes(ip[:]), true)
	r.address = netip.Addr{} // a Unix socket's
	f("address", 0, false)
}

func TestHashKeyIsOfConsistentHashOnly(t *testing.T) {
	f := func(cfg Config, want KeySource) {
		t.Helper()
		cfg.Peers = equal(1)
		if got := newTestCluster(t, cfg).HashKey(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	f(Config{HashKey: "path"}, KeySource{})
	f(Config{Balance: ConsistentHash}, KeySource{Kind: KeyAddress})
	f(Config{Balance: ConsistentHash, HashKey: "header:X-User"}, KeySource{Kind: KeyHeader, Name: "X-User"})
}

func TestDriftConfigSaysWhatIsWrong(t *testing.T) {
	f := func(c DriftConfig, want string) {
		t.Helper()
		err := c.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	f(DriftConfig{}, "")
	f(DriftConfig{Window: 1}, "window: 1ns; write 1s or more")
	f(DriftConfig{Samples: 10}, "samples: 10; write 50 to 4096")
	f(DriftConfig{Alpha: 1}, "alpha: 1;")
	f(DriftConfig{Distance: 2}, "distance: 2 is not a share")
}

func TestARunningSetRaisesTheDriftAlarm(t *testing.T) {
	w := &world{}
	bubble(t, w, []Config{{Name: "test", Peers: equal(1)}}, func(t *testing.T, s *Set) {
		d := s.Drift("orders", DriftConfig{})
		if s.Drift("orders", DriftConfig{}) != d {
			t.Error("the same route has another monitor after a reload")
		}
		size := int64(1000)
		for range 300 { // five minutes
			for i := range int64(10) {
				d.Observe(size+i, ms+i)
			}
			after(time.Second)
			if time.Duration(s.opts.Now()) > 2*time.Minute+30*time.Second {
				size = 50000
			}
		}
		st := s.DriftStats()
		if len(st) != 1 || st[0].Name != "orders" || !st[0].Alarm || st[0].Alarms != 1 {
			t.Errorf("%+v", st)
		}
		if s.Drift("orders", DriftConfig{Samples: 100}) == d {
			t.Error("a changed configuration continues with the old monitor")
		}
		s.KeepDrifts(func(name string) bool { return name != "orders" })
		if len(s.DriftStats()) != 0 {
			t.Error("the monitor of a removed route stays")
		}
	})
}

func TestASplitFollowsItsClustersThroughReloads(t *testing.T) {
	split := []SplitConfig{{
		Name: "s", Arms: []ArmConfig{{"a", 0}, {"b", 0}}, Canary: fiveSteps,
		Rules: []RuleConfig{{Header: "X", Cluster: "c"}}, Mirror: MirrorConfig{Cluster: "d"},
	}}
	s, err := New(testClusters("a", "b", "c", "d"), split, Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	first := s.Split("s")
	replace := func(splits []SplitConfig, names ...string) {
		t.Helper()
		if err := s.Replace(t.Context(), testClusters(names...), splits); err != nil {
			t.Fatal(err)
		}
	}
	replace(split, "d", "c", "b", "a")
	if s.Split("s") != first {
		t.Error("a reload that changes nothing made another split")
	}
	replace(nil, "a", "b")
	if s.Split("s") != nil || first.Choose(&requested{}, 1).Cluster == nil {
		t.Error("a removed split is found, or fails who holds it")
	}
	replace(split, "a", "b", "c", "d") // c and d are new clusters
	second := s.Split("s")
	c := second.Choose(&requested{headers: map[string]string{"X": ""}}, 1)
	if c.Cluster != s.Cluster("c") || c.Mirror != s.Cluster("d") {
		t.Error("the split sends to clusters that are no more")
	}
	if st := s.SplitStats(); len(st) != 1 || st[0].Canary.Share != 0.05 || st[0].Ruled != 1 {
		t.Errorf("%+v", st)
	}
	if err := s.Replace(t.Context(), testClusters("a", "b", "c"), split); err == nil || !strings.Contains(err.Error(), `there is no cluster "d"`) {
		t.Errorf("a mirror to nowhere: %v", err)
	}
}
