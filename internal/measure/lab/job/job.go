// Package job holds the measurements of the lab that need no server to be
// loaded: each runs in a process of its own, so that its runtime settings and its
// network namespace are its own too, and prints what it found as numbers.
package job

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// Values are what one measurement found, by name: base units, seconds and bytes.
type Values map[string]float64

// Params are the parameters of a job.
type Params struct {
	// Duration is about how long it may take.
	Duration time.Duration
	// Set holds the job's own settings.
	Set map[string]string
}

// number returns a setting, or what it is without one.
func (p Params) number(name string, without float64) float64 {
	if v, err := strconv.ParseFloat(p.Set[name], 64); err == nil {
		return v
	}
	return without
}

// A Func is a job.
type Func func(ctx context.Context, p Params) (Values, error)

func jobs() map[string]Func {
	return map[string]Func{
		"buffers":   buffers,
		"heartbeat": heartbeat,
		"ready":     ready,
		"handshake": handshake,
		"context":   contexts,
		"counters":  counters,
		"queue":     queue,
		"encode":    encode,
		"knee":      knee,
		"preempt":   preempt,
		"pool":      pool,
		"clients":   clients,
		"collector": collector,
		"kernel":    kernel,
		"burst":     burst,
		"uring":     uring,
		"path":      path,

		// Started by path, not by an arm.
		"path-client": pathClient,
	}
}

// Names returns the names of all jobs, sorted.
func Names() []string { return slices.Sorted(maps.Keys(jobs())) }

// Run does the named job and prints its values to out as JSON.
func Run(ctx context.Context, name string, p Params, out io.Writer) error {
	f, ok := jobs()[name]
	if !ok {
		return fmt.Errorf("job %q: there is none; %v", name, Names())
	}
	v, err := f(ctx, p)
	if err != nil {
		return fmt.Errorf("job %s: %w", name, err)
	}
	return json.NewEncoder(out).Encode(v)
}

// repeat calls f until the time is over, at least once, and returns how often.
// f does a piece of work that takes about a millisecond or more.
func repeat(ctx context.Context, d time.Duration, f func() error) (n int, err error) {
	for end := time.Now().Add(d); n == 0 || time.Now().Before(end); n++ {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		if err := f(); err != nil {
			return n, err
		}
	}
	return n, nil
}

// quantile is the q-quantile of xs; 0 of nothing, which JSON can carry.
func quantile(xs []float64, q float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	return stat.Quantile(xs, q)
}
