package capacity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

func (s *evidence) note(format string, args ...any) {
	s.rep.Notes = append(s.rep.Notes, fmt.Sprintf(format, args...))
}

// qualify is P0: the machine's evenness, the generator's ceiling, and a first look
// at the target at a rate that it bears.
func (s *search) qualify(ctx context.Context) error {
	q := &s.rep.Qualify
	s.report(Load{}, 0, nil, "fixed work, to see how even the machine is")
	q.FixedWork = s.opt.FixedWork(ctx, s.plan.fixedWork)
	q.HostCV = stat.CV(q.FixedWork)
	if q.HostCV > maxHostCV && ctx.Err() == nil {
		// A short disturbance is over by now.
		q.FixedWork = s.opt.FixedWork(ctx, s.plan.fixedWork)
		q.HostCV = stat.CV(q.FixedWork)
	}
	if q.HostCV > maxHostCV && !s.opt.Bounded {
		return &stopError{Inconclusive, fmt.Sprintf("this machine is too noisy to measure on: the same work took times that differ by %.0f %% (at most %.0f %% is accepted); %s",
			100*q.HostCV, 100*maxHostCV, quieter)}
	}
	q.MaxRate = s.opt.MaxRate
	if q.MaxRate == 0 {
		q.MaxRate = 1e7
	}
	if s.opt.Ceiling != nil {
		s.report(Load{}, 0, nil, "the generator against a server that does nothing")
		g, err := s.opt.Ceiling(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("measure the generator's ceiling: %w", err)
		}
		q.Ceiling = g
		q.MaxRate = math.Min(q.MaxRate, g/2)
	}
	s.top = q.MaxRate
	rate := s.opt.Start
	if rate == 0 {
		// Low enough for a slow target: an overload of a few seconds takes long to
		// work off, and going up from here takes only some more short windows.
		rate = 20
		if q.Ceiling > 0 {
			rate = math.Min(rate, 0.05*q.Ceiling)
		}
	}
	return s.firstLight(ctx, math.Min(rate, s.top))
}

// quieter is what to do about a noisy machine.
const quieter = "stop what else runs here, use a machine of your own or another one for the generator, or take bounds instead (--bounded)"

// tooNoisy ends a search that cannot have an answer any more: more than half of its
// windows were disturbed.
func (s *meter) tooNoisy() error {
	n, disturbed := len(s.rep.Windows), 0
	if s.opt.Bounded || n < minNoisy {
		return nil
	}
	for i := range s.rep.Windows {
		if len(s.rep.Windows[i].Discard) > 0 {
			disturbed++
		}
	}
	if limited := s.limitedWindows(); 2*limited > n {
		return &stopError{s.generatorVerdict(), fmt.Sprintf("the generator was the limit in %d of the first %d windows", limited, n)}
	}
	if 2*disturbed <= n {
		return nil
	}
	return &stopError{Inconclusive, fmt.Sprintf("this machine is too noisy to measure on: %d of the first %d windows were disturbed (%s); %s", disturbed, n, s.discardReasons(), quieter)}
}

// minNoisy is how many windows it takes to call a machine noisy.
const minNoisy = 6

// firstLight finds a rate at which the target answers well, going down from rate.
func (s *search) firstLight(ctx context.Context, rate float64) error {
	for {
		w, err := s.probe(ctx, rate)
		if err != nil {
			return err
		}
		if w.Fault != "" { // one may be chance
			if w, err = s.probe(ctx, rate); err != nil {
				return err
			}
		}
		for try := 0; w.Limited && try < 2; try++ { // a late generator may be chance as well
			if w, err = s.probe(ctx, rate); err != nil {
				return err
			}
		}
		least := rate < 1 || rate*s.plan.probe.Seconds() < 2
		if w.Limited && (rate < 8 || least) {
			s.limitedAt = rate
			return &stopError{s.generatorVerdict(), fmt.Sprintf("the generator is the limit already at %.4g/s (%s)", rate, w.Void)}
		}
		if w.Fault == "" && w.Obs.Completed > 0 && !w.Limited {
			s.lo = rate
			return nil
		}
		if !w.Limited {
			s.hi = rate
		}
		if least {
			if w.Obs.Completed == 0 {
				return &stopError{Invalid, "the target answers nothing well, not even at " + rateText(w.Obs.Load) + ": " + w.Fault}
			}
			return &stopError{Fail, "the target fails at the lowest rate tried, " + rateText(w.Obs.Load) + ": " + w.Fault}
		}
		s.top = s.rep.Qualify.MaxRate
		rate /= 4
	}
}

