package upstream

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// requested is a request with what rules and keys read.
type requested struct {
	headers, cookies map[string]string
	path             string
	address          netip.Addr
}

func (a *requested) Header(name string) []byte { return bytesOf(a.headers, name) }
func (a *requested) Cookie(name string) []byte { return bytesOf(a.cookies, name) }
func (a *requested) Path() []byte              { return []byte(a.path) }
func (a *requested) Address() netip.Addr       { return a.address }

func bytesOf(m map[string]string, name string) []byte {
	if v, ok := m[name]; ok {
		return []byte(v)
	}
	return nil
}

func user(i int) *requested {
	return &requested{cookies: map[string]string{"id": fmt.Sprint("user-", i)}}
}

// newTestSplit is a split over clusters named as its arms, "rule" and "mirror".
func newTestSplit(t testing.TB, cfg SplitConfig) *Split {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "split"
	}
	s, err := New(testClusters("a", "b", "c", "d", "rule", "mirror"), []SplitConfig{cfg}, Options{Seed: 1, Now: func() int64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	return s.Split(cfg.Name)
}

func testClusters(names ...string) []Config {
	var all []Config
	for _, n := range names {
		all = append(all, Config{Name: n, Peers: equal(1)})
	}
	return all
}

func TestSplitKeepsItsWeightsSimulated(t *testing.T) {
	for _, sticky := range []string{"", "cookie:id", "header:X-User", "address"} {
		s := newTestSplit(t, SplitConfig{Sticky: sticky, Arms: []ArmConfig{{"a", 90}, {"b", 9}, {"c", 1}, {"d", 0}}})
		const n = 100000
		got := map[string]int{}
		for i := range n {
			r := user(i)
			r.headers = map[string]string{"X-User": fmt.Sprint(i)}
			r.address = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			got[s.Choose(r, mix(uint64(i)+1)).Cluster.Name()]++
		}
		for name, want := range map[string]float64{"a": 0.9, "b": 0.09, "c": 0.01} {
			near(t, fmt.Sprintf("%q %s", sticky, name), float64(got[name]), want*n, 0.1)
		}
		if got["d"] != 0 {
			t.Errorf("%q: weight 0 got %d", sticky, got["d"])
		}
	}
}

func TestRaisingAShareMovesOnlyThatShareSimulated(t *testing.T) {
	arms := func(b float64) []ArmConfig { return []ArmConfig{{"a", 60 - b}, {"c", 40}, {"b", b}} }
	at := func(b float64, i int) string {
		s := splits[b]
		return s.Choose(user(i), 0).Cluster.Name()
	}
	splits = map[float64]*Split{}
	defer func() { splits = nil }()
	for _, b := range []float64{5, 10} {
		splits[b] = newTestSplit(t, SplitConfig{Sticky: "cookie:id", Arms: []ArmConfig{{"a", 100 - b}, {"b", b}}})
	}
	const n = 50000
	moved := 0
	for i := range n {
		before, after := at(5, i), at(10, i)
		if before == "b" && after != "b" {
			t.Fatalf("client %d left the canary when its share rose", i)
		}
		if before != after {
			moved++
		}
	}
	near(t, "moved", float64(moved), 0.05*n, 0.1)

	// Among three arms no client moves between the two whose proportion stays.
	splits[1] = newTestSplit(t, SplitConfig{Sticky: "cookie:id", Arms: arms(0)})
	splits[2] = newTestSplit(t, SplitConfig{Sticky: "cookie:id", Arms: []ArmConfig{{"b", 20}, {"a", 60}, {"c", 40}}})
	for i := range n {
		if before, after := at(1, i), at(2, i); before != after && after != "b" {
			t.Fatalf("client %d moved from %s to %s", i, before, after)
		}
	}
}

var splits map[float64]*Split

func TestSplitsAreIndependent(t *testing.T) {
	arms := []ArmConfig{{"a", 50}, {"b", 50}}
	x := newTestSplit(t, SplitConfig{Name: "x", Sticky: "cookie:id", Arms: arms})
	y := newTestSplit(t, SplitConfig{Name: "y", Sticky: "cookie:id", Arms: arms})
	both := 0
	for i := range 10000 {
		if x.Choose(user(i), 0).Arm == y.Choose(user(i), 0).Arm {
			both++
		}
	}
	near(t, "on the same arm of both", float64(both), 5000, 0.1)
}

func TestFreshCookieKeepsItsArm(t *testing.T) {
	s := newTestSplit(t, SplitConfig{Sticky: "cookie:arm", Arms: []ArmConfig{{"a", 50}, {"b", 50}}})
	if s.CookieName() != "arm" {
		t.Errorf("the cookie is named %q", s.CookieName())
	}
	arms := map[int]int{}
	for i := range 1000 {
		c := s.Choose(&requested{}, mix(uint64(i)+5))
		if !c.SetCookie {
			t.Fatal("no cookie for a client without one")
		}
		value := string(AppendCookie(nil, c.Fresh))
		again := s.Choose(&requested{cookies: map[string]string{"arm": value}}, 0)
		if again.SetCookie || again.Arm != c.Arm {
			t.Fatalf("with cookie %s arm %d, before %d", value, again.Arm, c.Arm)
		}
		arms[c.Arm]++
	}
	near(t, "arm 0", float64(arms[0]), 500, 0.15)
}

func TestRulesComeFirst(t *testing.T) {
	s := newTestSplit(t, SplitConfig{
		Arms: []ArmConfig{{"a", 1}},
		Rules: []RuleConfig{
			{Header: "X-Canary", Value: "always", Cluster: "b"},
			{Cookie: "group", Value: "beta-", Prefix: true, Cluster: "c"},
			{Header: "X-Any", Cluster: "rule"},
		},
	})
	f := func(header, value, cookie, want string) {
		t.Helper()
		r := &requested{headers: map[string]string{}, cookies: map[string]string{}}
		if header != "" {
			r.headers[header] = value
		}
		if cookie != "" {
			r.cookies["group"] = cookie
		}
		c := s.Choose(r, 1)
		if c.Cluster.Name() != want || (c.Split == nil) != (want != "a") {
			t.Errorf("%s: %s, cookie %s: %s, want %s", header, value, cookie, c.Cluster.Name(), want)
		}
	}
	f("", "", "", "a")
	f("X-Canary", "always", "", "b")
	f("X-Canary", "never", "", "a")
	f("X-Canary", "always", "beta-7", "b")
	f("", "", "beta-7", "c")
	f("", "", "beta", "a")
	f("X-Any", "", "", "rule")
}

func TestMirrorCopiesItsShare(t *testing.T) {
	s := newTestSplit(t, SplitConfig{Arms: []ArmConfig{{"a", 90}, {"b", 10}}, Mirror: MirrorConfig{Cluster: "mirror", Share: 0.2}})
	n, both, arm := 0, 0, 0
	for i := range 50000 {
		c := s.Choose(&requested{}, mix(uint64(i)+1))
		if c.Mirror != nil {
			n++
		}
		if c.Arm == 1 {
			arm++
			if c.Mirror != nil {
				both++
			}
		}
	}
	near(t, "mirrored", float64(n), 10000, 0.05)
	near(t, "mirrored of one arm", float64(both), 0.2*float64(arm), 0.15)
	if st := s.Stats(); st.Mirrored != uint64(n) {
		t.Errorf("counted %d of %d", st.Mirrored, n)
	}
	all := newTestSplit(t, SplitConfig{Arms: []ArmConfig{{"a", 1}}, Mirror: MirrorConfig{Cluster: "mirror"}})
	if all.Choose(&requested{}, 9).Mirror == nil {
		t.Error("a mirror without a share copies nothing")
	}
}

// trial plays requests of a canary until it decides, or its steps are passed.
type trial struct {
	cfg            CanaryConfig
	errors         [2]float64 // share of failures by arm
	slower         float64    // factor of the canary's latencies
	perSecond      int
	rng            *rand.Rand
	now            int64
	canaryRequests int
}

func (x *trial) run() CanaryState {
	k := newCanary("test", x.cfg.withDefaults(), x.now)
	for range 100000 {
		for range x.perSecond {
			w := k.weights()
			arm := 0
			if x.rng.Float64() < w[1] {
				arm = 1
				x.canaryRequests++
			}
			// Log-normal: median 20 ms, with the tail that services have.
			latency := 20e6 * math.Exp(0.6*x.rng.NormFloat64())
			if arm == 1 {
				latency *= x.slower
			}
			o := ok(x.now, x.now+int64(latency))
			if x.rng.Float64() < x.errors[arm] {
				o.Status = 500
			}
			k.observe(arm, o)
		}
		x.now += sec
		k.evaluate(x.now)
		if st := k.state(); st.State != CanaryRunning {
			return st
		}
	}
	return k.state()
}

var fiveSteps = CanaryConfig{Steps: []float64{5, 10, 25, 50, 100}}

func trials(t *testing.T, n int, errors [2]float64, slower float64) (rolledBack int, requests int) {
	t.Helper()
	for i := range n {
		x := &trial{cfg: fiveSteps, errors: errors, slower: slower, perSecond: 200, rng: rand.New(rand.NewPCG(uint64(i), 7))}
		switch st := x.run(); st.State {
		case CanaryRolledBack:
			rolledBack++
			if st.Share != 0 || st.Reason == "" {
				t.Fatalf("rolled back to a share of %v because %q", st.Share, st.Reason)
			}
		case CanaryPromoted:
			if st.Share != 1 {
				t.Fatalf("promoted to a share of %v", st.Share)
			}
		default:
			t.Fatalf("undecided after a day: %+v", st)
		}
		requests += x.canaryRequests
	}
	return rolledBack, requests / n
}

func TestCanaryThatIsNoWorseIsPromotedSimulated(t *testing.T) {
	// Alpha is 0.05 and spent by union bounds, tolerances besides: less than 5 %.
	n := 60
	back, _ := trials(t, n, [2]float64{0.005, 0.005}, 1)
	t.Logf("%d of %d equal canaries rolled back", back, n)
	if back > 6 {
		t.Errorf("%d of %d equal canaries were rolled back, stated are 5 %% at most", back, n)
	}
}

func TestCanaryWithinToleranceIsPromotedSimulated(t *testing.T) {
	back, _ := trials(t, 20, [2]float64{0.005, 0.005}, 1.03)
	if back > 3 {
		t.Errorf("%d of 20 canaries 3 %% slower were rolled back, tolerated are 5 %%", back)
	}
}

func TestCanaryWithMoreErrorsIsRolledBackSimulated(t *testing.T) {
	back, requests := trials(t, 40, [2]float64{0.005, 0.035}, 1)
	t.Logf("%d of 40 canaries with 3 %% more errors rolled back, after %d of their requests on average", back, requests)
	if back < 38 {
		t.Errorf("%d of 40 canaries with 3 %% more errors were rolled back", back)
	}
}

func TestSlowCanaryIsRolledBackSimulated(t *testing.T) {
	back, requests := trials(t, 40, [2]float64{0.005, 0.005}, 1.2)
	t.Logf("%d of 40 canaries 20 %% slower rolled back, after %d of their requests on average", back, requests)
	if back < 38 {
		t.Errorf("%d of 40 canaries 20 %% slower were rolled back", back)
	}
}

func TestBrokenCanaryEndsAfterDozensOfRequests(t *testing.T) {
	back, requests := trials(t, 20, [2]float64{0.001, 1}, 1)
	if back != 20 || requests > 100 {
		t.Errorf("%d of 20 rolled back, after %d requests on average", back, requests)
	}
}

func TestCanaryWaitsForItsSampleAndItsTime(t *testing.T) {
	k := newCanary("test", fiveSteps.withDefaults(), 0)
	feed := func(n int, now int64) {
		for range n {
			for arm := range 2 {
				k.observe(arm, ok(now, now+20*ms))
			}
		}
	}
	for now := int64(0); now < 3600*sec; now += sec {
		k.evaluate(now)
	}
	if st := k.state(); st.Step != 0 || st.Share != 0.05 {
		t.Fatalf("without a request: step %d", st.Step)
	}
	feed(999, 3600*sec)
	if k.evaluate(3600 * sec); k.state().Step != 0 {
		t.Error("a step on 999 requests")
	}
	feed(1, 3600*sec)
	if k.evaluate(3600 * sec); k.state().Step != 1 {
		t.Error("no step on 1000 requests after an hour")
	}
	feed(5000, 3610*sec)
	if k.evaluate(3659 * sec); k.state().Step != 1 {
		t.Error("a step after 59 s")
	}
	if k.evaluate(3660 * sec); k.state().Step != 2 {
		t.Error("no step after a minute")
	}
	// What began in the step before is of neither.
	k.observe(1, ok(3659*sec, 3661*sec))
	if f, m := k.sample.Load().arms[1].read(); f+m.N != 0 {
		t.Error("a request of the step before was counted")
	}
}

func TestCanaryIsFedByDoneAndMovesTheSplit(t *testing.T) {
	cfg := SplitConfig{Name: "s", Sticky: "cookie:id", Arms: []ArmConfig{{"a", 0}, {"b", 0}}, Canary: fiveSteps}
	s, err := New(testClusters("a", "b"), []SplitConfig{cfg}, Options{Seed: 1, Now: func() int64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	sp := s.Split("s")
	log := slog.New(slog.DiscardHandler)
	second := func(now int64, status int) {
		for i := range 500 {
			c := sp.Choose(user(i*7919+int(now/sec)), mix(uint64(now)+uint64(i)))
			p := mustPick(t, c.Cluster, now, 0, nil)
			o := ok(now, now+5*ms)
			if c.Arm == 1 {
				o.Status = status
			}
			o.Split, o.Arm = c.Split, c.Arm
			c.Cluster.Done(p, o)
		}
		sp.evaluate(now+sec, log)
	}
	now := int64(0)
	for ; sp.Stats().Canary.Step < 2; now += sec {
		second(now, 200)
		if now > 600*sec {
			t.Fatal("no second step in ten minutes")
		}
	}
	// A reload that leaves the canary as it is leaves it where it is.
	cfg.Rules = []RuleConfig{{Header: "X", Cluster: "b"}}
	if err := s.Replace(t.Context(), testClusters("a", "b"), []SplitConfig{cfg}); err != nil {
		t.Fatal(err)
	}
	if s.Split("s") == sp {
		t.Error("a split with a new rule is the old one")
	}
	sp = s.Split("s")
	if st := sp.Stats(); st.Canary.Step != 2 || st.Arms[1].Share != 0.25 {
		t.Errorf("after a reload: step %d, share %v", st.Canary.Step, st.Arms[1].Share)
	}
	for end := now + 60*sec; now < end && sp.Stats().Canary.State == CanaryRunning; now += sec {
		second(now, 502)
	}
	st := sp.Stats()
	if st.Canary.State != CanaryRolledBack || st.Arms[1].Share != 0 {
		t.Errorf("%+v", st.Canary)
	}
	for i := range 1000 {
		if sp.Choose(user(i), 0).Arm != 0 {
			t.Fatal("the canary is chosen after its end")
		}
	}
}

func TestDriftIsDistinguishedFromNoiseSimulated(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	play := func(seed uint64, windows int, size, latency float64) DriftState {
		rng := rand.New(rand.NewPCG(seed, 3))
		d := newDrift("route", DriftConfig{}, 0, seed)
		now := int64(0)
		for w := range windows {
			for range 1500 {
				s, l := 1000*math.Exp(rng.NormFloat64()), 2e7*math.Exp(0.6*rng.NormFloat64())
				if w >= 5 {
					s, l = s*size, l*latency
				}
				d.Observe(int64(s), int64(l))
			}
			now += 60 * sec
			d.evaluate(now, log)
		}
		return d.State()
	}
	if st := play(1, 60, 1, 1); st.Alarms != 0 || st.Windows != 59 {
		t.Errorf("without drift: %+v", st)
	}
	if st := play(2, 7, 2, 1); !st.Alarm || st.SizeP > 0.001 || st.LatencyDistance > 0.15 {
		t.Errorf("sizes doubled for two windows: %+v", st)
	}
	if st := play(3, 6, 1, 2); st.Alarm || st.Differing != 1 {
		t.Errorf("latency doubled for one window: %+v", st)
	}
	if st := play(4, 7, 1, 2); !st.Alarm || st.LatencyP > 0.001 || st.SizeDistance > 0.15 {
		t.Errorf("latency doubled for two windows: %+v", st)
	}
}

func TestDriftAlarmEndsAndRebases(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	d := newDrift("route", DriftConfig{Window: 0, Samples: 100}, 0, 1)
	now := int64(0)
	window := func(size int64) DriftState {
		for i := range int64(200) {
			d.Observe(size+i, ms+i)
		}
		now += int64(time.Minute)
		d.evaluate(now, log)
		return d.State()
	}
	window(1000)
	window(9000)
	if st := window(9000); !st.Alarm {
		t.Fatalf("no alarm: %+v", st)
	}
	if st := window(1000); st.Alarm {
		t.Error("the alarm does not end")
	}
	window(9000)
	window(9000)
	d.Rebase()
	window(9000)
	if st := window(9000); st.Alarm || st.Differing != 0 {
		t.Errorf("after Rebase: %+v", st)
	}
	// A window with hardly any requests continues.
	n := d.State().Windows
	d.Observe(1, 1)
	now += int64(time.Hour)
	d.evaluate(now, log)
	if d.State().Windows != n {
		t.Error("one request was compared with a hundred")
	}
}

func TestReservoirIsEven(t *testing.T) {
	const n, rounds = 1000, 300
	var hits [10]int
	for round := range rounds {
		d := newDrift("route", DriftConfig{Samples: 50}, 0, mix(uint64(round)+1))
		for i := range int64(n) {
			d.Observe(i, i)
		}
		r := d.current.Load()
		for _, v := range r.values(r.size) {
			hits[int(v)*10/n]++
		}
	}
	for i, h := range hits {
		near(t, fmt.Sprintf("of tenth %d", i), float64(h), 50*rounds/10, 0.12)
	}
}

func TestCanaryByHand(t *testing.T) {
	s, err := New(testClusters("a", "b"), []SplitConfig{
		{Name: "s", Arms: []ArmConfig{{"a", 0}, {"b", 0}}, Canary: fiveSteps}, {Name: "plain", Arms: []ArmConfig{{"a", 1}}},
	}, Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	f := func(err error, share float64, state string) {
		t.Helper()
		st := s.Split("s").Stats()
		if err != nil || st.Arms[1].Share != share || st.Canary.State != state {
			t.Errorf("%v: share %v, %s, want %v, %s", err, st.Arms[1].Share, st.Canary.State, share, state)
		}
	}
	f(nil, 0.05, CanaryRunning)
	f(s.RollBackCanary("s", "operator"), 0, CanaryRolledBack)
	f(s.RestartCanary("s"), 0.05, CanaryRunning)
	for _, name := range []string{"plain", "none"} {
		if err := s.RollBackCanary(name, ""); !errors.Is(err, ErrNoCanary) {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.RestartCanary(name); !errors.Is(err, ErrNoCanary) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
