package pushhttp

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/weir-gateway/weir/internal/push/wire"
)

// drain is one that has started.
type drain struct {
	plan wire.DrainPlan
	at   time.Time
}

// Draining reports whether Drain was called.
func (s *Server) Draining() bool { return s.draining.Load() != nil }

// Drain refuses new streams and ends those there are, as plan says. It returns at
// once, and only the first call counts.
func (s *Server) Drain(plan wire.DrainPlan) {
	if s.draining.CompareAndSwap(nil, &drain{plan, time.Now()}) {
		close(s.drained)
	}
}

// leaveAfter is a stream's own moment of the drain.
func (s *Server) leaveAfter() <-chan time.Time {
	return time.After(rand.N(max(s.draining.Load().plan.Over, 1)))
}

// EndRefused closes the WebSockets that were refused and are still open: the process
// ends.
func (s *Server) EndRefused() { s.endOnce.Do(func() { close(s.ending) }) }

// reconnect is how long a client should wait that is closed or refused with code.
func (s *Server) reconnect(code int, refused bool) time.Duration {
	if d := s.draining.Load(); d != nil && code == codeRestart {
		return d.plan.Reconnect(time.Since(d.at), refused)
	}
	// There is too little of something here: spread wider than retryMillis, for many
	// are sent away together.
	return s.cfg.Retry/2 + rand.N(4*s.cfg.Retry+1)
}

const (
	// leastHeld and mostHeld bound how long a refused WebSocket is open.
	leastHeld = 200 * time.Millisecond
	mostHeld  = 2 * time.Second
	// maxHeldDrain and maxHeldBusy bound the refused WebSockets that are open; those past
	// it are closed at once.
	maxHeldDrain = 2048
	maxHeldBusy  = 64
)

// hold keeps a refused WebSocket open for as long as its client should wait: most
// clients retry at once after a close.
func (s *Server) hold(ctx context.Context, code int) {
	bound := int64(maxHeldBusy)
	if s.Draining() {
		bound = maxHeldDrain
	}
	defer s.held.Add(-1)
	if s.held.Add(1) > bound {
		return
	}
	wait := time.NewTimer(min(max(s.reconnect(code, true), leastHeld), mostHeld))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-s.ending:
	case <-ctx.Done():
	}
}
