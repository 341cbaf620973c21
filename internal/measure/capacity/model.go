package capacity

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// sumBaseline takes together what is known of the target at low load.
func (s *evidence) sumBaseline() {
	ws := s.used(s.base)
	b := &s.rep.Base
	ls := s.latencies(ws)
	b.Latency = s.latency(ws)
	var logs, means, inFlight, conns, gs []float64
	var host []stat.Covariates
	for _, w := range ws {
		means = append(means, w.Obs.Response.Mean)
		inFlight = append(inFlight, w.Obs.InFlight)
		host = append(host, w.Obs.covariates())
		if r := w.Obs.Runtime; r != nil && r.Goroutines > 0 {
			conns, gs = append(conns, w.Obs.Conns), append(gs, r.Goroutines)
		}
	}
	for _, l := range ls {
		logs = append(logs, math.Log(l))
	}
	b.Scatter = stat.MomentsOf(logs).Std()
	if n := len(ls) / 3; n > 0 {
		b.Drift = stat.Median(ls[len(ls)-n:]) / stat.Median(ls[:n])
	}
	if len(ws) > 0 {
		b.Mean, b.InFlight = stat.Median(means), stat.Median(inFlight)
		b.Host = medianCovariates(host)
	}
	if len(gs) > 0 {
		b.G0, b.G1 = stat.FitGoroutines(conns, gs)
	}
	if t := s.threshold(); !math.IsNaN(t) {
		s.rep.Threshold = t
	}
}

func medianCovariates(cs []stat.Covariates) stat.Covariates {
	pick := func(f func(stat.Covariates) float64) float64 { return stat.MedianOf(cs, f) }
	return stat.Covariates{
		Steal:    pick(func(c stat.Covariates) float64 { return c.Steal }),
		Pressure: pick(func(c stat.Covariates) float64 { return c.Pressure }),
		Wait:     pick(func(c stat.Covariates) float64 { return c.Wait }),
		Busy:     pick(func(c stat.Covariates) float64 { return c.Busy }),
		Own:      pick(func(c stat.Covariates) float64 { return c.Own }),
	}
}

// levelLatencies are the latencies of these levels in the windows of some passes
// (all when none is named). A window of overload counts with at least twice the
// threshold: its latency only says how long it was.
func (s *evidence) levelLatencies(levels map[float64][]int, passes ...string) []stat.LevelLatency {
	threshold := s.threshold()
	var out []stat.LevelLatency
	for _, rate := range slices.Sorted(maps.Keys(levels)) {
		l := stat.LevelLatency{Load: rate}
		for _, w := range s.used(levels[rate]) {
			if len(passes) > 0 && !slices.Contains(passes, w.Pass) {
				continue
			}
			for _, v := range s.latencies([]*Window{w}) {
				if backlogged(w) {
					v = math.Max(v, 2*threshold)
				}
				l.Latencies = append(l.Latencies, v)
			}
		}
		if len(l.Latencies) > 0 {
			l.Least = s.leastScatter(rate, s.used(levels[rate]), s.rep.Quantile)
			out = append(out, l)
		}
	}
	return out
}

// leastScatter is the standard deviation that the logarithm of a level's quantile has at least,
// however alike its windows came out. Slow answers come in bursts: in M/M/1 a stay beyond a
// level lasts 1/(C−λ) on average, exponentially distributed, so that in T seconds there are
// k = T·(1−q)·(C−λ) of them, the share of time beyond varies by √(2/k), and the quantile of
// an exponential tail by that over ln(1/(1−q)). There are no more of them than answers.
func (s *evidence) leastScatter(rate float64, ws []*Window, q float64) float64 {
	c := s.rep.Model.Plateau.Point
	if !(c > 0) {
		c = s.hi
	}
	seconds, answers := 0.0, 0.0
	for _, w := range ws {
		seconds, answers = seconds+w.Obs.seconds(), answers+float64(w.Obs.Completed)
	}
	bursts := (1 - q) * math.Min(seconds*math.Max(c-rate, 0.02*c), answers)
	if !(bursts > 0) {
		return 0
	}
	return math.Min(math.Sqrt(2/bursts)/-math.Log(1-q), 1)
}

