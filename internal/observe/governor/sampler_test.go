package governor

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/metrics"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// script are sources that a test moves by hand.
type script struct {
	loops     []LoopSample
	delivery  metrics.Counts
	delivered uint64
	published uint64
	broker    BrokerSample
	activity  uint64
}

func (s *script) sources() Sources {
	return Sources{
		Loops:     func(dst []LoopSample) []LoopSample { return append(dst, s.loops...) },
		Delivery:  func(h *metrics.Counts) { h.Add(&s.delivery) },
		Delivered: func() uint64 { return s.delivered },
		Published: func() uint64 { return s.published },
		Broker:    func() BrokerSample { return s.broker },
		Roles:     func(dst []RoleCount) []RoleCount { return append(dst, RoleCount{Role: "loop", N: len(s.loops)}) },
		Activity:  func() uint64 { return s.activity },
		Knee: func() (KneeReport, bool) {
			return KneeReport{Knee: 1000, Time: time.Unix(1e9, 0)}, true
		},
	}
}

// still is a sampler whose time the test passes; nothing runs beside it.
func still(t *testing.T, cfg Config, src Sources) *sampler {
	t.Helper()
	cfg.Probes = setting.Off
	g, err := New(cfg, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newSampler(g)
	t.Cleanup(s.stop)
	return s
}

func TestASampleDoesNotAllocate(t *testing.T) {
	sc := &script{loops: make([]LoopSample, 8)}
	g, err := New(Config{}, sc.sources(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newSampler(g)
	s.start()
	defer s.stop()
	now := time.Now()
	step := func() {
		now = now.Add(100 * time.Millisecond)
		for i := range sc.loops {
			sc.loops[i].Ticks++
			sc.loops[i].Tick.Observe(time.Millisecond)
		}
		sc.delivered += 10
		s.sample(now)
	}
	for range 45 { // seconds have passed and every slice has grown
		step()
	}
	// A window ends every fifty samples and may allocate: it is evaluated, with medians.
	// AllocsPerRun counts the whole process, the goroutines beside the sampler included.
	s.window.at = now.Add(time.Hour)
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("a sample makes %v allocations, want none", n)
	}
}

func TestASlowReadingDoesNotAllocate(t *testing.T) {
	s := newSlowReader("", findCgroup(""))
	defer s.close()
	s.read(1)
	if n := testing.AllocsPerRun(20, func() { s.read(1) }); n != 0 {
		t.Errorf("a reading makes %v allocations, want none", n)
	}
}

func TestASnapshotThatIsKeptDoesNotChange(t *testing.T) {
	sc := &script{loops: []LoopSample{{ID: 0, Conns: 1}}}
	s := still(t, Config{}, sc.sources())
	now := time.Now()
	s.sample(now)
	kept := s.g.Snapshot()
	before, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		now = now.Add(100 * time.Millisecond)
		sc.loops[0].Conns = i
		sc.loops[0].BytesOut += 1000
		s.sample(now)
		if i%7 == 0 {
			s.g.Snapshot()
		}
	}
	if after, _ := json.Marshal(kept); string(after) != string(before) {
		t.Errorf("a kept snapshot changed from\n%s\nto\n%s", before, after)
	}
	if got := s.g.Snapshot(); got.Seq != kept.Seq+30 || got.Loops[0].Conns != 29 {
		t.Errorf("the newest is %d with %d connections, want %d with 29", got.Seq, got.Loops[0].Conns, kept.Seq+30)
	}
}

// Every list is a list in JSON from the first snapshot on: pages iterate over them.
func TestASnapshotHasNoNullLists(t *testing.T) {
	g, err := New(Config{}, Sources{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		b, err := json.Marshal(g.Snapshot())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "null") {
			t.Errorf("%s: %s", when, b)
		}
	}
	check("before it runs")
	s := newSampler(g)
	defer s.stop()
	now := time.Now()
	for range 120 {
		now = now.Add(100 * time.Millisecond)
		s.sample(now)
	}
	check("after two windows")
}

func TestRatesAreOfTheLastSecond(t *testing.T) {
	sc := &script{loops: []LoopSample{{ID: 0}, {ID: 1}}}
	s := still(t, Config{}, sc.sources())
	now := time.Unix(2e9, 0)
	for range 25 {
		now = now.Add(100 * time.Millisecond)
		sc.published += 1
		sc.delivered += 50
		for i := range sc.loops {
			l := &sc.loops[i]
			l.Ticks, l.Sends, l.BytesOut, l.Busy = l.Ticks+3, l.Sends+20, l.BytesOut+4000, l.Busy+time.Duration(i+1)*30*time.Millisecond
			l.Conns, l.Tick.N[metrics.Bucket(10*time.Millisecond)] = 10*(i+1), l.Ticks
			l.LastTick = 10 * time.Millisecond
		}
		sc.delivery.Observe(3 * time.Millisecond)
		s.sample(now)
	}
	v := s.g.Snapshot()
	f := func(name string, got, want float64) {
		t.Helper()
		if d := got - want; d > 1e-9+want/1e6 || -d > 1e-9+want/1e6 {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	f("published", v.Traffic.Published, 10)
	f("delivered", v.Traffic.Delivered, 500)
	f("amplification", v.Traffic.Amplification, 50)
	f("bytes out", v.Traffic.BytesOut, 80000)
	f("bytes per send", v.Traffic.BytesPerSend, 200)
	f("sends per message", v.Traffic.SendsPerMessage, 0.8)
	f("balance", v.Traffic.Balance, 1)
	f("connections", float64(v.Traffic.Connections), 30)
	f("loop 0 busy", v.Loops[0].Busy, 0.3)
	f("loop 1 busy", v.Loops[1].Busy, 0.6)
	f("ticks", v.Loops[0].Ticks, 30)
	f("last tick", v.Loops[0].LastTick, 0.01)
	f("deliveries of the second", float64(v.Delivery.Second.N), 10)
	f("load", v.Knee.Load, 500)
	f("share of the knee", v.Knee.Fraction, 0.5)
	f("headroom", v.Knee.Headroom, 0.5)
	f("age of the report", v.Knee.Age, now.Sub(time.Unix(1e9, 0)).Seconds()-0.4)
	maps := s.g.HeatMaps(1)
	if len(maps) != heatMaps || maps[heatDelivery].Name != "delivery" || len(maps[heatDelivery].Columns) != 1 {
		t.Fatalf("heat maps %+v", maps)
	}
	total := uint32(0)
	for i, n := range maps[heatDelivery].Columns[0].Counts {
		if total += n; n > 0 && (maps[heatDelivery].Tops[i] < 0.003 || maps[heatDelivery].Tops[i] > 0.005) {
			t.Errorf("3 ms counts in the row up to %v s", maps[heatDelivery].Tops[i])
		}
	}
	if total != 10 {
		t.Errorf("the last column has %d deliveries, want 10", total)
	}
}

func TestTheHeatMapKeepsTwoMinutes(t *testing.T) {
	h := &heat{name: "x"}
	var d metrics.Counts
	d.Observe(time.Millisecond)
	for i := range 500 {
		h.add(int64(i), &d)
	}
	m := h.read(0)
	if len(m.Columns) != heatColumns || m.Columns[0].Time != 500-heatColumns || m.Columns[heatColumns-1].Time != 499 {
		t.Errorf("%d columns from %d", len(m.Columns), m.Columns[0].Time)
	}
	if n := testing.AllocsPerRun(10, func() { h.add(1, &d) }); n != 0 {
		t.Errorf("a column makes %v allocations", n)
	}
}

func TestTheCensusNamesWhatItKnows(t *testing.T) {
	s := still(t, Config{}, Sources{Roles: func(dst []RoleCount) []RoleCount {
		return append(dst, RoleCount{"loop", 3}, RoleCount{"upstream", 4}, RoleCount{"admin", 1})
	}})
	now := time.Now()
	for range 12 {
		now = now.Add(100 * time.Millisecond)
		s.sample(now)
	}
	got := map[string]int{}
	v := s.g.Snapshot().Goroutines
	for _, r := range v.Roles {
		got[r.Role] = r.N
	}
	if want := map[string]int{"upstream": 4, "admin": 1, "loop": 3, "governor": 2}; !maps.Equal(got, want) {
		t.Errorf("roles %v, want %v", got, want)
	}
	if v.Other < 0 || v.Total < 2 {
		t.Errorf("%d of %d goroutines are in no role", v.Other, v.Total)
	}
}

// The collector's shares are of its last cycle; one that is long over speaks for nothing.
func TestAnOldCycleIsNotHeldAgainstAnIdleProcess(t *testing.T) {
	s := still(t, Config{}, Sources{})
	now := time.Now()
	s.sample(now)
	s.view.Collector.Share, s.view.Collector.LastAt = 0.5, now
	if w := s.acc.window(s, now.Add(5*time.Second)); w.gc.Share != 0.5 {
		t.Errorf("of a cycle of this window the share is %v", w.gc.Share)
	}
	if w := s.acc.window(s, now.Add(time.Minute)); w.gc.Share != 0 {
		t.Errorf("of a cycle a minute ago the share is %v", w.gc.Share)
	}
}

// In fake time, so that minutes pass at once: a loop that stops ticking with work in
// its inbox is found between two windows, and its own goroutine's stack is shown.
func TestAStuckLoopIsFoundWithItsStack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		labelled := make(chan struct{})
		go pprof.Do(context.Background(), pprof.Labels(LoopLabel, "7"), func(context.Context) { stuckHere(labelled, release) })
		<-labelled
		begin := time.Now()
		var stuck atomic.Int64 // nanoseconds after start, 0 is not
		src := Sources{Loops: func(dst []LoopSample) []LoopSample {
			l := LoopSample{ID: 7, Ticks: uint64(time.Since(begin) / time.Millisecond)}
			if at := stuck.Load(); at != 0 {
				l.Ticks, l.Working, l.Inbox = uint64(at/1e6), time.Since(begin)-time.Duration(at), 3
			}
			return append(dst, l)
		}}
		g, err := New(Config{Probes: setting.Off, Evidence: EvidenceConfig{FlightRecorder: setting.Off}}, src, nil) // the recorder has goroutines of its own
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		time.Sleep(20 * time.Second)
		if now := g.Snapshot().State.Now; now != stat.Steady {
			t.Errorf("while it ticks: %v, %v", now, texts(g.Snapshot().State.Causes))
		}
		stuck.Store(int64(time.Since(begin)))
		time.Sleep(900 * time.Millisecond)
		if now := g.Snapshot().State.Now; now != stat.Steady {
			t.Errorf("after 0.9 s: %v", now)
		}
		time.Sleep(300 * time.Millisecond)
		v := g.Snapshot()
		if v.State.Now != stat.Inflection || len(v.State.Causes) == 0 || v.State.Causes[0].Name != CauseLoopStuck || v.State.Causes[0].Loop != 7 {
			t.Fatalf("after 1.2 s: %v, %v", v.State.Now, texts(v.State.Causes))
		}
		if !strings.Contains(v.State.Causes[0].Detail, "stuckHere") {
			t.Errorf("the stack is not the loop's:\n%s", v.State.Causes[0].Detail)
		}
		time.Sleep(10 * time.Second)
		if text := g.Snapshot().State.Causes[0].Text; !strings.HasPrefix(text, "loop 7 stuck for 1") {
			t.Errorf("ten seconds later the chip reads %q", text)
		}
		stuck.Store(0)
		time.Sleep(40 * time.Second)
		if v := g.Snapshot(); v.State.Now != stat.Steady || len(v.Timeline) != 2 {
			t.Errorf("when it is over: %v, timeline %v", v.State.Now, v.Timeline)
		}
		close(release)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func stuckHere(labelled, release chan struct{}) {
	close(labelled)
	<-release
}

// A loop that says nothing of its tick is found by its counter and its inbox.
func TestALoopThatOnlyCountsIsFoundToo(t *testing.T) {
	sc := &script{loops: []LoopSample{{ID: 0, Ticks: 5, Inbox: 2}}}
	s := still(t, Config{}, sc.sources())
	now := time.Now()
	for i := range 40 {
		now = now.Add(100 * time.Millisecond)
		s.sample(now)
		if got, want := s.g.Snapshot().State.Now == stat.Inflection, i >= 25; got != want {
			t.Fatalf("after %d samples it is called stuck: %v", i+1, got)
		}
	}
	sc.loops[0].Inbox = 0 // asleep
	s.sample(now.Add(100 * time.Millisecond))
	if causes := s.g.Snapshot().State.Causes; len(causes) != 0 {
		t.Errorf("an idle loop is called stuck: %v", texts(causes))
	}
}

// A process that was stopped itself trusts nothing that the clock says of others.
func TestAfterASleepOfItsOwnNothingIsCalledStuck(t *testing.T) {
	sc := &script{loops: []LoopSample{{ID: 0, Ticks: 5}}}
	s := still(t, Config{}, sc.sources())
	now := time.Now()
	s.sample(now)
	now = now.Add(30 * time.Second)
	sc.loops[0].Working = 30 * time.Second
	s.sample(now)
	if v := s.g.Snapshot(); v.State.Now != stat.Steady {
		t.Errorf("after a stop of all: %v", texts(v.State.Causes))
	}
}

func TestADisabledGovernorOnlyWaits(t *testing.T) {
	g, err := New(Config{Enabled: setting.Off}, Sources{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Run(ctx); err != nil {
		t.Error(err)
	}
	if v := g.Snapshot(); v.Enabled || v.Seq != 0 {
		t.Errorf("it sampled: %+v", v)
	}
	if b := g.MemoryBudget(); b.Level != BudgetOK {
		t.Errorf("it refuses: %+v", b)
	}
}

// short is a configuration whose windows are over soon.
func short(change func(*Config)) Config {
	c := Config{Interval: hub.Duration(20 * time.Millisecond), Window: hub.Duration(200 * time.Millisecond)}
	change(&c)
	return c
}

// runUntil lets a governor run until holds, and fails when it never does.
func runUntil(t *testing.T, cfg Config, src Sources, what string, holds func(*Snapshot) bool) *Governor {
	t.Helper()
	g, err := New(cfg, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for end := time.Now().Add(time.Minute); !holds(g.Snapshot()); {
		if time.Now().After(end) {
			v := g.Snapshot()
			t.Fatalf("never seen: %s; state %v, causes %v, %+v", what, v.State.Now, texts(v.State.Causes), v.Sched)
		}
		runtime.Gosched()
		<-time.After(5 * time.Millisecond)
	}
	return g
}

func has(v *Snapshot, name string) bool {
	for _, c := range v.State.Causes {
		if c.Name == name {
			return true
		}
	}
	return false
}

// Real load: more goroutines spin than there are processors.
func TestSpinningGoroutinesAreARunQueue(t *testing.T) {
	var stop atomic.Bool
	done := make(chan struct{})
	n := 4 * runtime.GOMAXPROCS(0)
	for range n {
		go func() {
			for !stop.Load() {
				runtime.Gosched()
			}
			done <- struct{}{}
		}()
	}
	runUntil(t, short(func(*Config) {}), Sources{}, "a run queue", func(v *Snapshot) bool {
		return v.State.Now >= stat.Alert && has(v, CauseRunQueue)
	})
	stop.Store(true)
	for range n {
		<-done
	}
}

// Real load: goroutines that come and never go, in no role.
func TestLeakingGoroutinesAreALeak(t *testing.T) {
	release := make(chan struct{})
	done := make(chan struct{})
	leaked := 0
	g := runUntil(t, short(func(c *Config) { c.Thresholds.Leak = 300 }), Sources{}, "a leak", func(v *Snapshot) bool {
		if v.State.Windows > 2 && leaked < 3000 {
			for range 10 {
				go func() { <-release; done <- struct{}{} }()
				leaked++
			}
		}
		return v.State.Now >= stat.Alert && has(v, CauseGoroutineLeak)
	})
	if v := g.Snapshot(); v.Goroutines.Other < 300 {
		t.Errorf("the census has %d in no role", v.Goroutines.Other)
	}
	close(release)
	for range leaked {
		<-done
	}
}

func TestCanariesComeHome(t *testing.T) {
	runUntil(t, short(func(*Config) {}), Sources{}, "all canaries", func(v *Snapshot) bool {
		c := v.Canaries
		return c.Goroutine.N >= 5 && c.Socket.N >= 5 && c.Timer.N >= 5
	})
}

// With one processor that is never yielded, a probe waits until the scheduler takes it
// away: ten milliseconds.
func TestCanariesFeelABusyProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var stop atomic.Bool
	done := make(chan struct{})
	for range 3 {
		go func() {
			for x := 0; !stop.Load(); x++ {
				_ = x
			}
			done <- struct{}{}
		}()
	}
	runUntil(t, short(func(*Config) {}), Sources{}, "a late canary", func(v *Snapshot) bool {
		return v.Canaries.Goroutine.Max > 0.005 && v.Canaries.Socket.Max > 0.005 && v.Sched.Procs == sys.Processors()
	})
	stop.Store(true)
	for range 3 {
		<-done
	}
}

// The collector's account moves only when a cycle ends; then its share is known.
func TestTheCollectorsShareComesWithItsCycles(t *testing.T) {
	var keep [][]byte
	runUntil(t, short(func(*Config) {}), Sources{}, "the collector's share", func(v *Snapshot) bool {
		for range 64 {
			keep = append(keep, make([]byte, 4096))
		}
		if len(keep) > 1024 {
			keep = nil
			runtime.GC()
		}
		return v.Collector.Share > 0 && v.Collector.Share < 1 && v.Collector.Cycles > 2 && v.Collector.Pause.N > 0 && v.Collector.Live > 0
	})
}

func TestHostsAreReadFromTheirFiles(t *testing.T) {
	root := tree(t, map[string]string{
		"proc/stat":                   "cpu  100 0 0 900 0 0 0 0\n",
		"proc/self/task/11/schedstat": "1 0 1\n",
		"proc/self/statm":             "100 50 1\n",
		"proc/pressure/cpu":           "some avg10=40.00 avg60=0.00\n",
		"proc/self/cgroup":            "0::/a\n",
		"proc/self/mountinfo":         "30 1 0:26 / /cg rw - cgroup2 cgroup2 rw\n",
		"cg/a/cpu.max":                "100000 100000\n",
		"cg/a/cpu.stat":               "throttled_usec 0\n",
	})
	g, err := New(Config{Probes: setting.Off}, Sources{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.root = root
	s := newSampler(g)
	defer s.stop()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(root+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	procs := float64(runtime.GOMAXPROCS(0))
	now := time.Now()
	s.slow.read(1)
	s.slow.out.at = now
	s.sample(now)
	// A second later: 60 ticks busy and 30 stolen of 100, half of our time waited for.
	write("proc/stat", "cpu  160 0 0 910 0 0 0 30\n")
	write("proc/self/task/11/schedstat", "1 500000000 1\n")
	write("cg/a/cpu.stat", "throttled_usec 400000\n")
	s.slow.read(1)
	now = now.Add(time.Second)
	s.slow.out.at = now
	s.sample(now)
	h := g.Snapshot().Host
	f := func(name string, got, want float64) {
		t.Helper()
		if d := got - want; d > 1e-6 || d < -1e-6 {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	f("steal", h.Steal, 0.3)
	f("busy", h.Busy, 0.6)
	f("wait", h.Wait, 0.5/procs)
	f("throttled", h.Throttled, 0.4/procs)
	f("quota", h.Quota, 1)
	f("pressure", h.Pressure.CPU, 0.4)
	if rss := g.Snapshot().Memory.RSS; rss != 50*uint64(os.Getpagesize()) {
		t.Errorf("resident %d bytes", rss)
	}
}
