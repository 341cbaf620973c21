package governor

import (
	"context"
	"encoding/json"
	"math"
	"runtime/debug"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
)

func TestABudgetRefusesFromItsSharesOn(t *testing.T) {
	th := DefaultThresholds()
	var b budgetGauge
	f := func(used uint64, want BudgetLevel) {
		t.Helper()
		b.set(used, 1000, &th)
		if got := b.read(); got.Level != want || got.Used != used || got.Fraction != float64(used)/1000 {
			t.Errorf("%d of 1000: %+v, want %v", used, got, want)
		}
	}
	f(0, BudgetOK)
	f(849, BudgetOK)
	f(850, BudgetSoft)
	f(840, BudgetSoft) // it does not change its mind at once
	f(829, BudgetOK)
	f(951, BudgetHard)
	f(940, BudgetHard)
	f(929, BudgetSoft)
	f(2000, BudgetHard)
	b.set(5000, 0, &th)
	if got := b.read(); got.Level != BudgetOK || got.Fraction != 0 {
		t.Errorf("without a limit: %+v", got)
	}
	for l := BudgetOK; l <= BudgetHard; l++ {
		text, _ := json.Marshal(l)
		var back BudgetLevel
		if err := json.Unmarshal(text, &back); err != nil || back != l {
			t.Errorf("%v is written as %s and read as %v, %v", l, text, back, err)
		}
	}
}

// What the runtime takes between two readings of the kernel's files counts at once.
func TestABurstCountsBeforeTheNextReading(t *testing.T) {
	conns := 0
	s := still(t, Config{Memory: MemoryConfig{Limit: 1 << 30}}, Sources{Connections: func() int { return conns }})
	now := time.Now()
	s.slow.read(1)
	s.sample(now)
	before, files := s.g.MemoryBudget(), s.g.DescriptorBudget()
	if before.Used == 0 || before.Limit != 1<<30 || files.Used == 0 {
		t.Fatalf("at first %+v, %+v", before, files)
	}
	held := make([]byte, 64<<20)
	for i := range held {
		held[i] = 1
	}
	conns = 500
	s.sample(now.Add(100 * time.Millisecond))
	if after := s.g.MemoryBudget(); after.Used < before.Used+32<<20 {
		t.Errorf("with 64 MiB more %d bytes are used, before %d", after.Used, before.Used)
	}
	if after := s.g.DescriptorBudget(); after.Used != files.Used+500 {
		t.Errorf("with 500 connections more %d descriptors are used, before %d", after.Used, files.Used)
	}
	held[0] = 2
}

