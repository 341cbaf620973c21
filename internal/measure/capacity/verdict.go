package capacity

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// What the noise may be at most for a number to be named.
const (
	maxDiscarded = 0.20 // of the windows
	maxLimited   = 0.20
	maxHostCV    = 0.30 // of equal work
	maxScatter   = 0.30 // of the logarithm of the baseline's latency
	maxDrift     = 1.50 // of the baseline
	maxKneeRatio = 1.60 // between the ends of the knee's interval
	maxJumpy     = 0.15 // of the low levels' windows
)

// A conclusion fills the report's three numbers and its verdict from the evidence and the
// models.
type conclusion struct{ *evidence }

// conclude turns what was measured into the three numbers and the verdict. err is
// what ended the search early, if anything.
func (s *conclusion) conclude(err error) {
	r := s.rep
	s.limits()
	s.agree()
	r.Saturated = s.hi > 0 || r.Knee.Bracket[1] > 0
	var stop *stopError
	switch {
	case err == nil:
	case errors.As(err, &stop):
		r.Partial = true
		s.fault(stop.verdict, "%s", stop.reason)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		r.Partial = true
		s.fault(Inconclusive, "interrupted: the numbers are of what was measured until then")
	default:
		r.Partial = true
		s.fault(Invalid, "%v", err)
	}
	s.validity()
	s.noise()
	s.agreement()
	s.confirmed()
	if r.Verdict == "" && !r.Saturated {
		s.unsaturated()
	}
	if r.Verdict == "" {
		s.expected()
	}
	if s.opt.Bounded && r.Verdict == Inconclusive {
		r.Knee.Between = s.bounds(s.threshold(), false)
		if s.opt.SLO > 0 {
			r.SLO.Between = s.bounds(s.opt.SLO.Seconds(), true)
		}
	}
	s.recommend()
}

// bounds are the rates between which a limit is, whatever disturbed single windows:
// most windows of a level passed at the first, and from the second on every one was
// overloaded or slow beyond what noise explains. Noise makes latency longer and not
// shorter, so the first is the surer one.
func (s *conclusion) bounds(threshold float64, strict bool) (between [2]float64) {
	const beyondNoise = 4
	if !(threshold > 0) {
		return between
	}
	rates := s.rates()
	count := func(rate float64) (passed, failed, n int) {
		for _, w := range s.used(s.levels[rate]) {
			v := w.Obs.Response.At(s.rep.Quantile).Point
			if strict {
				v = w.Obs.Response.P99.Point
			}
			n++
			switch {
			case w.Fault == "" && v <= threshold:
				passed++
			case w.Fault != "" || v > beyondNoise*threshold:
				failed++
			}
		}
		return passed, failed, n
	}
	for _, rate := range rates {
		if passed, _, n := count(rate); n >= 2 && 3*passed > 2*n {
			between[0] = rate
		}
	}
	for _, rate := range slices.Backward(rates) {
		if _, failed, n := count(rate); n > 0 && failed < n || rate <= between[0] {
			break
		}
		between[1] = rate
	}
	if between[1] == 0 && s.hi > between[0] {
		between[1] = s.hi // failed twice while the bracket was sought
	}
	return between
}

// fault makes the verdict at least as bad as v and keeps the reason.
func (s *conclusion) fault(v Verdict, format string, args ...any) {
	rank := map[Verdict]int{"": 0, Pass: 1, Fail: 2, Inconclusive: 3, Invalid: 4}
	reason := fmt.Sprintf(format, args...)
	if rank[v] > rank[s.rep.Verdict] {
		s.rep.Verdict = v
		s.rep.Reasons = append([]string{reason}, s.rep.Reasons...)
		return
	}
	s.rep.Reasons = append(s.rep.Reasons, reason)
}

// validity: was it the target that was measured?
func (s *conclusion) validity() {
	limited, void, n := s.limitedWindows(), 0, len(s.rep.Windows)
	for i := range s.rep.Windows {
		if w := &s.rep.Windows[i]; w.Void != "" && !w.Limited {
			void++
		}
	}
	if s.limitedAt > 0 && s.hi == 0 {
		s.fault(s.generatorVerdict(), "the generator was the limit at %.4g/s, before the target was", s.limitedAt)
	} else if limited >= 3 && float64(limited) > maxLimited*float64(n) {
		s.fault(s.generatorVerdict(), "the generator was the limit in %d of %d windows", limited, n)
	}
	if void >= 3 && float64(void) > maxDiscarded*float64(n) {
		v := Inconclusive // stalls at the windows' edges do that too
		if 2*void > n {
			v = Invalid
		}
		s.fault(v, "the accounting does not add up in %d of %d windows (Little's law)", void, n)
	}
}

