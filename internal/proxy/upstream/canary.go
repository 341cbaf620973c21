package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/internal/push/hub"
)

func (c CanaryConfig) withDefaults() CanaryConfig {
	if len(c.Steps) == 0 {
		return c
	}
	c.Samples = cmp.Or(c.Samples, 1000)
	c.StepTime = cmp.Or(c.StepTime, hub.Duration(time.Minute))
	c.Alpha = cmp.Or(c.Alpha, 0.05)
	c.LatencyTolerance = cmp.Or(c.LatencyTolerance, 0.05)
	c.ErrorTolerance = cmp.Or(c.ErrorTolerance, 0.002)
	return c
}

func (c CanaryConfig) validate(p *problems, arms int) {
	if len(c.Steps) == 0 {
		return
	}
	p.check(arms == 2, "canary: there are %d arms; write two, the baseline and the canary", arms)
	last := 0.0
	for _, s := range c.Steps {
		p.check(s > last && s <= 100, "canary.steps: %v after %v; write rising percentages up to 100", s, last)
		last = s
	}
	c = c.withDefaults()
	p.check(c.Samples >= 50, "canary.samples: %d; write 50 or more: fewer show nothing", c.Samples)
	p.durations("canary.step_time", c.StepTime)
	p.check(c.Alpha > 0 && c.Alpha < 0.5, "canary.alpha: %v; write a probability like 0.05", c.Alpha)
	p.check(c.LatencyTolerance >= 0 && c.LatencyTolerance <= 10, "canary.latency_tolerance: %v; write a share like 0.05", c.LatencyTolerance)
	p.share("canary.error_tolerance", c.ErrorTolerance)
}

// The values of CanaryState.State.
const (
	CanaryRunning    = "running"
	CanaryPromoted   = "promoted"
	CanaryRolledBack = "rolled back"
)

// A canary raises its share step by step, or takes it away.
//
// At each step two one-sided tests ask whether the canary is worse than the
// baseline beside it: Fisher's exact test on failures, Welch's t test on the
// logarithm of the time to the first byte, against the baseline plus the tolerance.
//
// Repeated looks at growing data find something sooner or later, so the
// probability of a false alarm, alpha, is spent (Bonferroni: the parts add up to
// alpha however the looks depend on each other):
//
//	alpha        over the two tests and all steps below 100 %, evenly
//	of a step    one half for its last look, when samples and step time are full
//	             the other half for looks before: at samples/16 per arm, and each
//	             time that has doubled, the k-th gets 6/(πk)² of it
//
// So a broken canary goes after some dozens of requests, and a subtle one at the
// end of the step that shows it. With the defaults, steps of 5, 10, 25, 50 and
// 100 %, and log-normal latencies (σ = 0.6), simulation rolled back 7 of 600
// canaries that were equal, 8 of 200 at the very edge of the tolerated latency, and
// all of 200 with 3 % more errors (after 330 of their requests on average), of 100
// with 1 % more (1,350), of 200 that were 20 % slower (410) and of 100 that were
// 10 % slower (2,900).
type canary struct {
	// Fixed.
	name string
	cfg  CanaryConfig

	// Any goroutine.
	sample atomic.Pointer[sample]

	mu     sync.Mutex
	st     CanaryState
	began  int64 // of the step
	looks  int   // before the step's last
	nextAt int   // sample per arm of the next look
}

// CanaryState is what is shown of a canary.
type CanaryState struct {
	State  string  `json:"state"`
	Step   int     `json:"step"`  // from 0
	Share  float64 `json:"share"` // of the canary, 0 to 1
	Reason string  `json:"reason"`
	Looks  int     `json:"looks"` // of all steps
	// The newest look.
	Baseline ArmSample `json:"baseline"`
	Canary   ArmSample `json:"canary"`
	PErrors  float64   `json:"p_errors"`
	PLatency float64   `json:"p_latency"`
	Level    float64   `json:"level"` // what the p-values were compared with
}

// ArmSample sums up one arm's requests of a step.
type ArmSample struct {
	Requests int `json:"requests"`
	Failures int `json:"failures"`
	// Latency is the geometric mean of the time to the first byte.
	Latency time.Duration `json:"latency"`
}

// A sample is what a step has seen, of both arms.
type sample struct {
	began int64
	arms  [2]armSample
}

// armSample sums logarithms of milliseconds in fixed point, so that an addition is
// one atomic instruction.
type armSample struct {
	_        [64]byte
	ok       atomic.Int64
	failures atomic.Int64
	sum      atomic.Int64 // of x
	squares  atomic.Int64 // of x²
}

const fixedPoint = 1 << 20

func newCanary(name string, cfg CanaryConfig, now int64) *canary {
	k := &canary{name: name, cfg: cfg}
	k.enter(0, now)
	return k
}

// enter starts a step. The caller holds mu, or is the only one.
func (k *canary) enter(step int, now int64) {
	looks := k.st.Looks
	k.st = CanaryState{State: CanaryRunning, Step: step, Share: k.cfg.Steps[step] / 100, Looks: looks}
	if k.st.Share >= 1 {
		k.st.State = CanaryPromoted
	}
	k.began, k.looks = now, 0
	k.nextAt = max(k.cfg.Samples/16, 1)
	k.sample.Store(&sample{began: now})
}

func (k *canary) weights() []float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []float64{1 - k.st.Share, k.st.Share}
}

func (k *canary) state() CanaryState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.st
}

// ErrNoCanary means that there is no split of that name, or it has no canary.
var ErrNoCanary = errors.New("no such canary")

