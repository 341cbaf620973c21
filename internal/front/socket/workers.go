package socket

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
)

// maxWork bounds what Workers have at work at a time.
const maxWork = 1024

// Workers run what may block, for sessions and requests whose owners must not, on a bounded
// number of goroutines.
type Workers struct {
	// Fixed at NewWorkers.
	ctx    context.Context
	cancel context.CancelFunc
	log    *slog.Logger

	// Any goroutine.
	working sync.WaitGroup
	atWork  atomic.Int64
}

// NewWorkers returns Workers that log to log what panics.
func NewWorkers(log *slog.Logger) *Workers {
	w := &Workers{log: log}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// Do runs work on a goroutine and calls then from it. It reports false when there is too
// much at work: nothing is done then. work's context ends with Close. Any goroutine.
func (w *Workers) Do(work func(context.Context), then func()) bool {
	if w.atWork.Add(1) > maxWork {
		w.atWork.Add(-1)
		return false
	}
	w.working.Go(func() {
		defer then()
		defer w.atWork.Add(-1)
		defer func() {
			if r := recover(); r != nil {
				w.log.Error("panic in the work of a protocol", "panic", fmt.Sprint(r))
			}
		}()
		work(w.ctx)
	})
	return true
}

// Close ends the context of what is at work and waits for it. It is idempotent. Nothing may
// call Do any more.
func (w *Workers) Close() {
	w.cancel()
	w.working.Wait()
}