// limitedWindows counts those in which the generator was the limit before the target was.
func (s *evidence) limitedWindows() (n int) {
	for i := range s.rep.Windows {
		if w := &s.rep.Windows[i]; w.Limited && !overload(w) {
			n++
		}
	}
	return n
}

// generatorVerdict is what a generator that was too slow means: on a quiet machine
// that it, not the target, was measured; on a disturbed one only that.
func (s *evidence) generatorVerdict() Verdict {
	if s.rep.Qualify.HostCV > maxHostCV {
		return Inconclusive
	}
	disturbed, n := 0, 0
	for i := range s.rep.Windows {
		w := &s.rep.Windows[i]
		if !w.Limited {
			continue
		}
		n++
		c := w.Obs.covariates()
		if len(w.Discard) > 0 || c.Own > 0 && c.Busy-c.Own > 0.25 {
			disturbed++
		}
	}
	if n > 0 && 2*disturbed > n {
		return Inconclusive
	}
	return Invalid
}

// noise: is there a number?
func (s *conclusion) noise() {
	r := s.rep
	discarded := 0
	for i := range r.Windows {
		if len(r.Windows[i].Discard) > 0 {
			discarded++
		}
	}
	if n := len(r.Windows); n >= 5 && float64(discarded) > maxDiscarded*float64(n) {
		s.fault(Inconclusive, "the machine was too noisy: %d of %d windows were discarded (%s)", discarded, n, s.discardReasons())
	}
	if r.Qualify.HostCV > maxHostCV && len(r.Windows) > 0 {
		s.fault(Inconclusive, "the machine was too noisy: equal work took times that differ by %.0f %%", 100*r.Qualify.HostCV)
	} else if r.Qualify.HostCV > 0.1 {
		s.note("equal work took times that differ by %.0f %%: other load on the machine", 100*r.Qualify.HostCV)
	}
	if r.Base.Latency.N >= 3 && r.Base.Scatter > maxScatter {
		s.fault(Inconclusive, "the latency at low load is not stable: windows differ by a factor of %.1f (the machine, or pauses of the target)",
			math.Exp(2*r.Base.Scatter))
	}
	if d := r.Base.Drift; d > 0 && r.Base.Latency.N >= 6 {
		if off := math.Exp(math.Abs(math.Log(d))); off > maxDrift {
			s.fault(Inconclusive, "the latency at low load drifted by a factor of %.1f during the search", off)
		} else if off > 1.1 {
			s.note("the latency at low load drifted by %.0f %% during the search", 100*(off-1))
		}
	}
	if jumpy, n := s.jumpy(); n >= 6 && float64(jumpy) > maxJumpy*float64(n) {
		s.fault(Inconclusive, "%d of %d windows well below the knee differ from their neighbours by more than a factor of 2", jumpy, n)
	}
}

// jumpy counts the windows at low levels whose latency is far from their level's
// median: there chance cannot do that.
func (s *conclusion) jumpy() (jumpy, n int) {
	limit := 0.8 * s.rep.Knee.Bracket[0]
	count := func(index []int) {
		ws := s.used(index)
		ls := s.latencies(ws)
		m := stat.Median(ls)
		if len(ls) < 3 {
			return
		}
		for _, l := range ls {
			n++
			if l > 2*m || l < m/2 {
				jumpy++
			}
		}
	}
	count(s.base)
	for _, rate := range s.rates() {
		if rate <= limit {
			count(s.levels[rate])
		}
	}
	return jumpy, n
}

func (s *evidence) discardReasons() string {
	seen := map[string]bool{}
	var out []string
	for i := range s.rep.Windows {
		for _, d := range s.rep.Windows[i].Discard {
			if !seen[d] {
				seen[d] = true
				out = append(out, d)
			}
		}
	}
	return strings.Join(out, ", ")
}

// limits fills the three numbers.
func (s *conclusion) limits() {
	r := s.rep
	s.kneeLimit()
	s.sloLimit()
	s.maxLimit()
	if c := r.Max.Rate.Point; r.Max.Known && r.Knee.Known && c > 0 {
		r.RhoKnee = r.Knee.Rate.Point / c
		switch {
		case r.RhoKnee < 0.3:
			s.note("latency grows long before throughput ends (knee at %.0f %% of capacity): look for a lock, a timer or a collector", 100*r.RhoKnee)
		case r.RhoKnee > 0.97:
			s.note("the knee is a cliff: latency gives no warning before capacity")
		}
	}
	s.cliff()
}

