package capacity

import (
	"context"
	"errors"
	"math"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// Find searches the limit of target. It blocks until the search is over. A done
// ctx, a cap or a stop condition end it early: what was measured so far is
// returned, marked partial, and no error. An error means that the options make no
// sense or that the target cannot be measured at all; the report, when not nil,
// holds what came before.
func Find(ctx context.Context, target Target, opt Options) (*Report, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	opt = opt.WithDefaults()
	e := &evidence{
		opt: opt, plan: opt.plan(),
		rep:      &Report{Version: 1, Started: opt.Now(), Options: opt, Quantile: opt.Quantile, Machine: loadgen.LocalMachine(), Windows: []Window{}},
		levels:   map[float64][]int{},
		downs:    map[float64][]int{},
		top:      math.Inf(1),
		readings: map[float64]stat.Reading{},
	}
	s := &search{meter{evidence: e, target: target, started: opt.Now(), minMean: math.Inf(1)}}
	err := s.run(ctx)
	workAfter(ctx, e)
	s.phase = "model"
	s.report(Load{}, 0, nil, "models")
	(&fit{e}).model()
	(&conclusion{e}).conclude(err)
	s.rep.Elapsed = s.elapsed()
	var stop *stopError
	if err == nil || ctx.Err() != nil || errors.Is(err, errTime) || errors.As(err, &stop) {
		return s.rep, nil
	}
	return s.rep, err
}

// run is the procedure. A phase that runs out of its share of time passes on to
// the next; everything else ends the search.
func (s *search) run(ctx context.Context) error {
	for _, phase := range []struct {
		name  string
		share float64 // of MaxDuration, that may be used when it ends
		steps int
		run   func(context.Context) error
	}{
		{"qualify", 0.30, 4, s.qualify},
		{"bracket", 0.45, 14, s.bracket},
		{"stairs", 0.75, 8 * s.plan.repeats, s.stairs},
		{"refine", 0.82, s.plan.refine * s.plan.repeats, s.refine},
		{"confirm", 1, int(s.plan.hold/s.plan.holdWindow) + 3, s.confirm},
	} {
		s.enter(phase.name, phase.steps, phase.share)
		err := phase.run(ctx)
		if errors.Is(err, errTime) {
			if phase.name == "qualify" {
				return &stopError{Inconclusive, "the time ran out before the first level was measured"}
			}
			if phase.name != "refine" { // the interval shows how fine it got
				s.note("%s: cut short by the cap on time", phase.name)
			}
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
