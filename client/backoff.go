package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// maxRequested bounds what a server can request: a longer wait is a mistake.
const maxRequested = 15 * time.Minute

// A backoff reports how long to wait before the next attempt. Waits are random, so
// that clients which lost the same server do not come back together.
type backoff struct {
	min, max time.Duration
	failed   int // attempts without success in a row
}

// next returns the wait and counts the attempt. A wait that the server requests
// is kept, and stretched by up to a half: it may have asked everybody the same.
func (b *backoff) next(requested time.Duration, hasRequested bool) time.Duration {
	d := b.min
	for range b.failed {
		if d >= b.max/2 {
			d = b.max
			break
		}
		d *= 2
	}
	d = d/2 + jitter(d/2)
	b.failed++
	if !hasRequested {
		return d
	}
	requested = min(max(requested, 0), maxRequested)
	requested += jitter(requested / 2)
	if b.failed == 1 {
		return requested
	}
	return max(requested, d)
}

func jitter(d time.Duration) time.Duration { return rand.N(d + 1) }

// sleep waits for d or the end of ctx, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
