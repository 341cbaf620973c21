package lab

import (
	"math"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// A Result is what a run of a ladder found. It is what NAME.json holds.
type Result struct {
	// Version of this form; 1.
	Version int    `json:"version"`
	Ladder  string `json:"ladder"`
	// Started is when, to the second.
	Started time.Time       `json:"started"`
	Took    float64         `json:"took_seconds"`
	Machine loadgen.Machine `json:"machine"`
	// Rounds is how often each arm was to be measured, Seconds how long.
	Rounds  int     `json:"rounds"`
	Seconds float64 `json:"seconds"`
	Quick   bool    `json:"quick,omitempty"`
	// Partial: the run was ended early.
	Partial bool `json:"partial,omitempty"`
	// ServerCPUs is GOMAXPROCS of the servers.
	ServerCPUs  int          `json:"server_cpus"`
	Experiments []Experience `json:"experiments"`
}

// An Experience is what an experiment found.
type Experience struct {
	Name string `json:"name"`
	// NotRun reports why there are no numbers; "" means there are.
	NotRun string      `json:"not_run,omitempty"`
	Arms   []ArmValues `json:"arms,omitempty"`
	// Steal and Pressure are what others did to the machine meanwhile: the share of
	// processor time the hypervisor took, and of time in which a process waited for one.
	Steal    float64 `json:"steal"`
	Pressure float64 `json:"pressure"`
}

// ArmValues are an arm's values, a map per round; nil where a round failed.
type ArmValues struct {
	Name   string   `json:"name"`
	Rounds []Values `json:"rounds"`
	// Errors are why rounds failed.
	Errors []string `json:"errors,omitempty"`
	// NotRun reports why there are no rounds; "" means there are.
	NotRun string `json:"not_run,omitempty"`
}

// A Reading is a result read by its ladder's definition.
type Reading struct {
	Ladder *Ladder
	Result *Result
}

func (r *Reading) experience(name string) *Experience {
	for i := range r.Result.Experiments {
		if r.Result.Experiments[i].Name == name {
			return &r.Result.Experiments[i]
		}
	}
	return nil
}

func (x *Experience) rounds(arm string) []Values {
	if x == nil {
		return nil
	}
	for _, a := range x.Arms {
		if a.Name == arm {
			return a.Rounds
		}
	}
	return nil
}

// Value is the median of an arm's metric with the least and the greatest; N is 0
// without any.
func (r *Reading) Value(experiment, arm, metric string) stat.Interval {
	var xs []float64
	for _, v := range r.experience(experiment).rounds(arm) {
		if x, ok := v[metric]; ok {
			xs = append(xs, x)
		}
	}
	if len(xs) == 0 {
		return stat.Interval{Point: math.NaN(), Lo: math.NaN(), Hi: math.NaN()}
	}
	return stat.Interval{Point: stat.Median(xs), Lo: stat.Quantile(xs, 0), Hi: stat.Quantile(xs, 1), N: len(xs)}
}

// Ratio is how many times better arm is than base, with the 95 % interval over
// the rounds in which both were measured; N is their number.
func (r *Reading) Ratio(experiment string, s Step) stat.Interval {
	x, e := r.experience(experiment), r.Ladder.experiment(experiment)
	if x == nil || e == nil {
		return stat.Interval{}
	}
	arms, bases := x.rounds(s.Arm), x.rounds(s.Base)
	var ratios []float64
	for i := range min(len(arms), len(bases)) {
		a, ok := arms[i][s.Metric]
		b, ok2 := bases[i][s.Metric]
		if !ok || !ok2 || a <= 0 || b <= 0 {
			continue
		}
		if e.metric(s.Metric).More {
			ratios = append(ratios, a/b)
		} else {
			ratios = append(ratios, b/a)
		}
	}
	if len(ratios) == 0 {
		return stat.Interval{}
	}
	v := stat.LogStudentInterval(ratios, 0.95)
	v.N = len(ratios)
	return v
}

// step finds the Step of a reference.
func (r *Reading) step(ref Ref) (Step, bool) {
	if e := r.Ladder.experiment(ref.Experiment); e != nil {
		for _, s := range e.Steps {
			if s.Arm == ref.Arm && s.Base == ref.Base && s.Metric == ref.Metric {
				return s, true
			}
		}
	}
	return Step{}, false
}
