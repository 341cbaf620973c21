package loadgen

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// A Generator makes the load of one Spec.
type Generator struct{ spec Spec }

// New checks the Spec and the machine: what cannot work (descriptors, ports,
// memory) is said here, with the fix, before anything is opened.
func New(spec Spec, log *slog.Logger) (*Generator, error) { return nil, errors.New("not yet") }

// Connect opens the connections and returns when all stand, or one could not be
// made. Run and Measure call it when nobody has.
func (g *Generator) Connect(ctx context.Context) error { return errors.New("not yet") }

// Run carries out the Spec. A done ctx ends it early: what was measured so far is
// returned with Result.Partial set and no error.
func (g *Generator) Run(ctx context.Context) (*Result, error) { return nil, errors.New("not yet") }

// Measure puts load on the target for d and returns what was seen. Connections
// stay open between calls; what is under way at the end is waited for.
func (g *Generator) Measure(ctx context.Context, load Load, d time.Duration) (*Window, error) {
	return nil, errors.New("not yet")
}

// Snapshot is the live view: counters and recent percentiles. Any goroutine.
func (g *Generator) Snapshot() Snapshot { return Snapshot{} }

// Close ends all connections. It is idempotent.
func (g *Generator) Close() error { return nil }

// A Snapshot is the state of a run at a moment, for a live view.
type Snapshot struct {
	Phase   string // "connecting", "warm-up", "measuring", "draining", "done"
	Elapsed time.Duration
	Total   time.Duration // expected; 0: unknown
	Conns   int
	Load    Load
	// Since the snapshot before, per second.
	OfferedRate, SentRate, CompletedRate, ErrorRate float64
	InFlight                                        int
	Dropped, Errors                                 uint64 // so far
	// Percentiles of the last seconds: response and service, and the generator's lag.
	P50, P95, P99, ServiceP99, LagP99 time.Duration
	Delivery                          *Delivery
	Limited                           bool
}

// A Result is a whole run.
type Result struct {
	// Version of this form; 1.
	Version int
	Spec    Spec
	Started time.Time
	// Partial: the run was ended early.
	Partial bool
	Machine Machine
	// Windows in order, and Total: all of them merged. Those of the windows hold two
	// significant digits, Total's three. Of a very long run neighbours are merged, so
	// that there are never more than 1,024.
	Windows []Window
	Total   Window
}

// Machine is where a measurement was made.
type Machine struct {
	Weir     string `json:"weir"`
	OS       string `json:"os"`
	Kernel   string `json:"kernel"`
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"`
	MemoryMB int    `json:"memory_mb"`
	Go       string `json:"go"`
	// Limits by name: "nofile", "somaxconn", "ip_local_port_range"…
	Limits map[string]string `json:"limits"`
}