// probe is a short window of the bracket, after a warm-up.
func (s *meter) probe(ctx context.Context, rate float64) (*Window, error) {
	if err := s.warm(ctx, rate); err != nil {
		return nil, err
	}
	w, err := s.measure(ctx, "probe", s.load(rate), 1, s.plan.probe)
	if err != nil {
		return nil, err
	}
	if n := w.Obs.Completed; w.Fault == "" && w.Used && n > 0 && w.Obs.Response.Mean > 0 {
		if n >= 200 {
			s.minMean = math.Min(s.minMean, w.Obs.Response.Mean)
		} else if s.few.N == 0 || w.Obs.Response.Mean < 1.5*s.few.Mean {
			s.few.Merge(stat.Moments{N: int(n), Mean: w.Obs.Response.Mean})
		}
	}
	return w, nil
}

// trouble reports whether a probe is past the limit, by mean response (a short window
// carries no P99; of few samples the mean is allowed its scatter), and how near it
// is: the mean over that at low load.
func (s *meter) trouble(w *Window) (past bool, growth float64) {
	growth = 1
	n := float64(w.Obs.Completed)
	if calm := s.calm(); n > 0 && calm > 0 {
		growth = w.Obs.Response.Mean / calm
	}
	return w.Fault != "" || n == 0 || growth > s.opt.Kappa*(1+3/math.Sqrt(n)), growth
}

// bracket is P1: up by ×4 while nothing stirs, ×2, then ×1.5 near trouble, until a
// rate fails twice; then the gap is halved until it is within ×1.6. Then the
// baseline, at a few per cent of what failed.
func (s *search) bracket(ctx context.Context) error {
	if err := s.climb(ctx); err != nil && !errors.Is(err, errTime) {
		return err
	}
	for s.hi > 0 && s.hi/s.lo > 1.6 {
		mid := math.Sqrt(s.lo * s.hi)
		past, _, err := s.probeTwice(ctx, mid)
		if errors.Is(err, errTime) {
			break
		}
		if err != nil {
			return err
		}
		if past {
			s.hi = mid
		} else {
			s.lo = mid
		}
	}
	return s.baseline(ctx)
}

func (s *search) climb(ctx context.Context) error {
	growth := 1.0
	for s.hi == 0 {
		factor := 2.0
		switch {
		case growth < 1.3 && s.lo < 1000:
			factor = 4
		case growth > 1.5:
			factor = 1.5
		}
		next := math.Min(s.lo*factor, s.top)
		if next <= s.lo {
			return nil // as far as is allowed
		}
		past, g, err := s.probeTwice(ctx, next)
		if err != nil {
			return err
		}
		if s.limitedAt > 0 && s.limitedAt <= next {
			s.top = s.lo
			return nil
		}
		if past {
			s.hi = next
		} else {
			s.lo, growth = next, g
		}
	}
	return nil
}

// probeTwice is a probe that trusts a failure only the second time.
func (s *search) probeTwice(ctx context.Context, rate float64) (past bool, growth float64, err error) {
	limited := 0
	for range 2 {
		w, err := s.probe(ctx, rate)
		if err != nil {
			return false, 1, err
		}
		past, growth = s.trouble(w)
		if w.Limited && !strings.HasPrefix(w.Fault, "errors") {
			limited++
		} else if !past {
			return false, growth, nil
		}
	}
	if limited == 2 {
		s.limitedAt = rate
	}
	return past, growth, nil
}

// baseline measures the target at low load: the rate of the first probe if that is
// 7 to 12 % of what failed, otherwise 9 %. Windows are as long as the samples for P99
// need, within the plan.
func (s *search) baseline(ctx context.Context) error {
	limit := s.hi
	if limit == 0 {
		limit = s.lo
	}
	rate := 0.09 * limit
	if first := s.rep.Windows[0].Obs.Load.Rate; first >= 0.07*limit && first <= 0.12*limit {
		rate = first
	}
	if s.opt.Start > 0 && s.opt.Start < limit/2 {
		rate = s.opt.Start
	}
	s.rep.Base.Rate = rate
	d := s.baseWindow()
	if s.rep.Quantile == 0 {
		s.rep.Quantile = quantileFor(rate * d.Seconds())
	}
	if err := s.warm(ctx, rate); err != nil {
		return err
	}
	for r := range s.plan.baseRepeats {
		if err := s.baselineWindow(ctx, r+1); err != nil {
			return err
		}
	}
	s.sumBaseline()
	return nil
}

