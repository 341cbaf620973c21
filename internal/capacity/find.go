package capacity

import (
	"context"
	"errors"
)

// Find searches the limit of target. It blocks until the search is over. A done
// ctx, a cap or a stop condition end it early: what was measured so far is
// returned, marked partial where that matters, and no error. An error means that
// the options make no sense or that the target cannot be measured at all; the
// report, when not nil, holds what came before.
func Find(ctx context.Context, target Target, opt Options) (*Report, error) {
	return nil, errors.New("not yet")
}
