package main

import (
	"context"
	"sync"
	"time"
)

// repeat calls f every d until ctx is done or stop is called, which ends f's ctx and waits
// for f. stop is idempotent.
func repeat(ctx context.Context, d time.Duration, f func(ctx context.Context, now time.Time)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				f(ctx, now)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}
