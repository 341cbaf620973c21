package capacity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// evidence is what one Find has measured, and the decisions that follow from it. It
// belongs to Find's goroutine, as do the types that embed it.
type evidence struct {
	// Fixed.
	opt  Options
	plan plan

	rep       *Report
	levels    map[float64][]int // windows by rate, as indexes into rep.Windows
	downs     map[float64][]int // of the descending pass, apart: an overload came before
	base      []int
	lo, hi    float64 // the bracket; 0: not known
	top       float64 // no higher rate is offered
	limitedAt float64 // the lowest rate at which the generator was the limit; 0: none
	closed    []ScalePoint
	readings  map[float64]stat.Reading
}

// A meter puts load on the target, window by window, and checks each window.
type meter struct {
	*evidence
	target  Target
	started time.Time

	// The phase, for Progress and the caps.
	phase       string
	step, steps int
	until       time.Duration // the phase's share of the time, since started
	steals      int           // windows in a row with too much steal
	left        float64       // requests in flight after the last load
	minMean     float64       // the least mean response of a probe with many samples
	few         stat.Moments  // the mean responses of those with few, weighted by samples
}

// A search is the procedure of one Find: phases that choose which load to measure next.
type search struct{ meter }

// errTime ends a phase; the next one continues with what there is.
var errTime = errors.New("the time for this phase is used up")

// A stopError ends the search.
type stopError struct {
	verdict Verdict
	reason  string
}

func (e *stopError) Error() string { return e.reason }

func (s *meter) elapsed() time.Duration { return s.opt.Now().Sub(s.started) }

// allowed reports whether d more of load may be put on.
func (s *meter) allowed(ctx context.Context, load Load, d time.Duration) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case s.elapsed()+d > s.until:
		return errTime
	case s.rep.Requests > s.opt.MaxRequests:
		return &stopError{Inconclusive, fmt.Sprintf("the cap of %d requests is used up", s.opt.MaxRequests)}
	case s.opt.MaxConns > 0 && max(load.Conns, load.Concurrency) > s.opt.MaxConns:
		return fmt.Errorf("a load of %d connections is above the cap of %d", max(load.Conns, load.Concurrency), s.opt.MaxConns)
	}
	return nil
}

func (s *meter) load(rate float64) Load { return Load{Rate: rate, Conns: s.opt.Conns} }

// enter starts a phase of about steps windows that may last until share of the
// whole time is used.
func (s *meter) enter(phase string, steps int, share float64) {
	s.phase, s.step, s.steps = phase, 0, steps
	s.until = time.Duration(share * float64(s.opt.MaxDuration))
}

func (s *meter) report(load Load, repeat int, w *Window, text string) {
	if s.opt.Progress == nil {
		return
	}
	elapsed := s.elapsed()
	remaining := s.plan.typical - elapsed
	s.opt.Progress(Event{
		Phase: s.phase, Rate: load.Rate, Repeat: repeat, Step: s.step, Steps: max(s.steps, s.step),
		Elapsed: elapsed, Remaining: max(remaining, 0), Window: w, Text: text,
	})
}

// measure puts a load on for a window, checks it and keeps it. The pointer is
// good until the next call.
func (s *meter) measure(ctx context.Context, pass string, load Load, repeat int, d time.Duration) (*Window, error) {
	if err := s.allowed(ctx, load, d); err != nil {
		return nil, err
	}
	s.step++
	s.report(load, repeat, nil, fmt.Sprintf("%s at %s", pass, rateText(load)))
	o, err := s.put(ctx, load, d)
	if err != nil {
		return nil, err
	}
	w := s.evaluate(pass, o)
	s.rep.Windows = append(s.rep.Windows, w)
	kept := &s.rep.Windows[len(s.rep.Windows)-1]
	s.report(load, repeat, kept, "")
	if err := s.stopCondition(&o); err != nil {
		return kept, err
	}
	return kept, s.tooNoisy()
}

