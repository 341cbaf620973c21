// Package lab rebuilds tuning ladders as experiments that anyone can run.
//
// A Ladder is a write-up's list of optimisations with what each is said to be
// worth. Its Experiments measure the rungs side by side: every Arm runs in a
// process of its own, one after the other, round by round, so that a change of
// the machine's noise meets all of them; what counts is the ratio within a round,
// and its interval over the rounds. The verdict of a sentence is made from that
// interval, the reason is written by hand.
package lab

import (
	"context"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/report"
)

// A Ladder is one write-up's claims, rebuilt.
type Ladder struct {
	// Name is how it is asked for, and its files are called.
	Name, Title string
	// Claim is what the source says of the whole.
	Claim string
	// Built reports what was built, above all where the source rests on a mistake.
	Built       string
	Experiments []Experiment
	// Whole names the comparison that summarizes the ladder, nil for none.
	Whole *Ref
	// Doubts are what there is to doubt in the claims, and how numbers settle it.
	Doubts []Doubt
	// NotRun are the rungs that no experiment here can climb, and why.
	NotRun []NotRun
}

// A NotRun is something left out, with the reason.
type NotRun struct{ What, Why string }

// An Experiment measures arms under one load.
type Experiment struct {
	Name, Title string
	// How reports what is loaded and what is counted.
	How  string
	Arms []Arm
	// Metrics are what is shown of each arm, the most solid first.
	Metrics []Metric
	// Steps are the comparisons that are made.
	Steps []Step
	// Measure measures one arm once.
	Measure Measure
	// Needs reports why the experiment cannot run here; nil, or "", means that it can.
	Needs func() string
	// Cost is about how many times Options.Duration a measurement takes besides; 0
	// means none. It serves the estimate of the time that is left.
	Cost float64
}

// A Measure measures one arm once: values by the metrics' keys, in base units. A
// value that is missing was not to be had.
type Measure func(ctx context.Context, b *Bench, a Arm) (Values, error)

// Values are what one measurement found.
type Values map[string]float64

// An Arm is one of the things that are compared, mostly a rung.
type Arm struct {
	Name, Title string
	// Server is a rung of the package rung, or "weir".
	Server string
	// Job is one of the package job's.
	Job string
	// Set are the server's or the job's own settings; of Weir, keys of its configuration.
	Set map[string]string
	// Env is added to the process's environment, NAME=value.
	Env []string
	// Program names the program that serves the arm, a key of Options.Programs; "" means this one.
	// It is started with the same arguments as a rung.
	Program string
	// Processes is how many servers share the connections, of experiments with more than one process
	// can have; 0 means as few as can.
	Processes int
	// TLS makes Weir serve TLS, and the load speak it.
	TLS bool
}

// A Metric is one of the numbers of an arm.
type Metric struct {
	Key, Name string
	Unit      report.Unit
	// More is better; otherwise less is.
	More bool
	// Plain values are shown, but no better or worse.
	Plain bool
}

// A Step compares an arm to the one before it.
type Step struct {
	Arm, Base string
	// Metric is the key of what is compared.
	Metric string
	// Claim is how many times better the source says it got; 0 means it does not.
	Claim float64
	// Claimed is the claim in the source's numbers.
	Claimed string
	// Why is the reason for what is seen.
	Why string
}

// A Ref names a Step.
type Ref struct{ Experiment, Arm, Base, Metric string }

// A Doubt is one thing not to trust untested.
type Doubt struct {
	// About is the rung, Text the doubt.
	About, Text string
	// Settle says from the numbers what has come of it; "" means that they do not
	// decide (not run, or not enough).
	Settle func(r *Reading) string
}

func (l *Ladder) experiment(name string) *Experiment {
	for i := range l.Experiments {
		if l.Experiments[i].Name == name {
			return &l.Experiments[i]
		}
	}
	return nil
}

func (e *Experiment) metric(key string) Metric {
	for _, m := range e.Metrics {
		if m.Key == key {
			return m
		}
	}
	return Metric{Key: key, Name: key}
}

func (e *Experiment) arm(name string) Arm {
	for _, a := range e.Arms {
		if a.Name == name {
			return a
		}
	}
	return Arm{Name: name, Title: name}
}

// Ladders returns all ladders in their order.
func Ladders() []Ladder {
	return slices.Concat(
		[]Ladder{ladderA(), ladderB(), ladderC(), ladderD()},
		laddersE(),
		asides(),
	)
}

// Find returns the ladder of that name.
func Find(name string) (Ladder, bool) {
	for _, l := range Ladders() {
		if strings.EqualFold(l.Name, name) {
			return l, true
		}
	}
	return Ladder{}, false
}
