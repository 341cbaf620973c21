package governor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// The heat maps' places.
const (
	heatSched = iota
	heatDelivery
	heatTick
	heatPause
	heatMaps
)

// A Governor watches one process. Make one with [New], let it [Governor.Run].
// All methods may be called from any goroutine.
type Governor struct {
	// Fixed at New.
	cfg      Config
	src      Sources
	log      *slog.Logger
	root     string // before /proc; tests have their own
	evidence *recorder

	// Any goroutine.
	memory, files budgetGauge
	schedP99      atomic.Int64
	running       atomic.Bool
	heats         [heatMaps]heat

	mu    sync.Mutex
	last  *Snapshot
	kept  bool // someone has last
	spare *Snapshot
}

// New is a governor that does nothing until it runs. A nil log discards.
func New(cfg Config, src Sources, log *slog.Logger) (*Governor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	g := &Governor{cfg: cfg.WithDefaults(), src: src, log: log}
	g.evidence = newRecorder(g.cfg.Evidence, log, g.contents)
	empty := (&Snapshot{Enabled: g.cfg.On(), Evidence: g.evidence.view()}).fresh(time.Time{})
	g.last = &empty
	for i, name := range [heatMaps]string{heatSched: "sched", heatDelivery: "delivery", heatTick: "tick", heatPause: "pause"} {
		g.heats[i].name = name
	}
	return g, nil
}

// Config is what the governor runs with, defaults filled in.
func (g *Governor) Config() Config { return g.cfg }

// Run watches until ctx is done. A governor that is not enabled only waits. It sets the
// memory limit and GOGC as configured and takes both back at the end.
func (g *Governor) Run(ctx context.Context) error {
	if !g.cfg.On() {
		<-ctx.Done()
		return nil
	}
	if !g.running.CompareAndSwap(false, true) {
		return errors.New("the governor runs already")
	}
	defer g.running.Store(false)
	s := newSampler(g)
	s.start()
	defer s.stop()
	var wg sync.WaitGroup
	wg.Go(func() { g.evidence.run(ctx) })
	defer wg.Wait()
	tick := time.NewTicker(time.Duration(g.cfg.Interval))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.sample(time.Now())
		}
	}
}

// Snapshot is the newest one. It is never nil; before the first sample its Seq is 0.
func (g *Governor) Snapshot() *Snapshot {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kept = true
	return g.last
}

// fresh is what s says before the first sample: lists that are empty, not absent.
func (s *Snapshot) fresh(start time.Time) Snapshot {
	f := Snapshot{Enabled: s.Enabled, Start: start, Evidence: s.Evidence, Loops: []LoopView{}, Timeline: []Transition{}}
	f.State = State{Since: start, Causes: []Cause{}}
	f.Goroutines.Roles = []RoleCount{}
	return f
}

// publish makes a copy of v the newest snapshot. One that no reader has is written
// over two samples later, so watching costs memory only while someone looks; for that
// the pointer is under a lock, which is held for a few instructions.
func (g *Governor) publish(v *Snapshot) {
	next := g.spare
	if next == nil {
		next = &Snapshot{Loops: []LoopView{}}
		next.Goroutines.Roles = []RoleCount{}
	}
	loops, roles := next.Loops[:0], next.Goroutines.Roles[:0]
	*next = *v
	next.Loops = append(loops, v.Loops...)
	next.Goroutines.Roles = append(roles, v.Goroutines.Roles...)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spare = g.last
	if g.kept {
		g.spare = nil
	}
	g.last, g.kept = next, false
}

// HeatMaps are the last two minutes in columns of one second, the newest last: "sched"
// (scheduler latency), "delivery" (publish to socket), "tick" (all loops), "pause"
// (garbage collection). seconds bounds how many columns; 0 means all.
func (g *Governor) HeatMaps(seconds int) []HeatMap {
	out := make([]HeatMap, 0, len(g.heats))
	for i := range g.heats {
		out = append(out, g.heats[i].read(seconds))
	}
	return out
}

// MemoryBudget is how much of its memory the process uses. It costs a few loads.
func (g *Governor) MemoryBudget() Budget { return g.memory.read() }

// DescriptorBudget is the same for file descriptors.
func (g *Governor) DescriptorBudget() Budget { return g.files.read() }

// SchedP99 is the scheduler latency's 99th percentile of the last sample's interval;
// 0 when too few goroutines ran to say. Admission looks at it.
func (g *Governor) SchedP99() time.Duration { return time.Duration(g.schedP99.Load()) }

// Bundles are those that are kept, the newest first.
func (g *Governor) Bundles() []Bundle { return slices.Clone(g.evidence.view().Bundles) }

// Open reads a bundle. The caller closes it.
func (g *Governor) Open(id string) (io.ReadCloser, error) { return g.evidence.open(id) }

// Capture writes a bundle now, whatever the state, and returns when it is written: some
// seconds. Only one is written at a time; while one is, the error is ErrCapturing.
func (g *Governor) Capture(ctx context.Context, reason string) (Bundle, error) {
	return g.evidence.request(ctx, time.Now(), reason)
}

// contents are the parts of a bundle that only the governor has.
func (g *Governor) contents() []part {
	encode := func(v any) func(context.Context, io.Writer) error {
		return func(_ context.Context, w io.Writer) error {
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			return e.Encode(v)
		}
	}
	list := []part{
		{"snapshot.json", "what the dashboard showed, with the causes in words", func(ctx context.Context, w io.Writer) error { return encode(g.Snapshot())(ctx, w) }},
		{"heatmaps.json", "the last 60 s in columns of one second: scheduler, delivery, ticks, pauses", func(_ context.Context, w io.Writer) error {
			return json.NewEncoder(w).Encode(g.HeatMaps(60))
		}},
		{"thresholds.json", "the thresholds of the states", encode(g.cfg.Thresholds)},
	}
	if observe := g.src.Observe; observe != nil && g.cfg.Evidence.Observe.On() {
		list = append(list, part{"observed.json", "system calls, locks, page faults and connections as the kernel saw them: weir observe --bundle FILE", func(ctx context.Context, w io.Writer) error {
			return observe(ctx, time.Duration(g.cfg.Evidence.Profile), w)
		}})
	}
	if g.src.Consumers != nil {
		list = append(list, part{"consumers.json", "connections with most lag, worst first", func(ctx context.Context, w io.Writer) error {
			answer := make(chan []Consumer, 1)
			go func() { answer <- g.src.Consumers(100) }() // ends when the source does; a stuck loop may keep it
			late := time.NewTimer(SourcePatience)
			defer late.Stop()
			select {
			case v := <-answer:
				return encode(v)(ctx, w)
			case <-late.C:
				return errors.New("the loops did not answer in time")
			}
		}})
	}
	return list
}

func levelOf(s stat.State) slog.Level {
	if s == stat.Steady {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}