func (s *search) baseWindow() time.Duration {
	need := time.Duration(1150 / s.rep.Base.Rate * float64(time.Second))
	return min(max(need, s.plan.window), s.plan.baseMax)
}

// quantileFor is the highest quantile that n samples carry, with a margin for
// windows that got fewer.
func quantileFor(n float64) float64 {
	for _, q := range []float64{0.99, 0.95} {
		if stat.EnoughSamples(int(0.88*n), q) {
			return q
		}
	}
	return 0.5
}

// baselineWindow measures the baseline once more.
func (s *search) baselineWindow(ctx context.Context, repeat int) error {
	_, err := s.measure(ctx, "baseline", s.load(s.rep.Base.Rate), repeat, s.baseWindow())
	if err != nil {
		return err
	}
	s.base = append(s.base, len(s.rep.Windows)-1)
	return nil
}

// stairs is P2: geometric levels from 0.6·lo to 1.3·hi, each repeated, the baseline
// between every three; the plateau above; one pass down.
func (s *search) stairs(ctx context.Context) error {
	from, to := 0.6*s.lo, math.Min(1.3*s.hi, s.top)
	if s.hi == 0 {
		to = s.lo
	}
	step, repeats := s.stairSteps(from, to)
	var levels []float64
	for r := from; r <= to*1.0001; r *= step {
		levels = append(levels, r)
	}
	s.rep.Rule.Step = step
	// The bracket was rough: the lowest level has to pass.
	for range 3 {
		if err := s.level(ctx, "up", levels[0], repeats, repeats); err != nil {
			return err
		}
		lower := levels[0] / step / step
		if s.byKnee(s.used(s.levels[levels[0]])) == Passes || lower < 1.5*s.rep.Base.Rate {
			break
		}
		levels = slices.Concat([]float64{lower, lower * step}, levels)
	}
	up := s.ascend(ctx, levels, repeats)
	if up != nil && !errors.Is(up, errTime) {
		return up
	}
	// A few short windows, which have a number of their own: not to be left out when
	// the levels took longer than planned.
	until := s.until
	s.until += s.opt.MaxDuration / 10
	err := s.plateau(ctx)
	s.until = until
	if err != nil || up != nil {
		return cmp.Or(err, up)
	}
	return s.down(ctx, levels)
}

// stairSteps is how far apart the levels from one rate to another are, and how often each
// is measured: 1.25 and the plan's repeats, if there is time for all of them. On a slow
// target, whose windows are long, two repeats, and then wider steps: levels that are not
// reached would leave the knee without an upper bound.
func (s *search) stairSteps(from, to float64) (step float64, repeats int) {
	step, repeats = 1.25, s.plan.repeats
	left := (s.until-s.elapsed())*9/10 - 6*s.plan.probe // some windows are repeated; and the plateau
	for {
		need := time.Duration(0)
		for i, r := 0, from; r <= to*1.0001; i, r = i+1, r*step {
			need += s.plan.warm + time.Duration(repeats)*s.levelWindow(r)
			if i > 0 && i%3 == 0 {
				need += s.plan.warm + s.baseWindow()
			}
		}
		switch {
		case need <= left || step >= 1.5:
			return step, repeats
		case repeats > 2:
			repeats--
		default:
			step *= 1.06
		}
	}
}

// ascend measures the levels, the baseline between every three.
func (s *search) ascend(ctx context.Context, levels []float64, repeats int) error {
	for i, rate := range levels {
		if len(s.levels[rate]) > 0 {
			continue
		}
		if i > 0 && i%3 == 0 {
			if err := s.again(ctx); err != nil {
				return err
			}
		}
		if err := s.level(ctx, "up", rate, repeats, repeats); err != nil {
			return err
		}
		// Twice beyond, the next levels would only hurt.
		if i > 0 && s.failsByFault(rate) && s.byKnee(s.used(s.levels[levels[i-1]])) == Fails {
			break
		}
	}
	return nil
}

// again is the baseline between levels, once.
func (s *search) again(ctx context.Context) error {
	if err := s.warm(ctx, s.rep.Base.Rate); err != nil {
		return err
	}
	return s.baselineWindow(ctx, len(s.base)+1)
}

func (s *evidence) failsByFault(rate float64) bool {
	d, why := s.decide(s.used(s.levels[rate]), s.threshold(), false)
	return d == Fails && why != "latency"
}