// RestartCanary starts the canary of a split anew, as after a fix of what had it
// rolled back. Any goroutine may call it; loops do not.
func (s *Set) RestartCanary(split string) error {
	sp := s.Split(split)
	if sp == nil || sp.canary == nil {
		return fmt.Errorf("restart canary of split %q: %w", split, ErrNoCanary)
	}
	sp.canary.mu.Lock()
	sp.canary.enter(0, s.opts.Now())
	sp.canary.mu.Unlock()
	sp.moveWeights()
	return nil
}

// RollBackCanary takes the share from the canary of a split because an operator says
// so. Any goroutine may call it; loops do not.
func (s *Set) RollBackCanary(split, reason string) error {
	sp := s.Split(split)
	if sp == nil || sp.canary == nil {
		return fmt.Errorf("roll back canary of split %q: %w", split, ErrNoCanary)
	}
	k := sp.canary
	k.mu.Lock()
	k.st.State, k.st.Reason, k.st.Share = CanaryRolledBack, reason, 0
	k.mu.Unlock()
	sp.moveWeights()
	return nil
}

// observe adds one attempt. Any goroutine may call it.
func (k *canary) observe(arm int, o Outcome) {
	s := k.sample.Load()
	if o.Start < s.began || arm < 0 || arm > 1 {
		return // of the step before, when its client may have had the other arm
	}
	a := &s.arms[arm]
	switch {
	case o.Kind == ConnectError || o.Kind == Reset || o.Kind == Timeout || o.Status >= failing:
		a.failures.Add(1)
	case o.Status > 0 && (o.Kind == OK || o.FirstByte > 0):
		at := o.FirstByte
		if at == 0 {
			at = o.End
		}
		x := math.Log(float64(max(at-o.Start, 1)) / 1e6)
		a.sum.Add(int64(math.Round(x * fixedPoint)))
		a.squares.Add(int64(math.Round(x * x * fixedPoint)))
		a.ok.Add(1)
	}
}

// read returns the failures, and the moments of the others' logarithms. Additions
// under way may be half in it: one of some hundred.
func (a *armSample) read() (failures int, m stat.Moments) {
	n := a.ok.Load()
	failures = int(a.failures.Load())
	if n == 0 {
		return failures, m
	}
	sum, squares := float64(a.sum.Load())/fixedPoint, float64(a.squares.Load())/fixedPoint
	m.N = int(n)
	m.Mean = sum / float64(n)
	m.M2 = max(squares-sum*m.Mean, 0)
	return failures, m
}

// evaluate looks at the sample if a look is due, and reports whether the share
// changed.
func (k *canary) evaluate(now int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.st.State != CanaryRunning {
		return false
	}
	s := k.sample.Load()
	baseFailed, base := s.arms[0].read()
	failed, own := s.arms[1].read()
	n := min(baseFailed+base.N, failed+own.N)
	steps := 0
	for _, share := range k.cfg.Steps {
		if share < 100 {
			steps++
		}
	}
	level := k.cfg.Alpha / 2 / float64(max(steps, 1)) / 2
	last := n >= k.cfg.Samples && now-k.began >= int64(k.cfg.StepTime)
	switch {
	case last:
	case n >= k.nextAt:
		k.looks++
		k.nextAt = max(2*k.nextAt, n+1)
		level *= 6 / (math.Pi * math.Pi * float64(k.looks*k.looks))
	default:
		return false
	}
	k.st.Looks++
	k.st.Level = level
	k.st.Baseline = summary(baseFailed, base)
	k.st.Canary = summary(failed, own)
	if reason := k.worse(baseFailed, base, failed, own, level); reason != "" {
		k.st.State, k.st.Reason, k.st.Share = CanaryRolledBack, reason, 0
		return true
	}
	if !last {
		return false
	}
	if k.st.Step+1 == len(k.cfg.Steps) {
		// The steps end below 100 %: there it stays.
		k.st.State = CanaryPromoted
		k.st.Reason = "the last step passed"
		return true
	}
	reason := fmt.Sprintf("%d and %d requests show no harm", k.st.Baseline.Requests, k.st.Canary.Requests)
	k.enter(k.st.Step+1, now)
	k.st.Reason = reason
	return true
}

// worse is why the canary is to go, or empty.
func (k *canary) worse(baseFailed int, base stat.Moments, failed int, own stat.Moments, level float64) string {
	k.st.PErrors = stat.FisherExact(failed, own.N, baseFailed, base.N, stat.Greater)
	rate := float64(failed) / float64(max(failed+own.N, 1))
	baseRate := float64(baseFailed) / float64(max(baseFailed+base.N, 1))
	if k.st.PErrors < level && rate-baseRate > k.cfg.ErrorTolerance {
		return fmt.Sprintf("%.2f %% of its requests fail, of the baseline's %.2f %% (p = %.2g, below %.2g)", 100*rate, 100*baseRate, k.st.PErrors, level)
	}
	tolerated := base
	tolerated.Mean += math.Log1p(k.cfg.LatencyTolerance)
	t, _, p := stat.WelchT(own, tolerated)
	k.st.PLatency = 1
	if t > 0 {
		k.st.PLatency = p / 2
	}
	if k.st.PLatency < level {
		return fmt.Sprintf("it answers in %s, the baseline in %s (p = %.2g, below %.2g)", k.st.Canary.Latency, k.st.Baseline.Latency, k.st.PLatency, level)
	}
	return ""
}

func summary(failed int, m stat.Moments) ArmSample {
	a := ArmSample{Requests: failed + m.N, Failures: failed}
	if m.N > 0 {
		a.Latency = time.Duration(math.Exp(m.Mean) * 1e6).Round(time.Microsecond)
	}
	return a
}
