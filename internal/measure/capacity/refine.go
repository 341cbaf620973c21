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
	questions := []*question{{search: s, by: s.byKnee}}
	if s.opt.SLO > 0 {
		questions = append(questions, &question{search: s, by: s.bySLO})
	}
	for range s.plan.refine {
		for _, q := range questions {
			if q.settled {
				continue
			}
			if err := q.bisect(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// question is what bisection is after.
type question struct {
	*search
	by      func([]*Window) Decision
	tried   []float64
	settled bool // as fine as requested, or as the noise allows
}

// bisect is one step of noisy bisection: a level is repeated until it is decided or
// has had the most repeats. Around an undecided one both sides are tried; when they
// are undecided too, this is as fine as the noise allows.
func (q *question) bisect(ctx context.Context) error {
	lo, hi, inverted := q.bracketOf(q.by)
	at, repeats := 0.0, q.plan.maxRepeats
	switch {
	case hi == 0 || lo == 0:
		at = q.beyond(lo, hi)
	case inverted && !slices.Contains(q.tried, hi):
		at, repeats = hi, q.plan.repeats // believe the odd one out only after more of it
	case hi/lo > 1.05:
		at = q.between(lo, hi)
	}
	if at == 0 {
		q.settled = true
		return nil
	}
	q.tried = append(q.tried, at)
	return q.level(ctx, "refine", at, q.plan.repeats, repeats)
}

// between is the next rate to try inside (lo, hi): an undecided level with repeats
// to spare, else the middle of the widest gap between what was measured; 0 when all
// gaps are fine.
func (q *question) between(lo, hi float64) float64 {
	at, widest := 0.0, 1.05
	last := lo
	for _, r := range q.rates() {
		if r <= lo || r > hi {
			continue
		}
		if r < hi && !slices.Contains(q.tried, r) && len(q.levels[r]) < q.plan.maxRepeats {
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
func (q *question) beyond(lo, hi float64) float64 {
	rates := q.rates()
	if len(rates) == 0 {
		return 0
	}
	rate := rates[0] / 1.6
	if hi == 0 {
		rate = math.Min(rates[len(rates)-1]*1.25, q.top)
	}
	if len(q.levels[rate]) > 0 || lo == 0 && rate <= q.rep.Base.Rate {
		return 0
	}
	return rate
}
