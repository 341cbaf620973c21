package upstream

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// An Attempt is what MayRetry and MayHedge need to know of a request.
type Attempt struct {
	Outcome Outcome // of the attempt that failed; for MayHedge the zero value
	Made    int     // attempts so far, at least 1
	// Idempotent: its method is (RFC 9110 §9.2.2).
	Idempotent bool
	// Replayable: its body is still at hand, or there was none.
	Replayable bool
	// Started: a byte of a reply went downstream.
	Started bool
}

// budgetWindow is the time over which retries and hedges are held to their share.
const budgetWindow = 10 * int64(time.Second)

// A retryBudget counts retries by the second.
type retryBudget struct {
	spent   window
	made    atomic.Uint64
	refused atomic.Uint64 // for want of budget
}

// hedging is what a cluster knows of its hedges.
type hedging struct {
	spent window
	made  atomic.Uint64
	after atomic.Int64 // by percentile; 0: not known yet
	times times
}

type hedgePolicy struct {
	after      int64
	percentile float64
	share      float64
}

// requests counts the attempts of the budget's window that ended.
func (v *view) requests(now int64) (n int) {
	for e := range v.all() {
		total, _ := e.peer.traffic.sum(now, budgetWindow, 0)
		n += total
	}
	return n
}

// MayRetry reports whether another attempt may be made, and takes it from the
// budget if so. Never after a byte went downstream, and where the request may have
// been processed only if its method is idempotent. Concurrent calls may go over the
// budget by one each.
//
// Any goroutine may call it.
func (c *Cluster) MayRetry(now int64, a Attempt) bool {
	v := c.view.Load()
	r := &v.policy.retry
	if a.Started || !a.Replayable || a.Made >= r.attempts || !r.covers(a) {
		return false
	}
	if !r.nonIdempotent && !a.Idempotent && a.Outcome.Kind != ConnectError && a.Outcome.Kind != Refused {
		return false
	}
	if a.Outcome.Kind == Stale {
		// It is bounded by the attempts and by the connections that were idle.
		return true
	}
	spent, _ := c.retries.spent.sum(now, budgetWindow, 0)
	first := max(v.requests(now)-spent, 0)
	if float64(spent)+1 > r.budget*float64(first)+float64(r.perSecond)*float64(budgetWindow/1e9) {
		c.retries.refused.Add(1)
		return false
	}
	c.retries.spent.add(now, false)
	c.retries.made.Add(1)
	return true
}

// covers reports whether what happened is retried at all.
func (r *retryPolicy) covers(a Attempt) bool {
	switch a.Outcome.Kind {
	case ConnectError:
		return r.on.connect
	case Reset:
		return r.on.reset && a.Outcome.FirstByte == 0
	case Timeout:
		return r.on.timeout && a.Outcome.FirstByte == 0
	case Stale, Refused:
		return true
	case OK:
		return r.on.has(a.Outcome.Status)
	}
	return false
}

// HedgeAfter is how long to wait for a first byte before asking MayHedge; 0 means
// never, or that too little is known yet.
func (c *Cluster) HedgeAfter() time.Duration {
	h := &c.view.Load().policy.hedge
	switch {
	case h.after > 0:
		return time.Duration(h.after)
	case h.percentile > 0:
		return time.Duration(c.hedges.after.Load())
	}
	return 0
}

// MayHedge reports whether a second attempt may run beside the first, and takes it
// from the share if so. Its Pick is with a Strict Tried; the loser of the two is
// Done as Canceled. Any goroutine may call it.
func (c *Cluster) MayHedge(now int64, a Attempt) bool {
	v := c.view.Load()
	h := &v.policy.hedge
	if h.after == 0 && h.percentile == 0 || !v.several() {
		return false
	}
	if a.Made != 1 || a.Started || !a.Replayable || !a.Idempotent {
		return false
	}
	spent, _ := c.hedges.spent.sum(now, budgetWindow, 0)
	if float64(spent)+1 > h.share*float64(v.requests(now)) {
		return false
	}
	c.hedges.spent.add(now, false)
	c.hedges.made.Add(1)
	return true
}

// times is a histogram of times to the first byte, four buckets per doubling.
type times struct {
	buckets [160]atomic.Uint32
}

func (t *times) add(ns int64) {
	t.buckets[timeBucket(ns)].Add(1)
}

func timeBucket(ns int64) int {
	u := uint64(max(ns, 4))
	e := bits.Len64(u) - 3
	return min(4*e+int(u>>e&3), len(times{}.buckets)-1)
}

// upper is the least time above bucket i.
func (t *times) upper(i int) int64 {
	return int64(4+i%4+1) << (i / 4)
}

// enoughTimes is how many are needed to speak of a percentile.
const enoughTimes = 100

// percentile is the time below which p percent are, 0 if there are too few. It
// halves the counts, so that what is asked every second is about the last seconds.
func (t *times) percentile(p float64) int64 {
	var counts [len(t.buckets)]uint32
	total := uint64(0)
	for i := range t.buckets {
		n := t.buckets[i].Load()
		counts[i] = n
		total += uint64(n)
	}
	if total < enoughTimes {
		return 0
	}
	at, rank := uint64(0), uint64(math.Ceil(p/100*float64(total)))
	found := int64(0)
	for i, n := range counts {
		if at += uint64(n); found == 0 && at >= rank {
			found = t.upper(i)
		}
		t.buckets[i].Add(-(n - n/2))
	}
	return found
}
