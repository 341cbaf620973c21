// Package upstream is the policy towards backends: clusters of peers, balancing,
// health, breaking, retry budgets, releases. It opens no connection for a request;
// the proxy (internal/proxy) calls it in four places:
//
//	split.Choose(req, random)  which cluster serves this request (releases)
//	cluster.Pick(now, key, t)  which peer is asked, counting it in flight
//	cluster.Head(p, …)         the reply's head is here: the verdict on the peer
//	cluster.Done(p, outcome)   the exchange is over: not in flight any more
//
// and, when an attempt failed, cluster.MayRetry, or while it lasts, cluster.MayHedge.
// Each Pick that returned a peer is paired with exactly one Done.
//
// These calls are the hot path. Any goroutine may make them, event loops above all:
// they take no lock, wait for nothing and allocate nothing. What must wait (DNS,
// health checks, the evaluation of canaries and drift, logs) runs on goroutines of
// [Set.Run] through the functions in [Options].
//
// Times are int64 nanoseconds of one clock that never goes back: that of
// [Options.Now]. A loop passes its tick's now.
package upstream