func (s *conclusion) kneeLimit() {
	r, c := s.rep, s.rep.Model.Crossing
	k := &r.Knee
	k.Rate = c.Load
	if s.hi == 0 {
		k.By = "nothing that was tried was too much"
	}
	if len(s.levels) == 0 || len(s.latencies(s.used(s.base))) == 0 {
		k.By, k.Rate = "not measured", stat.Unknown()
		return
	}
	lo, hi, inverted := s.bracketOf(s.byKnee)
	k.Bracket = [2]float64{lo, hi}
	if hi == 0 && s.hi == 0 {
		k.Rate = stat.Unknown()
		return
	}
	if fault := s.faultAt(hi); hi > 0 && strings.HasPrefix(fault, "errors") && !(c.Load.Point > 0 && c.Load.Point <= hi) {
		k.By, k.Rate = "errors come before latency grows ("+strings.TrimPrefix(fault, "errors: ")+")", stat.Unknown()
		return
	}
	if math.IsNaN(c.Load.Point) {
		s.kneeBetween()
		return
	}
	k.Rate = widened(k.Rate)
	k.Rate.Lo = math.Max(k.Rate.Lo, s.rep.Base.Rate) // there the growth is 1
	if inverted {
		s.note("some level passed above one that failed")
	}
	k.By = "latency"
	if f := s.faultAt(hi); f != "" && f != "latency" {
		k.By = f
	}
	if ratio := k.Rate.Ratio(); ratio > maxKneeRatio {
		s.fault(Inconclusive, "the knee cannot be located: it is between %.4g/s and %.4g/s", k.Rate.Lo, k.Rate.Hi)
	}
	k.Known = true
	k.Confidence = confidenceOf(k.Rate.Ratio())
}

// kneeBetween is the knee where the levels that there was time for did not cross it: above
// what they allow, and below the rate that is completed under overload, if that is known.
// The confidence in it is low, and the verdict inconclusive.
func (s *conclusion) kneeBetween() {
	k, c := &s.rep.Knee, s.rep.Model.Crossing
	rates := s.rates()
	lo, hi := math.Min(c.Load.Lo, rates[len(rates)-1]), math.Inf(1)
	if p := s.rep.Model.Plateau; p.N >= 2 {
		hi = p.Hi
	}
	if !c.Above || !(lo > s.rep.Base.Rate) || hi <= lo {
		k.By = "the growth was not crossed by the levels measured"
		s.fault(Inconclusive, "the knee is not bracketed: %s", k.By)
		return
	}
	k.Known, k.By, k.Confidence = true, "latency; above the last level that there was time for", "low"
	k.Rate = widened(stat.Interval{Point: rates[len(rates)-1], Lo: lo, Hi: hi, N: c.Load.N})
	s.fault(Inconclusive, "the knee is not bracketed: it is above the last level that there was time for, %.4g/s", rates[len(rates)-1])
}

func confidenceOf(ratio float64) string {
	switch {
	case ratio <= 1.10:
		return "high"
	case ratio <= 1.25:
		return "medium"
	}
	return "low"
}

func (s *evidence) faultAt(rate float64) string {
	if rate == 0 {
		return ""
	}
	_, f := s.decide(s.used(s.levels[rate]), s.threshold(), false)
	return f
}

