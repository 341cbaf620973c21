// Package tune compares a machine's kernel, network card and limits with what a gateway
// of very many connections needs, and changes them where that is asked for.
//
// Each check is a row of a table in knobs_*.go: what it reads, the threshold, the kernel's
// documentation, the kernel that has it, the risk, the way back, and what the change was
// worth in the experiment that measured it. [Checks] lists them all. [Run] only reads.
// [Apply] writes the previous values into a [Journal] before it changes the first one, so
// that [Undo] restores them also after the process was killed half-way.
package tune

import (
	"fmt"
	"slices"
	"strings"
)

// A Profile is what the machine is for.
type Profile string

// The profiles.
const (
	Gateway    Profile = "gateway"     // many mostly idle connections, the default
	LowLatency Profile = "low-latency" // few connections, the tail of the latency first
	Bench      Profile = "bench"       // a load generator or a comparison: many short connections, nothing adaptive
)

// Profiles are all of them, the default first.
func Profiles() []Profile { return []Profile{Gateway, LowLatency, Bench} }

// ParseProfile returns the profile called name; an empty name is the default.
func ParseProfile(name string) (Profile, error) {
	if name == "" {
		return Gateway, nil
	}
	if p := Profile(name); slices.Contains(Profiles(), p) {
		return p, nil
	}
	return "", fmt.Errorf("invalid profile %q: want gateway, low-latency or bench", name)
}

// An Area groups checks in a report.
type Area string

// The areas, in the order of a report.
const (
	Accept    Area = "accept queues"
	Ports     Area = "ports"
	Buffers   Area = "buffers"
	Transport Area = "tcp"
	Packets   Area = "packets"
	Processor Area = "processors"
	Card      Area = "network card"
	Files     Area = "descriptors"
	Memory    Area = "memory"
	Conntrack Area = "connection tracking"
	Cgroup    Area = "cgroup"
	Removed   Area = "obsolete"
)

// A State is the outcome of a check.
type State string

// The states.
const (
	OK          State = "ok"          // nothing to do
	Change      State = "change"      // another value is better; Want has it
	Watch       State = "watch"       // the evidence shows trouble that no setting of this machine removes by itself
	Obsolete    State = "obsolete"    // something still sets what no longer has an effect
	Absent      State = "absent"      // this kernel, or this network namespace, does not have it
	Forbidden   State = "forbidden"   // it is there and must not be read
	Unsupported State = "unsupported" // the device does not support it
)

// A Reading is one value that a finding rests on.
type Reading struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// From is the file or interface that it was read from.
	From string `json:"from"`
}

// A Step is one change: the value of a file, or the ports of the NOTRACK rule.
type Step struct {
	// Target is a path below the root, such as /proc/sys/net/core/somaxconn,
	// [NotrackTarget], or [QdiscTarget] and a device.
	Target string `json:"target"`
	Value  string `json:"value"`
	// Also are files that the kernel changes together with the target; they are kept in
	// the journal and restored after it.
	Also []string `json:"also,omitempty"`
}

// A Finding is what one check found.
type Finding struct {
	Knob     string    `json:"knob"`
	Area     Area      `json:"area"`
	State    State     `json:"state"`
	Now      string    `json:"now,omitempty"`
	Want     string    `json:"want,omitempty"`
	Why      string    `json:"why"`
	Evidence []Reading `json:"evidence"`
	// Threshold is the rule, Source where the kernel documents the knob, Since the
	// kernel that has it.
	Threshold string `json:"threshold"`
	Source    string `json:"source"`
	Since     string `json:"since"`
	Risk      string `json:"risk"`
	Undo      string `json:"undo"`
	// Worth is what the change gave where it was measured, Page the experiment's in
	// docs/lab; empty where none has measured it.
	Worth string `json:"worth"`
	Page  string `json:"page,omitempty"`
	// Steps are what apply does. A finding to change without steps is for the plan
	// only: Config has its lines.
	Steps  []Step `json:"steps,omitempty"`
	Config []File `json:"config,omitempty"`
}

// A File is a piece of a configuration file of the plan; pieces of one path are joined.
type File struct {
	Path string `json:"path"` // absolute
	Head string `json:"head,omitempty"`
	Text string `json:"text"`
}

// A Report is all findings of a machine for a profile.
type Report struct {
	Profile  Profile       `json:"profile"`
	Kernel   string        `json:"kernel"`
	Findings []Finding     `json:"findings"`
	Counts   map[State]int `json:"counts"`
}

// Exit statuses of `weir tune check`.
const (
	StatusOK        = 0
	StatusChange    = 3 // something should be changed or looked at
	StatusForbidden = 4 // nothing else, but something could not be read
)

// Status is the exit status for the report.
func (r *Report) Status() int {
	switch {
	case r.Counts[Change]+r.Counts[Watch]+r.Counts[Obsolete] > 0:
		return StatusChange
	case r.Counts[Forbidden] > 0:
		return StatusForbidden
	}
	return StatusOK
}

// Steps are what apply would do, in the order of the findings.
func (r *Report) Steps() []Step {
	var steps []Step
	for _, f := range r.Findings {
		steps = append(steps, f.Steps...)
	}
	return steps
}

// Run runs the checks of which the name contains one of only, all without. It changes
// nothing. A name that matches no check is an error that names it.
func Run(m *Machine, p Profile, only ...string) (*Report, error) {
	checks := Checks()
	for _, o := range only {
		if !slices.ContainsFunc(checks, func(c Check) bool { return matches(c.Name, o) }) {
			return nil, fmt.Errorf("no check is called %q", o)
		}
	}
	r := &Report{Profile: p, Kernel: m.kernel(), Findings: []Finding{}, Counts: map[State]int{}}
	for _, c := range checks {
		if len(only) > 0 && !slices.ContainsFunc(only, func(o string) bool { return matches(c.Name, o) }) {
			continue
		}
		f := c.run(m, p)
		r.Findings = append(r.Findings, f)
		r.Counts[f.State]++
	}
	return r, nil
}

func matches(name, pattern string) bool {
	if strings.HasSuffix(pattern, "*") {
		return strings.HasPrefix(name, strings.TrimSuffix(pattern, "*"))
	}
	return name == pattern || strings.HasSuffix(name, "."+pattern)
}