// backlogged: the window was overload, not chance.
func backlogged(w *Window) bool { return overload(w) && w.Obs.errors() == 0 || w.Obs.Dropped > 0 }

func (s *evidence) crossing(levels []stat.LevelLatency) stat.Crossing {
	return stat.InflationCrossing(levels, s.latencies(s.used(s.base)), s.opt.Kappa, s.opt.Seed, s.plan.resamples, confidence)
}

// A fit fills the report's models and level table from the evidence.
type fit struct{ *evidence }

// model is P5. It works with whatever was measured.
func (s *fit) model() {
	s.sumBaseline()
	m := &s.rep.Model
	var points []stat.Throughput
	var lengths []float64
	edge := 0.0
	for i := range s.rep.Windows {
		if w := &s.rep.Windows[i]; w.Void == "" && len(w.Discard) == 0 && overload(w) {
			lengths = append(lengths, w.Obs.seconds())
			points = append(points, stat.Throughput{Offered: w.Obs.Load.Rate, Completed: w.Obs.completedRate()})
			edge = math.Max(edge, 1/math.Max(float64(w.Obs.Completed), 1))
		}
	}
	m.Plateau = stat.Plateau(surelyAbove(points), plateauConfidence)
	if edge > 0 { // an answer more or less at each end of a window
		m.Plateau.Lo *= 1 - edge
		m.Plateau.Hi *= 1 + edge + idleShare(points, lengths, m.Plateau.Point)
	}
	all := s.levelLatencies(s.levels)
	m.Crossing = s.crossing(all)
	m.Up, m.Down = s.crossing(s.levelLatencies(s.levels, "up")), s.crossing(s.levelLatencies(s.downs))
	s.ruleLines()
	s.scaling()
	var x, y, rates, ls []float64
	for _, l := range all {
		v := stat.Median(l.Latencies)
		x, y = append(x, math.Log(l.Load)), append(y, math.Log(v))
		rates, ls = append(rates, l.Load), append(ls, v)
	}
	m.Hinge = stat.FitHinge(x, y)
	if c := m.Plateau.Point; c > 0 && s.rep.Base.Latency.Point > 0 {
		top := math.Max(s.opt.SLO.Seconds(), 4*s.rep.Threshold)
		if i := stat.Kneedle(rates, ls, stat.Axes{MaxX: c, MinY: s.rep.Base.Latency.Point, MaxY: top}); i >= 0 {
			m.Kneedle = rates[i]
		}
	}
	s.cpuCost()
	s.sumLevels()
}