// put is target.Measure with the caps counted and the target's failures named.
func (s *meter) put(ctx context.Context, load Load, d time.Duration) (Observation, error) {
	o, err := s.target.Measure(ctx, load, d)
	if err != nil {
		if ctx.Err() != nil {
			return o, ctx.Err()
		}
		return o, fmt.Errorf("measure %s: %w", rateText(load), err)
	}
	s.rep.Requests += o.Sent
	if o.Length <= 0 {
		o.Length = d
	}
	o.Load = load
	s.left = o.InFlight
	if n := len(o.Batches); n > 0 {
		s.left = o.Batches[n-1].InFlight
	}
	return o, nil
}

// behind reports whether more is under way than a rate that is borne explains (Little:
// rate × response): an overload's remains.
func (s *meter) behind(rate float64) bool {
	return s.left > 8+4*rate*s.calm()
}

// calm is the mean response at low load, the bracket's baseline: the least of the
// probes with many samples, or the mean over all quiet ones with few (the least of
// those would be chance), whichever is less; 0 while there is none.
func (s *meter) calm() float64 {
	switch {
	case s.few.N >= 15:
		return math.Min(s.minMean, s.few.Mean)
	case math.IsInf(s.minMean, 1):
		return s.few.Mean
	}
	return s.minMean
}

// warm lets the target settle at a rate before it is measured: what an overload
// left behind is worked off at low load first.
func (s *meter) warm(ctx context.Context, rate float64) error {
	low := math.Min(rate, s.rep.Base.Rate)
	if s.rep.Base.Rate == 0 {
		low = math.Min(rate, 0.1*s.lo)
	}
	// As long as it falls: what is measured on top of it would be the backlog.
	for stuck := 0; low > 0 && s.behind(low) && stuck < 3; {
		before := s.left
		load := s.load(low)
		if err := s.allowed(ctx, load, s.plan.probe); err != nil {
			return err
		}
		if _, err := s.put(ctx, load, s.plan.probe); err != nil {
			return err
		}
		if s.left >= before {
			stuck++
		}
	}
	load := s.load(rate)
	d := s.settleTime(rate)
	if err := s.allowed(ctx, load, d); err != nil {
		return err
	}
	o, err := s.put(ctx, load, d)
	if err != nil {
		return err
	}
	return s.stopCondition(&o)
}

// settleTime is how long a rate is put on before it is measured: the plan's, and near
// saturation three relaxation times of a queue, 1/(C·(1−√ρ)²) (Cohen, The Single Server
// Queue, 1982, for M/M/1; shorter for more even service), up to a window. From an empty
// queue a window would see less than the steady state. C is known as what failed.
func (s *meter) settleTime(rate float64) time.Duration {
	d := s.plan.warm
	if s.hi > 0 && rate > s.rep.Base.Rate {
		gap := 1 - math.Sqrt(math.Min(rate/s.hi, 0.95))
		tau := time.Duration(float64(time.Second) / (s.hi * gap * gap))
		d = max(d, min(3*tau, s.plan.window))
	}
	return d
}

// stopCondition ends the search where continuing would do harm or be of no use.
func (s *meter) stopCondition(o *Observation) error {
	for reason := range o.Errors {
		for _, r := range exhausted {
			if strings.Contains(strings.ToLower(reason), r.sign) {
				return &stopError{Invalid, fmt.Sprintf("out of %s (%s): %s", r.what, reason, r.fix)}
			}
		}
	}
	if o.Runtime != nil && s.opt.MaxRSS > 0 && o.Runtime.RSS > s.opt.MaxRSS {
		return &stopError{Inconclusive, fmt.Sprintf("stopped: the target's memory, %d MB, is above the limit of %d MB",
			o.Runtime.RSS>>20, s.opt.MaxRSS>>20)}
	}
	if o.Host.Steal > s.opt.MaxSteal {
		if s.steals++; s.steals >= 2 {
			return &stopError{Inconclusive, fmt.Sprintf("stopped: the hypervisor took %.0f %% of the processors", 100*o.Host.Steal)}
		}
	} else {
		s.steals = 0
	}
	if bad := o.errors(); bad >= 20 && float64(bad) > 0.5*float64(bad+o.Completed) {
		// Not worth the whole search, but nothing above this rate will be put on.
		s.top = math.Min(s.top, math.Max(o.Load.Rate, s.rep.Base.Rate))
	}
	return nil
}

