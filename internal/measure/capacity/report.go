package capacity

import (
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// A Verdict is the outcome of a search.
type Verdict string

// The verdicts.
const (
	// Pass: the numbers are known, and what was expected is met.
	Pass Verdict = "pass"
	// Fail: the numbers are known, and what was expected is not met.
	Fail Verdict = "fail"
	// Inconclusive: the noise was too great for a result.
	Inconclusive Verdict = "inconclusive"
	// Invalid: what was measured was not the target.
	Invalid Verdict = "invalid"
)

// ExitCode is the process's: 0 pass, 1 fail, 2 inconclusive, 3 invalid.
func (v Verdict) ExitCode() int {
	switch v {
	case Pass:
		return 0
	case Fail:
		return 1
	case Inconclusive:
		return 2
	}
	return 3
}

// A Decision is what repeats say of a level.
type Decision string

// The decisions.
const (
	Passes    Decision = "pass"
	Fails     Decision = "fail"
	Undecided Decision = "undecided"
)

// A Report is everything a search found, enough to draw it from. Its JSON form is
// of version 1. Times are in seconds, rates per second; a number that is not known
// is null (in an Interval) or 0 where said so.
type Report struct {
	Version  int           `json:"version"`
	Started  time.Time     `json:"started"`
	Elapsed  time.Duration `json:"elapsed_ns"`
	Options  Options       `json:"options"`
	Requests uint64        `json:"requests"`
	// Machine is the generator's.
	Machine loadgen.Machine `json:"machine"`

	Verdict Verdict `json:"verdict"`
	// Reasons for the verdict, the weightiest first; Notes are findings beside it.
	Reasons []string `json:"reasons,omitempty"`
	Notes   []string `json:"notes,omitempty"`
	// Partial: the search was ended early, the reasons say by what.
	Partial bool `json:"partial,omitempty"`
	// Ambiguous: the estimates of the knee do not agree; no single number is the headline.
	Ambiguous bool `json:"ambiguous,omitempty"`
	// Saturated is false when nothing that was tried was too much.
	Saturated bool `json:"saturated"`

	// Quantile that was evaluated, and what it had to stay below for the knee.
	Quantile  float64 `json:"quantile"`
	Threshold float64 `json:"threshold"`

	Max  Limit `json:"lambda_max"`
	SLO  Limit `json:"lambda_slo"`
	Knee Limit `json:"lambda_knee"`
	// Recommended operating point: min(0.7·λ_max, the lower end of λ_slo), and
	// never above the knee's lower end; 0 means none can be named.
	Recommended float64 `json:"recommended"`
	// Sizing is how many machines a Demand takes; nil unless Size was called.
	Sizing *Sizing `json:"sizing,omitempty"`
	// RhoKnee is λ_knee/C; 0 means unknown.
	RhoKnee float64 `json:"rho_knee,omitempty"`
	// Cliff is the offered rate from which completed throughput falls; 0 means none seen.
	Cliff float64 `json:"lambda_cliff,omitempty"`

	Qualify Qualify  `json:"qualify"`
	Base    Baseline `json:"baseline"`
	Windows []Window `json:"windows"`
	Levels  []Level  `json:"levels"`
	Rule    Rule     `json:"rule"`
	Model   Model    `json:"model"`
	Confirm *Confirm `json:"confirm,omitempty"`
}

// A Limit is one of the three numbers.
type Limit struct {
	// Known reports that there is a number: Rate, with its interval.
	Known bool          `json:"known"`
	Rate  stat.Interval `json:"rate"`
	// Bracket is the highest level that passed and the lowest that failed; 0 means
	// none did.
	Bracket [2]float64 `json:"bracket"`
	// Between are bounds where a noisy machine allows no number (Options.Bounded): most
	// windows passed up to the first, none from the second on. 0 means open; both 0,
	// that there are none. Their confidence is low.
	Between [2]float64 `json:"between,omitzero"`
	// Confidence is "high", "medium" or "low"; empty when not known.
	Confidence string `json:"confidence,omitempty"`
	// By is what was the limit ("latency", "errors: …", "backlog"), or why nothing is known.
	By string `json:"by,omitempty"`
}

// Qualify is what the machine and the generator were like before.
type Qualify struct {
	// FixedWork are the seconds of equal pieces of work before the search, FixedAfter
	// after it, HostCV the greater of their coefficients of variation.
	FixedWork  []float64 `json:"fixed_work"`
	FixedAfter []float64 `json:"fixed_after,omitempty"`
	HostCV     float64   `json:"host_cv"`
	// Ceiling is what the generator makes against a server that does nothing; 0
	// means unknown. MaxRate is the greatest that was to be tried.
	Ceiling float64 `json:"ceiling"`
	MaxRate float64 `json:"max_rate"`
}

// Baseline is the target at low load.
type Baseline struct {
	Rate float64 `json:"rate"`
	// Latency is the evaluated quantile over the baseline's windows, Scatter the standard
	// deviation of its logarithm, Drift the ratio of the last third to the first.
	Latency  stat.Interval `json:"latency"`
	Mean     float64       `json:"mean"`
	Scatter  float64       `json:"scatter"`
	Drift    float64       `json:"drift"`
	InFlight float64       `json:"in_flight"`
	// Goroutines of an idle target: G0 + G1·connections. 0 means not exposed.
	G0   float64         `json:"g0,omitempty"`
	G1   float64         `json:"g1,omitempty"`
	Host stat.Covariates `json:"host"`
}

// A Window is one Observation and what was made of it.
type Window struct {
	// Phase is the search's, Pass "baseline", "probe", "up", "down", "refine",
	// "plateau", "hold", "break", "burst", "closed" or "settle".
	Phase string      `json:"phase"`
	Pass  string      `json:"pass"`
	Obs   Observation `json:"observation"`
	// Used is false when the window was discarded; Discard names the covariates.
	Used    bool     `json:"used"`
	Discard []string `json:"discard,omitempty"`
	// Void reports why its accounting cannot be trusted, or that the generator was the limit.
	Void string `json:"void,omitempty"`
	// Limited: the generator was the limit.
	Limited bool `json:"limited,omitempty"`
	// Trend of the backlog, Little's law and the warm-up cut of the batches.
	Trend  stat.Trend  `json:"trend"`
	Little stat.Audit  `json:"little"`
	Warmup stat.Warmup `json:"warmup"`
	// Fault is what makes the window fail whatever its latency; empty: nothing.
	Fault string `json:"fault,omitempty"`
}

// A Level is what the windows of one rate say together. Latencies are medians
// over the windows.
type Level struct {
	Rate      float64 `json:"rate"`
	Windows   int     `json:"windows"`
	Discarded int     `json:"discarded"`
	Offered   float64 `json:"offered"`
	Sent      float64 `json:"sent"`
	Completed float64 `json:"completed"`
	Dropped   uint64  `json:"dropped"`
	Errors    uint64  `json:"errors"`
	// Response and Service are medians over windows of each quantile.
	Response Summary `json:"response"`
	Service  Summary `json:"service"`
	// Latency is the evaluated quantile with its interval over repeats.
	Latency  stat.Interval `json:"latency"`
	InFlight float64       `json:"in_flight"`
	// Runtime is the median over windows; Excess goroutines are those beyond the baseline's line.
	Runtime *Runtime `json:"runtime,omitempty"`
	Excess  float64  `json:"excess,omitempty"`
	// GeneratorCPU and TargetCPU in cores.
	GeneratorCPU float64 `json:"generator_cpu"`
	TargetCPU    float64 `json:"target_cpu"`
	// Knee and SLO are the decisions against the knee's threshold and the objective.
	Knee  Decision `json:"knee"`
	SLO   Decision `json:"slo,omitempty"`
	Fault string   `json:"fault,omitempty"`
	// Reading of the two-condition rule, going up; nil for levels off the stairs.
	Reading *stat.Reading `json:"reading,omitempty"`
}

// Summary is a response or service time's quantiles in seconds, with the samples
// of one window that they rest on.
type Summary struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	N    int     `json:"n"`
}

