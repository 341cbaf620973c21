package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
)

// Options say how ladders are run.
type Options struct {
	// Rounds is how often each arm is measured; 0 means 5, 3 with Quick.
	Rounds int
	// Duration is how long each measurement lasts; 0 means 1 s, 500 ms with Quick.
	Duration time.Duration
	// Quick takes fewer rounds, less time and fewer connections.
	Quick bool
	// Programs are the files of programs that serve arms of their own, by name (Arm.Program). An
	// arm whose program is not there is not run.
	Programs map[string]string
	// Weir is the Weir that is measured: required for ladders in which it is an arm.
	Weir process.Program
	// Progress gets a line per measurement; nil means none.
	Progress io.Writer
	// Version of Weir, for the report.
	Version string
	// NewLoad makes the load of a Spec; nil means loadgen's.
	NewLoad func(loadgen.Spec) (Load, error)
	// Measure, if not nil, measures every arm in the experiments' place.
	Measure func(ctx context.Context, l *Ladder, e *Experiment, a Arm, round int) (Values, error)
}

func (o Options) withDefaults() Options {
	rounds, d := 5, time.Second
	if o.Quick {
		rounds, d = 3, 500*time.Millisecond
	}
	if o.Rounds == 0 {
		o.Rounds = rounds
	}
	if o.Duration == 0 {
		o.Duration = d
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.NewLoad == nil {
		o.NewLoad = newLoad
	}
	return o
}

// A Bench is what measurements work with.
type Bench struct {
	opt        Options
	self       process.Program // this one, which serves the rungs too
	serverCPUs int
	round      int // from 0
	stderr     io.Writer
}

// lasting is b with measurements of d at least, for what needs many samples or time to settle; a
// quick run's stay as short as they are.
func (b *Bench) lasting(d time.Duration) *Bench {
	l := *b
	if !b.opt.Quick {
		l.opt.Duration = max(l.opt.Duration, d)
	}
	return &l
}

// missing reports why the arm cannot be run; "" means that it can.
func (o *Options) missing(a Arm) string {
	if a.Program == "" || o.Programs[a.Program] != "" {
		return ""
	}
	return fmt.Sprintf("its program is a module of its own: go build -C bench/%[1]s -o FILE, and weir-lab run --program %[1]s=FILE", a.Program)
}

// scaled is n, or a quarter of it with Quick.
func (b *Bench) scaled(n int) int { return scaled(n, b.opt.Quick) }

func scaled(n int, quick bool) int {
	if quick {
		return max(n/4, 1)
	}
	return n
}

// startUp is about what a measurement costs beyond its duration: a process, its
// connections, the warm-up.
const startUp = 700 * time.Millisecond

// estimate is about how long the ladders take.
func estimate(ladders []Ladder, o Options) time.Duration {
	var d time.Duration
	for _, l := range ladders {
		for _, e := range l.Experiments {
			if e.Needs != nil && e.Needs() != "" {
				continue
			}
			each := o.Duration + startUp + time.Duration(e.Cost*float64(o.Duration))
			d += time.Duration(len(e.Arms)*o.Rounds) * each
		}
	}
	return d
}

// measureWeir reports whether Weir is among what the ladders measure.
func measureWeir(ladders []Ladder) bool {
	for _, l := range ladders {
		for _, e := range l.Experiments {
			if slices.ContainsFunc(e.Arms, func(a Arm) bool { return a.Server == "weir" }) {
				return true
			}
		}
	}
	return false
}

// Run climbs the ladders one after the other and hands each result to done. When
// ctx ends, the result so far is passed on as well, marked as partial, and
// Run returns the context's error.
func Run(ctx context.Context, ladders []Ladder, o Options, done func(*Reading) error) error {
	o = o.withDefaults()
	if o.Weir[0] == "" && o.Measure == nil && measureWeir(ladders) {
		return errors.New("which weir is to be measured? Name it with --weir")
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, which serves the rungs too: %w", err)
	}
	b := &Bench{opt: o, self: process.Program{exe, os.Args[0]}, serverCPUs: max(runtime.NumCPU()/2, 1), stderr: o.Progress}
	fmt.Fprintf(o.Progress, "%s, %s of %v: about %v\n", plural(len(ladders), "ladder"), plural(o.Rounds, "round"), o.Duration, estimate(ladders, o).Round(time.Second))
	for i := range ladders {
		if err := ctx.Err(); err != nil {
			return err
		}
		r := b.climb(ctx, &ladders[i])
		if len(r.Experiments) == 0 {
			continue // stopped before there was anything
		}
		if err := done(&Reading{Ladder: &ladders[i], Result: r}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// climb runs one ladder.
func (b *Bench) climb(ctx context.Context, l *Ladder) *Result {
	r := &Result{
		Version: 1, Ladder: l.Name, Started: time.Now().UTC().Truncate(time.Second), Machine: machine(b.opt.Version),
		Rounds: b.opt.Rounds, Seconds: b.opt.Duration.Seconds(), Quick: b.opt.Quick, ServerCPUs: b.serverCPUs,
	}
	began := time.Now()
	for i := range l.Experiments {
		if ctx.Err() != nil {
			break
		}
		r.Experiments = append(r.Experiments, b.experience(ctx, l, &l.Experiments[i]))
	}
	r.Partial = ctx.Err() != nil
	r.Took = time.Since(began).Round(100 * time.Millisecond).Seconds()
	return r
}

// experience runs an experiment: all arms in each round, every other round
// backwards, so that no arm always comes after the same one.
func (b *Bench) experience(ctx context.Context, l *Ladder, e *Experiment) Experience {
	x := Experience{Name: e.Name}
	if e.Needs != nil {
		if x.NotRun = e.Needs(); x.NotRun != "" {
			fmt.Fprintf(b.opt.Progress, "%s/%s not run: %s\n", l.Name, e.Name, x.NotRun)
			return x
		}
	}
	for _, a := range e.Arms {
		x.Arms = append(x.Arms, ArmValues{Name: a.Name, NotRun: b.opt.missing(a)})
		if why := x.Arms[len(x.Arms)-1].NotRun; why != "" {
			fmt.Fprintf(b.opt.Progress, "%s/%s %s not run: %s\n", l.Name, e.Name, a.Name, why)
		}
	}
	host := watchHost()
	for round := range b.opt.Rounds {
		for k := range e.Arms {
			i := k
			if round%2 == 1 {
				i = len(e.Arms) - 1 - k
			}
			if ctx.Err() != nil {
				break
			}
			if x.Arms[i].NotRun == "" {
				b.measure(ctx, l, e, i, round, &x.Arms[i])
			}
		}
	}
	x.Steal, x.Pressure = host()
	return x
}

// measure measures one arm once and writes down what came of it.
func (b *Bench) measure(ctx context.Context, l *Ladder, e *Experiment, i, round int, into *ArmValues) {
	a := e.Arms[i]
	// No measurement takes so long but one that hangs.
	limit := 30*time.Second + 20*b.opt.Duration
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	b.round = round
	var v Values
	var err error
	if b.opt.Measure != nil {
		v, err = b.opt.Measure(within, l, e, a, round)
	} else {
		v, err = e.Measure(within, b, a)
	}
	if ctx.Err() != nil {
		return // half a measurement is none
	}
	for len(into.Rounds) < round {
		into.Rounds = append(into.Rounds, nil)
	}
	head := fmt.Sprintf("%s/%s %d/%d %s", l.Name, e.Name, round+1, b.opt.Rounds, a.Name)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("it took longer than %v: %w", limit, err)
		}
		into.Rounds = append(into.Rounds, nil)
		into.Errors = append(into.Errors, err.Error())
		fmt.Fprintf(b.opt.Progress, "%s: %v\n", head, err)
		return
	}
	into.Rounds = append(into.Rounds, v)
	fmt.Fprintf(b.opt.Progress, "%s: %s\n", head, glance(e, v))
}

// glance is the first of the values that there is.
func glance(e *Experiment, v Values) string {
	for _, m := range e.Metrics {
		if x, ok := v[m.Key]; ok {
			return m.Name + " " + m.Unit.Format(x)
		}
	}
	return "no values"
}
