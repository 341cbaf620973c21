package capacity

import (
	"context"
	"fmt"
	"time"
)

// A Mode is how long a search takes and how sure it is.
type Mode string

// The modes: under two minutes, about eight, about thirty.
const (
	Quick    Mode = "quick"
	Standard Mode = "standard"
	Thorough Mode = "thorough"
)

// Options of a search. The zero value is a standard search without an objective.
type Options struct {
	// Mode; empty means standard.
	Mode Mode `json:"mode"`
	// SLO is the objective for the P99 of the response time; 0 means none, and then
	// there is no λ_slo.
	SLO time.Duration `json:"slo_ns,omitempty"`
	// Expect is the rate at which the objective has to be met for the verdict
	// "pass" (the knee's rate, when there is no objective); 0 means none.
	Expect float64 `json:"expect,omitempty"`
	// Kappa is the growth of P99 over its baseline that is the knee; 0 means 2.5.
	Kappa float64 `json:"kappa,omitempty"`
	// Quantile that is evaluated: 0.99, 0.95 or 0.5. 0 means the highest of them that
	// the samples at low load carry.
	Quantile float64 `json:"quantile,omitempty"`
	// Start is the rate of the first probe, and of the baseline when it is below half
	// of what fails; 0 means 20/s (or 5 % of the generator's ceiling, if that is less)
	// and a baseline at 9 % of what fails.
	Start float64 `json:"start,omitempty"`
	// Conns is the number of connections of every load; 0 leaves it to the target.
	Conns int `json:"conns,omitempty"`
	// Seed of the bootstrap; 0 is a seed like any other.
	Seed uint64 `json:"seed,omitempty"`
	// ClosedLoop also measures levels of concurrency for the scalability model,
	// in the modes standard and thorough.
	ClosedLoop bool `json:"closed_loop,omitempty"`

	// Bounded searches on a machine that is too noisy for an answer too, and names bounds
	// in place of one (Limit.Between): windows that the noise disturbed count, and the
	// verdict stays inconclusive. Otherwise such a machine ends the search at once.
	Bounded bool `json:"bounded,omitempty"`

	// Caps. MaxDuration of the whole search: 0 means the mode's (110 s, 12
	// or 40 minutes). MaxRate: 0 means half the generator's ceiling, or 10 million/s.
	// MaxRequests: 0 means a thousand million. MaxRSS of the target in bytes: 0
	// means none. MaxConns: a load that would open more is refused; 0 means none.
	MaxDuration time.Duration `json:"max_duration_ns,omitempty"`
	MaxRate     float64       `json:"max_rate,omitempty"`
	MaxRequests uint64        `json:"max_requests,omitempty"`
	MaxRSS      uint64        `json:"max_rss,omitempty"`
	MaxConns    int           `json:"max_conns,omitempty"`
	// MaxSteal is the share of processor time the hypervisor may take in a window
	// before the search is given up; 0 means 0.10.
	MaxSteal float64 `json:"max_steal,omitempty"`

	// Ceiling measures what the generator does against a server that does nothing
	// (NullServer), per second; nil means unknown. Levels above half of it are not tried.
	Ceiling func(ctx context.Context) (float64, error) `json:"-"`
	// FixedWork does the same small work n times and gives the seconds each took;
	// nil means TimeFixedWork.
	FixedWork func(ctx context.Context, n int) []float64 `json:"-"`
	// Now is the clock of the caps; nil means time.Now.
	Now func() time.Time `json:"-"`
	// Progress is called before and after every window, from Find's goroutine; it
	// must not block. nil means not at all.
	Progress func(Event) `json:"-"`

	// shrink divides the plan's durations, for tests on real sockets; 0 means 1.
	shrink time.Duration
}

// An Event is the progress of a search.
type Event struct {
	// Phase is "qualify", "bracket", "stairs", "refine", "confirm" or "model".
	Phase string
	// Rate is the level's, Repeat the window's number within it, from 1.
	Rate   float64
	Repeat int
	// Step of about Steps windows in this phase.
	Step, Steps int
	Elapsed     time.Duration
	// Remaining is estimated.
	Remaining time.Duration
	// Window is the one just measured; nil when one starts.
	Window *Window
	// Text says in words what happens.
	Text string
}

