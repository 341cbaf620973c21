package accept

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// version is that of the form of Evidence and Report.
const version = 1

// Evidence is what an indicator measured: all that its verdict rests on.
type Evidence struct {
	Version   int       `json:"version"`
	Indicator string    `json:"indicator"`
	Plan      string    `json:"plan"`
	Started   time.Time `json:"started"`
	Seconds   float64   `json:"seconds"`
	// Attempt counts from 1: an indicator that the machine disturbed is measured again.
	Attempt int `json:"attempt"`

	// Values by name, one of each trial. Counts by name. Series by name, over seconds.
	Values map[string][]float64 `json:"values,omitempty"`
	Counts map[string]Count     `json:"counts,omitempty"`
	Series map[string]Series    `json:"series,omitempty"`
	Notes  []string             `json:"notes,omitempty"`
	Files  []string             `json:"files,omitempty"` // more of it, beside this

	// NotRun is why it was not measured, Reduced why less was measured than the target says.
	NotRun  string `json:"not_run,omitempty"`
	Reduced string `json:"reduced,omitempty"`

	// Quiet is the machine before the run, HostCV how equal work scattered then, Host the
	// machine in each piece of time of the measurement.
	Quiet  stat.Covariates `json:"quiet"`
	HostCV float64         `json:"host_cv"`
	Host   []Watch         `json:"host,omitempty"`
	// Limited are the windows in which the generator was the limit.
	Limited    Count  `json:"limited"`
	LimitedWhy string `json:"limited_why,omitempty"`

	mu sync.Mutex // for the methods that add
}

// A Count is how often something happened, of how many times that it could have.
type Count struct {
	N  uint64 `json:"n"`
	Of uint64 `json:"of"`
	// Examples are the first of them, in words.
	Examples []string `json:"examples,omitempty"`
}

// A Series is values over the seconds of a measurement.
type Series struct {
	X []float64 `json:"x"`
	Y []float64 `json:"y"`
}

// A Watch is the machine in a piece of time.
type Watch struct {
	At float64 `json:"at"` // seconds since the start
	stat.Covariates
}

const maxExamples = 5

func (e *Evidence) value(name string, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return // not measured
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Values == nil {
		e.Values = map[string][]float64{}
	}
	e.Values[name] = append(e.Values[name], v)
}

func (e *Evidence) count(name string, n, of uint64, examples ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Counts == nil {
		e.Counts = map[string]Count{}
	}
	c := e.Counts[name]
	c.N, c.Of = c.N+n, c.Of+of
	for _, x := range examples {
		if len(c.Examples) < maxExamples {
			c.Examples = append(c.Examples, x)
		}
	}
	e.Counts[name] = c
}

func (e *Evidence) point(name string, x, y float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Series == nil {
		e.Series = map[string]Series{}
	}
	s := e.Series[name]
	s.X, s.Y = append(s.X, x), append(s.Y, y)
	e.Series[name] = s
}

func (e *Evidence) note(format string, a ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Notes = append(e.Notes, fmt.Sprintf(format, a...))
}

func (e *Evidence) saw(h Watch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Host = append(e.Host, h)
}

// What the noise may be at most, as for the knee (capacity): shares of the pieces of time,
// and the scatter of equal work.
const (
	maxDisturbed = 0.20
	maxLimited   = 0.20
	maxHostCV    = 0.30
	// busiest is what others may use of the quiet machine before a run: what they use more
	// is noise, however long they have been at it.
	busiest = 0.05
)

// noise says why the machine makes times mean nothing; empty: it does not.
func (e *Evidence) noise() []string {
	var why []string
	base := e.Quiet
	// Never zero, which would mean a machine that was not seen quiet.
	base.Busy, base.Own, base.Steal = min(max(base.Busy, 0.001), busiest), 0, 0
	reasons, disturbed := map[string]int{}, 0
	for _, h := range e.Host {
		list := stat.Classify(h.Covariates, base)
		if len(list) > 0 {
			disturbed++
		}
		for _, r := range list {
			reasons[r]++
		}
	}
	if n := len(e.Host); n > 0 && float64(disturbed) > maxDisturbed*float64(n) {
		for _, r := range slices.Sorted(maps.Keys(reasons)) {
			why = append(why, fmt.Sprintf("%s in %d of %d pieces of time", r, reasons[r], n))
		}
	}
	if e.HostCV > maxHostCV {
		why = append(why, fmt.Sprintf("equal work scattered by %.0f %%", 100*e.HostCV))
	}
	if l := e.Limited; l.Of > 0 && float64(l.N) > maxLimited*float64(l.Of) {
		why = append(why, fmt.Sprintf("the generator was the limit in %d of %d windows: %s", l.N, l.Of, e.LimitedWhy))
	}
	return why
}
