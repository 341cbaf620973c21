package governor

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config specifies how the process watches itself.
type Config struct {
	// Enabled turns the governor on: sampling, states, evidence and the memory limit.
	Enabled setting.Switch `json:"enabled"`
	// Interval is the time between two samples. 0 means 100ms; at least 10ms, at most 1s.
	Interval hub.Duration `json:"interval"`
	// Window is the time that one verdict spans. 0 means 5s; at least ten intervals.
	Window hub.Duration `json:"window"`
	// Probes measure how late goroutines, sockets and timers wake.
	Probes setting.Switch `json:"probes"`
	// Thresholds are what states and alerts are evaluated by.
	Thresholds Thresholds `json:"thresholds"`
	// Evidence is what is recorded when something is wrong.
	Evidence EvidenceConfig `json:"evidence"`
	// Memory is the limit and how the collector is paced below it.
	Memory MemoryConfig `json:"memory"`
}

// EvidenceConfig specifies where evidence bundles go and how many are kept.
type EvidenceConfig struct {
	// Dir is the directory that bundles are written to; it is made when it is
	// missing. Empty means evidence, beside what an embedded broker stores; without
	// one, and with "off", none are written and nothing is recorded.
	Dir string `json:"dir"`
	// Every is the least time between two bundles that are not requested. 0 means 10m.
	Every hub.Duration `json:"every"`
	// Keep is how many bundles are kept; the oldest go first. 0 means 10.
	Keep int `json:"keep"`
	// MaxBytes is what all bundles may take on disk. 0 means 256 MiB.
	MaxBytes int64 `json:"max_bytes"`
	// Profile is how long the processor profile of a bundle runs. 0 means 2s.
	Profile hub.Duration `json:"profile"`
	// FlightRecorder records the runtime's traces for bundles. It takes some of a busy
	// server's throughput while it is armed.
	FlightRecorder setting.Switch `json:"flight_recorder"`
	// Observe adds what weir observe shows of the process, in a window as long as profile:
	// system calls, locks, page faults, connections. Without CAP_BPF and CAP_PERFMON it is
	// what /proc has.
	Observe setting.Switch `json:"observe"`
}

// MemoryConfig is about the memory limit and the collector.
type MemoryConfig struct {
	// Limit is what the process may take, in bytes. 0 means what the cgroup grants, or
	// the machine's memory when it grants all. A quarter of it bounds the recent messages
	// that channels keep in memory, half the log of the memory broker; a limit that is not
	// the machine's also bounds the collector's headroom (nine tenths).
	Limit int64 `json:"limit" unit:"bytes"`
	// Policy paces the collector: "fixed" leaves GOGC as it is; "headroom" raises it
	// while memory is far from its limit and lowers it near; "phase" raises it under
	// load and gives memory back when the program is idle. Empty means fixed.
	Policy string `json:"policy"`
	// Percent is GOGC under the policy "fixed", and what the others start from. 0 means
	// what the environment says, or 100.
	Percent int `json:"percent"`
}

// The policies that pace the collector.
const (
	PolicyFixed    = "fixed"
	PolicyHeadroom = "headroom"
	PolicyPhase    = "phase"
)

// On specifies whether the governor is enabled.
func (c Config) On() bool { return c.Enabled.On() }

// WithDefaults is c with every zero value replaced by what it means.
func (c Config) WithDefaults() Config {
	or := func(d *hub.Duration, v time.Duration) {
		if *d == 0 {
			*d = hub.Duration(v)
		}
	}
	or(&c.Interval, 100*time.Millisecond)
	or(&c.Window, 5*time.Second)
	or(&c.Evidence.Every, 10*time.Minute)
	or(&c.Evidence.Profile, 2*time.Second)
	c.Evidence.Keep = cmp.Or(c.Evidence.Keep, 10)
	c.Evidence.MaxBytes = cmp.Or(c.Evidence.MaxBytes, 256<<20)
	c.Memory.Policy = cmp.Or(c.Memory.Policy, PolicyFixed)
	c.Thresholds = c.Thresholds.WithDefaults()
	return c
}

// Validate specifies what of c cannot be.
func (c Config) Validate() error {
	d := c.WithDefaults()
	var errs []error
	bad := func(holds bool, format string, args ...any) {
		if holds {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	interval, window := time.Duration(d.Interval), time.Duration(d.Window)
	bad(interval < 10*time.Millisecond || interval > time.Second, "interval: %s; write 10ms to 1s", interval)
	bad(window < 10*interval, "window: %s is less than ten intervals of %s", window, interval)
	bad(window > 10*time.Minute, "window: %s; write at most 10m", window)
	bad(d.Evidence.Every < 0, "evidence.every: %s is negative", d.Evidence.Every)
	bad(d.Evidence.Profile < 0 || d.Evidence.Profile > hub.Duration(time.Minute), "evidence.profile: %s; write at most 1m", d.Evidence.Profile)
	bad(d.Evidence.Keep < 0, "evidence.keep: %d is negative; write 1 or more", d.Evidence.Keep)
	bad(d.Evidence.MaxBytes < 1<<20, "evidence.max_bytes: %d; write at least 1048576, one bundle takes some", d.Evidence.MaxBytes)
	bad(d.Memory.Limit < 0, "memory.limit: %d is negative; write bytes, or 0 for the cgroup's", d.Memory.Limit)
	bad(d.Memory.Limit > 0 && d.Memory.Limit < 16<<20, "memory.limit: %d bytes are too few to run; write at least 16777216", d.Memory.Limit)
	bad(d.Memory.Percent < 0 || d.Memory.Percent > 10000, "memory.percent: %d; write 1 to 10000", d.Memory.Percent)
	switch d.Memory.Policy {
	case PolicyFixed, PolicyHeadroom, PolicyPhase:
	default:
		bad(true, "memory.policy: %q; write fixed, headroom or phase", d.Memory.Policy)
	}
	if err := d.Thresholds.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("thresholds: %w", err))
	}
	return errors.Join(errs...)
}

func positive(name string, v float64) error {
	if !(v > 0) || math.IsInf(v, 1) {
		return fmt.Errorf("%s: %v; write a number above 0", name, v)
	}
	return nil
}
