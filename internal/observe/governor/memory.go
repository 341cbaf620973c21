package governor

import (
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// A BudgetLevel reports what to refuse.
type BudgetLevel int

// The levels. Soft refuses new connections of low priority, Hard all new ones.
const (
	BudgetOK BudgetLevel = iota
	BudgetSoft
	BudgetHard
)

func (l BudgetLevel) String() string {
	switch l {
	case BudgetSoft:
		return "soft"
	case BudgetHard:
		return "hard"
	}
	return "ok"
}

// MarshalText writes the level's name.
func (l BudgetLevel) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads what MarshalText writes; anything else is BudgetOK.
func (l *BudgetLevel) UnmarshalText(b []byte) error {
	*l = BudgetOK
	for v := BudgetSoft; v <= BudgetHard; v++ {
		if v.String() == string(b) {
			*l = v
		}
	}
	return nil
}

// A Budget is how much of something limited is used.
type Budget struct {
	Used     uint64      `json:"used"`
	Limit    uint64      `json:"limit"` // 0 means none: then nothing is refused
	Fraction float64     `json:"fraction"`
	Level    BudgetLevel `json:"level"`
}

// budgetGauge is a budget that one goroutine sets and any reads.
type budgetGauge struct {
	used, limit, level atomic.Uint64
}

func (b *budgetGauge) read() Budget {
	out := Budget{Used: b.used.Load(), Limit: b.limit.Load(), Level: BudgetLevel(b.level.Load())}
	if out.Limit > 0 {
		out.Fraction = float64(out.Used) / float64(out.Limit)
	}
	return out
}

// set decides the level. What was refused stays so until it is two hundredths below,
// or one connection would be let in and the next not.
func (b *budgetGauge) set(used, limit uint64, t *Thresholds) {
	b.used.Store(used)
	b.limit.Store(limit)
	level := BudgetOK
	if limit > 0 {
		f, was := float64(used)/float64(limit), BudgetLevel(b.level.Load())
		bound := func(l BudgetLevel, share float64) bool {
			if was >= l {
				share -= 0.02
			}
			return f >= share
		}
		switch {
		case bound(BudgetHard, t.Hard):
			level = BudgetHard
		case bound(BudgetSoft, t.Soft):
			level = BudgetSoft
		}
	}
	b.level.Store(uint64(level))
}

// memoryLimit is what the process may take and where that is said: the
// configuration, the cgroup, the machine. 0 when none of them does.
func memoryLimit(cfg MemoryConfig, c cgroup, root string) (uint64, string) {
	machine := uint64(0)
	if b, err := os.ReadFile(root + "/proc/meminfo"); err == nil {
		if kb, ok := field(b, "MemTotal:"); ok {
			machine = min(kb, 1<<53) << 10
		}
	}
	if cfg.Limit > 0 {
		return uint64(cfg.Limit), "config"
	}
	if n := c.memoryLimit(); n > 0 && (machine == 0 || n < machine) {
		if c.v2Memory {
			return n, "cgroup v2"
		}
		return n, "cgroup v1"
	}
	if machine > 0 {
		return machine, "machine"
	}
	return 0, ""
}

// MemoryLimit is what a process with cfg may take: what cfg says, else the cgroup, else
// the machine. 0 when it is not known.
func MemoryLimit(cfg MemoryConfig) uint64 {
	limit, _ := memoryLimit(cfg, findCgroup(""), "")
	return limit
}

// softLimit is the share of the limit that the runtime gets: what it does not know
// of (kernel memory, memory of C) needs the rest.
const softLimit = 0.9

// applyLimit sets the runtime's limit, unless the environment did (GOMEMLIMIT), and returns
// how to take it back. The machine's memory is no limit: others live there.
func applyLimit(limit uint64, from string) (undo func()) {
	if limit == 0 || from == "machine" || os.Getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	was := debug.SetMemoryLimit(int64(float64(limit) * softLimit))
	return func() { debug.SetMemoryLimit(was) }
}

// A pacer sets GOGC by a policy. One goroutine. Setting it stops the world for some
// tens of microseconds, so small changes are not made.
type pacer struct {
	policy string
	base   int
	limit  uint64 // what the runtime was set to, or would be
	set    func(int) int
	free   func()

	now      int
	activity uint64
	quiet    int
	trimmed  bool
}

const (
	// headroomFloor and headroomTop bound GOGC by headroom.
	headroomFloor, headroomTop = 50, 400
	// phaseBusy is GOGC under load, phaseIdle when nothing happens.
	phaseBusy, phaseIdle = 200, 50
	// phaseQuiet is how many seconds without activity are idle.
	phaseQuiet = 2
	// trimWorth is what must be to gain for memory to be given back.
	trimWorth = 1 << 20
)

func newPacer(cfg MemoryConfig, limit uint64) *pacer {
	p := &pacer{policy: cfg.Policy, base: cfg.Percent, limit: uint64(float64(limit) * softLimit), set: debug.SetGCPercent, free: debug.FreeOSMemory}
	p.now = currentPercent()
	if p.base == 0 {
		p.base = p.now
	}
	return p
}

// start sets what the policy starts with and returns how to take everything back.
func (p *pacer) start() (undo func()) {
	was := p.now
	p.to(p.base)
	return func() { p.to(was) }
}

func (p *pacer) to(percent int) {
	if percent != p.now {
		p.set(percent)
		p.now = percent
	}
}

// second looks at the heap and the activity once a second.
func (p *pacer) second(r *runtimeReader, activity uint64, known bool) {
	switch p.policy {
	case PolicyHeadroom:
		p.headroom(r.u(rtLive), r.footprint()-min(r.u(rtObjects)+r.u(rtFree)+r.u(rtUnused), r.footprint()))
	case PolicyPhase:
		p.phase(r, activity, known)
	}
}

// headroom lets the heap grow into half of what is free below the limit, so that the
// collector runs seldom while memory is plenty and often when it gets short.
func (p *pacer) headroom(live, other uint64) {
	if p.limit == 0 || live == 0 || p.base < 0 {
		return
	}
	room := float64(p.limit) - float64(live) - float64(other)
	want := int(min(max(100*room/2/float64(max(live, 4<<20)), headroomFloor), headroomTop))
	if d := want - p.now; 10*d > p.now || -10*d > p.now { // a tenth, or it is not worth a stop
		p.to(want)
	}
}

// phase runs the collector seldom while there is work, and gives memory back once when
// the work is over.
func (p *pacer) phase(r *runtimeReader, activity uint64, known bool) {
	if !known || p.base < 0 {
		return
	}
	if activity != p.activity {
		p.activity, p.quiet, p.trimmed = activity, 0, false
		p.to(max(p.base, phaseBusy))
		return
	}
	if p.quiet++; p.quiet < phaseQuiet || p.trimmed {
		return
	}
	p.trimmed = true
	p.to(phaseIdle)
	live, objects := r.u(rtLive), r.u(rtObjects)
	gain := r.u(rtFree) + r.u(rtUnused) + objects - min(live, objects)
	if gain > max(trimWorth, live/8) {
		p.free()
	}
}

// currentPercent is GOGC as the runtime has it.
func currentPercent() int {
	s := []runtimemetrics.Sample{{Name: runtimeNames[rtPercent]}}
	runtimemetrics.Read(s)
	r := runtimeReader{}
	r.samples[rtPercent] = s[0]
	return r.percent()
}

// descriptorLimit is how many files the process may open; 0 is no limit.
func descriptorLimit() uint64 {
	if n := sys.MaxFiles(); n < 1<<40 {
		return n
	}
	return 0
}

// rate is per second; of no time there is none.
func rate(delta float64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return delta / d.Seconds()
}