func (s *conclusion) sloLimit() {
	l := &s.rep.SLO
	l.Rate = stat.Unknown()
	if s.opt.SLO == 0 {
		l.By = "no objective given"
		return
	}
	lo, hi, _ := s.bracketOf(s.bySLO)
	l.Bracket = [2]float64{lo, hi}
	c := s.sloCrossing()
	base := s.latency(s.used(s.base))
	switch {
	case c.Load.Point > 0 && c.Load.Lo > 0:
		l.Known, l.By = true, "latency"
		l.Rate = widened(c.Load)
		if f := s.faultAt(hi); hi > 0 && strings.HasPrefix(f, "errors") { // they may come first
			l.By = f
			l.Rate.Lo, l.Rate.Hi = math.Min(l.Rate.Lo, lo), math.Min(l.Rate.Hi, hi)
		}
		l.Rate.Point = l.Rate.Lo // what is promised is what is surely met
		l.Confidence = confidenceOf(l.Rate.Ratio())
	case c.Above && c.Load.Lo > 0:
		// Every level that there was time for met it.
		rates := s.rates()
		l.Known, l.Confidence, l.By = true, "low", "nothing that was tried missed the objective"
		l.Rate = widened(stat.Interval{Lo: math.Min(c.Load.Lo, rates[len(rates)-1]), Hi: math.Inf(1), N: c.Load.N})
		l.Rate.Point = l.Rate.Lo
	case lo > 0:
		l.Known = true
		// Too few windows for a crossing: what passed is trusted with a margin.
		const margin = 1.1
		l.Rate = stat.Interval{Point: lo / margin, Lo: lo / margin, Hi: math.Inf(1), N: len(s.levels[lo])}
		if hi > 0 {
			l.Rate.Hi = hi
			l.Confidence = confidenceOf(hi / lo)
			_, l.By = s.decide(s.used(s.levels[hi]), s.opt.SLO.Seconds(), true)
		} else {
			l.By, l.Confidence = "nothing that was tried missed the objective", "low"
		}
	case base.N > 0 && base.Lo > s.opt.SLO.Seconds():
		l.By = fmt.Sprintf("missed already at %.4g/s", s.rep.Base.Rate)
	default:
		l.By = "no level could be decided"
	}
}

// widened is a crossing's interval with what the scatter between windows leaves out: the
// levels are a grid of a curve that is not straight between them.
func widened(v stat.Interval) stat.Interval {
	const grid = 1.03
	v.Lo, v.Hi = v.Lo/grid, v.Hi*grid
	return v
}

// sloCrossing is where the P99 crosses the objective. A level's P99 is that of all its
// windows' answers together: near saturation a window holds a few bursts of slow answers,
// and the median over such windows promises too much (see pooledTail).
func (s *conclusion) sloCrossing() stat.Crossing {
	var levels []stat.LevelSample
	limit := s.opt.SLO.Seconds()
	add := func(rate float64, ws []*Window, samples int) {
		var tails []tail
		for _, w := range ws {
			if v := w.Obs.Response.At(sloQuantile); v.N >= samples && v.Point > 0 {
				tails = append(tails, tailOf(w, limit))
			}
		}
		if len(tails) > 0 {
			levels = append(levels, stat.LevelSample{Load: rate, Windows: len(tails), Least: s.leastScatter(rate, ws, sloQuantile), Latency: func(windows []int) float64 {
				return pooledTail(tails, windows, 1-sloQuantile)
			}})
		}
	}
	if base := s.used(s.base); len(base) >= 3 { // its windows may be small, but there are several
		add(s.rep.Base.Rate, base, sloSamples/len(base))
	}
	for _, rate := range s.rates() {
		add(rate, s.used(s.levels[rate]), sloSamples)
	}
	return stat.SampledCrossing(levels, []float64{limit}, 1, s.opt.Seed, s.plan.resamples, confidence)
}

// maxLimit is the plateau, or, where errors come first, the highest level without.
func (s *conclusion) maxLimit() {
	m := &s.rep.Max
	m.Rate = stat.Unknown()
	m.Bracket = s.rep.Knee.Bracket
	lo, hi := m.Bracket[0], m.Bracket[1]
	if f := s.faultAt(hi); strings.HasPrefix(f, "errors") && lo > 0 {
		m.Known, m.By = true, f
		m.Rate = stat.Interval{Point: math.Sqrt(lo * hi), Lo: lo, Hi: hi, N: len(s.levels[lo])}
		m.Confidence = confidenceOf(hi / lo)
		return
	}
	if p := s.rep.Model.Plateau; p.N >= 2 {
		m.Known, m.Rate, m.By = true, p, "throughput"
		m.Confidence = confidenceOf(p.Ratio())
		return
	}
	best := 0.0
	for i := range s.rep.Windows {
		if w := &s.rep.Windows[i]; w.Used && w.Fault == "" && w.Obs.Load.Concurrency == 0 {
			best = math.Max(best, w.Obs.completedRate())
		}
	}
	m.Rate.Lo = best
	m.By = "no overload was measured: at least what was completed"
}

