package push

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// refusals decides whether new clients are served, and answers those who are not with when
// to come back.
type refusals struct {
	// Fixed at New.
	retry          time.Duration
	maxSubscribers int64 // 0: no bound
	log            *slog.Logger
	count          *counters

	// Any goroutine.
	draining   atomic.Pointer[drain] // nil: none
	leaving    atomic.Bool           // Leave was called
	refusing   atomic.Bool           // new subscriptions are rejected: there is too little of something
	fullLogged atomic.Int64          // when it was last logged that there is no room, in Unix nanoseconds
}

// fullLogEvery is how often it is logged that there is no room for subscribers.
const fullLogEvery = 10 * time.Second

// full reports whether there is no room for a subscriber more, besides counted of those
// in the counters.
func (r *refusals) full(counted int64) bool {
	if r.maxSubscribers == 0 {
		return false
	}
	n := r.count.sse.Load() + r.count.ws.Load() - counted
	if n < r.maxSubscribers {
		return false
	}
	if now, last := time.Now().UnixNano(), r.fullLogged.Load(); now-last >= int64(fullLogEvery) && r.fullLogged.CompareAndSwap(last, now) {
		r.log.Warn("new subscribers are refused: the connections left are for publishers and health checks",
			"subscribers", n, "bound", r.maxSubscribers, "hint", "raise the descriptor limit (ulimit -n, LimitNOFILE=) or eventloop.max_conns")
	}
	return true
}
