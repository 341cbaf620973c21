package app

import (
	"context"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/access"
)

// reviewPatience bounds how long a reload waits for the loops: they end the clients that
// lose their rights also after that.
const reviewPatience = 10 * time.Second

// reviewOf is what clients are queried about a change. It is made before the commit.
func reviewOf(c *change) *access.Review {
	return &access.Review{Was: c.was, Now: c.rules, Identity: c.auth.Identity, Valid: c.auth.Valid}
}

// review checks all clients again, and returns how many lose their rights.
func (r *reloads) review(ctx context.Context, requested *access.Review) config.Closing {
	ctx, cancel := context.WithTimeout(ctx, reviewPatience)
	defer cancel()
	n := r.app.push.Loops()
	got := make(chan map[string]int, n)
	r.app.push.Review(requested, func(lost map[string]int) { got <- lost })
	out := config.Closing{Protocols: map[string]int{}}
	for range n {
		select {
		case lost := <-got:
			for name, k := range lost {
				out.Protocols[name] += k
				out.Connections += k
			}
		case <-ctx.Done():
			r.app.log.Warn("not all clients were asked in time whether they keep their rights", "err", ctx.Err())
			return out
		}
	}
	return out
}