// level measures a rate repeats times, and on to most while it is undecided; a
// clear case ends after two. Discarded windows are repeated, three at most.
func (s *search) level(ctx context.Context, pass string, rate float64, repeats, most int) error {
	if rate > s.top*1.0001 {
		return nil
	}
	if err := s.warm(ctx, rate); err != nil {
		return err
	}
	spare := 3
	before := len(s.used(s.levels[rate]))
	for n := 0; ; {
		w, err := s.measure(ctx, pass, s.load(rate), n+1, s.levelWindow(rate))
		if err != nil {
			return err
		}
		s.keep(rate)
		if !w.Used && spare > 0 {
			if spare--; w.Fault != "" {
				spare = min(spare, 1) // more of an overload would not be worth it
			}
			continue
		}
		if !w.Warmup.Steady && spare > 0 && w.Fault == "" {
			spare-- // still on its way: extended by one more window
			most++
		}
		n++
		ws := s.used(s.levels[rate])
		d := s.byKnee(ws)
		if s.opt.SLO > 0 && d != Undecided && s.bySLO(ws) == Undecided {
			d = Undecided
		}
		switch {
		case n >= most || len(ws) >= before+most:
			return nil
		case n >= 2 && d != Undecided && (n >= repeats || s.plan.repeats <= 3):
			return nil
		case n >= repeats && d != Undecided:
			return nil
		}
	}
}

// levelWindow is long enough for the samples that the evaluated quantile needs.
func (s *search) levelWindow(rate float64) time.Duration {
	samples := 11.5 / (1 - s.rep.Quantile)
	if s.opt.SLO > 0 {
		samples = math.Max(samples, 2*sloSamples)
	}
	need := time.Duration(samples / rate * float64(time.Second))
	return min(max(need, s.plan.window), s.plan.baseMax)
}

// plateau continues up until completed throughput stays behind what is offered, and
// measures that a few times.
func (s *search) plateau(ctx context.Context) error {
	rates := s.rates()
	if len(rates) == 0 || s.hi == 0 {
		return nil
	}
	top := rates[len(rates)-1]
	rate := math.Min(1.2*math.Max(top, s.hi), s.top)
	for n, steps := 0, 0; n < s.plan.plateauWindows && steps < 6 && rate > top; {
		// Long enough for what is not completed to be more than chance (overload).
		d := max(s.plan.probe, min(time.Duration(500/rate*float64(time.Second)), s.plan.window))
		w, err := s.measure(ctx, "plateau", s.load(rate), n+1, d)
		switch {
		case err != nil:
			return err
		case overload(w):
			n++
		default: // also after one that was overloaded by chance
			rate, steps = math.Min(rate*1.2, s.top), steps+1
		}
	}
	return nil
}

// overload: offered ≥ 1.1·completed, by more than what happened to be under way.
func overload(w *Window) bool {
	o := &w.Obs
	return o.Load.Concurrency == 0 && o.Completed > 0 && o.offeredRate() >= 1.1*o.completedRate() &&
		float64(o.Offered)-float64(o.Completed) > 4*math.Sqrt(float64(o.Offered))
}

// down is the descending pass over the levels that were borne going up, straight
// from the overload of the plateau: a target that comes back later than it went is
// found here.
func (s *search) down(ctx context.Context, levels []float64) error {
	for i := len(levels) - 1; i >= 0; i-- {
		rate := levels[i]
		if len(s.levels[rate]) == 0 || s.byKnee(s.used(s.levels[rate])) == Fails {
			continue
		}
		if s.opt.Mode == Quick && len(s.downs) == 2 {
			return nil
		}
		load := s.load(rate)
		if err := s.descend(ctx, load); err != nil {
			return err
		}
		for r := range s.plan.downRepeats {
			if _, err := s.measure(ctx, "down", load, r+1, s.levelWindow(rate)); err != nil {
				return err
			}
			s.downs[rate] = append(s.downs[rate], len(s.rep.Windows)-1)
		}
	}
	return nil
}

// descend goes to a lower level without the rest that going up is given: what the
// level above left behind is worked off at this one. A backlog that does not fall
// here is the target's answer; one that falls slowly is helped by low load.
func (s *search) descend(ctx context.Context, load Load) error {
	stuck := 0
	for range 5 {
		before := s.left
		if err := s.allowed(ctx, load, s.plan.probe); err != nil {
			return err
		}
		if _, err := s.put(ctx, load, s.plan.probe); err != nil {
			return err
		}
		if !s.behind(load.Rate) {
			return nil
		}
		if s.left >= before {
			stuck++
		}
	}
	if stuck >= 3 {
		return nil
	}
	return s.warm(ctx, load.Rate)
}