// plan are a mode's numbers.
type plan struct {
	window, warm, probe    time.Duration // a window, before it, and one of the bracket's
	baseMax                time.Duration // the longest window of the baseline
	repeats, maxRepeats    int
	baseRepeats            int
	refine                 int // probes of the bisection
	hold                   time.Duration
	holdWindow             time.Duration
	closedLevels           int
	burst                  bool
	fixedWork              int
	maxDuration, typical   time.Duration
	downRepeats, resamples int
	plateauWindows         int
}

func (o Options) plan() plan {
	p := o.modePlan()
	if d := o.shrink; d > 1 {
		for _, v := range []*time.Duration{&p.window, &p.warm, &p.probe, &p.baseMax, &p.hold, &p.holdWindow} {
			*v /= d
		}
	}
	return p
}

func (o Options) modePlan() plan {
	switch o.Mode {
	case Quick:
		return plan{
			window: 2 * time.Second, warm: 300 * time.Millisecond, probe: 800 * time.Millisecond, baseMax: 4 * time.Second,
			repeats: 3, maxRepeats: 5, baseRepeats: 5, refine: 3, hold: 10 * time.Second, holdWindow: 2 * time.Second,
			fixedWork: 10, maxDuration: 110 * time.Second, typical: 100 * time.Second, downRepeats: 1, resamples: 500, plateauWindows: 3,
		}
	case Thorough:
		return plan{
			window: 10 * time.Second, warm: 2 * time.Second, probe: 3 * time.Second, baseMax: 30 * time.Second,
			repeats: 5, maxRepeats: 7, baseRepeats: 7, refine: 8, hold: 300 * time.Second, holdWindow: 5 * time.Second,
			closedLevels: 12, burst: true,
			fixedWork: 40, maxDuration: 40 * time.Minute, typical: 30 * time.Minute, downRepeats: 2, resamples: 2000, plateauWindows: 6,
		}
	}
	return plan{
		window: 4 * time.Second, warm: time.Second, probe: 1500 * time.Millisecond, baseMax: 10 * time.Second,
		repeats: 3, maxRepeats: 7, baseRepeats: 5, refine: 6, hold: 60 * time.Second, holdWindow: 5 * time.Second,
		closedLevels: 9, burst: true,
		fixedWork: 20, maxDuration: 12 * time.Minute, typical: 8 * time.Minute, downRepeats: 1, resamples: 1000, plateauWindows: 4,
	}
}

// WithDefaults fills what is zero and means something.
func (o Options) WithDefaults() Options {
	if o.Mode == "" {
		o.Mode = Standard
	}
	if o.Kappa == 0 {
		o.Kappa = 2.5
	}
	if o.MaxDuration == 0 {
		o.MaxDuration = o.plan().maxDuration
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = 1e9
	}
	if o.MaxSteal == 0 {
		o.MaxSteal = 0.10
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.FixedWork == nil {
		o.FixedWork = TimeFixedWork
	}
	return o
}

// Validate reports what cannot be meant.
func (o Options) Validate() error {
	switch o.Mode {
	case "", Quick, Standard, Thorough:
	default:
		return fmt.Errorf("mode %q: want quick, standard or thorough", o.Mode)
	}
	switch o.Quantile {
	case 0, 0.5, 0.95, 0.99:
	default:
		return fmt.Errorf("quantile %v: want 0.99, 0.95 or 0.5", o.Quantile)
	}
	switch {
	case o.Kappa != 0 && !(o.Kappa > 1):
		return fmt.Errorf("kappa %v: want a growth above 1, such as 2.5", o.Kappa)
	case o.SLO < 0 || o.MaxDuration < 0:
		return fmt.Errorf("a duration is negative")
	case o.Start < 0 || o.MaxRate < 0 || o.Expect < 0:
		return fmt.Errorf("a rate is negative")
	case o.MaxRate > 0 && o.Start > o.MaxRate:
		return fmt.Errorf("start %v is above max_rate %v", o.Start, o.MaxRate)
	case o.MaxConns > 0 && o.Conns > o.MaxConns:
		return fmt.Errorf("conns %d is above max_conns %d", o.Conns, o.MaxConns)
	}
	return nil
}
