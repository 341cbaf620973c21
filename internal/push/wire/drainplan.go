package wire

import (
	"math/rand/v2"
	"time"
)

// A DrainPlan says over which time a drain closes its connections and when the clients
// are to connect again. The zero value closes all of them at once and has them return
// at once.
type DrainPlan struct {
	// Over is the time over which connections are closed, evenly; 0 means at once.
	Over time.Duration
	// Away is the time from the start of the drain until a server accepts these clients
	// again: the next process of this node, or another node. 0 means that one does now.
	Away time.Duration
	// Spread is the time over which reconnections are distributed, beyond Away.
	Spread time.Duration
}

// Bounds of what a client waits that came to a draining process: it is the only
// evidence that something still leads here.
const (
	leastRefusal  = 250 * time.Millisecond
	refusalSpread = 750 * time.Millisecond
)

// Reconnect returns how long a client should wait that is closed when the drain has
// lasted for since. refused is for one that was not served at all.
func (p DrainPlan) Reconnect(since time.Duration, refused bool) time.Duration {
	wait := max(p.Away-since, 0)
	if p.Spread > 0 {
		wait += rand.N(p.Spread)
	}
	if refused && wait < leastRefusal {
		wait = leastRefusal + rand.N(refusalSpread)
	}
	return wait
}

// RetryMillis is Reconnect as the retry field of server-sent events has it.
func (p DrainPlan) RetryMillis(since time.Duration, refused bool) int {
	return int(p.Reconnect(since, refused).Milliseconds())
}