// Rule is the two-condition rule over the ascending levels.
type Rule struct {
	// Exposed reports that the target showed its goroutines. Otherwise the work in
	// flight is used instead, and there is no literal line.
	Exposed bool `json:"exposed"`
	// Bracket is the last steady level and the first at inflection; 0 means none.
	Bracket [2]float64 `json:"bracket"`
	// Literal is the first level at which P99 ≥ 2.5× and goroutines ≥ 3× the level
	// before; 0 means none. It depends on the step, which is Step.
	Literal float64 `json:"literal"`
	Step    float64 `json:"step"`
}

// Model is what the curves say.
type Model struct {
	// Plateau is C, over overloaded windows.
	Plateau  stat.Interval `json:"plateau"`
	Crossing stat.Crossing `json:"crossing"`
	// Up and Down are the crossings of the ascending and the descending pass.
	Up      stat.Crossing `json:"up"`
	Down    stat.Crossing `json:"down"`
	Scaling stat.Scaling  `json:"scaling"`
	// ScaleAxis is "closed loop" or "in flight": where the concurrency came from.
	ScaleAxis   string       `json:"scale_axis,omitempty"`
	ScalePoints []ScalePoint `json:"scale_points,omitempty"`
	// Hinge of log latency against log rate and Kneedle's rate: for the plot only.
	Hinge   stat.HingeFit `json:"hinge"`
	Kneedle float64       `json:"kneedle,omitempty"`
	// CPUCost is the target's processor seconds per 1,000 completed, CPUCapacity
	// what its processors could complete at that; 0 means unknown.
	CPUCost     float64 `json:"cpu_cost,omitempty"`
	CPUCapacity float64 `json:"cpu_capacity,omitempty"`
	// Agreement are the tests that the knee has to pass.
	Agreement []Agreement `json:"agreement,omitempty"`
}

// A ScalePoint is a measured concurrency and throughput.
type ScalePoint struct {
	N float64 `json:"n"`
	X float64 `json:"x"`
}

// An Agreement is one comparison between two estimates.
type Agreement struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Finding reports that a disagreement shows something about the target rather
	// than against the knee.
	Finding bool   `json:"finding,omitempty"`
	Text    string `json:"text"`
}

// Confirm is what happened just below and just above the knee.
type Confirm struct {
	HoldRate       float64       `json:"hold_rate"`
	Held           time.Duration `json:"held_ns"`
	HoldWindows    int           `json:"hold_windows"`
	HoldViolations int           `json:"hold_violations"`
	BreakRate      float64       `json:"break_rate"`
	BreakWindows   int           `json:"break_windows"`
	Breaks         int           `json:"breaks"`
	// Burst of three times the knee, and the seconds until latency was back within
	// 1.5 times the baseline; negative means not within the time given, 0 not tried.
	BurstRate float64 `json:"burst_rate,omitempty"`
	Recovery  float64 `json:"recovery,omitempty"`
}