// idleShare is the part of overloaded windows for which a queue that starts empty has nothing
// to do yet: 1/(λ−C) seconds of each in M/M/1. A window that follows another has none; which
// do is not known to all targets, so it widens the interval upwards only.
func idleShare(points []stat.Throughput, lengths []float64, c float64) float64 {
	sum, n := 0.0, 0
	for i, p := range points {
		if p.Offered >= 1.1*c {
			sum, n = sum+1/((p.Offered-c)*lengths[i]), n+1
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// plateauConfidence is more than what is promised: the windows of a plateau follow each other.
const plateauConfidence = 0.97

// surelyAbove are the windows that were offered a tenth more than the capacity that all of them
// show. Those nearer to it count as overloaded when they happened to complete little, and
// not otherwise, which makes the capacity too small.
func surelyAbove(points []stat.Throughput) []stat.Throughput {
	c := stat.Plateau(points, confidence).Point
	kept := slices.DeleteFunc(slices.Clone(points), func(p stat.Throughput) bool { return p.Offered < 1.1*c })
	if len(kept) < 2 {
		return points
	}
	return kept
}

// ruleLines runs the two-condition rule up the stairs.
func (s *fit) ruleLines() {
	r := &s.rep.Rule
	base := stat.RuleSample{P99: s.rep.Base.Latency.Point, Goroutines: s.rep.Base.G0, Excess: 1}
	procs := 1
	for _, i := range s.base {
		if rt := s.rep.Windows[i].Obs.Runtime; rt != nil && rt.Goroutines > 0 {
			r.Exposed = true
			procs = max(procs, rt.GOMAXPROCS)
			base.Goroutines = math.Max(base.Goroutines, rt.Goroutines)
		}
	}
	if !r.Exposed {
		base.Excess = math.Max(1, s.rep.Base.InFlight)
	}
	if !(base.P99 > 0) {
		return
	}
	rule := stat.NewRule(stat.RuleConfig{Latency: s.opt.Kappa, Procs: procs}, base)
	for _, rate := range s.rates() {
		l := stat.RuleLevel{Load: rate}
		for _, w := range s.used(s.levels[rate]) {
			if w.Pass == "up" {
				l.Repeats = append(l.Repeats, s.ruleSample(w, r.Exposed))
			}
		}
		if len(l.Repeats) == 0 {
			continue
		}
		got := rule.Level(l)
		s.readings[rate] = got
		switch {
		case got.State == stat.Inflection && r.Bracket[1] == 0:
			r.Bracket[1] = rate
		case got.State == stat.Steady:
			r.Bracket[0] = rate
		}
		if got.Literal && r.Exposed && r.Literal == 0 {
			r.Literal = rate
		}
	}
}

func (s *fit) ruleSample(w *Window, exposed bool) stat.RuleSample {
	o := &w.Obs
	out := stat.RuleSample{Dropped: o.Dropped, Growing: w.Trend.Growing, Excess: math.Max(1, o.InFlight)}
	if v := o.Response.At(s.rep.Quantile); stat.EnoughSamples(v.N, s.rep.Quantile) && v.Point > 0 {
		out.P99 = v.Point
	}
	if r := o.Runtime; exposed && r != nil {
		out.Goroutines, out.Runnable, out.SchedP99 = r.Goroutines, r.Runnable, r.SchedP99
		out.Excess = stat.ExcessGoroutines(r.Goroutines, s.rep.Base.G0, s.rep.Base.G1, o.Conns)
	}
	return out
}

// scaling fits the scalability models on concurrency: a closed loop's, or the
// measured in-flight of windows whose backlog was constant.
func (s *fit) scaling() {
	m := &s.rep.Model
	points := s.closed
	m.ScaleAxis = "closed loop"
	if len(points) < 4 {
		points, m.ScaleAxis = nil, "in flight"
		for i := range s.rep.Windows {
			w := &s.rep.Windows[i]
			steady := w.Trend.Stationary && w.Fault == ""
			if w.Used && w.Pass != "probe" && (steady || overload(w) && w.Obs.errors() == 0) && w.Obs.InFlight > 0 {
				points = append(points, ScalePoint{N: w.Obs.InFlight, X: w.Obs.completedRate()})
			}
		}
	}
	m.ScalePoints = points
	var grouped []stat.ScalePoint
	for _, p := range points {
		i := slices.IndexFunc(grouped, func(g stat.ScalePoint) bool { return g.N == p.N })
		if i < 0 {
			grouped = append(grouped, stat.ScalePoint{N: p.N})
			i = len(grouped) - 1
		}
		grouped[i].X = append(grouped[i].X, p.X)
	}
	m.Scaling = stat.FitScaling(grouped, s.opt.Seed, min(s.plan.resamples, 200), confidence)
}

// cpuCost is the second opinion: what the target's processors could do at the cost
// per answer that was measured below the knee.
func (s *fit) cpuCost() {
	m := &s.rep.Model
	var costs, spare []float64
	procs, cpus := 0, 0
	for i := range s.rep.Windows {
		w := &s.rep.Windows[i]
		r := w.Obs.Runtime
		if !w.Used || r == nil || r.CPUSeconds <= 0 || w.Obs.Completed < 100 {
			continue
		}
		procs = max(procs, r.GOMAXPROCS)
		if !r.Remote {
			cpus = max(cpus, w.Obs.Host.CPUs)
		}
		if w.Fault == "" && w.Obs.Load.Rate > 3*s.rep.Base.Rate {
			costs = append(costs, r.CPUSeconds/float64(w.Obs.Completed))
		}
		if overload(w) {
			spare = append(spare, w.Obs.Generator.CPU)
		}
	}
	if len(costs) == 0 {
		return
	}
	m.CPUCost = 1000 * stat.Median(costs)
	// On one machine the generator has its part of the processors.
	cores := float64(cpus)
	if len(spare) > 0 {
		cores -= stat.Median(spare)
	}
	if procs > 0 && (cores <= 0 || float64(procs) < cores) {
		cores = float64(procs)
	}
	if cores > 0 {
		m.CPUCapacity = cores / stat.Median(costs)
	}
}

// agree holds the estimates of the knee against each other.
func (s *conclusion) agree() {
	m, knee := &s.rep.Model, s.rep.Model.Crossing.Load.Point
	add := func(name string, ok, finding bool, format string, args ...any) {
		m.Agreement = append(m.Agreement, Agreement{Name: name, OK: ok, Finding: finding, Text: fmt.Sprintf(format, args...)})
	}
	if hi := s.rep.Rule.Bracket[1]; hi > 0 && knee > 0 {
		add("rule", hi >= 0.95*knee, false, "first inflection at %.4g/s, crossing at %.4g/s", hi, knee)
	}
	c := m.Plateau.Point
	if x := m.Scaling.Capacity(); c > 0 && x > 0 && !math.IsInf(x, 1) && (m.Scaling.USL.Identified || m.Scaling.Model == "hard cap" && m.Scaling.HardCap.Capped) {
		// An in-flight that was measured and not set is too rough to speak against the knee.
		add("model", math.Abs(x/c-1) <= 0.15, m.ScaleAxis == "in flight", "%s: %.4g/s, plateau %.4g/s", m.Scaling.Model, x, c)
	}
	if up, down := m.Up.Load, m.Down.Load; up.Point > 0 && down.Point > 0 {
		// Apart only when the intervals are too. One window a level on the way down does not
		// make that surer than going up was, and has the rest of a backlog in it.
		apart := up.Point/down.Point > 1.15+0.1/float64(s.plan.downRepeats) && up.Lo > math.Max(down.Hi, down.Point*up.Point/up.Lo)
		add("hysteresis", !apart, false, "knee %.4g/s going up, %.4g/s going down", up.Point, down.Point)
	}
	if up := m.Up.Load.Point; m.Down.Below && up > 0 {
		lowest := slices.Min(slices.Collect(maps.Keys(s.downs)))
		add("hysteresis", up/lowest <= 1.15 && !s.lostGoingDown(lowest), false, "knee %.4g/s going up; going down it is lost still at %.4g/s", up, lowest)
	}
	if m.Down.Above && m.Up.Load.Point > 0 {
		add("hysteresis", true, false, "what was borne going up was borne going down")
	}
	if c > 0 && m.CPUCapacity > 0 {
		ratio := m.CPUCapacity / c
		// Processors to spare at the plateau indicate a lock, a system call or the network.
		add("cpu", ratio > 0.7 && ratio < 1.3, ratio >= 1.3, "the processors would carry %.4g/s, plateau %.4g/s", m.CPUCapacity, c)
	}
}

// lostGoingDown: every window at a rate was overload going down, and none going up.
func (s *conclusion) lostGoingDown(rate float64) bool {
	up, down := s.used(s.levels[rate]), s.used(s.downs[rate])
	return len(up) > 0 && len(down) > 0 && !slices.ContainsFunc(up, overload) && !slices.ContainsFunc(down, func(w *Window) bool { return !overload(w) })
}

// sumLevels makes the level table.
func (s *fit) sumLevels() {
	s.rep.Levels = []Level{}
	for _, rate := range s.rates() {
		s.rep.Levels = append(s.rep.Levels, s.sumLevel(rate))
	}
}