func TestTheLimitIsSetInTheRuntimeAndRemoved(t *testing.T) {
	was := debug.SetMemoryLimit(-1)
	f := func(name, env string, cfg MemoryConfig, want int64) {
		t.Helper()
		if env != "" {
			t.Setenv("GOMEMLIMIT", env)
		}
		g, err := New(Config{Memory: cfg, Probes: setting.Off}, Sources{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := newSampler(g)
		if got := debug.SetMemoryLimit(-1); got != want {
			t.Errorf("%s: the runtime's limit is %d, want %d", name, got, want)
		}
		s.stop()
		if got := debug.SetMemoryLimit(-1); got != was {
			t.Errorf("%s: afterwards the limit is %d, before %d", name, got, was)
		}
	}
	f("configured", "", MemoryConfig{Limit: 1000 << 20}, 900<<20)
	f("the environment has spoken", "123MiB", MemoryConfig{Limit: 1000 << 20}, was)
}

// recorded is a pacer that sets nothing but a list.
func recorded(policy string, limit uint64, percents *[]int, freed *int) *pacer {
	p := newPacer(MemoryConfig{Policy: policy, Percent: 100}, limit)
	p.now = 100
	p.set = func(v int) int { *percents = append(*percents, v); return 0 }
	p.free = func() { *freed++ }
	return p
}

func TestHeadroomPacesByWhatIsFree(t *testing.T) {
	f := func(name string, limit, live, other uint64, want int) {
		t.Helper()
		var set []int
		var freed int
		p := recorded(PolicyHeadroom, limit, &set, &freed)
		p.headroom(live, other)
		if p.now != want {
			t.Errorf("%s: GOGC %d (set %v), want %d", name, p.now, set, want)
		}
	}
	const mib = 1 << 20
	f("plenty", 10000*mib, 100*mib, 0, headroomTop)
	f("half full", 1000*mib, 400*mib, 100*mib, 50)
	f("some room", 1000*mib, 300*mib, 0, 100)
	f("a quarter", 1000*mib, 200*mib, 100*mib, 150)
	f("full", 1000*mib, 890*mib, 100*mib, headroomFloor)
	f("beyond", 1000*mib, 2000*mib, 0, headroomFloor)
	f("a heap of nothing", 1000*mib, 1, 0, headroomTop)
	f("no limit", 0, 100*mib, 0, 100)
	f("no cycle yet", 1000*mib, 0, 0, 100)
	var set []int
	var freed int
	p := recorded(PolicyHeadroom, 1000*mib, &set, &freed)
	for i := range uint64(40) { // each stop of the world must be worth it
		p.headroom((300+i/8)*mib, 0)
	}
	if len(set) > 1 {
		t.Errorf("a heap that grows by a fiftieth sets GOGC %d times: %v", len(set), set)
	}
}

func TestPhasePacesByWhatHappens(t *testing.T) {
	var set []int
	var freed int
	p := recorded(PolicyPhase, 0, &set, &freed)
	r := newRuntimeReader()
	garbage := make([][]byte, 64)
	for i := range garbage {
		garbage[i] = make([]byte, 1<<18)
	}
	clear(garbage)
	r.read()
	p.second(r, 1, true)
	if p.now != phaseBusy {
		t.Errorf("at work GOGC is %d", p.now)
	}
	for range 5 {
		p.second(r, 1, true)
	}
	if p.now != phaseIdle || freed != 1 {
		t.Errorf("idle GOGC is %d, memory was given back %d times, want once", p.now, freed)
	}
	p.second(r, 2, true)
	if p.now != phaseBusy || freed != 1 {
		t.Errorf("at work again GOGC is %d, given back %d times", p.now, freed)
	}
	if q := recorded(PolicyPhase, 0, &set, &freed); true {
		for range 9 {
			q.second(r, 0, false)
		}
		if q.now != 100 {
			t.Errorf("without a report of activity GOGC is %d", q.now)
		}
	}
	if off := recorded(PolicyHeadroom, 1<<30, &set, &freed); true {
		off.base = -1
		off.headroom(1<<20, 0)
		if off.now != 100 {
			t.Errorf("a collector that is off was set to %d", off.now)
		}
	}
}

func TestGOGCIsTakenBack(t *testing.T) {
	was := currentPercent()
	g, err := New(Config{Memory: MemoryConfig{Percent: 321}, Probes: setting.Off}, Sources{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newSampler(g)
	if got := currentPercent(); got != 321 {
		t.Errorf("GOGC is %d, want 321", got)
	}
	s.stop()
	if got := currentPercent(); got != was {
		t.Errorf("afterwards GOGC is %d, before %d", got, was)
	}
}

func TestTwoRunsAtOnceAreAnError(t *testing.T) {
	g, err := New(short(func(c *Config) { c.Probes = setting.Off }), Sources{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	for g.Snapshot().Seq == 0 {
		<-time.After(time.Millisecond)
	}
	if err := g.Run(ctx); err == nil {
		t.Error("a second Run was let in")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheSlopeIsWhatAConnectionCosts(t *testing.T) {
	var w slopeWatch
	for i := range 100 {
		w.add(100*i, uint64(50<<20+100*i*8000))
	}
	if got := w.slope(); math.Abs(got-8000) > 1 {
		t.Errorf("a connection of 8000 bytes costs %v", got)
	}
	var flat slopeWatch
	for i := range 100 {
		flat.add(50+i%9, uint64(i)<<20)
	}
	if got := flat.slope(); got != 0 {
		t.Errorf("of nine connections a slope of %v was read", got)
	}
}