// cliff looks for throughput that falls when more is offered.
func (s *conclusion) cliff() {
	best := 0.0
	falling := map[float64][]float64{}
	for i := range s.rep.Windows {
		w := &s.rep.Windows[i]
		// Going down and after a burst what was left over is completed too.
		if w.Used && slices.Contains([]string{"up", "plateau", "refine"}, w.Pass) {
			falling[w.Obs.Load.Rate] = append(falling[w.Obs.Load.Rate], w.Obs.completedRate())
		}
	}
	for _, rate := range sortedKeys(falling) {
		x := stat.Median(falling[rate])
		if x < 0.8*best && len(falling[rate]) >= 2 && s.rep.Cliff == 0 {
			s.rep.Cliff = rate
			s.note("throughput falls from %.4g/s to %.4g/s when %.4g/s are offered", best, x, rate)
		}
		best = math.Max(best, x)
	}
}

func (s *conclusion) agreement() {
	for _, a := range s.rep.Model.Agreement {
		switch {
		case a.OK:
		case a.Finding:
			s.note("%s: %s", a.Name, a.Text)
		case s.rep.Knee.Known:
			s.rep.Ambiguous = true
			s.fault(Inconclusive, "knee ambiguous: %s: %s", a.Name, a.Text)
		}
	}
}

func (s *conclusion) confirmed() {
	c := s.rep.Confirm
	if c == nil {
		return
	}
	if c.HoldViolations > 1+c.HoldWindows/10 {
		s.fault(Inconclusive, "0.9 of the knee (%.4g/s) did not hold: %d of %d windows violate", c.HoldRate, c.HoldViolations, c.HoldWindows)
	} else if c.HoldViolations > 0 {
		s.note("%d of %d windows at 0.9 of the knee violate", c.HoldViolations, c.HoldWindows)
	}
	if c.BreakWindows >= 3 && c.Breaks < 2 && s.rep.Knee.Known {
		s.note("1.1 of the knee (%.4g/s) broke in %d of %d windows only: the knee may be higher", c.BreakRate, c.Breaks, c.BreakWindows)
		s.rep.Knee.Confidence = "low"
	}
}

// unsaturated: everything that was allowed was borne.
func (s *conclusion) unsaturated() {
	q := s.rep.Qualify
	at := math.Min(s.top, s.lo)
	if q.Ceiling > 0 && q.MaxRate >= 0.49*q.Ceiling {
		s.fault(Invalid, "not saturated at %.4g/s, and above that the generator (ceiling %.4g/s) would be measured", at, q.Ceiling)
		return
	}
	if s.opt.Expect > 0 && at >= s.opt.Expect {
		s.fault(Pass, "not saturated at %.4g/s, which is what was expected", at)
		return
	}
	s.fault(Inconclusive, "not saturated within the caps: it carries at least %.4g/s", at)
}

func (s *conclusion) expected() {
	r := s.rep
	limit, name := r.Knee, "λ knee"
	if s.opt.SLO > 0 {
		limit, name = r.SLO, "λ SLO"
	} else if !limit.Known {
		limit, name = r.Max, "λ max"
	}
	switch e := s.opt.Expect; {
	case s.opt.SLO > 0 && !limit.Known && strings.HasPrefix(limit.By, "missed"):
		s.fault(Fail, "the objective is %s", limit.By)
	case !limit.Known:
		s.fault(Inconclusive, "%s is not known: %s", name, limit.By)
	case e == 0:
		r.Verdict = Pass
	case limit.Rate.Lo >= e:
		s.fault(Pass, "%s is at least %.4g/s, expected %.4g/s", name, limit.Rate.Lo, e)
	case limit.Rate.Hi < e:
		s.fault(Fail, "%s is at most %.4g/s, expected %.4g/s", name, limit.Rate.Hi, e)
	default:
		s.fault(Inconclusive, "%s is between %.4g/s and %.4g/s, expected %.4g/s", name, limit.Rate.Lo, limit.Rate.Hi, e)
	}
}

// recommend names an operating point: 0.7 of λ_max, and no more than the objective
// (or, without one, the knee) allows.
func (s *conclusion) recommend() {
	r := s.rep
	if r.Verdict != Pass && r.Verdict != Fail || !r.Max.Known {
		return
	}
	at := 0.7 * r.Max.Rate.Point
	switch {
	case s.opt.SLO > 0 && r.SLO.Known:
		at = math.Min(at, r.SLO.Rate.Lo)
	case s.opt.SLO > 0:
		return
	case r.Knee.Known && r.Knee.Rate.Lo > 0:
		at = math.Min(at, r.Knee.Rate.Lo)
	}
	r.Recommended = at
}
