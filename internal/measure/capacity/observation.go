package capacity

import (
	"context"
	"errors"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// A Target is what load is put on. Measure puts load on it for d and reports; it
// blocks. Connections stay open between calls. A done ctx ends it early with
// ctx's error. An error means that nothing could be measured (the target's own
// errors belong into the Observation). Find calls it from one goroutine.
type Target interface {
	Measure(ctx context.Context, load Load, d time.Duration) (Observation, error)
}

// ErrUnsupported is what a Target answers to a form of load it cannot make.
var ErrUnsupported = errors.New("this target cannot make such a load")

// Load is what Measure puts on the target.
type Load struct {
	// Rate is arrivals per second of an open model.
	Rate float64 `json:"rate"`
	// Concurrency, when positive, makes a closed loop of that many instead.
	Concurrency int `json:"concurrency,omitempty"`
	// Conns is the number of connections; 0 means unchanged.
	Conns int `json:"conns,omitempty"`
}

// An Observation is what was seen while a Load was put on. Times are in seconds.
type Observation struct {
	Start  time.Time     `json:"start"`
	Length time.Duration `json:"length_ns"`
	Load   Load          `json:"load"`
	// Conns is the mean number of open connections; 0 means unknown.
	Conns float64 `json:"conns,omitempty"`

	// Arrivals: intended, really sent, answered well, and never sent because too
	// many were under way.
	Offered   uint64 `json:"offered"`
	Sent      uint64 `json:"sent"`
	Completed uint64 `json:"completed"`
	Dropped   uint64 `json:"dropped,omitempty"`
	// Errors by reason.
	Errors map[string]uint64 `json:"errors,omitempty"`

	// Response counts from the intended instant, Service from the real send.
	Response Quantiles `json:"response"`
	Service  Quantiles `json:"service"`
	// InFlight is the mean number under way, and Sojourn the mean time that what it
	// counts was (Little's law is compared with the two); 0 means Response.Mean.
	InFlight float64 `json:"in_flight"`
	Sojourn  float64 `json:"sojourn,omitempty"`

	// Batches are the window's pieces of BatchLength, in order; 0 means one second.
	Batches     []Batch       `json:"batches,omitempty"`
	BatchLength time.Duration `json:"batch_length_ns,omitempty"`

	Generator Generator `json:"generator"`
	// Runtime is the target's, when it exposes it.
	Runtime *Runtime `json:"runtime,omitempty"`
	Host    Host     `json:"host"`
}

// Quantiles of a time, each with its bounds from order statistics (the least the
// uncertainty can be) and its number of samples.
type Quantiles struct {
	Mean float64       `json:"mean"`
	P50  stat.Interval `json:"p50"`
	P95  stat.Interval `json:"p95"`
	P99  stat.Interval `json:"p99"`
	P999 stat.Interval `json:"p999"`
}

// At is the quantile p, one of 0.5, 0.95, 0.99 and 0.999; unknown for another.
func (q Quantiles) At(p float64) stat.Interval {
	switch p {
	case 0.5:
		return q.P50
	case 0.95:
		return q.P95
	case 0.99:
		return q.P99
	case 0.999:
		return q.P999
	}
	return stat.Unknown()
}

// A Batch is a piece of a window.
type Batch struct {
	MeanResponse float64 `json:"mean_response"`
	Completed    uint64  `json:"completed"`
	InFlight     float64 `json:"in_flight"`
}

// Generator is how the one who made the load fared.
type Generator struct {
	// LagP99 is by how much it was itself late; waiting for the target (a free
	// connection) is not lag.
	LagP99 float64 `json:"lag_p99"`
	// CPU is the cores it used, Share of all processors (0 to 1).
	CPU   float64 `json:"cpu"`
	Share float64 `json:"share"`
	// Limited reports that it was the limit, and Why in words.
	Limited bool   `json:"limited,omitempty"`
	Why     string `json:"why,omitempty"`
}

// Runtime is the inside of the target. Zero means not exposed, except where
// said otherwise.
type Runtime struct {
	Goroutines float64 `json:"goroutines,omitempty"`
	Runnable   float64 `json:"runnable,omitempty"`
	Threads    float64 `json:"threads,omitempty"`
	GOMAXPROCS int     `json:"gomaxprocs,omitempty"`
	// SchedP99 is the scheduler latency's P99 in the window, in seconds.
	SchedP99 float64 `json:"sched_p99,omitempty"`
	// GCFraction is the share of processor time that collecting took, 0 to 1.
	GCFraction float64 `json:"gc_fraction,omitempty"`
	// RSS in bytes.
	RSS uint64 `json:"rss,omitempty"`
	// CPUSeconds is the processor time used in the window.
	CPUSeconds float64 `json:"cpu_seconds,omitempty"`
	// Remote reports that it runs on another machine than the generator.
	Remote bool `json:"remote,omitempty"`
}

// Host are the covariates: what others did to the machine in the window.
type Host struct {
	// Steal is the share of processor time the hypervisor took, Pressure PSI's cpu
	// some, both 0 to 1.
	Steal    float64 `json:"steal"`
	Pressure float64 `json:"pressure"`
	// Wait is the time spent on the run queue per second of processor time.
	Wait float64 `json:"wait"`
	// Busy is the share of all processors in use; 0 means unknown. CPUs is their number.
	Busy float64 `json:"busy"`
	CPUs int     `json:"cpus,omitempty"`
}

// errors is how many there were, of whatever kind.
func (o *Observation) errors() uint64 {
	var n uint64
	for _, k := range o.Errors {
		n += k
	}
	return n
}

func (o *Observation) seconds() float64 { return o.Length.Seconds() }

// completedRate and offeredRate are per second.
func (o *Observation) completedRate() float64 { return perSecond(o.Completed, o.Length) }
func (o *Observation) offeredRate() float64   { return perSecond(o.Offered, o.Length) }

func perSecond(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// batch is the length of a batch in seconds.
func (o *Observation) batch() float64 {
	if o.BatchLength > 0 {
		return o.BatchLength.Seconds()
	}
	return 1
}

// covariates puts the host's and the runtime's side by side for stat.Classify.
func (o *Observation) covariates() stat.Covariates {
	c := stat.Covariates{Steal: o.Host.Steal, Pressure: o.Host.Pressure, Wait: o.Host.Wait, Busy: o.Host.Busy}
	if o.Runtime != nil && !o.Runtime.Remote && o.Runtime.CPUSeconds > 0 && o.Host.CPUs > 0 && o.Length > 0 {
		c.Own = o.Generator.Share + o.Runtime.CPUSeconds/o.seconds()/float64(o.Host.CPUs)
	}
	return c
}
