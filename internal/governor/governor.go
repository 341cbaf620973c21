package governor

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// A Governor watches one process. Make one with [New], let it [Governor.Run].
// All methods may be called from any goroutine.
type Governor struct {
	// Fixed at New.
	cfg Config
	src Sources
	log *slog.Logger

	// Any goroutine.
	memory, files budgetGauge
	schedP99      atomic.Int64

	mu    sync.Mutex
	roles map[string]*atomic.Int64
	last  *Snapshot
}

// New is a governor that does nothing until it runs. A nil log discards.
func New(cfg Config, src Sources, log *slog.Logger) (*Governor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	g := &Governor{cfg: cfg.WithDefaults(), src: src, log: log, roles: map[string]*atomic.Int64{}}
	g.last = &Snapshot{Enabled: g.cfg.On()}
	return g, nil
}

// Run watches until ctx is done. A governor that is not enabled only waits.
func (g *Governor) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Snapshot is the newest one. It is never nil; before the first sample its Seq is 0.
func (g *Governor) Snapshot() *Snapshot {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// HeatMaps are the last two minutes in columns of one second, the newest last: "sched"
// (scheduler latency), "delivery" (publish to socket), "tick" (all loops), "pause"
// (garbage collection). seconds bounds how many columns; 0 means all.
func (g *Governor) HeatMaps(seconds int) []HeatMap { return nil }

// A HeatMap shows how a duration was distributed over time.
type HeatMap struct {
	Name string `json:"name"`
	// Tops are the rows' upper ends in seconds.
	Tops    []float64 `json:"tops"`
	Columns []Column  `json:"columns"`
}

// A Column is one second of a heat map.
type Column struct {
	// Time is when the second ended, in seconds since 1970.
	Time   int64    `json:"time"`
	Counts []uint32 `json:"counts"`
}

// Role is the counter of the goroutines that do one kind of work: add 1 when one
// starts and −1 when it ends. The same name is the same counter. There should be few.
func (g *Governor) Role(name string) *atomic.Int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.roles[name]
	if c == nil {
		c = new(atomic.Int64)
		g.roles[name] = c
	}
	return c
}

// MemoryBudget is how much of its memory the process uses. It costs a few loads.
func (g *Governor) MemoryBudget() Budget { return g.memory.read() }

// DescriptorBudget is the same for file descriptors.
func (g *Governor) DescriptorBudget() Budget { return g.files.read() }

// SchedP99 is the scheduler latency's 99th percentile of the last sample's interval;
// 0 when too few goroutines ran to say. Admission looks at it.
func (g *Governor) SchedP99() time.Duration { return time.Duration(g.schedP99.Load()) }

// A BudgetLevel says what to refuse.
type BudgetLevel int

// The levels. Soft refuses new connections of low priority, Hard all new ones.
const (
	BudgetOK BudgetLevel = iota
	BudgetSoft
	BudgetHard
)

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

// A Bundle is evidence on disk: a tar.gz of what the process was doing.
type Bundle struct {
	ID     string    `json:"id"`
	Time   time.Time `json:"time"`
	Reason string    `json:"reason"`
	Bytes  int64     `json:"bytes"`
}

// Bundles are those that are kept, the newest first.
func (g *Governor) Bundles() []Bundle { return nil }

// Open reads a bundle. The caller closes it.
func (g *Governor) Open(id string) (io.ReadCloser, error) { return nil, ErrNoBundle }

// Capture writes a bundle now, whatever the state, and returns when it is written: some
// seconds. Only one is written at a time; while one is, the error is ErrCapturing.
func (g *Governor) Capture(ctx context.Context, reason string) (Bundle, error) {
	return Bundle{}, ErrNoDirectory
}
