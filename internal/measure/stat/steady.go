package stat

import "math"

// A Warmup is where a series becomes steady.
type Warmup struct {
	// Cut is how many of the first values belong to the warm-up.
	Cut int `json:"cut"`
	// Steady is false when the best cut is as late as it may be: the series was
	// still on its way and should be extended.
	Steady bool `json:"steady"`
}

// MSER finds the warm-up of a series of batch means: the cut d ≤ n/2 that
// minimises Σ(Y_j−Ȳ_d)²/(n−d)² over what is left (White, "An effective
// truncation heuristic for bias reduction in simulation output", Simulation 69,
// 1997). Below ten batches the minimum is mostly chance: nothing is cut and the
// series passes for steady. NaN values (batches in which nothing completed) are
// skipped over.
func MSER(ys []float64) Warmup {
	n := len(ys)
	if n < 10 {
		return Warmup{Steady: true}
	}
	best, cut := math.Inf(1), 0
	var m Moments
	// From the end, so that each step adds one value.
	for d := n - 1; d >= 0; d-- {
		m.Add(ys[d])
		if d > n/2 || m.N == 0 {
			continue
		}
		left := float64(m.N)
		// ≤: of equal cuts the earliest, which keeps the most.
		if v := m.M2 / (left * left); v <= best {
			best, cut = v, d
		}
	}
	return Warmup{Cut: cut, Steady: cut < n/2}
}

// A Trend is whether the work in progress was constant.
type Trend struct {
	// Slope is in work per second, Drift what it makes over the whole time, Limit
	// what chance may make of it.
	Slope float64 `json:"slope"`
	Drift float64 `json:"drift"`
	Limit float64 `json:"limit"`
	// Stationary: |Drift| ≤ Limit. Growing: Drift > Limit, which is overload
	// however good the percentiles still look.
	Stationary bool `json:"stationary"`
	Growing    bool `json:"growing"`
}

// Backlog tests whether the work in progress is stationary, by the Theil–Sen
// slope b of the batches' mean in-flight B over T seconds at rate λ:
// |b|·T ≤ max(3√B̄, 0.01·λ·T). batch is the length of one batch in seconds.
// Fewer than three batches pass.
func Backlog(inFlight []float64, batch, rate float64) Trend {
	n := len(inFlight)
	t := Trend{Stationary: true}
	if n < 3 || !(batch > 0) {
		return t
	}
	x := make([]float64, n)
	for i := range x {
		x[i] = (float64(i) + 0.5) * batch
	}
	total := float64(n) * batch
	t.Slope = TheilSen(x, inFlight, 0.95).Slope
	t.Drift = t.Slope * total
	t.Limit = math.Max(3*math.Sqrt(math.Max(MomentsOf(inFlight).Mean, 0)), 0.01*rate*total)
	t.Stationary = math.Abs(t.Drift) <= t.Limit
	t.Growing = t.Drift > t.Limit
	return t
}

// An Audit is Little's law compared with the books.
type Audit struct {
	// Gap is |L − XR|/L.
	Gap float64 `json:"gap"`
	// Slack is what was allowed.
	Slack float64 `json:"slack"`
	OK    bool    `json:"ok"`
}

// LittlesLaw audits a window's accounting: the mean in-flight L against
// throughput X times mean response R (Little, "A proof for the queuing formula
// L = λW", 1961), within 5 %. The law is exact only for a window that starts
// and ends empty, so what may straddle its n completions (about L of them at
// either end) is allowed besides. An empty window passes.
func LittlesLaw(l, x, r float64, n int) Audit {
	if l == 0 && x*r == 0 {
		return Audit{OK: true}
	}
	a := Audit{Gap: math.Abs(l-x*r) / math.Max(l, 1e-12), Slack: 0.05}
	if n > 0 {
		a.Slack += 2 * (l + 1) / float64(n)
	}
	a.OK = a.Gap <= a.Slack
	return a
}

// Covariates are what the machine did to a measurement, apart from its outcome.
type Covariates struct {
	// Steal is the share of processor time the hypervisor took (0 to 1), Pressure
	// PSI's cpu some of the window (0 to 1), Wait the time spent runnable but not
	// running per second of processor time.
	Steal    float64 `json:"steal"`
	Pressure float64 `json:"pressure"`
	Wait     float64 `json:"wait"`
	// Busy is the share of all processors in use, Own the part of it that is the
	// measurement's own (target and generator). 0 means unknown.
	Busy float64 `json:"busy"`
	Own  float64 `json:"own"`
}

// Classify reports why a window is to be discarded for what the machine did, never
// for what was measured; no reason means that it counts. base is the quiet
// machine at low load; without one only time stolen counts.
//
// Time stolen counts above 1 %. Waiting counts above three times the baseline's
// (and 5 %), unless it is for oneself: when what others use has not grown by a tenth
// of the machine, or, where one's own part is not known, up to what a machine so
// busy makes anyone wait. Work of others counts when it is a fifth of the machine
// more than at the baseline.
func Classify(c, base Covariates) []string {
	var why []string
	if c.Steal > 0.01 {
		why = append(why, "steal")
	}
	if base == (Covariates{}) {
		return why
	}
	others, before := c.Busy-c.Own, base.Busy-base.Own
	limit := math.Max(3*base.Wait, 0.05)
	switch {
	case c.Own > 0 && others-before < 0.1:
		limit = math.Inf(1)
	case c.Own == 0 && c.Busy > 0:
		limit = math.Max(limit, 0.25*c.Busy/math.Max(1-c.Busy, 0.01))
	}
	if c.Wait > limit {
		why = append(why, "run-queue wait")
	}
	if c.Own > 0 && others > math.Max(0.25, before+0.2) {
		why = append(why, "neighbours")
	}
	return why
}
