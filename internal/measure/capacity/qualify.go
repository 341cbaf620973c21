package capacity

import (
	"context"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// workAfter does the fixed work again: a neighbour may have come during the search.
func workAfter(ctx context.Context, s *evidence) {
	if ctx.Err() != nil {
		return
	}
	q := &s.rep.Qualify
	q.FixedAfter = s.opt.FixedWork(ctx, s.plan.fixedWork)
	q.HostCV = max(q.HostCV, stat.CV(q.FixedAfter))
}

// TimeFixedWork is a fixed piece of arithmetic done n times, each of some 20 ms, and
// the seconds each took: what a noisy machine makes uneven.
func TimeFixedWork(ctx context.Context, n int) []float64 {
	out := make([]float64, 0, n)
	x := uint64(88172645463325252)
	for range n {
		if ctx.Err() != nil {
			break
		}
		start := time.Now()
		for range 12_000_000 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		spent := time.Since(start).Seconds()
		if x == 0 { // never: xorshift has no way to 0; keeps the loop
			spent = 0
		}
		out = append(out, spent)
	}
	return out
}
