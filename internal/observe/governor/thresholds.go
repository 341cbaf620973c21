package governor

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// Thresholds are the numbers that states, alerts and the dashboard's colours are
// derived from, all of them here. Zero means the default. Seconds, shares from 0
// to 1, counts.
type Thresholds struct {
	// LatencyRatio is how many times its baseline the 99th percentile from publish to
	// socket has grown to count. 0 means 2.5.
	LatencyRatio float64 `json:"latency_ratio"`
	// GoroutineRatio is the same for goroutines that connections do not explain. 0 means 3.
	GoroutineRatio float64 `json:"goroutine_ratio"`
	// MinSamples is how many samples a percentile of a window must rest on to be
	// evaluated. 0 means 1000, ten beyond the 99th percentile.
	MinSamples int `json:"min_samples"`
	// LatencyFloor is the latency in seconds below which no growth counts. 0 means 0.001.
	LatencyFloor float64 `json:"latency_floor"`
	// Baseline is how many steady windows it is the median of. 0 means 12.
	Baseline int `json:"baseline"`
	// Unlatch is how many steady windows in a row end an inflection. 0 means 6.
	Unlatch int `json:"unlatch"`

	// RunQueue is runnable goroutines per processor at alert. 0 means 2.
	RunQueue float64 `json:"run_queue"`
	// RunQueueFull is the same at which, with the latency grown, it is an inflection.
	// 0 means 8.
	RunQueueFull float64 `json:"run_queue_full"`
	// SchedLatency is the 99th percentile of the scheduler's latency at alert, in
	// seconds. 0 means 0.001.
	SchedLatency float64 `json:"sched_latency"`

	// LoopBusy is the share of time a loop works at alert. 0 means 0.9.
	LoopBusy float64 `json:"loop_busy"`
	// LoopFull is the same at which, with the latency grown, it is an inflection. 0
	// means 0.97.
	LoopFull float64 `json:"loop_full"`
	// LoopTick is the 99th percentile of a loop's tick at alert, in seconds. 0 means 0.02.
	LoopTick float64 `json:"loop_tick"`
	// LoopInbox is how many functions wait for a loop throughout a window at alert. 0
	// means 10000.
	LoopInbox int `json:"loop_inbox"`
	// LoopStuck is how long a tick may work before its loop is called stuck, in
	// seconds. 0 means 1.
	LoopStuck float64 `json:"loop_stuck"`

	// Leak is how many goroutines of no known role must have come, and stayed, to be
	// called a leak. 0 means 1000.
	Leak int `json:"leak"`
	// Stopped is the share of connections whose reader has stopped at alert. 0 means 0.05.
	Stopped float64 `json:"stopped"`
	// Retransmits is the share of segments sent again at alert. 0 means 0.05.
	Retransmits float64 `json:"retransmits"`
	// Disk is how long the broker may take to store a message at the 99th percentile,
	// or one message waits for it, in seconds. 0 means 1.
	Disk float64 `json:"disk"`

	// Steal is the share of processor time that the hypervisor took, and Throttled the
	// one that the cgroup's quota kept us off, from which windows are the host's. 0
	// means 0.1, each.
	Steal     float64 `json:"steal"`
	Throttled float64 `json:"throttled"`
	// HostWait is how long our threads wait for a processor per second and processor,
	// while we use less than OwnShare of them, from which windows are the host's. 0
	// means 0.25.
	HostWait float64 `json:"host_wait"`
	// OwnShare is the share of the processors from which waiting is our own doing. 0
	// means 0.8.
	OwnShare float64 `json:"own_share"`

	// Collector is the share of processor time that garbage collection may take, and
	// Assist the part that allocating goroutines may pay. 0 means 0.25 and 0.05.
	Collector float64 `json:"gc"`
	Assist    float64 `json:"gc_assist"`
	// LockWait is how long goroutines wait for mutexes, in seconds per second. 0 means 0.1.
	LockWait float64 `json:"lock_wait"`
	// Netpoll is what a socket's reader waits longer than a goroutine, in seconds: at the
	// 90th percentile of ten seconds for a state, at the 99th for an alert that lasts. 0
	// means 0.01.
	Netpoll float64 `json:"netpoll"`

	// Soft and Hard are the shares of memory and of descriptors from which new
	// connections of low priority, and all new ones, are refused. 0 means 0.85 and 0.95.
	Soft float64 `json:"soft"`
	Hard float64 `json:"hard"`
	// Knee is the share of the capacity report's knee at alert. 0 means 0.9.
	Knee float64 `json:"knee"`
}

// DefaultThresholds are what zero means.
func DefaultThresholds() Thresholds {
	return Thresholds{
		LatencyRatio: 2.5, GoroutineRatio: 3, MinSamples: 1000, LatencyFloor: 0.001, Baseline: 12, Unlatch: 6,
		RunQueue: 2, RunQueueFull: 8, SchedLatency: 0.001,
		LoopBusy: 0.9, LoopFull: 0.97, LoopTick: 0.02, LoopInbox: 10000, LoopStuck: 1,
		Leak: 1000, Stopped: 0.05, Retransmits: 0.05, Disk: 1,
		Steal: 0.1, Throttled: 0.1, HostWait: 0.25, OwnShare: 0.8,
		Collector: 0.25, Assist: 0.05, LockWait: 0.1, Netpoll: 0.01,
		Soft: 0.85, Hard: 0.95, Knee: 0.9,
	}
}

// WithDefaults is t with every zero replaced by its default.
func (t Thresholds) WithDefaults() Thresholds {
	v, d := reflect.ValueOf(&t).Elem(), reflect.ValueOf(DefaultThresholds())
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			v.Field(i).Set(d.Field(i))
		}
	}
	return t
}

// Validate reports what of t cannot be.
func (t Thresholds) Validate() error {
	t = t.WithDefaults()
	var errs []error
	v := reflect.ValueOf(t)
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		f := v.Field(i)
		if f.CanInt() {
			errs = append(errs, positive(name, float64(f.Int())))
			continue
		}
		errs = append(errs, positive(name, f.Float()))
	}
	order := func(low, high string, a, b float64) {
		if a > b {
			errs = append(errs, fmt.Errorf("%s: %v is above %s, %v", low, a, high, b))
		}
	}
	order("soft", "hard", t.Soft, t.Hard)
	order("run_queue", "run_queue_full", t.RunQueue, t.RunQueueFull)
	order("loop_busy", "loop_full", t.LoopBusy, t.LoopFull)
	for name, share := range map[string]float64{"hard": t.Hard, "loop_full": t.LoopFull, "own_share": t.OwnShare} {
		order(name, "1", share, 1)
	}
	return errors.Join(errs...)
}
