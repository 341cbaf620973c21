package tune

import (
	"fmt"
	"strconv"
	"strings"
)

// A Check is one knob and how it is evaluated.
type Check struct {
	// Name is the kernel's name of the sysctl, or area.what for what is none.
	Name string
	Area Area
	// HostOnly: it belongs to the machine and is not visible in a network namespace of
	// its own.
	HostOnly bool
	// What every finding repeats. Undo is empty for what `weir tune undo` restores.
	Threshold, Source, Since, Risk, Undo string
	// Worth is the experiment that measured the change.
	Worth Worth
	// Base is the value that a machine of the profile has without any evidence; "" leaves
	// it as it is. nil means "" for all. It makes the files in deploy/.
	Base func(Profile) string
	// Gone is the reason for a knob that this kernel does not have; "" for the usual one.
	Gone string
	// shows are the counters of /proc/net that are evidence, whatever they are.
	shows []string
	// evaluate gets the sysctl's value; probe does everything by itself. One of them is set.
	evaluate func(p *probe, now string) verdict
	probe    func(p *probe) verdict
	// path of what judge reads, if it is not the sysctl called Name.
	path string
}

// A verdict is what a check decides.
type verdict struct {
	state     State
	now, want string
	why       string
	steps     []Step
	config    []File
}

func (c *Check) file() string {
	if c.path != "" {
		return c.path
	}
	return sysctlPath(c.Name)
}

func (c *Check) run(m *Machine, profile Profile) Finding {
	p := &probe{Machine: m, profile: profile}
	v := c.decide(p)
	f := Finding{
		Knob: c.Name, Area: c.Area, State: v.state, Now: v.now, Want: v.want, Why: v.why, Evidence: p.evidence,
		Threshold: c.Threshold, Source: c.Source, Since: c.Since, Risk: c.Risk, Undo: c.undo(v),
		Steps: v.steps, Config: v.config,
	}
	if f.Evidence == nil {
		f.Evidence = []Reading{}
	}
	f.Worth, f.Page = c.Worth.text()
	return f
}

func (c *Check) decide(p *probe) verdict {
	if c.probe != nil {
		return c.probe(p)
	}
	now, err := p.read(c.file())
	if err != nil {
		return c.missing(p, err)
	}
	now = strings.Join(strings.Fields(now), " ")
	p.note(c.Name, now, c.file())
	for _, name := range c.shows {
		p.count(name)
	}
	v := c.evaluate(p, now)
	v.now = now
	if v.state == Change && v.steps == nil && v.config == nil {
		v.steps = []Step{{Target: c.file(), Value: v.want}}
	}
	return v
}

// missing is the verdict for a file that cannot be read.
func (c *Check) missing(p *probe, err error) verdict {
	switch state := unreadable(err); {
	case state == Forbidden:
		return verdict{state: state, why: fmt.Sprintf("%s cannot be read: %v; run as root to see it", c.file(), err)}
	case c.HostOnly && p.nested():
		return verdict{state: Absent, why: "not visible in this network namespace: run the check on the host"}
	case c.Gone != "":
		return verdict{state: Absent, why: c.Gone}
	}
	return verdict{state: Absent, why: "this kernel does not have it: " + c.file() + " does not exist"}
}

func (c *Check) undo(v verdict) string {
	switch {
	case c.Undo != "":
		return c.Undo
	case v.state != Change || len(v.steps) == 0:
		return "nothing to undo"
	}
	if name, ok := sysctlName(v.steps[0].Target); ok {
		return fmt.Sprintf("weir tune undo, or: sysctl -w %s='%s'", name, v.now)
	}
	return "weir tune undo"
}

// always is a Base of one value for every profile.
func always(value string) func(Profile) string { return func(Profile) string { return value } }

// by is a Base that differs by profile.
func by(values map[Profile]string) func(Profile) string {
	return func(p Profile) string { return values[p] }
}

// good and change are the usual verdicts.
func good(format string, a ...any) verdict { return verdict{state: OK, why: fmt.Sprintf(format, a...)} }

func change(want, format string, a ...any) verdict {
	return verdict{state: Change, want: want, why: fmt.Sprintf(format, a...)}
}

func watch(format string, a ...any) verdict {
	return verdict{state: Watch, why: fmt.Sprintf(format, a...)}
}

// numeric evaluates a number.
func numeric(evaluate func(p *probe, n int64) verdict) func(*probe, string) verdict {
	return func(p *probe, now string) verdict {
		n, err := strconv.ParseInt(now, 10, 64)
		if err != nil {
			return watch("%q is not a number", now)
		}
		return evaluate(p, n)
	}
}

// atLeast raises a number to want and leaves a greater one.
func atLeast(want int64, why string) func(*probe, string) verdict {
	return numeric(func(_ *probe, n int64) verdict {
		if n < want {
			return change(strconv.FormatInt(want, 10), "%s", why)
		}
		return good("at least %d", want)
	})
}

// exactly wants one value.
func exactly(want, why, fine string) func(*probe, string) verdict {
	return func(_ *probe, now string) verdict {
		if now != want {
			return change(want, "%s", why)
		}
		return good("%s", fine)
	}
}

// percent is n of all in percent; 0 of nothing.
func percent(n, all int64) float64 {
	if all <= 0 {
		return 0
	}
	return 100 * float64(n) / float64(all)
}

func sizeText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
