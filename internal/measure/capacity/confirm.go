package capacity

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// confirm is P4: 0.9 of the knee must hold, 1.1 of it must break. Then, where the
// mode has the time, a burst and the levels of concurrency.
func (s *search) confirm(ctx context.Context) error {
	if s.hi == 0 {
		return nil
	}
	s.sumBaseline()
	c := s.crossing(s.levelLatencies(s.levels))
	knee := c.Load.Point
	if math.IsNaN(knee) {
		lo, hi, _ := s.bracketOf(s.byKnee)
		if lo == 0 || hi == 0 {
			return nil
		}
		knee = math.Sqrt(lo * hi)
	}
	s.rep.Confirm = &Confirm{HoldRate: 0.9 * knee, BreakRate: 1.1 * knee}
	k := &confirmation{s, s.rep.Confirm}
	if err := k.hold(ctx); err != nil {
		return err
	}
	if err := k.breaks(ctx); err != nil {
		return err
	}
	if s.plan.burst {
		if err := k.burst(ctx, 3*knee); err != nil {
			return err
		}
	}
	return k.closedLoop(ctx)
}

// A confirmation measures around the knee that was found.
type confirmation struct {
	*search
	c *Confirm
}

// violates: the lower bound of the evaluated quantile is above the greater of knee
// threshold and objective, or there was an error.
func (s *confirmation) violates(w *Window) bool {
	limit := math.Max(s.threshold(), s.opt.SLO.Seconds())
	v := w.Obs.Response.At(s.rep.Quantile)
	return w.Fault != "" || stat.EnoughSamples(v.N, s.rep.Quantile) && v.Lo > limit
}

func (s *confirmation) hold(ctx context.Context) error {
	c := s.c
	if err := s.warm(ctx, c.HoldRate); err != nil {
		return err
	}
	d := max(s.plan.holdWindow, s.levelWindow(c.HoldRate))
	// Discarded windows are not held, but they do not continue for ever.
	for tries := 2 * int(s.plan.hold/d); c.Held < s.plan.hold && tries >= 0; tries-- {
		w, err := s.measure(ctx, "hold", s.load(c.HoldRate), c.HoldWindows+1, d)
		if err != nil {
			return err
		}
		s.keep(c.HoldRate)
		if !w.Used {
			continue
		}
		c.HoldWindows++
		c.Held += w.Obs.Length
		if s.violates(w) {
			c.HoldViolations++
			if c.HoldViolations > 1+c.HoldWindows/5 {
				return nil // it does not hold; more load proves no more
			}
		}
	}
	return nil
}

// keep counts the last window as one of a level's: what is measured so near to the
// knee is evidence about it too.
func (s *evidence) keep(rate float64) {
	s.levels[rate] = append(s.levels[rate], len(s.rep.Windows)-1)
}

func (s *confirmation) breaks(ctx context.Context) error {
	c, rate := s.c, s.c.BreakRate
	if rate > s.top {
		return nil
	}
	if err := s.warm(ctx, rate); err != nil {
		return err
	}
	d := max(s.plan.holdWindow, s.levelWindow(rate))
	for tries := 5; c.BreakWindows < 3 && tries > 0; tries-- {
		w, err := s.measure(ctx, "break", s.load(rate), c.BreakWindows+1, d)
		if err != nil {
			return err
		}
		s.keep(rate)
		if !w.Used {
			continue
		}
		c.BreakWindows++
		if s.violates(w) {
			c.Breaks++
		}
		if c.Breaks == 2 {
			return nil
		}
	}
	return nil
}

// burst is three times the knee for two short windows, then half of it until the
// latency is back.
func (s *confirmation) burst(ctx context.Context, rate float64) error {
	c := s.c
	c.BurstRate = math.Min(rate, s.top)
	for r := range 2 {
		if _, err := s.measure(ctx, "burst", s.load(c.BurstRate), r+1, s.plan.probe); err != nil {
			return err
		}
	}
	c.Recovery = -1
	spent := 0.0
	limit := 1.5 * math.Max(s.rep.Base.Mean, s.calm())
	for r := range 20 {
		w, err := s.measure(ctx, "settle", s.load(c.HoldRate/1.8), r+1, s.plan.probe)
		if err != nil {
			return err
		}
		spent += w.Obs.seconds()
		if w.Fault == "" && w.Obs.Response.Mean <= limit {
			c.Recovery = spent
			break
		}
	}
	return nil
}

// closedLoop measures levels of concurrency, from one to well past where in-flight
// was at the knee, for the scalability model.
func (s *confirmation) closedLoop(ctx context.Context) error {
	if !s.opt.ClosedLoop || s.plan.closedLevels == 0 {
		return nil
	}
	high := 4.0
	for _, w := range s.rep.Windows {
		if w.Used && w.Fault == "" && w.Obs.Load.Concurrency == 0 {
			high = math.Max(high, w.Obs.InFlight)
		}
	}
	high = math.Min(4*high, 1024)
	if s.opt.MaxConns > 0 {
		high = math.Min(high, float64(s.opt.MaxConns))
	}
	last := 0
	for i := range s.plan.closedLevels {
		n := int(math.Round(math.Pow(high, float64(i)/float64(s.plan.closedLevels-1))))
		if n <= last {
			n = last + 1
		}
		last = n
		for r := range 2 {
			w, err := s.measure(ctx, "closed", Load{Concurrency: n, Conns: max(s.opt.Conns, n)}, r+1, s.plan.probe)
			if errors.Is(err, ErrUnsupported) {
				s.note("the target takes no closed loop: the scalability model rests on the measured in-flight")
				return nil
			}
			if err != nil {
				return err
			}
			if w.Used && !strings.HasPrefix(w.Fault, "errors") && w.Obs.Completed > 0 {
				s.closed = append(s.closed, ScalePoint{N: float64(n), X: w.Obs.completedRate()})
			}
		}
	}
	return nil
}