// exhausted are the resources whose end looks like a limit of the target and is none.
var exhausted = []struct{ sign, what, fix string }{
	{"too many open files", "descriptors", "raise the limit (ulimit -n), or use fewer connections"},
	{"emfile", "descriptors", "raise the limit (ulimit -n), or use fewer connections"},
	{"cannot assign requested address", "local ports", "keep connections open, or use more source addresses"},
	{"eaddrnotavail", "local ports", "keep connections open, or use more source addresses"},
}

// evaluate reports what a window is worth, from the machine's side (discard), the
// generator's (void) and the target's (fault).
func (s *meter) evaluate(pass string, o Observation) Window {
	w := Window{Phase: s.phase, Pass: pass, Obs: o, Little: stat.Audit{OK: true}, Warmup: stat.Warmup{Steady: true}}
	inFlight := make([]float64, len(o.Batches))
	var means []float64
	for i, b := range o.Batches {
		inFlight[i] = b.InFlight
		if b.Completed > 0 {
			means = append(means, b.MeanResponse)
		}
	}
	w.Trend = stat.Backlog(inFlight, o.batch(), o.Load.Rate)
	w.Warmup = stat.MSER(means)
	if w.Trend.Stationary && o.Dropped == 0 && o.errors() == 0 && o.Completed >= 200 {
		w.Little = stat.LittlesLaw(o.InFlight, o.completedRate(), cmp.Or(o.Sojourn, o.Response.Mean), int(o.Completed))
	}
	w.Discard = stat.Classify(o.covariates(), s.rep.Base.Host)
	switch why := generatorLimit(&o); {
	case why != "":
		w.Limited, w.Void = true, "generator: "+why
	case !w.Little.OK:
		w.Void = fmt.Sprintf("accounting: in-flight and throughput × response differ by %.0f %%", 100*w.Little.Gap)
	}
	w.Used = (len(w.Discard) == 0 || s.opt.Bounded) && (w.Void == "" || s.opt.Bounded && !w.Limited)
	w.Fault = fault(&o, w.Trend)
	return w
}

// generatorLimit reports why the generator was the limit of a window; empty: it was not.
func generatorLimit(o *Observation) string {
	if o.Generator.Limited {
		return cmp.Or(o.Generator.Why, "it says so itself")
	}
	if p := o.Response.P99.Point; o.Generator.LagP99 > math.Max(1e-3, 0.1*p) {
		return fmt.Sprintf("late by %.1f ms at P99", 1e3*o.Generator.LagP99)
	}
	if o.Load.Concurrency > 0 {
		return ""
	}
	want := o.Load.Rate * o.seconds()
	if float64(o.Offered) < 0.95*want-3*math.Sqrt(want) {
		return fmt.Sprintf("offered %.0f/s of %.0f/s", o.offeredRate(), o.Load.Rate)
	}
	if short := float64(o.Offered) - float64(o.Sent+o.Dropped); short > 0.02*float64(o.Offered)+4*math.Sqrt(o.InFlight+1) && o.errors() == 0 {
		return fmt.Sprintf("sent %d of %d arrivals", o.Sent, o.Offered)
	}
	return ""
}

// fault is what makes a window fail whatever its latency.
func fault(o *Observation, trend stat.Trend) string {
	if n := o.errors(); n > 0 {
		top := slices.MaxFunc(slices.Sorted(maps.Keys(o.Errors)), func(a, b string) int {
			return cmp.Compare(o.Errors[a], o.Errors[b])
		})
		return "errors: " + top
	}
	switch {
	case o.Load.Concurrency > 0:
		return ""
	case o.Dropped > 0:
		return "backlog: arrivals dropped at the in-flight cap"
	case trend.Growing:
		return fmt.Sprintf("backlog: grows by %.0f/s", trend.Slope)
	case float64(o.Completed) < 0.98*float64(o.Offered)-4*math.Sqrt(o.InFlight+1):
		return fmt.Sprintf("throughput: completed %.0f/s of %.0f/s", o.completedRate(), o.offeredRate())
	}
	return ""
}

func rateText(l Load) string {
	if l.Concurrency > 0 {
		return fmt.Sprintf("%d at a time", l.Concurrency)
	}
	return fmt.Sprintf("%.4g/s", l.Rate)
}
