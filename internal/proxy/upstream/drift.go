package upstream

import (
	"cmp"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// DriftConfig is the drift alarm of a route: are requests still what they were?
type DriftConfig struct {
	// Window is how long a sample is collected. 0 means 1m.
	Window hub.Duration `json:"window"`
	// Samples bounds what is kept of a window, by reservoir, 50 to 4096. 0 means 512.
	// A window with fewer than a tenth continues.
	Samples int `json:"samples"`
	// Alpha is the level of each test (Kolmogorov–Smirnov). 0 means 0.001.
	Alpha float64 `json:"alpha"`
	// Distance is how far the distributions must be apart besides, 0 to 1: with
	// much data any difference is significant. 0 means 0.15.
	Distance float64 `json:"distance"`
}

// WithDefaults returns c with zeros replaced by what they mean.
func (c DriftConfig) WithDefaults() DriftConfig {
	c.Window = cmp.Or(c.Window, hub.Duration(time.Minute))
	c.Samples = cmp.Or(c.Samples, 512)
	c.Alpha = cmp.Or(c.Alpha, 0.001)
	c.Distance = cmp.Or(c.Distance, 0.15)
	return c
}

// Validate returns all that is wrong with c, joined.
func (c DriftConfig) Validate() error {
	c = c.WithDefaults()
	p := &problems{where: "drift"}
	p.check(c.Window >= hub.Duration(time.Second), "window: %s; write 1s or more", c.Window)
	p.check(c.Samples >= 50 && c.Samples <= 4096, "samples: %d; write 50 to 4096", c.Samples)
	p.check(c.Alpha > 0 && c.Alpha < 0.5, "alpha: %v; write a probability like 0.001", c.Alpha)
	p.share("distance", c.Distance)
	return errors.Join(p.errs...)
}

// Drift watches one route: the first window is the reference, each later one is
// compared with it, in the size of requests and in latency. Two windows in a row
// that differ raise the alarm, one that does not ends it.
type Drift struct {
	// Fixed.
	name string
	cfg  DriftConfig
	seed uint64

	// Any goroutine.
	current atomic.Pointer[reservoir]

	mu        sync.Mutex
	reference *reservoir
	began     int64 // of the current window
	windows   uint64
	st        DriftState
}

// DriftState is what is shown of a Drift.
type DriftState struct {
	Name  string `json:"name"`
	Alarm bool   `json:"alarm"`
	// Differing is how many windows in a row differed.
	Differing int `json:"differing"`
	// Windows is how many were compared.
	Windows int `json:"windows"`
	// Alarms is how many were raised.
	Alarms int `json:"alarms"`
	// The newest window: distance and p-value of each test.
	Requests        uint64  `json:"requests"`
	SizeDistance    float64 `json:"size_distance"`
	SizeP           float64 `json:"size_p"`
	LatencyDistance float64 `json:"latency_distance"`
	LatencyP        float64 `json:"latency_p"`
}

// A reservoir keeps an even sample of all it is shown (algorithm R; Vitter, "Random
// Sampling with a Reservoir", 1985).
type reservoir struct {
	seed    uint64
	seen    atomic.Uint64
	size    []atomic.Int64
	latency []atomic.Int64
}

func newReservoir(n int, seed uint64) *reservoir {
	return &reservoir{seed: seed, size: make([]atomic.Int64, n), latency: make([]atomic.Int64, n)}
}

func (r *reservoir) values(of []atomic.Int64) []float64 {
	all := make([]float64, min(r.seen.Load(), uint64(len(of))))
	for i := range all {
		all[i] = float64(of[i].Load())
	}
	return all
}

func newDrift(name string, cfg DriftConfig, now int64, seed uint64) *Drift {
	d := &Drift{name: name, cfg: cfg.WithDefaults(), seed: seed, began: now}
	d.st.Name = name
	d.current.Store(newReservoir(d.cfg.Samples, seed))
	return d
}

// Observe records a request's body size in bytes and its time to the first byte in
// nanoseconds. Any goroutine may call it. It allocates nothing.
func (d *Drift) Observe(size, latency int64) {
	r := d.current.Load()
	i := r.seen.Add(1) - 1
	if i >= uint64(len(r.size)) {
		i = mix(r.seed+i*golden) % (i + 1)
		if i >= uint64(len(r.size)) {
			return
		}
	}
	r.size[i].Store(size)
	r.latency[i].Store(latency)
}

// Rebase makes the next window the reference, after a wanted change.
func (d *Drift) Rebase() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reference = nil
	d.st.Alarm, d.st.Differing = false, 0
}

// State is what the newest window showed.
func (d *Drift) State() DriftState {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.st
}

// evaluate compares the window if it is over. Only Run's goroutine and tests call
// it.
func (d *Drift) evaluate(now int64, log *slog.Logger) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.current.Load()
	seen := r.seen.Load()
	if now-d.began < int64(d.cfg.Window) || seen < uint64(d.cfg.Samples/10) {
		return
	}
	d.windows++
	d.began = now
	d.current.Store(newReservoir(d.cfg.Samples, mix(d.seed+d.windows*golden)))
	if d.reference == nil {
		d.reference = r
		return
	}
	st := &d.st
	st.Windows++
	st.Requests = seen
	st.SizeDistance, st.SizeP = stat.KolmogorovSmirnov(r.values(r.size), d.reference.values(d.reference.size))
	st.LatencyDistance, st.LatencyP = stat.KolmogorovSmirnov(r.values(r.latency), d.reference.values(d.reference.latency))
	size := st.SizeP < d.cfg.Alpha && st.SizeDistance > d.cfg.Distance
	latency := st.LatencyP < d.cfg.Alpha && st.LatencyDistance > d.cfg.Distance
	if !size && !latency {
		if st.Alarm {
			log.Info("drift over", "route", d.name)
		}
		st.Differing, st.Alarm = 0, false
		return
	}
	st.Differing++
	if st.Differing == 2 {
		st.Alarm = true
		st.Alarms++
		log.Warn("drift", "route", d.name, "size", size, "latency", latency,
			"size_distance", strconv.FormatFloat(st.SizeDistance, 'f', 3, 64), "latency_distance", strconv.FormatFloat(st.LatencyDistance, 'f', 3, 64))
	}
}
