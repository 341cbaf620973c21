package capacity

import (
	"context"
	"math"
	"slices"
)

// refine is P3: noisy bisection for the knee and for the objective, turn about.
func (s *search) refine(ctx context.Context) error {
	if s.hi == 0 {
		return nil
	}
	if err := s.again(ctx); err != nil {
		return err
	}
	s.sumBaseline()
	questions := []*question{{by: s.byKnee}}
	if s.opt.SLO > 0 {
		questions = append(questions, &question{by: s.bySLO})
	}
	for range s.plan.refine {
		for _, q := range questions {
			if q.settled {
				continue
			}
			if err := s.bisect(ctx, q); err != nil {
				return err
			}
		}
	}
	return nil
}

// question is what bisection is after.
type question struct {
	by      func([]*Window) Decision
	tried   []float64
	settled bool // as fine as asked for, or as the noise allows
}

// bisect is one step of noisy bisection: a level is repeated until it is decided or
// has had the most repeats. Around an undecided one both sides are tried; when they
// are undecided too, this is as fine as the noise allows.
func (s *search) bisect(ctx context.Context, q *question) error {
	lo, hi, inverted := s.bracketOf(q.by)
	at, repeats := 0.0, s.plan.maxRepeats
	switch {
	case hi == 0 || lo == 0:
		at = s.beyond(lo, hi)
	case inverted && !slices.Contains(q.tried, hi):
		at, repeats = hi, s.plan.repeats // believe the odd one out only after more of it
	case hi/lo > 1.05:
		at = s.between(lo, hi, q.tried)
	}
	if at == 0 {
		q.settled = true
		return nil
	}
	q.tried = append(q.tried, at)
	return s.level(ctx, "refine", at, s.plan.repeats, repeats)
}

// between is the next rate to try inside (lo, hi): an undecided level with repeats
// to spare, else the middle of the widest gap between what was measured; 0 when all
// gaps are fine.
func (s *search) between(lo, hi float64, tried []float64) float64 {
	at, widest := 0.0, 1.05
	last := lo
	for _, r := range s.rates() {
		if r <= lo || r > hi {
			continue
		}
		if r < hi && !slices.Contains(tried, r) && len(s.levels[r]) < s.plan.maxRepeats {
			return r
		}
		if r/last > widest {
			widest, at = r/last, math.Sqrt(r*last)
		}
		last = r
	}
	return at
}

// beyond is the next rate on the one side on which nothing was decided; 0 when there
// is nowhere to go.
func (s *search) beyond(lo, hi float64) float64 {
	rates := s.rates()
	if len(rates) == 0 {
		return 0
	}
	rate := rates[0] / 1.6
	if hi == 0 {
		rate = math.Min(rates[len(rates)-1]*1.25, s.top)
	}
	if len(s.levels[rate]) > 0 || lo == 0 && rate <= s.rep.Base.Rate {
		return 0
	}
	return rate
}
